"""How long one evaluation of the simulator takes, after compilation: a small program many times, and a very large one.

    python benchmarks/simulator.py [--repeats 15] [--json]

Small: a random layered graph of 300 tasks placed at random on 4 devices and lowered, with all its transfers. `small_us`
is one of 8192 evaluations with different durations in one call of `Simulator.evaluate_many`; one call of
`Simulator.evaluate` from Python, and a walk of the program from nothing, checks included, are given beside it.

Million: 1F1B over 16 stages with enough micro-batches for a million instructions, lowered. `million_ms` is everything
between the program and its times: the durations from costs and cluster, all array set-up, the walk. Each figure is a
median over the repeats, in each of which every figure is taken once; range and interval stand beside it. One thread.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import time
from collections.abc import Callable

import numpy as np
from harness import Json, Machine, Samples, in_turn, parser, run_script, said
from intervals import MOST_DRIFT_ALONE, Claim, Interval, bootstrap

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.program import Program
from partita.simulate.lower import lower
from partita.simulate.simulator import Durations, Simulator, durations, times


def layered_graph(tasks: int, layers: int, seed: int) -> TaskGraph:
    """Layers of equal size; a task reads one to three tasks of the layer before."""
    dice = random.Random(seed)
    rows = [range(k * tasks // layers, (k + 1) * tasks // layers) for k in range(layers)]
    readers: dict[int, list[str]] = {}
    for before, row in itertools.pairwise(rows):
        for v in row:
            for u in dice.sample(before, dice.randint(1, min(3, len(before)))):
                readers.setdefault(u, []).append(str(v))
    tensors = [(str(u), dice.uniform(1e3, 1e6), vs) for u, vs in readers.items()]
    return TaskGraph.build("layered", [Task(str(i)) for i in range(tasks)], tensors)


def random_costs(graph: TaskGraph, seed: int) -> CostTable:
    seconds = np.random.default_rng(seed).uniform(1e-5, 1e-3, (len(graph), 1))
    return CostTable.given(["cpu"], seconds, np.full(len(graph.producer), math.nan))


def some_cluster(devices: int) -> Cluster:
    return Cluster(tuple(Device(f"cpu{i}") for i in range(devices)), (), Link("", "", 1e9, 2e-5, message_s=1e-6))


def small_program() -> tuple[Program, Durations]:
    """300 tasks on 4 devices."""
    graph, cluster, dice = layered_graph(300, 30, seed=0), some_cluster(4), random.Random(1)
    where = {t.id: f"cpu{dice.randrange(4)}" for t in graph.tasks}
    program = lower(graph, cluster, PlacementPlan(graph.fingerprint, where))
    return program, durations(program, graph, random_costs(graph, 2), cluster)


def large_pipeline(instructions: int) -> tuple[Program, Callable[[], Durations]]:
    """A lowered 1F1B pipeline of 16 stages with at least so many instructions, and what computes its durations."""
    stages = 16
    a_micro_batch = 2 * stages + 4 * (stages - 1)  # computations; sends and receives, forward and back
    forward = [Task(f"f{i}") for i in range(stages)]
    backward = [Task(f"b{i}", phase="backward", of=f"f{i}") for i in reversed(range(stages))]
    tensors = [(f"f{i}", 1e6, [*([f"f{i + 1}"] if i + 1 < stages else []), f"b{i}"]) for i in range(stages)]
    tensors += [(f"b{i}", 1e6, [f"b{i - 1}"]) for i in range(1, stages)]
    graph, cluster = TaskGraph.build("chain", [*forward, *backward], tensors), some_cluster(stages)
    rows = tuple(Stage((f"f{i}",), (f"cpu{i}",)) for i in range(stages))
    micro_batches = -(-instructions // a_micro_batch)
    plan = PipelinePlan(graph.fingerprint, rows, micro_batches, 2 * stages, "1f1b")
    program, costs = lower(graph, cluster, plan), random_costs(graph, 3)
    return program, lambda: durations(program, graph, costs, cluster)


def figures(name: str, samples: Samples, scale: float) -> Json:
    """Median, range and interval of what was timed, in seconds times `scale`."""
    return {
        name: samples.median_s * scale,
        f"{name}_range": [s * scale for s in samples.range_s],
        f"{name}_interval": _scaled(samples, scale).ends,
    }


def _scaled(samples: Samples, scale: float) -> Interval:
    return bootstrap(lambda s: s * scale, samples.wall_s)


Works = dict[str, tuple[Callable[[], object], float]]  #: figure -> (what is timed, its unit over a second)


def small(evaluations: int = 8192, calls: int = 500) -> tuple[Works, Json]:
    """What is timed of the small program, and its sizes."""
    program, d = small_program()
    simulator = Simulator(program)
    many = d.busy_s * np.random.default_rng(4).uniform(0.5, 1.5, (evaluations, len(program)))

    def one_by_one() -> None:
        for busy in many[:calls]:
            simulator.evaluate(busy, d.lag_s)

    def walks() -> None:
        for busy in many[:calls]:
            times(program, Durations(busy, d.lag_s))

    works: Works = {
        "small_us": (lambda: simulator.evaluate_many(many, d.lag_s), 1e6 / evaluations),
        "small_one_call_us": (one_by_one, 1e6 / calls),
        "small_walk_us": (walks, 1e6 / calls),
    }
    return works, {"small_tasks": 300, "small_instructions": len(program)}


def million(instructions: int = 1_000_000) -> tuple[Works, Json]:
    """What is timed of the large program, and its sizes."""
    begin = time.perf_counter()
    program, costed = large_pipeline(instructions)
    lowered = time.perf_counter() - begin
    d = costed()
    simulator = Simulator(program)
    works: Works = {
        "million_ms": (lambda: times(program, costed()), 1e3),
        "million_durations_ms": (costed, 1e3),
        "million_times_ms": (lambda: times(program, d), 1e3),
        "million_compile_ms": (lambda: Simulator(program), 1e3),
        "million_compiled_ms": (lambda: simulator.evaluate(d.busy_s, d.lag_s), 1e3),
    }
    return works, {"million_lower_s": lowered, "million_instructions": len(program)}


#: What each run is judged by; README.md gives the figures of one run.
CLAIMS = {
    "small_us": Claim(
        "an evaluation of 300 tasks on 4 devices takes at most 1 us", high=1.0, most_drift=MOST_DRIFT_ALONE
    ),
    "million_ms": Claim("a million instructions take at most 60 ms", high=60.0, most_drift=MOST_DRIFT_ALONE),
}


def benchmark(repeats: int, machine: Machine) -> Json:
    """Every figure once a round; the first round compiles."""
    cpu, wall = time.process_time(), time.perf_counter()
    parts = [small(), million()]
    works: Works = {name: work for part, _ in parts for name, work in part.items()}
    found = in_turn({n: w for n, (w, _) in works.items()}, repeats, warmup=1, between=lambda: machine.look_again(5.0))
    record = machine.finished()
    claims = {n: (claim, _scaled(found[n], works[n][1])) for n, claim in CLAIMS.items()}
    document: Json = {}
    for name, (_, scale) in works.items():
        document |= figures(name, found[name], scale)
    for _, sizes in parts:
        document |= sizes
    return {
        **document, **record["facts"], "repeats": repeats, "cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall,
        "verdicts": machine.verdicts(claims), "samples": {n: s.to_json() for n, s in found.items()}, "machine_record": record,
    }  # fmt: skip


ROWS = (
    ("small_us", "us", "300 tasks, 4 devices: one of many evaluations"),
    ("small_one_call_us", "us", "... one call from Python"),
    ("small_walk_us", "us", "... from the program alone, with checks"),
    ("million_ms", "ms", "a million instructions: durations and times"),
    ("million_durations_ms", "ms", "... durations from costs and cluster"),
    ("million_times_ms", "ms", "... times, durations given"),
    ("million_compiled_ms", "ms", "... makespan, program compiled"),
    ("million_compile_ms", "ms", "... compiling the program"),
)


def readable(found: Json) -> str:
    lines = [f"{'':46}{'median':>12}{'min':>12}{'max':>12}"]
    lines += [
        f"{what:46}" + "".join(f"{value:>9.2f} {unit}" for value in (found[key], *found[f"{key}_range"]))
        for key, unit, what in ROWS
    ]
    lines.append(
        f"{found['small_instructions']} and {found['million_instructions']} instructions; {found['repeats']} repeats; "
        f"numba {found['numba']}, numpy {found['numpy']}"
    )
    return "\n".join([*lines, said(found)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=15, help="how often each figure is taken (default 15)")
    given = options.parse_args()
    if given.repeats < 1:
        options.error(f"--repeats {given.repeats}: at least 1")
    return run_script(given, lambda m, _: benchmark(given.repeats, m), readable, packages=("numba",))


if __name__ == "__main__":
    sys.exit(main())
