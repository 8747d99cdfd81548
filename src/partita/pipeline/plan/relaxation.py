"""Why nothing fits, and the smallest change that would help."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from partita.errors import Infeasible
from partita.nouns.graph import FloatArray
from partita.pipeline.plan.stage import StageCosts
from partita.pipeline.plan.step_time import Bench
from partita.pipeline.plan.task import PipelineTask

MOST_DEVICES = 64  #: looked at when asking how many would do


def does_not_fit(task: PipelineTask) -> Infeasible:
    """The error for a task without a feasible candidate: the stage that cannot fit in the plan that needs least memory."""
    stages = task.wish.stages or 0
    if stages > len(task.units):
        return Infeasible(
            f"{stages} stages asked for; the model has {len(task.units)} units that can be separated",
            constraint="tasks",
            relaxation=f"ask for at most {len(task.units)} stages",
        )
    if stages > len(task.cluster.devices):
        return Infeasible(
            f"{stages} stages asked for; the cluster has {len(task.cluster.devices)} devices",
            constraint="devices",
            relaxation=f"ask for at most {len(task.cluster.devices)} stages",
        )
    counts = tuple(len(t.names) for t in task.types)
    leanest = min((lean_chain(task, b, counts) for b in task.benches), key=lambda lean: lean.share)
    if not math.isfinite(leanest.share):
        return Infeasible(
            f"some task runs on no device; there are devices of kind {', '.join(task.cluster.kinds)}",
            constraint="supported devices",
            relaxation="add a device of a kind that runs it",
        )
    k = int(np.argmax([n / room for n, room in zip(leanest.need_bytes, leanest.room_bytes, strict=True)]))
    need, room = leanest.need_bytes[k], leanest.room_bytes[k]
    more = _devices_that_do(task)
    return Infeasible(
        f"Stage {k} of {len(leanest.need_bytes)} needs {_size(need)}; its device has {_size(room)}, and no split "
        f"over single devices needs less",
        constraint=f"memory of stage {k}",
        relaxation=f"give every device {_size(leanest.share * max(leanest.room_bytes))}"
        + (f", or use {more} devices" if more else ""),
    )


@dataclass(frozen=True, slots=True)
class LeanChain:
    """The chain of stages whose fullest device needs the least share of its memory."""

    share: float
    need_bytes: tuple[float, ...]  #: [stages]
    room_bytes: tuple[float, ...]  #: [stages]


def lean_chain(task: PipelineTask, bench: Bench, counts: tuple[int, ...]) -> LeanChain:
    """The same dynamic program with memory in the place of time: one device a stage, as little in flight as possible.

    O(count vectors x types x states^2), exact over all chains of the states.
    """
    n, room = len(bench.costs.states), [t.memory_bytes for t in task.types]
    runs = [bench.costs.runs(t) for t in range(len(counts))]
    value: dict[tuple[int, ...], FloatArray] = {(0,) * len(counts): np.append(np.full(n - 1, math.inf), 0.0)}
    choice: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for vector in sorted(itertools.product(*(range(c + 1) for c in counts)), key=sum)[1:]:
        need = _least_need(task, bench.costs, sum(vector))
        options = []
        for t in (t for t in range(len(counts)) if vector[t]):
            full = np.where(runs[t], need / room[t], math.inf)
            options.append(np.maximum(full, value[_less(vector, t)][None, :]))
        stack = np.concatenate(options, axis=1)
        best = stack.argmin(axis=1)
        value[vector] = stack[np.arange(n), best]
        used = [t for t in range(len(counts)) if vector[t]]
        choice[vector] = [(used[int(b) // n], int(b) % n) for b in best]
    wanted = [v for v in choice if task.wish.stages in (None, sum(v))]
    vector = min(wanted, key=lambda v: float(value[v][0]))
    share, at = float(value[vector][0]), 0
    needs, rooms = [], []
    while at < n - 1 and math.isfinite(share):
        t, end = choice[vector][at]
        needs.append(float(_least_need(task, bench.costs, sum(vector))[at, end]))
        rooms.append(room[t])
        vector, at = _less(vector, t), end
    return LeanChain(share, tuple(needs), tuple(rooms))


def _least_need(task: PipelineTask, costs: StageCosts, devices: int) -> FloatArray:
    """[states, states] bytes of a stage with so many devices from itself to the end, recomputing where that helps."""
    held = costs.micro_batches if task.schedule == "gpipe" else min(devices, costs.micro_batches)
    if task.wish.in_flight is not None:
        held = min(held, task.wish.in_flight)
    plain = costs.weight_bytes + held * costs.kept_bytes
    if not task.wish.allow_recompute:
        return plain
    return np.minimum(plain, costs.weight_bytes + costs.kept_bytes + held * costs.sent_bytes[:, None])


def _less(vector: tuple[int, ...], t: int) -> tuple[int, ...]:
    return (*vector[:t], vector[t] - 1, *vector[t + 1 :])


def _devices_that_do(task: PipelineTask) -> int:
    """The least number of devices, more of the largest ones, with which a plan fits; 0: none up to MOST_DEVICES."""
    if task.wish.stages:
        return 0
    counts = [len(t.names) for t in task.types]
    grown = int(np.argmax([t.memory_bytes for t in task.types]))
    for total in range(sum(counts) + 1, MOST_DEVICES + 1):
        counts[grown] += 1
        if math.prod(c + 1 for c in counts) > 4 * MOST_DEVICES:
            return 0
        if any(lean_chain(task, b, tuple(counts)).share <= 1 for b in task.benches):
            return total
    return 0


def _size(size_bytes: float) -> str:
    """Bytes for a person, rounded up, so that what is named suffices.

    >>> _size(2**30 + 1), _size(17.2)
    ('1.001 GiB', '18 bytes')
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{math.ceil(size_bytes / scale * 1000) / 1000:.3f} {unit}"
    return f"{math.ceil(size_bytes)} bytes"
