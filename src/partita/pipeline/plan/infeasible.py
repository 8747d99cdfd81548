"""Why nothing fits, and the smallest change that would help."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.errors import Infeasible
from partita.nouns.graph import IntArray
from partita.nouns.stage_memory import stage_bytes
from partita.pipeline.plan.antichain_dp import Line, every_line, some_lines
from partita.pipeline.plan.bench import Bench, Candidate
from partita.pipeline.plan.chain_dp import Chain, ChainProblem, on_devices, solve
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.pipeline.plan.proof import one_stage_a_device

MOST_DEVICES = 64  #: looked at when asking how many would do
MOST_SCALE = 1e18  #: of every memory; where that does not do, memory is not what is missing


def leanest(task: PipelineTask) -> Candidate | None:
    """The candidate of least memory, where it fits: as little as possible in flight."""
    chains = ((b, fitting(task, b, 1.0)) for b in task.benches)
    return next((_candidate(task, b, chain) for b, chain in chains if chain is not None), None)


def _candidate(task: PipelineTask, bench: Bench, chain: Chain) -> Candidate:
    number = bench.costs.micro_batches if task.schedule == "gpipe" else task.wish.in_flight or 1
    return Candidate(bench.number, chain, number, task.schedule)


def does_not_fit(task: PipelineTask) -> Infeasible:
    """The error for a task without a feasible candidate: the stage that cannot fit in the plan that needs least memory."""
    stages = task.wish.stages or 0
    for number, what, there in (
        (len(task.units), "units that can be separated", f"the model has {len(task.units)}"),
        (len(task.cluster.devices), "devices", f"the cluster has {len(task.cluster.devices)}"),
    ):
        if stages > number:
            return Infeasible(
                f"{stages} stages asked for; {there} {what}",
                constraint="tasks" if what.startswith("units") else "devices",
                relaxation=f"ask for at most {number} stages",
            )
    lean = min((found for b in task.benches if (found := _lean(task, b))), key=lambda x: x.share, default=None)
    if lean is None:
        return Infeasible(
            f"some task runs on no device; there are devices of kind {', '.join(task.cluster.kinds)}",
            constraint="supported devices",
            relaxation="add a device of a kind that runs it",
        )
    k = int(np.argmax(lean.shares))
    proven = (
        "and no split needs less"
        if math.isinf(one_stage_a_device(task)[0])
        else "and no split was found that needs less"
    )
    more = _devices_that_do(task)
    return Infeasible(
        f"Stage {k} of {len(lean.shares)} needs {_size(lean.need_bytes[k])}; its device has "
        f"{_size(lean.room_bytes[k])}, {proven}",
        constraint=f"memory of stage {k}",
        relaxation=f"give every device {_size(lean.share * max(t.memory_bytes for t in task.types))}"
        + (f", or use {more} devices" if more else ""),
    )


@dataclass(frozen=True)
class LeanChain:
    """The chain of stages whose fullest device needs the least share of its memory."""

    need_bytes: tuple[float, ...]  #: [stages]
    room_bytes: tuple[float, ...]  #: [stages] of the smallest device

    @property
    def shares(self) -> list[float]:
        return [n / room for n, room in zip(self.need_bytes, self.room_bytes, strict=True)]

    @cached_property
    def share(self) -> float:
        return max(self.shares)


def _lean(task: PipelineTask, bench: Bench) -> LeanChain | None:
    """By bisection over what every memory is multiplied with; None: no memory is enough. Exact over the lines tried."""
    low, high = 0.0, 1.0
    while (chain := fitting(task, bench, high)) is None:
        low, high = high, 16 * high
        if high > MOST_SCALE:
            return None
    while high - low > 0.02 * high:
        middle = (low + high) / 2
        found = fitting(task, bench, middle)
        low, high, chain = (middle, high, chain) if found is None else (low, middle, found)
    lean = _needs(task, bench, chain)
    while (chain := fitting(task, bench, lean.share * (1 - 1e-9))) is not None:
        lean = _needs(task, bench, chain)
    return lean


def _needs(task: PipelineTask, bench: Bench, chain: Chain) -> LeanChain:
    costs, window = bench.costs, _window(task, bench)
    needs, left = [], sum(len(s.devices) for s in chain)
    for s in chain:
        held = -(-min(int(window[left]), costs.micro_batches) // len(s.devices))
        weights = costs.per_parameter_byte * float(costs.weight_bytes[s.start, s.end])
        kept, inputs = float(costs.kept_bytes[s.start, s.end]), float(costs.input_bytes[s.start, s.end])
        needs.append(stage_bytes(weights, kept, inputs, held, s.recompute))
        left -= len(s.devices)
    return LeanChain(tuple(needs), tuple(min(task.cluster.devices[d].memory_bytes for d in s.devices) for s in chain))


def _window(task: PipelineTask, bench: Bench) -> IntArray:
    """[devices from a stage to the end + 1] the fewest micro-batches in flight that the wishes allow."""
    number = bench.costs.micro_batches if task.schedule == "gpipe" else task.wish.in_flight or 1
    used = np.arange(MOST_DEVICES + len(task.cluster.devices) + 1)
    return np.full(len(used), number) if task.schedule == "gpipe" else np.minimum(np.maximum(used, 1), number)


def fitting(task: PipelineTask, bench: Bench, scale: float, more: Sequence[int] = ()) -> Chain | None:
    """A chain that fits where every device has `scale` times its memory, and there are `more` copies of devices."""
    tables = task.tables[task.benches.index(bench)]
    tables = tables._replace(memory_bytes=tables.memory_bytes * scale)
    modes = task.modes if task.wish.allow_recompute else (False,)
    for line in _lines(task):
        devices = (*more, *line)
        classes = tuple(task.class_of[d] for d in devices)
        table = solve(
            ChainProblem(tables, classes, task.sizes(bench), modes, _window(task, bench), task.wish.stages or 0)
        )
        for first in range(len(devices)):
            if math.isfinite(table.best(first)):
                return on_devices(next(table.chains(first, 1))[1], devices)
    return None


def _lines(task: PipelineTask) -> list[Line]:
    """All lines where there are few; else some, and those by memory."""
    lines = every_line(task)
    if lines is not None:
        return lines
    by_memory = sorted(range(len(task.cluster.devices)), key=lambda d: task.cluster.devices[d].memory_bytes)
    return list(dict.fromkeys([tuple(by_memory), tuple(by_memory[::-1]), *some_lines(task)[-3:]]))


def _devices_that_do(task: PipelineTask) -> int:
    """The least number of devices, more of the largest ones, with which a plan fits; 0: none up to MOST_DEVICES."""
    if task.wish.stages:
        return 0
    devices = task.cluster.devices
    largest = max(range(len(devices)), key=lambda d: devices[d].memory_bytes)
    for more in range(1, MOST_DEVICES - len(devices) + 1):
        if any(fitting(task, b, 1.0, (largest,) * more) is not None for b in task.benches):
            return len(devices) + more
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
