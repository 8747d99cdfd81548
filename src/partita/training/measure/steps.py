"""Steps of a model on one device by the interpreter that runs a plan, as one stage or as several: what each part of a step takes there.

Alone, in a row, the calls of a model's code take less than in a step: of a network with forwards of 0.3 ms a forward took 25 us
longer by the interpreter, a second stage another 35 us, and the update behind two micro-batches 255 us where it took 200 behind
one (2 cores of an EPYC, 2026-11-28). So they are timed in steps.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from partita.nouns.cluster import Cluster, Device
from partita.nouns.graph import BoolArray, FloatArray, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.program import Op
from partita.simulate.readings import forward_readings
from partita.training.capture.model import Captured, TensorMeta
from partita.training.job import Batch, Precision, batch_size
from partita.training.runtime.deployment import Deployment, Groups
from partita.training.runtime.device import work_clock
from partita.training.runtime.interpreter import Interpreter
from partita.training.runtime.transport import laid_out, room_for


class StepTimes(NamedTuple):
    """Seconds of the parts of a step."""

    forward: list[float]  #: [micro-batches x stages] in the order in which they ran
    backward: list[float]  #: likewise
    update: float
    rest: float  #: the batch is cut, gradients and receives are prepared, the losses are added up


def mean_step(steps: Sequence[StepTimes]) -> StepTimes:
    """The mean of steps alike.

    >>> mean_step([StepTimes([1.0], [2.0], 0.5, 0.0), StepTimes([2.0], [4.0], 1.5, 1.0)])
    StepTimes(forward=[1.5], backward=[3.0], update=1.0, rest=0.5)
    """
    forward, backward, update, rest = (np.mean(part, axis=0).tolist() for part in zip(*steps, strict=True))
    return StepTimes(forward, backward, update, rest)


def without_rest_s(step: StepTimes) -> float:
    """Of forwards, backwards and update."""
    return math.fsum([*step.forward, *step.backward, step.update])


class _Optimising:
    """An optimizer's step, timed."""

    def __init__(self, update: Callable[[], object], now: Callable[[], float]) -> None:
        self._update, self._now, self.took_s = update, now, 0.0

    def reduce(self, group: int) -> Callable[[], None]:
        return lambda: None

    def reduce_norm(self) -> None: ...
    def update(self) -> None:
        began = self._now()
        self._update()
        self.took_s = self._now() - began


@dataclass
class Kept:
    """Carries messages between ranks that run one after the other: what one has sent stays, and whoever asks for it gets it once he has
    looked for `wait_s`; zeros, where nobody has sent it yet."""

    device: torch.device
    wait_s: float = 0.0
    sent: dict[int, list[Tensor]] = field(default_factory=dict)  #: by tag

    def receive(self, metas: tuple[TensorMeta, ...], source: int, target: int, tag: int) -> _Coming:
        return _Coming(self, metas, tag)

    def send(
        self, tensors: Sequence[Tensor], metas: tuple[TensorMeta, ...], source: int, target: int, tag: int
    ) -> list[tuple[Any, Tensor]]:
        self.sent[tag] = [laid_out(t, m).clone() for t, m in zip(tensors, metas, strict=True)]
        return []


class _Coming(NamedTuple):
    """A message that has been asked for."""

    kept: Kept
    metas: tuple[TensorMeta, ...]
    tag: int

    def wait(self) -> list[Tensor]:
        end = time.perf_counter() + self.kept.wait_s
        while time.perf_counter() < end:
            pass
        sent = self.kept.sent.get(self.tag)
        return [t.clone() for t in sent] if sent else [room_for(m, self.kept.device).zero_() for m in self.metas]


class _ByItself(Groups):
    """Of a rank whose others are not there."""

    def of(self, ranks: Sequence[int]) -> Any:
        return None


