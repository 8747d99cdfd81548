"""Measure a job on this machine: a Profile with every task's times at several micro-batch sizes, and the links."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from partita.errors import JobError
from partita.memory import keep_freed_memory
from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable, Estimate
from partita.nouns.graph import FloatArray, TaskGraph
from partita.nouns.probe import AT_ONCE, Probe, ProbePiece, middle_mean
from partita.nouns.profile import Profile, Sample
from partita.page.machine import machine_facts
from partita.training.capture.model import Captured, capture
from partita.training.job import Batch, TrainingJob, batch_size, load_job, micro_batches
from partita.training.loss_check import check_loss
from partita.training.measure.company import company, pinned
from partita.training.measure.instructions import CallCosts, call_costs
from partita.training.measure.links import link_between
from partita.training.measure.machine import local_devices
from partita.training.measure.speeds import job_probe, typical_ratio, with_speeds
from partita.training.measure.tasks import SECONDS, TaskTimes, estimates, parting_s, time_tasks, weight_shares
from partita.training.probing import Prober, call_seconds, long_enough, pieces_of, shares_of, with_shares

Progress = Callable[[str, int, int], None]
Asleep = Callable[[], AbstractContextManager[None]]


def measure_job(
    source: str,
    settings: Mapping[str, str] | None = None,
    *,
    devices: int | None = None,
    sizes: Sequence[int] = (),
    budget_s: float = 15.0,
    progress: Progress = lambda what, done, total: None,
) -> Profile:
    """Capture and time the job `file.py:function` at each micro-batch size, smallest first, within about `budget_s` seconds.

    While it is timed, the other devices' cores run the same model, as they will in a pipeline: cores share caches,
    memory and power, and a task alone on the machine is a few per cent faster than it will be.

    Raises JobError, CaptureError, ClusterError.
    """
    began, cpu = time.monotonic(), time.process_time()
    keep_freed_memory()  # as a worker does
    local = local_devices(devices)
    job = load_job(source, settings)
    model, batch = job.build(), job.example()
    check_loss(job, model, batch)
    total = batch_size(batch)
    wanted = _sizes(total, sizes or job.micro_batch_sizes)
    device = torch.device(local[0].name) if local[0].kind == "cuda" else torch.device("cpu")
    steps = len(wanted) + 1
    with pinned(local[0]):
        measuring = _Measuring(job, model, batch, device, local[0].kind, wanted[0])
    others = [d for d in local[1:] if d.cores != local[0].cores]
    with company(source, settings or {}, others, wanted[0], measuring.pieces) as busy, pinned(local[0]):
        cost, ready = call_costs(device), time.monotonic()
        for i, size in enumerate(wanted):
            progress("measuring tasks", i, steps)
            left = budget_s - (time.monotonic() - ready)
            if measuring.samples and not sizes and left < _cost_of(measuring.samples[-1], size):
                break  # a larger size, which nobody asked for by name, would not fit into the budget
            measuring.take(size, max(left, 0.0) / (len(wanted) - i), busy.asleep, cost)
        read = {name: busy.steps(name, ready) for name in busy.logs}
    samples = measuring.with_company()
    progress("measuring tasks", steps - 1, steps)
    probe = probe_of(samples)  # CPU seconds, as the tasks': at the share of the core that there was
    call_s, step_s = cost.instruction_s / probe.core_share, cost.step_s / probe.core_share
    local = tuple(replace(d, instruction_s=call_s, step_s=step_s) for d in local)
    cluster = _linked(with_speeds(local, probe, np.array(measuring.readings), read))
    progress("measuring tasks", steps, steps)
    facts = {
        **machine_facts(),
        "settings": dict(settings or {}),
        "wall_s": time.monotonic() - began,
        "cpu_s": time.process_time() - cpu,
    }
    return Profile(
        source,
        total,
        tuple(reversed(samples)),
        cluster,
        measuring.optimizer_bytes_per_parameter_byte,
        facts,
        job.clip_norm is not None,
    )


class _Measuring:
    """A job being measured on one device, a micro-batch size at a time."""

    def __init__(
        self, job: TrainingJob, model: nn.Module, batch: Batch, device: torch.device, kind: str, smallest: int
    ) -> None:
        """The probe's pieces are chosen at the smallest size."""
        self._job, self._model, self._batch, self._device, self._kind = job, model, batch, device, kind
        self.samples: list[Sample] = []
        self.readings: list[tuple[float, ...]] = []  #: the moment and the seconds of each piece
        self._lone_readings: list[tuple[float, ...]] = []  #: the pieces' seconds without company
        self._paired: list[int] = []  #: of each, which of `readings` came last before it
        self._company: list[FloatArray] = []  #: of every size
        self.optimizer_bytes_per_parameter_byte = 0.0
        self._smallest = self._captured(smallest)
        self.pieces: tuple[ProbePiece, ...] = long_enough(pieces_of(self._smallest), device)
        self._prober = Prober(self.pieces, device)

    def take(self, size: int, budget_s: float, asleep: Asleep, cost: CallCosts) -> None:
        """Measure at a size, in company; inside `asleep()` without."""
        captured = self._captured(size) if self.samples else self._smallest
        first = len(self.readings)
        times = _in_a_step(self._times(captured, size, budget_s, asleep), cost)
        self._company.append(times.company)
        sample = _sample(captured.graph, times, size, batch_size(self._batch), self._kind)
        own = np.array(self.readings[first:])
        call_s = call_seconds(self.pieces, middle_mean(own[:, 1:]).tolist())
        known = with_shares(self.pieces, shares_of(captured, _task_s(sample), call_s))
        self.samples.append(replace(sample, probe=job_probe(known, own, times.core_share)))
        self.optimizer_bytes_per_parameter_byte = times.optimizer_bytes_per_parameter_byte

    def with_company(self) -> list[Sample]:
        """The samples with what company costs, told by the passes of all sizes and by the readings between them."""
        alone = max(1.0, typical_ratio(np.concatenate(self._company)))
        in_company, lone = np.array([self.readings[i][1:] for i in self._paired]), np.array(self._lone_readings)
        found = []
        for s in self.samples:
            assert s.probe is not None
            alone_read = typical_ratio(s.probe.slowness(in_company) / s.probe.slowness(lone))
            found.append(replace(s, probe=replace(s.probe, alone=alone, alone_read=alone_read)))
        return found

    def _captured(self, size: int) -> Captured:
        part = next(micro_batches(self._batch, size))
        return capture(self._model, self._job.loss, part, precision=self._job.precision(torch.device("cpu")))

    def _times(self, captured: Captured, size: int, budget_s: float, asleep: Asleep) -> TaskTimes:
        return time_tasks(
            captured,
            self._model,
            self._job.optimizer,
            next(micro_batches(self._batch, size)),
            self._device,
            budget_s=budget_s,
            precision=self._job.precision(self._device),
            between=lambda: self.readings.append((time.monotonic(), *self._prober.read(AT_ONCE))),
            asleep=partial(self._read_in, asleep),
        )

    @contextmanager
    def _read_in(self, asleep: Asleep) -> Iterator[None]:
        """Asleep, and the probe is read at the end of it."""
        with asleep():
            yield
            self._paired.append(len(self.readings) - 1)
            self._lone_readings.append(self._prober.read(AT_ONCE))


