"""What a plan looks like, in numbers: a row a stage or a device. From the plan file alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from partita.graph import FloatArray
from partita.plan import PipelinePlan, PlanFile, Stage
from partita.schedules import in_flight_of


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage of a pipeline plan."""

    stage: int
    first: str  #: where it begins: the name of its first task
    last: str
    tasks: int
    devices: tuple[str, ...]
    forward_s: float  #: of one micro-batch on one of its devices
    backward_s: float
    share: float  #: of the work, per device
    need_bytes: float  #: of memory on each device
    memory_bytes: float  #: that the smallest of its devices has
    recompute: bool


def stage_rows(file: PlanFile) -> list[StageRow]:
    """A row for each stage of a pipeline plan."""
    plan = file.plan
    assert isinstance(plan, PipelinePlan)
    held = in_flight_of(plan.schedule, [s.replicas for s in plan.stages], plan.micro_batches, plan.in_flight)
    rows = [_row(file, k, s, -(-h // s.replicas)) for k, (s, h) in enumerate(zip(plan.stages, held, strict=True))]
    total = sum(r.forward_s + r.backward_s for r in rows) or 1.0
    return [_with_share(r, (r.forward_s + r.backward_s) / len(r.devices) / total) for r in rows]


def _with_share(row: StageRow, share: float) -> StageRow:
    return StageRow(
        row.stage, row.first, row.last, row.tasks, row.devices, row.forward_s, row.backward_s, share,
        row.need_bytes, row.memory_bytes, row.recompute,
    )  # fmt: skip


def _row(file: PlanFile, k: int, stage: Stage, held: int) -> StageRow:
    graph, device = file.graph, file.cluster.by_name[stage.devices[0]]
    seconds = file.costs.seconds[:, file.costs.column(device.kind)] / device.speed
    forward, backward = phase_seconds(file, stage, seconds)
    names = [graph.tasks[graph.index[t]].name or t for t in (stage.tasks[0], stage.tasks[-1])]
    return StageRow(
        k, names[0], names[1], len(stage.tasks), stage.devices, forward, backward + (forward if stage.recompute else 0.0),
        math.nan, stage_bytes(file, stage, held), min(file.cluster.by_name[d].memory_bytes for d in stage.devices),
        stage.recompute,
    )  # fmt: skip


def phase_seconds(file: PlanFile, stage: Stage, seconds: FloatArray) -> tuple[float, float]:
    """Forward and backward seconds of a stage, given those of every task."""
    mine = set(stage.tasks)
    forward = sum(float(seconds[file.graph.index[t]]) for t in stage.tasks)
    backward = sum(
        float(seconds[i]) for i, t in enumerate(file.graph.tasks) if t.phase == "backward" and (t.of or t.id) in mine
    )
    return forward, backward


def stage_bytes(file: PlanFile, stage: Stage, held: int) -> float:
    """Memory of each device of a stage: weights, gradients, optimizer state, activations of what is in flight."""
    graph, mine = file.graph, set(stage.tasks)
    tasks = [graph.tasks[graph.index[t]] for t in stage.tasks]
    weights = sum(t.parameter_bytes for t in tasks)
    weights -= sum(s.size_bytes * max(0, sum(t in mine for t in s.tasks) - 1) for s in graph.shared)
    training = any(t.phase == "backward" for t in graph.tasks)
    state = 2.0 + float(file.facts.get("optimizer_bytes_per_parameter_byte", 0.0)) if training else 1.0
    kept = sum(t.activation_bytes for t in tasks)
    if not stage.recompute:
        return weights * state + held * kept
    index = np.array([t.id in mine for t in graph.tasks])
    comes = [
        float(graph.size_bytes[k])
        for k, u in enumerate(graph.producer.tolist())
        if not index[u] and index[graph.readers.row(k)].any()
    ]
    return weights * state + held * sum(comes) + kept