class Steps:
    """Of one batch, again and again."""

    def __init__(
        self,
        captured: Captured,
        tensors: Mapping[str, Tensor],
        batch: Batch,
        micro_batch_size: int,
        device: torch.device,
        parts: Sequence[Sequence[str]] = (),
        *,
        schedule: Literal["1f1b", "gpipe"] = "1f1b",
        update: Callable[[], object] = lambda: None,
        precision: Precision = contextlib.nullcontext,
        rank: tuple[int, Kept] | None = None,
    ) -> None:
        """`parts`: forward tasks of each stage; without them all are in one. `tensors`: parameters and buffers by name, on the device.
        `rank`: every part has a device of its own; which of them this is, and what carries messages between them."""
        count = batch_size(batch) // micro_batch_size
        named = parts or [[*captured.task_nodes]]
        world = ("it",) if rank is None else tuple(f"it{k}" for k in range(len(named)))
        stages = tuple(Stage(tuple(p), (world[k % len(world)],)) for k, p in enumerate(named))
        in_flight = count if schedule == "gpipe" else len(stages)
        plan = PipelinePlan(captured.graph.fingerprint, stages, count, in_flight, schedule)
        cluster = Cluster(tuple(map(Device, world)))
        number, self._others = rank or (0, Kept(device))
        there = Deployment(plan, cluster, world, number, captured, micro_batch_size, False, _ByItself())
        self._batch, self._size, self._now = batch, micro_batch_size, work_clock(device)
        self._optimising, program = _Optimising(update, self._now), there.program(count)
        self._interpreter = Interpreter(
            program, there.place(device), {micro_batch_size: there.bound(captured, tensors, device, precision)},
            self._others, self._optimising, np.zeros(1, np.int64),
        )  # fmt: skip
        self.receives = any(program.op[i] == Op.RECV for i in self._interpreter.numbers)  #: messages of other ranks
        computes = [(k, program[i]) for k, i in enumerate(self._interpreter.numbers) if program.op[i] == Op.COMPUTE]
        self._forward, self._backward = (
            [k for k, i in computes if (i.piece.kind == "forward") == forward] for forward in (True, False)
        )

    def seconds(self) -> float:
        """Of a step: CPU seconds; on a GPU seconds until it is done."""
        began = self._now()
        self._interpreter.step(self._batch, self._size, 1, 0)
        return self._now() - began

    def times(self, wait_s: float = 0.0) -> StepTimes:
        """Of a step, likewise; of a rank, every message comes so late, and `rest` holds that."""
        self._others.wait_s = wait_s
        whole_s = self.seconds()
        taken = self._interpreter.watch.worked()
        forward, backward = ([taken[k] for k in at] for at in (self._forward, self._backward))
        update_s = self._optimising.took_s
        return StepTimes(forward, backward, update_s, max(0.0, whole_s - sum(forward) - sum(backward) - update_s))


def in_two(captured: Captured, task_s: Sequence[float]) -> list[list[str]]:
    """The forward tasks [seconds of each] in two parts, with a third of the work at least in either where that can be had, at the cut
    that the fewest bytes cross; empty where all are on one device anyway. O(tasks + readers)."""
    tasks, torn = [*captured.task_nodes], tearing(captured.graph)
    if torn.all():
        return []
    before = np.cumsum(task_s)[:-1] / max(sum(task_s), 1e-300)  # [cuts]
    uneven = np.where(torn, np.inf, np.abs(before - 0.5))
    fair = uneven <= max(1 / 6, uneven.min())
    cut = 1 + int(np.argmin(np.where(fair, crossing_bytes(captured.graph), np.inf)))
    return [tasks[:cut], tasks[cut:]]


def tearing(graph: TaskGraph) -> BoolArray:
    """[cuts between one forward task and the next, in the graph's order] whether it tears a colocation group apart.

    >>> from partita.nouns.graph import Task
    >>> tearing(TaskGraph.build("three", [Task("a", group="g"), Task("b"), Task("c", group="g"), Task("d")], [])).tolist()
    [True, True, False]
    """
    groups = [t.group for t in graph.tasks if t.phase == "forward"]
    first = {g: k for k, g in reversed([*enumerate(groups)]) if g is not None}
    found = np.zeros(max(0, len(groups) - 1), np.bool_)
    for k, g in enumerate(groups):
        if g is not None:
            found[first[g] : k] = True
    return found


def crossing_bytes(graph: TaskGraph) -> FloatArray:
    """[cuts between one forward task and the next, in the graph's order] bytes that go over each.

    >>> from partita.nouns.graph import Task
    >>> tasks, tensors = [Task(n) for n in "abc"], [("a", 4.0, ["b", "c"]), ("b", 2.0, ["c"])]
    >>> crossing_bytes(TaskGraph.build("skip", tasks, tensors))
    array([4., 6.])
    """
    place = np.cumsum([t.phase == "forward" for t in graph.tasks]) - 1  # [tasks] among the forward ones
    read = forward_readings(graph)
    last = np.full(len(graph.producer), -1)
    np.maximum.at(last, read.tensor, place[read.reader])
    handed = last >= 0
    made, sizes = place[graph.producer], graph.size_bytes[handed]
    change = np.zeros(int(place[-1]) + 1)
    np.add.at(change, made[handed], sizes)
    np.add.at(change, last[handed], -sizes)
    return np.asarray(np.cumsum(change)[:-1])
