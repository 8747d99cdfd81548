"""What the report says of each stage: where it begins and ends in the model, what it holds, sends and costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.timeline import Timeline
from partita.simulate.boundaries import boundaries

Pair = tuple[float | None, float | None]  #: predicted, measured


@dataclass(frozen=True)
class StageRow:
    """One stage; times are of one micro-batch."""

    devices: tuple[str, ...]
    recompute: bool
    tasks: int  #: forward tasks
    first: str  #: name of its first task in the model's order
    last: str
    parameter_bytes: float  #: a shared parameter counted once
    sends_bytes: float  #: forward messages to later stages, a micro-batch
    crossing_bytes: float  #: distinct tensors that cross the cut before this stage, a micro-batch
    task_s: tuple[float, ...]  #: predicted forward + backward seconds of each of its tasks
    forward: Pair  #: median seconds over the micro-batches
    backward: Pair


def stage_rows(file: PlanFile, predicted: Timeline | None, measured: Timeline | None) -> tuple[StageRow, ...]:
    """A row a stage of a pipeline plan; none for another kind of plan. O(tasks + tensors + spans)."""
    plan, graph = file.plan, file.graph
    if not isinstance(plan, PipelinePlan):
        return ()
    place = {t: k for k, t in enumerate(graph.order.tolist())}
    medians = [_medians(t) for t in (predicted, measured)]
    sends, crossing = _traffic(file, plan)
    rows = []
    for k, stage in enumerate(plan.stages):
        tasks = sorted((graph.index[t] for t in stage.tasks), key=lambda i: place[i])
        rows.append(
            StageRow(
                stage.devices,
                stage.recompute,
                len(tasks),
                _name(file, tasks[0]),
                _name(file, tasks[-1]),
                _parameter_bytes(file, tasks),
                sends[k],
                crossing[k],
                _task_seconds(file, tasks, stage.devices[0]),
                (medians[0].get(f"F{k}"), medians[1].get(f"F{k}")),
                (medians[0].get(f"B{k}"), medians[1].get(f"B{k}")),
            )
        )
    return tuple(rows)


def _medians(timeline: Timeline | None) -> Mapping[str, float]:
    """Label -> median seconds."""
    if timeline is None:
        return {}
    times: dict[str, list[float]] = {}
    for label, length in zip(timeline.label, (timeline.end_s - timeline.start_s).tolist(), strict=True):
        times.setdefault(label, []).append(length)
    return {label: float(np.median(values)) for label, values in times.items()}


def _traffic(file: PlanFile, plan: PipelinePlan) -> tuple[list[float], list[float]]:
    """[stages] bytes that it sends forward, and bytes of the distinct tensors that cross the cut before it."""
    n = len(plan.stages)
    sends = [0.0] * n
    crossing: list[set[int]] = [set() for _ in range(n)]
    for b in boundaries(file.graph, plan):
        sends[b.source] += float(file.graph.size_bytes[list(b.sent)].sum())
        for k in range(b.source + 1, b.target + 1):
            crossing[k] |= set(b.tensors)
    return sends, [float(file.graph.size_bytes[sorted(c)].sum()) for c in crossing]


def _parameter_bytes(file: PlanFile, tasks: Sequence[int]) -> float:
    """Parameters that these tasks read, a shared one once."""
    ids = {file.graph.tasks[i].id for i in tasks}
    total = sum(file.graph.tasks[i].parameter_bytes for i in tasks)
    again = sum(s.size_bytes * max(0, len(ids & set(s.tasks)) - 1) for s in file.graph.shared)
    return max(0.0, total - again)


def _task_seconds(file: PlanFile, tasks: Sequence[int], device: str) -> tuple[float, ...]:
    """Predicted forward + backward seconds of each task on a device; 0 where there is no time for it."""
    graph, here = file.graph, file.cluster.by_name[device]
    if here.kind not in file.costs.kinds:
        return (0.0,) * len(tasks)
    column = file.costs.seconds[:, file.costs.column(here.kind)] / here.speed
    total = {i: float(column[i]) for i in tasks}
    for i, t in enumerate(graph.tasks):
        if t.phase == "backward" and t.of is not None and graph.index[t.of] in total:
            total[graph.index[t.of]] += float(column[i])
    return tuple(x if math.isfinite(x) else 0.0 for x in total.values())


def _name(file: PlanFile, task: int) -> str:
    t = file.graph.tasks[task]
    return (t.name or t.id).split(" ", 1)[0]
