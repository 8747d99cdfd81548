"""What a plan looks like, in numbers: a row a stage or a device. From the plan file alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile
from partita.nouns.stage_memory import stage_memory
from partita.simulate.schedules import held_of, held_on
from partita.simulate.segments import segments


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
    memory_bytes: float  #: that the one of its devices with least to spare has
    recompute: bool


def stage_rows(file: PlanFile) -> list[StageRow]:
    """A row for each stage of a pipeline plan."""
    plan = file.plan
    if not isinstance(plan, PipelinePlan):
        return []
    if plan.orders:  # devices of a stage may hold different numbers of micro-batches
        on = held_on(plan)
        held = [{d: on.get((d, k), 0) for d in s.devices} for k, s in enumerate(plan.stages)]
    else:
        held = [dict.fromkeys(s.devices, h) for s, h in zip(plan.stages, held_of(plan), strict=True)]
    rows = [_row(file, k, s, h) for k, (s, h) in enumerate(zip(plan.stages, held, strict=True))]
    total = sum(r.forward_s + r.backward_s for r in rows) or 1.0
    return [replace(r, share=(r.forward_s + r.backward_s) / len(r.devices) / total) for r in rows]


def _row(file: PlanFile, k: int, stage: Stage, held: Mapping[str, int]) -> StageRow:
    """Its memory is that of the device with least to spare."""
    assert isinstance(file.problem, PipelineProblem)
    assert isinstance(file.plan, PipelinePlan)
    graph, device = file.graph, file.problem.cluster_of(file.plan).by_name[stage.devices[0]]
    seconds = file.costs.seconds[:, file.costs.column(device.kind)] / device.speed
    forward, backward = phase_seconds(file, stage, seconds)
    names = [graph.tasks[graph.index[t]].name or t for t in (stage.tasks[0], stage.tasks[-1])]
    state = file.problem.optimizer_bytes_per_parameter_byte
    memory = stage_memory(graph, stage.tasks, state)
    needs = [(memory.need_bytes(n, stage.recompute), file.cluster.by_name[d].memory_bytes) for d, n in held.items()]
    need, room = max(needs, key=lambda x: (x[0] / x[1], x[0], -x[1]))
    return StageRow(
        k, names[0], names[1], len(stage.tasks), stage.devices, forward, backward + (forward if stage.recompute else 0.0),
        math.nan, need, room, stage.recompute,
    )  # fmt: skip


def phase_seconds(file: PlanFile, stage: Stage, seconds: FloatArray) -> tuple[float, float]:
    """Forward and backward seconds of a stage, given those of every task."""
    mine = set(stage.tasks)
    forward = sum(float(seconds[file.graph.index[t]]) for t in stage.tasks)
    backward = sum(
        float(seconds[i]) for i, t in enumerate(file.graph.tasks) if t.phase == "backward" and (t.of or t.id) in mine
    )
    return forward, backward


@dataclass(frozen=True, slots=True)
class MappedRow:
    """One device of a mapping."""

    device: str
    tasks: int
    segments: int
    forward_s: float
    backward_s: float
    share: float  #: of the work
    need_bytes: float  #: of memory, all segments together
    memory_bytes: float  #: that it has


def is_mapping(file: PlanFile) -> bool:
    """A job's operators, each on a device of its own choice: segments of one micro-batch in orders of their own."""
    return isinstance(file.plan, PipelinePlan) and bool(file.plan.orders) and file.plan.micro_batches == 1


