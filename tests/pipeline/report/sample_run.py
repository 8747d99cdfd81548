"""A small run of a made-up model: its plan, its predicted timeline, and a 'measured' one with noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import FloatArray, Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile, Verdict
from partita.nouns.program import Op, Program
from partita.pipeline.report.story import Engine, Story
from partita.simulate.lower import lower
from partita.simulate.simulator import durations, simulate


def chain(layers: int) -> tuple[TaskGraph, list[float]]:
    """A chain of layers, forward and backward, with one skip from an early layer to a late one; seconds of each task."""
    rng = np.random.default_rng(7)
    forward = [f"layer{1 + i // 4}.{i % 4}.conv" for i in range(layers)]
    size = np.geomspace(2.1e6, 1.3e5, layers)
    tasks = [
        Task(f, f"{f} conv2d", "forward", parameter_bytes=4e3 * (i + 1) ** 2, activation_bytes=size[i])
        for i, f in enumerate(forward)
    ]
    tasks += [Task(f"{f}.grad", f"{f} conv2d", "backward", of=f) for f in reversed(forward)]
    tasks += [Task(f"{f}.step", f"{f} sgd", "update", of=f) for f in forward]
    tensors: list[tuple[str, float, list[str]]] = []
    for i, f in enumerate(forward):
        readers = [forward[i + 1]] if i + 1 < layers else []
        if i == 1 and layers > 4:
            readers.append(forward[layers - 2])
        tensors.append((f, float(size[i]), [*readers, f"{f}.grad"]))
        before = [f"{forward[i - 1]}.grad"] if i else []
        if i == layers - 2 and layers > 4:
            before.append(f"{forward[1]}.grad")
        tensors.append((f"{f}.grad", float(size[i - 1]) if i else 0.0, before))
    seconds = [1e-3 * x for x in rng.uniform(0.6, 1.4, layers)]
    back = [2.05 * s for s in reversed(seconds)]
    return TaskGraph.build("cifar-resnet", tasks, tensors), [*seconds, *back, *[2e-4] * layers]


def make_plan(stages: int, micro_batches: int, layers: int = 24) -> PlanFile:
    """A pipeline plan of equally many layers a stage."""
    graph, seconds = chain(layers)
    devices = tuple(Device(f"cpu{i}", "cpu", 8e9, cores=(i,)) for i in range(stages))
    cluster = Cluster(devices, (), Link("", "", 1.2e9, 6e-5, message_s=4e-5), "measured")
    costs = CostTable.given(["cpu"], [[s] for s in seconds], [float("nan")] * len(graph.producer))
    forward = [t.id for t in graph.tasks if t.phase == "forward"]
    cut = np.array_split(np.array(forward), stages)
    plan = PipelinePlan(
        graph.fingerprint,
        tuple(Stage(tuple(str(t) for t in c), (f"cpu{k}",)) for k, c in enumerate(cut)),
        micro_batches,
        stages,
        "1f1b",
    )
    program = lower(graph, cluster, plan)
    value = simulate(program, durations(program, graph, costs, cluster)).duration_s
    verdict = Verdict(value, 0.97 * value, "linear relaxation", "antichain", 0.31)
    return PlanFile(plan, verdict, PipelineProblem(graph, cluster, costs, "cifar.py:job", 4 * micro_batches, 4))


def _waiting(program: Program, start_s: FloatArray, end_s: FloatArray) -> FloatArray:
    """Starts as the real engine notes them: a receive begins when its device is free, and lasts until the message is there."""
    start_s = start_s.copy()
    for queue in program.by_queue[: program.devices]:
        for before, i in pairwise(queue.tolist()):
            if program.op[i] == Op.RECV:
                start_s[i] = end_s[before]
    return start_s


def make_story(stages: int = 2, micro_batches: int = 16, measured: bool = True, layers: int = 24) -> Story:
    """A run of that plan; 'measured' is the simulator with a few per cent of noise on every duration."""
    file = make_plan(stages, micro_batches, layers)
    program = lower(file.graph, file.cluster, file.plan)
    expected = durations(program, file.graph, file.costs, file.cluster)
    predicted = simulate(program, expected)
    rng = np.random.default_rng(3)
    tilt = 1.0 + 0.03 * np.sin(1.7 * program.piece)
    noise = tilt * rng.lognormal(0.012, 0.025, len(program))
    real = simulate(program, replace(expected, busy_s=expected.busy_s * noise))
    real = replace(real, source="measured", start_s=_waiting(program, real.start_s, real.end_s))
    single = float(expected.busy_s[program.queue < program.devices].sum())
    losses = tuple((i, 2.3 * float(np.exp(-i / 25)) + 0.35 + 0.05 * float(rng.normal())) for i in range(60))
    torch = tuple((i, x * (1 + 1e-7)) for i, x in losses[:20])
    step = real.duration_s
    engines = (
        replace(
            Engine.of("single", [single * f for f in (0.992, 1.0, 1.011)], losses[:20]), predicted_s=0.995 * single
        ),
        replace(
            Engine.of("pipeline", [step * f for f in (0.99, 1.002, 1.02)], losses[:20]),
            predicted_s=predicted.duration_s,
        ),
        Engine.of("torch", [single / 1.4 * f for f in (0.97, 1.0, 1.03)], torch),
    )
    facts = {
        "machine": "AMD EPYC 7B13, 2 cores",
        "python": "3.11.2",
        "torch": "2.13.0+cpu",
        "batch_size": 64,
        "load": 0.42,
        "cpu_s": 31.7,
        "date": "2025-06-01T12:00:00Z",
    }
    alternatives = {"antichain": predicted.duration_s, "blocks": predicted.duration_s * 1.04, "even": predicted.duration_s * 1.09, "single": single}  # fmt: skip
    return Story(
        "cifar-resnet", file, predicted, real if measured else None,
        engines if measured else (), alternatives, facts, losses if measured else (),
    )  # fmt: skip
