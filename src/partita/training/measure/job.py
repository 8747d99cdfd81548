"""Measure a job on this machine: a Profile with every task's times at several micro-batch sizes, and the links."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from partita.errors import CaptureError, JobError
from partita.memory import keep_freed_memory
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable, Estimate
from partita.nouns.graph import FloatArray, TaskGraph
from partita.nouns.probe import Probe, row_means
from partita.nouns.profile import Profile, Sample
from partita.nouns.splits import AUTO, Split
from partita.page.machine import machine_facts
from partita.training.capture.model import Captured, capture
from partita.training.job import Batch, TrainingJob, batch_size, load_job, micro_batches
from partita.training.loss_check import check_loss
from partita.training.measure.company import company, pinned
from partita.training.measure.instructions import instruction_s
from partita.training.measure.links import Pace, link_between
from partita.training.measure.machine import local_devices
from partita.training.measure.speeds import job_probe, typical_ratio, unread, with_speeds
from partita.training.measure.tasks import MICRO_BATCHES, PATIENCE, Asleep, quick_task_s, time_tasks
from partita.training.measure.times import (
    SECONDS,
    TaskTimes,
    at_one_speed,
    beginning_s,
    cold_s,
    cutting_s,
    estimates,
    idle_update_s,
    mean_error,
    parting_s,
    updating_s,
    weight_shares,
    work_around,
)
from partita.training.measure.worth_splitting import is_automatic, named_splits, worthwhile_splits
from partita.training.probing import AT_ONCE, drawn, prober_for
from partita.training.runtime.device import torch_device

#: Standard error of the mean pass, as a share, with which a size is measured well enough: on a restless machine that takes 15 s (EPYC,
#: 2026-11-29).
STEADY = 0.015
_MOST_READ_S = 3.0  #: that all readings take, or more than the budget is not spent
_MOST_PROBED_BYTES = 64e6  #: that the tasks of a short pass hand on

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Asked:
    """What is to be measured."""

    source: str  #: file.py:function
    settings: Mapping[str, str] = field(default_factory=dict)
    #: of micro-batches; none: those that the job or its batch suggests, as far as there is time
    sizes: Sequence[int] = ()
    #: operators in parts; with them only the whole batch is measured, unless sizes are given
    splits: Sequence[str] = ()
    budget_s: float = 15.0  #: about so long; on a restless machine twice
    #: no other rank measures at the same time: one that went on by itself would find the others idle
    by_itself: bool = True


def measure_job(
    source: str,
    settings: Mapping[str, str] | None = None,
    *,
    devices: int | None = None,
    sizes: Sequence[int] = (),
    splits: Sequence[str] = (),
    budget_s: float = 15.0,
    progress: Progress = lambda what, done, total: None,
) -> Profile:
    """Capture and time the job `file.py:function` at each micro-batch size, smallest first, within about `budget_s` seconds; within
    twice as many where the machine is so restless that these do not tell enough.

    While it is timed, the other devices' cores run the same model, as they will in a pipeline: cores share caches,
    memory and power, and a task alone on the machine is a few per cent faster than it will be. `splits`: operators in parts,
    TASK:batch:2 or "auto"; then only the whole batch is measured, unless sizes are given.

    Raises JobError, CaptureError, ClusterError.
    """
    spent = Spent()
    local, asked = local_devices(devices), Asked(source, settings or {}, sizes, splits, budget_s)
    link = functools.cache(lambda: _link(local, Pace()))
    measuring = Measuring.of(asked, local[0], len(local), link)
    others = [d for d in local[1:] if d.cores != local[0].cores]
    with (
        company(source, asked.settings, others, measuring.probed, measuring.pieces, measuring.splits) as busy,
        pinned(local[0]),
    ):
        ready = measuring.take_all(busy.asleep, progress)
        read = {name: busy.steps(name, ready) for name in busy.logs}
    local = tuple(replace(d, **measuring.calls._asdict()) for d in local)
    speeds = with_speeds(local, measuring.probe, np.array(measuring.readings), read)
    cluster = _linked(speeds, measuring.pace)  # not that of the splits, which knew no pace of the job
    progress("measuring tasks", 1, 1)
    return measuring.profile(cluster, spent, {"speed_unread": list(unread(local, read))})


class CallCosts(NamedTuple):
    """Seconds of a device that no task takes: SECONDS_OF_A_DEVICE."""

    instruction_s: float  #: a forward or a backward of a stage, whatever the stage holds
    step_s: float  #: what happens once a step
    update_s: float  #: what the job's optimizer takes whatever it updates
    cold_s: float  #: what comes behind a long wait takes longer


@dataclass(frozen=True)
class Spent:
    """When a measurement began."""

    wall_s: float = field(default_factory=time.monotonic)
    cpu_s: float = field(default_factory=time.process_time)

    def facts(self) -> dict[str, float]:
        """What it has taken until now."""
        return {"wall_s": time.monotonic() - self.wall_s, "cpu_s": time.process_time() - self.cpu_s}


class Measuring:
    """A job being measured on one device, a micro-batch size at a time."""

    def __init__(
        self,
        asked: Asked,
        job: TrainingJob,
        model: nn.Module,
        batch: Batch,
        device: torch.device,
        sizes: Sequence[int],
        splits: Sequence[Split],
    ) -> None:
        """The probe's pieces run on micro-batches of the size `probed`. Raises JobError, CaptureError."""
        self._asked, self._job, self._model, self._batch, self._device = asked, job, model, batch, device
        self.samples: list[Sample] = []
        self.readings: list[tuple[float, ...]] = []  #: the moment and the seconds of each piece
        self._company: list[FloatArray] = []  #: of every size
        self._calls: list[CallCosts] = []  #: likewise
        self._read_s = 0.0  #: that readings have taken
        self._restless = False  #: a size was not known well enough when its part of the budget was over
        self.optimizer_bytes_per_parameter_byte = 0.0
        self.batch_size, self._wanted = batch_size(batch), splits
        self._seen: dict[int, Captured] = {}  #: by size, until it is measured
        self.sizes = self._possible(sizes)
        self.probed, self._known, task_s = self._to_probe()
        self._pass_s = sum(task_s)
        self.splits = self._known.splits
        part, precision = next(micro_batches(batch, self.probed)), job.precision(device)
        self.pieces, self._prober = prober_for(self._known, task_s, part, device, precision)

    @staticmethod
    def of(asked: Asked, device: Device, devices: int = 1, link: Callable[[], Link | None] = lambda: None) -> Measuring:
        """The job loaded and captured, by the way tried out, to be measured on a device. Operators that are to be split
        automatically are so for this many devices, with a link between any two of them.

        Raises JobError, CaptureError, and ClusterError as `link`.
        """
        keep_freed_memory()  # as a worker does
        job = load_job(asked.source, asked.settings)
        model, batch = job.build(), job.example()
        check_loss(job, model, batch)
        total = batch_size(batch)
        sizes = _sizes(total, asked.sizes or job.micro_batch_sizes or ((total,) if asked.splits else ()))
        where = torch_device(Cluster((device,)), device.name)
        with pinned(device):
            between = link() if is_automatic(asked.splits) else None
            chosen = _chosen(job, model, batch, where, asked.splits, between, devices) if asked.splits else ()
            return Measuring(asked, job, model, batch, where, sizes, chosen)

    def take_all(self, asleep: Asleep, progress: Progress) -> float:
        """Measure at all sizes, smallest first, as far as there is time; the moment of the monotonic clock when it began.
        Inside `asleep()` the other devices are idle."""
        steps = len(self.sizes) + 1
        ready = time.monotonic()
        for i, size in enumerate(self.sizes):
            progress("measuring tasks", i, steps)
            spent_s = time.monotonic() - ready
            left = self._allowed_s(spent_s) - spent_s
            if self.samples and not self._asked.sizes and left < _cost_of(self.samples[-1], size, self.batch_size):
                break  # a larger size, which nobody asked for by name, would not fit into the budget
            self.take(size, max(left, 0.0) / (len(self.sizes) - i), asleep)
        progress("measuring tasks", steps - 1, steps)
        if all(math.isnan(c.instruction_s) for c in self._calls):  # no size has steps short enough to tell
            apart_s = instruction_s(self._device, self.handed_on_bytes)
            self._calls = [c._replace(instruction_s=apart_s, cold_s=0.0) for c in self._calls]
        alone = max(1.0, typical_ratio(np.concatenate(self._company)))  # what company costs is told by all sizes
        self.samples = [replace(s, probe=replace(s.probe, alone=alone)) for s in self.samples if s.probe]
        return ready

    def _allowed_s(self, spent_s: float) -> float:
        """For all sizes: the budget, and more on a restless machine, as long as readings go on to take no more than _MOST_READ_S of it."""
        budget_s = self._asked.budget_s
        if not self._restless:
            return budget_s
        return max(budget_s, min(PATIENCE * budget_s, spent_s * _MOST_READ_S / max(self._read_s, 1e-9)))

    @property
    def probe(self) -> Probe:
        """That of the sample in the middle: shares of work differ a little from size to size."""
        found = self.samples[len(self.samples) // 2].probe
        assert found is not None
        return found

    @property
    def calls(self) -> CallCosts:
        """Medians over the sizes that tell, at the share of its core that there was, as the tasks'."""
        return CallCosts(*(np.nanmedian(self._calls, axis=0) / self.probe.core_share).tolist())

    def profile(self, cluster: Cluster, spent: Spent, about: Mapping[str, Any] = MappingProxyType({})) -> Profile:
        """What was measured, for the devices of a cluster; `about`: facts that only the caller knows."""
        facts = {**machine_facts(), "settings": dict(self._asked.settings), **spent.facts(), **about}
        return Profile(
            self._asked.source, self.batch_size, tuple(reversed(self.samples)), cluster,
            self.optimizer_bytes_per_parameter_byte, facts, self._job.clip_norm is not None, self.splits,
        )  # fmt: skip

    def take(self, size: int, budget_s: float, asleep: Asleep) -> None:
        """Measure at a size, in company; inside `asleep()` without."""
        captured = self._captured(size)
        del self._seen[size]
        first = len(self.readings)
        times = self._times(captured, size, budget_s, asleep)
        read = np.array(self.readings[first:])
        probe = job_probe(self.pieces, self.probed, read, work_around(times), times.core_share)
        times = at_one_speed(times, probe.slowness(read[:, 1:]))
        self._calls.append(CallCosts(cutting_s(times), beginning_s(times), idle_update_s(times), cold_s(times)))
        self._company.append(times.company)
        sample = _sample(captured.graph, times, size, self.batch_size, self._device.type)
        self.samples.append(replace(sample, probe=probe))
        self.optimizer_bytes_per_parameter_byte = times.optimizer_bytes_per_parameter_byte

    @property
    def graph(self) -> TaskGraph:
        """At the size that is probed."""
        return self._known.graph

    @property
    def handed_on_bytes(self) -> float:
        """Of all tensors that tasks hand on for a micro-batch of the size that is probed."""
        return float(self._known.graph.size_bytes.sum())

    @property
    def pace(self) -> Pace:
        """At which links are measured for this job."""
        return Pace(self.handed_on_bytes, sum(t.phase == "forward" for t in self.graph.tasks), self._pass_s)

    def _to_probe(self) -> tuple[int, Captured, list[float]]:
        """(The size of micro-batches on which the pieces run, the model at it, seconds of its tasks): the second smallest, and where a
        pass is a single piece the largest at which it still is: a plan for short steps has large micro-batches, and of a network with
        steps of 1.7 ms they took 4.1 to 5.7 times as long as a pass on a sixteenth of the batch (an EPYC, 2026-11-28)."""
        smallest, *larger = self.sizes[1:] or self.sizes
        found = following = self._looked_at(smallest)
        while self._is_one_piece(*following[1:]):
            found = following
            if not larger:
                break
            following = self._looked_at(larger.pop(0))
        return found

    def _possible(self, sizes: Sequence[int]) -> Sequence[int]:
        """Without the smallest that the model refuses, as BatchNorm does a single sample, where nobody asked for them."""
        while True:
            try:
                self._captured(sizes[0])
                return sizes
            except CaptureError:
                if self._asked.sizes or self._job.micro_batch_sizes or len(sizes) == 1:
                    raise
                sizes = sizes[1:]

    def _is_one_piece(self, captured: Captured, task_s: Sequence[float]) -> bool:
        """A pass, which a run's probe keeps in memory beside the job."""
        return len(drawn(captured, task_s)) == 1 and float(captured.graph.size_bytes.sum()) <= _MOST_PROBED_BYTES

    def _looked_at(self, size: int) -> tuple[int, Captured, list[float]]:
        captured, part = self._captured(size), next(micro_batches(self._batch, size))
        make, precision = self._job.optimizer_of, self._job.precision(self._device)
        return size, captured, quick_task_s(captured, self._model, make, part, self._device, precision)

    def _captured(self, size: int) -> Captured:
        if size not in self._seen:
            part, precision = next(micro_batches(self._batch, size)), self._job.precision(torch.device("cpu"))
            self._seen[size] = capture(self._model, self._job.loss, part, precision=precision, splits=self._wanted)
        return self._seen[size]

    def _times(self, captured: Captured, size: int, budget_s: float, asleep: Asleep) -> TaskTimes:
        count = min(self.batch_size // size, MICRO_BATCHES)
        if count > 1 and _seems_cut(self._batch, count * size):
            count = 1
        return time_tasks(
            captured,
            self._model,
            self._job.optimizer_of,
            next(micro_batches(self._batch, count * size)),
            self._device,
            budget_s=budget_s,
            micro_batches=count,
            precision=self._job.precision(self._device),
            between=self._read,
            steady=functools.partial(self._is_steady, len(self.readings), self._restless),
            asleep=asleep,
        )

    def _is_steady(self, first: int, longer: bool, whole_s: FloatArray) -> bool:
        """Whether the mean of these passes is known; the readings `first` and on are of them. Where it is not, the whole measurement
        takes longer; once it does, a size has its part of that and no more."""
        if longer or not self._asked.by_itself or self._read_s > _MOST_READ_S:
            return True
        read = np.array(self.readings[first:])[:, 1:]
        slowness = row_means(read / np.nanmedian(read, axis=0))
        found = len(whole_s) > 1 and mean_error(whole_s, slowness) <= STEADY
        self._restless |= not found
        return found

    def _read(self) -> None:
        began = time.monotonic()
        self.readings.append((began, *self._prober.read(AT_ONCE)))
        self._read_s += time.monotonic() - began


def _seems_cut(batch: Batch, samples: int) -> bool:
    """Whether a tensor that goes along whole would pass for one of so many samples.

    >>> _seems_cut((torch.zeros(32, 3), torch.zeros(8, 8)), 8)
    True
    """
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    return any(t.shape[0] != batch_size(batch) and t.shape[0] == samples for t in tensors)


def _sizes(total: int, asked: Sequence[int]) -> list[int]:
    """Micro-batch sizes, smallest first: those asked for, or the batch cut into 1, 2, 4 .. 32 equal parts."""
    bad = [s for s in asked if not 1 <= s <= total]
    if bad:
        raise JobError(f"micro-batch size {bad[0]} for batches of {total}", hint=f"choose sizes from 1 to {total}")
    return sorted(set(asked)) or [total // n for n in (32, 16, 8, 4, 2, 1) if total % n == 0] or [total]


def _cost_of(last: Sample, size: int, total: int) -> float:
    """Seconds that measuring a size will take at least, as the last sample suggests: two rounds of 12 passes of the whole job and 10 to warm up, or of
    8 and 7 with a single micro-batch, and readings that take as long as one or two a round."""
    one = float(last.costs.seconds.sum())
    return (36 if 2 * size <= total else 27) * one * size / last.micro_batch_size


def _sample(graph: TaskGraph, times: TaskTimes, size: int, total: int, kind: str) -> Sample:
    times = replace(times, **{name: getattr(times, name) / times.core_share for name in SECONDS})
    once_s = beginning_s(times) + idle_update_s(times)
    update_s = updating_s(times) - idle_update_s(times)
    step_s = once_s + -(-total // size) * float(np.median(times.one_in_flight)) + update_s
    return Sample(size, graph, _costs(graph, times, kind, update_s), step_s)


def _costs(graph: TaskGraph, times: TaskTimes, kind: str, update_s: float) -> CostTable:
    """Every task's estimate. `update_s`: of all updates, beyond what one takes whatever it updates."""
    forward, backward = estimates(times)
    waits = weight_shares(times)
    price = parting_s(times)
    share, parting = np.zeros((len(graph), 1)), np.zeros((len(graph), 1))
    number = {t.id: i for i, t in enumerate(t for t in graph.tasks if t.phase == "forward")}
    rows: list[list[Estimate]] = []
    for i, t in enumerate(graph.tasks):
        if t.phase == "forward":
            rows.append([forward[number[t.id]]])
        elif t.phase == "backward":
            rows.append([backward[number[t.of or ""]]])
            share[i] = waits[number[t.of or ""]]
            parting[i] = price[number[t.of or ""]]
        else:
            part = update_s * float(times.updates[number[t.of or ""]])
            rows.append([Estimate(part, part, part, "measured")])
    return replace(CostTable.of((kind,), rows, len(graph.producer)), weight_share=share, parting_s=parting)


def _chosen(
    job: TrainingJob,
    model: nn.Module,
    batch: Batch,
    device: torch.device,
    words: Sequence[str],
    link: Link | None,
    devices: int,
) -> tuple[Split, ...]:
    """The splits asked for, or those that a first look at the whole batch shows to be worth it: needs a link."""
    captured = capture(model, job.loss, batch, precision=job.precision(torch.device("cpu")))
    if not is_automatic(words):
        return named_splits(captured, words)
    if link is None:
        return ()
    task_s = quick_task_s(captured, model, job.optimizer_of, batch, device, job.precision(device))
    return worthwhile_splits(captured, task_s, link, devices, ghosts=words[0] == AUTO[1])


def _link(devices: tuple[Device, ...], pace: Pace) -> Link | None:
    return link_between(devices[0], devices[1], pace) if len(devices) > 1 else None


def _linked(devices: tuple[Device, ...], pace: Pace) -> Cluster:
    """The devices with the link between the first two measured, taken for all pairs."""
    link = _link(devices, pace)
    if link is None:
        return Cluster(devices, source="measured")
    return Cluster(devices, (), replace(link, source="", target=""), "measured")
