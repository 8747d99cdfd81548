"""Pipelines over unequal devices: groups by clustering against exhaustive grouping, and 64 devices.

    python benchmarks/groups.py [--clusters 200] [--from 0] [--no-large] [--json]

Every random world is a model of 6 to 14 layers, 4 to 8 devices of unequal speed and memory on one to three hosts with fast links
inside and slow ones between, and 4 to 32 micro-batches. The judge takes every partition of every subset of the devices into
groups and every order of the devices in a group of up to 6 (the program cuts each), simulates every partition whose estimate is near the
best step, and changes the best ten one thing at a time. What `groups` finds is compared with the best of both. Large: 64 devices on
16 hosts, the PipeDream-like model of 40 layers of the script.
"""

from __future__ import annotations

import math
import statistics
import sys
import time

import numpy as np
from harness import Json, Machine, parser, run_script, said
from intervals import Claim, Interval

from partita.cli.talk import Talk
from partita.errors import Infeasible
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.pipeline_problem import Wish
from partita.nouns.profile import Profile, Sample
from partita.pipeline.plan.bench import Effort
from partita.pipeline.plan.groups import method
from partita.pipeline.plan.groups.clusters import partitions
from partita.pipeline.plan.groups.crew import Crews
from partita.pipeline.plan.groups.line import line_of
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.pipeline.plan.planner import plan_pipeline

NEAR = 1.1  #: times the best step so far: partitions with such estimates are simulated
MOST = 150  #: of them
TUNED = 10  #: of them changed one thing at a time
ALL_ORDERS = 6  #: devices of a group; larger groups are tried in a few orders
LARGE = 64

CLAIMS = {
    "mean_gap": Claim("groups are at most 1 % above the best grouping on the average", high=0.01, most_drift=math.inf),
    "worst_gap": Claim("and at most 5 % in every world", high=0.05, most_drift=math.inf),
    "large_s": Claim("64 devices are planned in at most 20 s", high=20.0),
}


def model(lot: np.random.Generator, layers: int) -> tuple[TaskGraph, CostTable]:
    """A chain that grows narrower and heavier, as convolutions do: activations shrink, weights grow."""
    depth = np.arange(layers) / layers
    sent = 10 ** (8.3 - 1.5 * depth + lot.normal(0, 0.3, layers))
    weight = 10 ** (5.5 + 2.5 * depth + lot.normal(0, 0.4, layers))
    seconds = lot.lognormal(math.log(0.01), 0.7, layers)
    forward = [Task(f"f{i}", "", "forward", None, None, weight[i], 2 * sent[i]) for i in range(layers)]
    backward = [Task(f"b{i}", phase="backward", of=f"f{i}") for i in reversed(range(layers))]
    update = [Task(f"u{i}", phase="update", of=f"f{i}") for i in range(layers)]
    tensors = [(f"f{i}", sent[i], [*([f"f{i + 1}"] if i + 1 < layers else []), f"b{i}"]) for i in range(layers)]
    tensors += [(f"b{i}", sent[i - 1], [f"b{i - 1}"]) for i in range(1, layers)]
    tensors += [(f"b{i}", 0.0, [f"u{i}"]) for i in range(layers)]
    graph = TaskGraph.build("model", [*forward, *backward, *update], tensors)
    times = [*seconds, *(2 * seconds[::-1]), *([0.0] * layers)]
    return graph, CostTable.given(("gpu",), [[t] for t in times], [math.nan] * len(graph.producer))


