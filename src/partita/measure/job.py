"""Measure a job on this machine: a Profile with every task's times at several micro-batch sizes, and the links."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from partita.capture.model import capture
from partita.cluster import Cluster, Device
from partita.costs import CostTable, Estimate
from partita.errors import JobError
from partita.graph import TaskGraph
from partita.job import TrainingJob, batch_size, micro_batches
from partita.measure.links import link_between
from partita.measure.machine import local_devices, machine_facts
from partita.measure.tasks import TaskTimes, estimates, time_tasks, time_update
from partita.profile import Profile, Sample

Progress = Callable[[str, int, int], None]


def measure_job(
    job: TrainingJob,
    name: str,
    *,
    devices: int | None = None,
    sizes: Sequence[int] = (),
    budget_s: float = 15.0,
    progress: Progress = lambda what, done, total: None,
) -> Profile:
    """Capture and time the job at each micro-batch size, smallest first, within about `budget_s` seconds.

    Raises JobError, CaptureError, ClusterError.
    """
    began, cpu = time.monotonic(), time.process_time()
    local = local_devices(devices)
    model, batch = job.build(), job.example()
    total = batch_size(batch)
    wanted = _sizes(total, sizes or job.micro_batch_sizes)
    device = torch.device(local[0].name) if local[0].kind == "cuda" else torch.device("cpu")
    steps = len(wanted) + 2
    with _pinned(local[0]):
        parameters = list(model.named_parameters())
        optimizer = job.optimizer(parameters)
        update_s, state = time_update(optimizer, [p for _, p in parameters])
        progress("measuring tasks", 1, steps)
        samples: list[Sample] = []
        for i, size in enumerate(wanted):
            left = budget_s - (time.monotonic() - began)
            if samples and left < 2 * _cost_of(samples[-1], size):
                break  # a larger size would not fit into the budget
            samples.append(
                _sample(
                    model,
                    job,
                    next(micro_batches(batch, size)),
                    size,
                    total,
                    device,
                    local[0].kind,
                    update_s,
                    left / (len(wanted) - i),
                )
            )
            progress("measuring tasks", i + 2, steps)
    cluster = _linked(local)
    progress("measuring tasks", steps, steps)
    facts = {**machine_facts(), "wall_s": time.monotonic() - began, "cpu_s": time.process_time() - cpu}
    return Profile(name, total, tuple(reversed(samples)), cluster, state, facts)


def _sizes(total: int, asked: Sequence[int]) -> list[int]:
    """Micro-batch sizes, smallest first: those asked for, or the batch cut into 1, 2, 4 .. 32 equal parts."""
    bad = [s for s in asked if not 1 <= s <= total]
    if bad:
        raise JobError(f"micro-batch size {bad[0]} for batches of {total}", hint=f"choose sizes from 1 to {total}")
    return sorted(set(asked)) or [total // n for n in (32, 16, 8, 4, 2, 1) if total % n == 0] or [total]


def _cost_of(last: Sample, size: int) -> float:
    """Seconds that measuring a size will take at least: three passes, as the last sample suggests."""
    one = float(last.costs.seconds.sum())
    return 6 * one * size / last.micro_batch_size


def _sample(
    model: nn.Module,
    job: TrainingJob,
    part: Any,
    size: int,
    total: int,
    device: torch.device,
    kind: str,
    update_s: float,
    budget_s: float,
) -> Sample:
    captured = capture(model, job.loss, part)
    times = time_tasks(captured, model, part, device, budget_s=max(budget_s, 0.0) * 0.9)
    costs = _costs(captured.graph, times, kind, update_s)
    whole = float(np.median(times.whole_forward) + np.median(times.whole_backward))
    return Sample(size, captured.graph, costs, -(-total // size) * whole + update_s)


def _costs(graph: TaskGraph, times: TaskTimes, kind: str, update_s: float) -> CostTable:
    """Every task's estimate; the optimizer's step is shared out by the bytes of the parameters."""
    forward, backward = estimates(times)
    number = {t.id: i for i, t in enumerate(t for t in graph.tasks if t.phase == "forward")}
    held = {t.id: t.parameter_bytes for t in graph.tasks}
    updated = sum(held[t.of] for t in graph.tasks if t.phase == "update" and t.of) or 1.0
    rows: list[list[Estimate]] = []
    for t in graph.tasks:
        if t.phase == "forward":
            rows.append([forward[number[t.id]]])
        elif t.phase == "backward":
            rows.append([backward[number[t.of or ""]]])
        else:
            share = update_s * held[t.of or ""] / updated
            rows.append([Estimate(share, share, share, "measured")])
    return CostTable.of((kind,), rows, len(graph.producer))


def _linked(devices: tuple[Device, ...]) -> Cluster:
    """The devices with the link between the first two measured, taken for all pairs."""
    if len(devices) < 2 or devices[0].kind == "cuda":
        return Cluster(devices, source="measured")
    link = link_between(devices[0], devices[1])
    return Cluster(devices, (), replace(link, source="", target=""), "measured")


@contextlib.contextmanager
def _pinned(device: Device) -> Iterator[None]:
    """This process on the device's cores with one thread, as a worker would be."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    if device.cores:
        os.sched_setaffinity(0, device.cores)
    torch.set_num_threads(max(1, len(device.cores)))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
