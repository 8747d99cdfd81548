"""Measure a job on this machine: a Profile with every task's times at several micro-batch sizes, and the links."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from partita.errors import JobError
from partita.memory import keep_freed_memory
from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable, Estimate
from partita.nouns.graph import TaskGraph
from partita.nouns.profile import Profile, Sample
from partita.page.machine import machine_facts
from partita.training.capture.model import capture
from partita.training.job import batch_size, load_job, micro_batches
from partita.training.loss_check import check_loss
from partita.training.measure.company import company, pinned
from partita.training.measure.links import link_between
from partita.training.measure.machine import local_devices
from partita.training.measure.tasks import TaskTimes, estimates, time_tasks, weight_shares

Progress = Callable[[str, int, int], None]


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
    samples: list[Sample] = []
    with company(source, settings or {}, local, wanted[0]), pinned(local[0]):
        ready = time.monotonic()
        for i, size in enumerate(wanted):
            progress("measuring tasks", i, steps)
            left = budget_s - (time.monotonic() - ready)
            if samples and not sizes and left < _cost_of(samples[-1], size):
                break  # a larger size, which nobody asked for by name, would not fit into the budget
            captured = capture(
                model, job.loss, next(micro_batches(batch, size)), precision=job.precision(torch.device("cpu"))
            )
            part = next(micro_batches(batch, size))
            times = time_tasks(
                captured,
                model,
                job.optimizer,
                part,
                device,
                budget_s=max(left, 0.0) / (len(wanted) - i),
                precision=job.precision(device),
            )
            samples.append(_sample(captured.graph, times, size, total, local[0].kind))
    progress("measuring tasks", steps - 1, steps)
    cluster = _linked(local)
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
        times.optimizer_bytes_per_parameter_byte,
        facts,
        job.clip_norm is not None,
    )


def _sizes(total: int, asked: Sequence[int]) -> list[int]:
    """Micro-batch sizes, smallest first: those asked for, or the batch cut into 1, 2, 4 .. 32 equal parts."""
    bad = [s for s in asked if not 1 <= s <= total]
    if bad:
        raise JobError(f"micro-batch size {bad[0]} for batches of {total}", hint=f"choose sizes from 1 to {total}")
    return sorted(set(asked)) or [total // n for n in (32, 16, 8, 4, 2, 1) if total % n == 0] or [total]


def _cost_of(last: Sample, size: int) -> float:
    """Seconds that measuring a size will take at least: three rounds, as the last sample suggests."""
    one = float(last.costs.seconds.sum())
    return 12 * one * size / last.micro_batch_size


def _sample(graph: TaskGraph, times: TaskTimes, size: int, total: int, kind: str) -> Sample:
    update_s = float(np.median(times.update))
    step_s = -(-total // size) * float(np.median(times.alone)) + update_s
    return Sample(size, graph, _costs(graph, times, kind, update_s), step_s)


def _costs(graph: TaskGraph, times: TaskTimes, kind: str, update_s: float) -> CostTable:
    """Every task's estimate; the optimizer's step is shared out by the bytes of the parameters."""
    forward, backward = estimates(times)
    waits = weight_shares(times)
    share = np.zeros((len(graph), 1))
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
        else:
            part = update_s * held[t.of or ""] / updated
            rows.append([Estimate(part, part, part, "measured")])
    return replace(CostTable.of((kind,), rows, len(graph.producer)), weight_share=share)


def _linked(devices: tuple[Device, ...]) -> Cluster:
    """The devices with the link between the first two measured, taken for all pairs."""
    if len(devices) < 2:
        return Cluster(devices, source="measured")
    link = link_between(devices[0], devices[1])
    return Cluster(devices, (), replace(link, source="", target=""), "measured")