def cluster(lot: np.random.Generator, n: int, hosts: int, needs: float) -> Cluster:
    """Devices of four speeds; memory from a third of what the model needs on one of them to three times as much."""
    host = sorted(int(h) for h in lot.integers(0, hosts, n))
    devices = tuple(
        Device(f"gpu{i}", "gpu", needs * float(lot.choice([0.35, 0.6, 1.2, 3.0])), float(lot.choice([0.25, 0.5, 0.7, 1.0])), f"host{h}")
        for i, h in enumerate(host)
    )  # fmt: skip
    inside, between = (float(lot.choice(r)) for r in ([5e9, 12e9, 50e9], [1.25e8, 1.25e9, 5e9]))
    links = tuple(
        Link(a.name, b.name, inside if a.host == b.host else between, 1e-5 if a.host == b.host else 1e-4)
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster(devices, links)


def world(seed: int) -> Profile:
    """A random job and cluster."""
    lot = np.random.default_rng(seed)
    graph, costs = model(lot, int(lot.integers(6, 15)))
    needs = sum(2 * t.parameter_bytes + t.activation_bytes for t in graph.tasks)
    there = cluster(lot, int(lot.integers(4, 9)), int(lot.integers(1, 4)), needs)
    return Profile("job.py:job", int(lot.choice([4, 8, 16, 32])), (Sample(1, graph, costs),), there)


def large(seed: int = 0) -> Profile:
    lot = np.random.default_rng(seed)
    graph, costs = model(lot, 40)
    needs = sum(2 * t.parameter_bytes + t.activation_bytes for t in graph.tasks)
    return Profile("job.py:job", 256, (Sample(1, graph, costs),), cluster(lot, LARGE, 16, needs))


# ---- the judge -----------------------------------------------------------------------------------------------------------


def exhaustive_s(profile: Profile) -> float:
    """The step of the best grouping; inf where none fits."""
    task = PipelineTask(profile, profile.cluster, Wish(budget_s=1e6))
    bench = task.benches[0]
    crews = Crews(line_of(task, bench), bench.costs.micro_batches, Effort(math.inf), all_orders=ALL_ORDERS)
    found = sorted((s for g in partitions(crews.devices) if (s := crews.shared(g))), key=lambda s: s.step_s)
    best, steps = math.inf, []
    for s in dict.fromkeys(found[:MOST]):
        if s.step_s > best * NEAR:
            break
        candidate = method.candidate(bench, crews, s)
        steps.append((bench.step_s(candidate), s, candidate))
        best = min(best, steps[-1][0])
    for _, s, candidate in sorted(steps, key=lambda x: x[0])[:TUNED]:
        best = min(best, bench.step_s(method.overlapped(bench, crews, *method.tuned(bench, crews, s, candidate))))
    return best


def row(seed: int) -> Json:
    """One world."""
    profile = world(seed)
    began = time.perf_counter()
    try:
        file = plan_pipeline(profile, method="groups", allow_recompute=False)
        value, bound = file.verdict.value_s, file.verdict.lower_bound_s
    except Infeasible:
        value, bound = math.inf, math.inf
    spent = time.perf_counter() - began
    judge = exhaustive_s(profile)
    best = min(value, judge)
    gap = value / best - 1 if math.isfinite(best) else 0.0
    return {
        "seed": seed, "devices": len(profile.cluster.devices), "micro_batches": profile.batch_size,
        "step_s": value if math.isfinite(value) else None, "best_s": best if math.isfinite(best) else None, "gap": gap,
        "bound_s": bound if math.isfinite(bound) else None, "seconds": spent,
        "judge_seconds": time.perf_counter() - began - spent,
    }  # fmt: skip


def benchmark(first: int, clusters: int, wants_large: bool, machine: Machine, talk: Talk) -> Json:
    rows = []
    for seed in range(first, first + clusters):
        rows.append(row(seed))
        talk.progress("clusters", len(rows), clusters)
    document: Json = {"rows": rows}
    if gaps := [r["gap"] for r in rows]:
        document |= {"mean_gap": statistics.mean(gaps), "worst_gap": max(gaps)}
    if wants_large:
        began = time.perf_counter()
        file = plan_pipeline(large(), method="groups")
        auto = time.perf_counter()
        document |= {
            "large_s": auto - began, "large_step_s": file.verdict.value_s, "large_bound_s": file.verdict.lower_bound_s,
            "large_groups": len(file.plan.stages[0].devices),
        }  # fmt: skip
    record = machine.finished()
    claims = {n: (c, Interval(document[n], document[n], document[n])) for n, c in CLAIMS.items() if n in document}
    return {**document, "verdicts": machine.verdicts(claims), "machine_record": record}


def text(d: Json) -> str:
    lines = []
    if rows := d["rows"]:
        lines.append(
            f"{len(rows)} clusters of {min(r['devices'] for r in rows)} to {max(r['devices'] for r in rows)} devices: "
            f"mean {d['mean_gap']:.2%} above the best grouping, worst {d['worst_gap']:.2%}; "
            f"{statistics.mean(r['seconds'] for r in rows):.2f} s each (the judge {statistics.mean(r['judge_seconds'] for r in rows):.1f} s)"
        )
    if "large_s" in d:
        lines.append(
            f"{LARGE} devices: planned in {d['large_s']:.1f} s, {d['large_groups']} groups, step {d['large_step_s']:.3f} s, "
            f"bound {d['large_bound_s']:.3f} s"
        )
    return "\n".join([*lines, said(d)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--clusters", type=int, default=200, metavar="N", help="random worlds; 0: none (default 200)")
    options.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="the first one's seed")
    options.add_argument("--no-large", action="store_true", help=f"leave out {LARGE} devices")
    given = options.parse_args()
    return run_script(
        given, lambda m, t: benchmark(given.first, given.clusters, not given.no_large, m, t), text, packages=("numba",)
    )


if __name__ == "__main__":
    sys.exit(main())
