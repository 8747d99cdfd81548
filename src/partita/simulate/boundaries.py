"""What stages exchange: tensors over their boundaries, and gradients that are summed over devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from partita.nouns.graph import IntArray, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan
from partita.simulate.readings import brought, crossings, forward_readings


@dataclass(frozen=True)
class Boundary:
    """What a stage reads of an earlier one for a micro-batch, and how it travels where the two are on different devices.

    A tensor goes to a device once, in the message to the first of its stages that reads it; the gradients of those stages are
    summed there, and go back once. To a stage of several devices everything goes by itself.
    """

    source: int  #: stage
    target: int  #: stage, later than source
    tensors: tuple[int, ...]  #: forward tensors that the target reads, ascending
    gradients: tuple[int, ...]  #: those of them whose gradient comes back from the target
    by: tuple[int, ...]  #: stages of the target's device whose messages bring them, ascending
    sent: tuple[int, ...]  #: tensors that the target's own message brings
    returned: tuple[int, ...]  #: tensors whose gradients its message takes back
    returners: tuple[
        int, ...
    ]  #: stages whose gradients are summed in that, ascending: the target, or others of its device


def boundaries(graph: TaskGraph, plan: PipelinePlan) -> tuple[Boundary, ...]:
    """Every pair of stages that exchange tensors, in (source, target) order."""
    read = forward_readings(graph)
    at = np.array([plan.stage_of.get(t.id, -1) for t in graph.tasks])
    crossing = crossings(read.tensor, at[read.producer], at[read.reader], read.back)
    cross: dict[tuple[int, int], _Parts] = defaultdict(_Parts)
    columns = (*crossing, brought(crossing, device_numbers([s.devices for s in plan.stages])))
    for i, j, k, back, by in zip(*(column.tolist() for column in columns), strict=True):
        reads, message = cross[i, j], cross[i, by]
        reads.tensors.append(k)
        reads.by.add(by)
        message.sent.add(k)
        if back:
            reads.gradients.append(k)
            message.returned.add(k)
            message.returners.add(j)
    return tuple(Boundary(i, j, *p.in_order()) for (i, j), p in cross.items())


@dataclass
class _Parts:
    """Of a boundary in the making."""

    tensors: list[int] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)
    by: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    returners: set[int] = field(default_factory=set)

    def in_order(self) -> Iterator[tuple[int, ...]]:
        parts = (self.tensors, self.gradients, self.by, self.sent, self.returned, self.returners)
        return (tuple(sorted(part)) for part in parts)


def device_numbers(devices: Sequence[Sequence[Hashable]]) -> IntArray:
    """[stages] a number for each device, of the devices of each stage; a stage of several has a number of its own.

    >>> device_numbers([["a"], ["b"], ["a"], ["a", "b"]]).tolist()
    [0, 1, 0, 2]
    """
    found: dict[Hashable, int] = {}
    keys = [("one", d[0]) if len(d) == 1 else ("stage", k) for k, d in enumerate(devices)]
    return np.array([found.setdefault(key, len(found)) for key in keys], np.int64)


@dataclass(frozen=True)
class GradientSum:
    """Gradients that are summed over devices before the update."""

    stages: tuple[int, ...]  #: one: its own parameters, over its replicas; several: what they share, over all of them
    devices: tuple[str, ...]
    size_bytes: float

    @property
    def name(self) -> str:
        return "R" + "+".join(map(str, self.stages))


def shared_over_stages(graph: TaskGraph, plan: PipelinePlan) -> tuple[tuple[int, ...], ...]:
    """[shared parameters] the stages that read each one."""
    return tuple(tuple(sorted({plan.stage_of[t] for t in s.tasks})) for s in graph.shared)


def gradient_sums(graph: TaskGraph, plan: PipelinePlan) -> tuple[GradientSum, ...]:
    """Every sum of a step: one a replicated stage, one a group of stages that share parameters over several devices."""
    stages_of = shared_over_stages(graph, plan)
    torn = {s.name for s, ks in zip(graph.shared, stages_of, strict=True) if len(ks) > 1}
    found: list[GradientSum] = []
    for k, stage in enumerate(plan.stages):
        size = sum(graph.tasks[graph.index[t]].parameter_bytes for t in stage.tasks)
        size -= sum(
            s.size_bytes * (sum(t in stage.tasks for t in s.tasks) - (s.name not in torn))
            for s, ks in zip(graph.shared, stages_of, strict=True)
            if k in ks
        )
        if stage.replicas > 1 and size > 0:
            found.append(GradientSum((k,), stage.devices, size))
    groups: dict[tuple[int, ...], float] = defaultdict(float)
    for s, ks in zip(graph.shared, stages_of, strict=True):
        if len(ks) > 1:
            groups[ks] += s.size_bytes
    for ks, size in sorted(groups.items()):
        devices = tuple(dict.fromkeys(d for k in ks for d in plan.stages[k].devices))
        if len(devices) > 1:
            found.append(GradientSum(ks, devices, size))
    return tuple(found)