def _in_a_step(times: TaskTimes, cost: CallCosts) -> TaskTimes:
    """Times as the interpreter of a step takes them, which do what it does around each call and once a step."""
    return replace(
        times,
        whole_forward=times.whole_forward + cost.around_s,
        whole_backward=times.whole_backward + cost.around_s,
        one_in_flight=times.one_in_flight + 2 * cost.around_s,
        update=times.update + cost.step_s,
    )


def probe_of(samples: Sequence[Sample]) -> Probe:
    """The probe of the sample in the middle: shares of work differ a little from size to size."""
    found = samples[len(samples) // 2].probe
    assert found is not None
    return found


def _task_s(sample: Sample) -> dict[str, float]:
    """Forward task -> its seconds with its backward."""
    seconds: dict[str, float] = defaultdict(float)
    for task, row in zip(sample.graph.tasks, sample.costs.seconds, strict=True):
        if task.phase != "update":
            seconds[task.of or task.id] += float(row[0])
    return seconds


def _sizes(total: int, asked: Sequence[int]) -> list[int]:
    """Micro-batch sizes, smallest first: those asked for, or the batch cut into 1, 2, 4 .. 32 equal parts."""
    bad = [s for s in asked if not 1 <= s <= total]
    if bad:
        raise JobError(f"micro-batch size {bad[0]} for batches of {total}", hint=f"choose sizes from 1 to {total}")
    return sorted(set(asked)) or [total // n for n in (32, 16, 8, 4, 2, 1) if total % n == 0] or [total]


def _cost_of(last: Sample, size: int) -> float:
    """Seconds that measuring a size will take at least: three rounds, as the last sample suggests."""
    one = float(last.costs.seconds.sum())
    return 24 * one * size / last.micro_batch_size


def _sample(graph: TaskGraph, times: TaskTimes, size: int, total: int, kind: str) -> Sample:
    times = replace(times, **{name: getattr(times, name) / times.core_share for name in SECONDS})
    update_s = float(np.median(times.update))
    step_s = -(-total // size) * float(np.median(times.one_in_flight)) + update_s
    return Sample(size, graph, _costs(graph, times, kind, update_s), step_s)


def _costs(graph: TaskGraph, times: TaskTimes, kind: str, update_s: float) -> CostTable:
    """Every task's estimate; the optimizer's step is shared out by the bytes of the parameters."""
    forward, backward = estimates(times)
    waits = weight_shares(times)
    price = parting_s(times)
    share, parting = np.zeros((len(graph), 1)), np.zeros((len(graph), 1))
    number = {t.id: i for i, t in enumerate(t for t in graph.tasks if t.phase == "forward")}
    held = {t.id: t.parameter_bytes for t in graph.tasks}
    updated = sum(held[t.of] for t in graph.tasks if t.phase == "update" and t.of) or 1.0
    rows: list[list[Estimate]] = []
    for i, t in enumerate(graph.tasks):
        if t.phase == "forward":
            rows.append([forward[number[t.id]]])
        elif t.phase == "backward":
            rows.append([backward[number[t.of or ""]]])
            share[i] = waits[number[t.of or ""]]
            parting[i] = price[number[t.of or ""]]
        else:
            part = update_s * held[t.of or ""] / updated
            rows.append([Estimate(part, part, part, "measured")])
    return replace(CostTable.of((kind,), rows, len(graph.producer)), weight_share=share, parting_s=parting)


def _linked(devices: tuple[Device, ...]) -> Cluster:
    """The devices with the link between the first two measured, taken for all pairs."""
    if len(devices) < 2:
        return Cluster(devices, source="measured")
    link = link_between(devices[0], devices[1])
    return Cluster(devices, (), replace(link, source="", target=""), "measured")