def mapped_rows(file: PlanFile) -> list[MappedRow]:
    """A row for each device of a plan whose stages are segments of a mapping."""
    rows = stage_rows(file)
    found = []
    for device in dict.fromkeys(d for r in rows for d in r.devices):
        mine = [r for r in rows if device in r.devices]
        forward, backward = sum(r.forward_s for r in mine), sum(r.backward_s for r in mine)
        found.append(
            MappedRow(
                device, sum(r.tasks for r in mine), len(mine), forward, backward, sum(r.share for r in mine),
                sum(r.need_bytes for r in mine), mine[0].memory_bytes,
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One device of a placement, or one stage with replicas: what it does in the time of one sample."""

    devices: tuple[str, ...]
    first: str  #: the name of its first task in topological order
    last: str
    tasks: int
    compute_s: float  #: per device
    in_s: float  #: what it receives
    out_s: float  #: what it sends
    sync_s: float  #: summing gradients over replicas
    load_s: float  #: what these come to by the problem's rule
    memory_bytes: float  #: held
    room_bytes: float


def load_rows(file: PlanFile) -> list[LoadRow]:
    """A row for each device that has tasks, or for each stage with replicas; in pipeline order."""
    problem, plan, graph = file.problem, file.plan, file.graph
    assert isinstance(problem, PlacementProblem)
    order = graph.order.tolist()
    groups: Groups
    if isinstance(plan, PlacementPlan):
        names = list(dict.fromkeys(plan.placement[graph.tasks[i].id] for i in order))
        groups = [((d,), {i for i in order if plan.placement[graph.tasks[i].id] == d}) for d in names]
    else:
        groups = [(s.devices, {graph.index[t] for t in s.tasks}) for s in plan.stages]
    stages = isinstance(plan, PipelinePlan)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    at = np.empty(len(order), np.int64)
    for k, (_, tasks) in enumerate(groups):
        at[list(tasks)] = k
    crossing = _between_stages_s(problem, at, groups) if stages else _between_devices_s(problem, at, groups)
    return [_load_row(problem, devices, tasks, c, place) for (devices, tasks), c in zip(groups, crossing, strict=True)]


Groups = list[tuple[tuple[str, ...], set[int]]]


def _load_row(
    problem: PlacementProblem, devices: tuple[str, ...], tasks: set[int], crossing: tuple[float, float], place: IntArray
) -> LoadRow:
    graph, m = problem.graph, len(devices)
    device = min((problem.cluster.by_name[d] for d in devices), key=lambda d: d.speed)  # replicas do equal shares
    mine = sorted(tasks, key=place.__getitem__)
    compute = float(problem.costs.seconds[mine, problem.costs.column(device.kind)].sum()) / device.speed / m
    rate = problem.cluster.worst_rate_bytes_per_s
    sync = 4 * (m - 1) * sum(graph.tasks[i].parameter_bytes for i in mine) / (rate * m) / m if m > 1 else 0.0
    comes, goes = (x / m for x in crossing)
    if device.kind not in problem.pays:
        load = compute
    elif problem.rule == "overlap":
        load = max(compute + sync, comes, goes)
    else:
        load = compute + comes + goes
    names = [graph.tasks[i].name or graph.tasks[i].id for i in (mine[0], mine[-1])]
    held = float(problem.memory_bytes[mine].sum())
    return LoadRow(devices, names[0], names[1], len(mine), compute, comes, goes, sync, load, held, device.memory_bytes)


def _between_devices_s(problem: PlacementProblem, at: IntArray, groups: Groups) -> list[tuple[float, float]]:
    """Seconds in and out of each group, which is on one device."""
    number = {d.name: i for i, d in enumerate(problem.cluster.devices)}
    devices = np.array([number[names[0]] for names, _ in groups], np.int64)
    inward, outward = problem.boundary_s(devices[at])
    return list(zip(inward[devices].tolist(), outward[devices].tolist(), strict=True))


def _between_stages_s(problem: PlacementProblem, at: IntArray, groups: Groups) -> list[tuple[float, float]]:
    """Seconds in and out of each stage, over the slowest link; what passes by on its way to a later stage counts as well."""
    graph, given = problem.graph, problem.costs.transfer_s
    seconds = np.where(np.isnan(given), graph.size_bytes / problem.cluster.worst_rate_bytes_per_s, given)
    made, last = at[graph.producer], at[graph.producer]
    np.maximum.at(last, np.repeat(np.arange(len(made)), np.diff(graph.readers.start)), at[graph.readers.items])
    cuts = [float(seconds[(made < k) & (last >= k)].sum()) for k in range(len(groups) + 1)]
    return list(itertools.pairwise(cuts))


def visits(file: PlanFile) -> dict[str, Any]:
    """How often a placement's devices are gone to: more than once where they wait for each other in a circle."""
    if not isinstance(file.plan, PlacementPlan):
        return {}
    names = [d.name for d in file.cluster.devices]
    number = {n: i for i, n in enumerate(names)}
    where = [number[file.plan.placement[t.id]] for t in file.graph.tasks]
    count = np.bincount([d for d, _ in segments(file.graph, where)], minlength=len(names)).tolist()
    return {
        "virtual_stages": {n: v for n, v in zip(names, count, strict=True) if v},
        "quotient": "cyclic" if max(count) > 1 else "acyclic",
    }
