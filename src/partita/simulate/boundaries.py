"""What stages exchange: tensors over their boundaries, and gradients that are summed over devices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan
from partita.simulate.readings import crossings, forward_readings


@dataclass(frozen=True)
class Boundary:
    """What one stage sends to a later one for a micro-batch."""

    source: int  #: stage
    target: int  #: stage, later than source
    tensors: tuple[int, ...]  #: forward tensors that cross, ascending
    gradients: tuple[int, ...]  #: those of them whose gradient comes back


def boundaries(graph: TaskGraph, plan: PipelinePlan) -> tuple[Boundary, ...]:
    """Every pair of stages that exchange tensors, in (source, target) order."""
    read = forward_readings(graph)
    at = np.array([plan.stage_of.get(t.id, -1) for t in graph.tasks])
    cross: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for i, j, k, back in zip(
        *(column.tolist() for column in crossings(read.tensor, at[read.producer], at[read.reader], read.back)),
        strict=True,
    ):
        tensors, gradients = cross[i, j]
        tensors.append(k)
        gradients += [k] * back
    return tuple(Boundary(i, j, tuple(ts), tuple(gs)) for (i, j), (ts, gs) in cross.items())


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
