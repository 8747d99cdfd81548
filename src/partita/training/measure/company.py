"""Company: the same model running on the other cores while one core is measured.

python -m partita.training.measure.company SPEC.json       (started by `company`)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import BadInput
from partita.nouns.cluster import Device
from partita.nouns.graph import FloatArray
from partita.nouns.probe import ProbePiece
from partita.nouns.splits import Split, read_splits, splits_json
from partita.records import record
from partita.spawn import Process, end, parent_is_gone, spawn, threads_env
from partita.temporary import temporary_folder

_PATIENCE_S = 30.0  #: for a companion to get ready; without it the measurement goes on alone


@contextlib.contextmanager
def pinned(device: Device) -> Iterator[None]:
    """This process on the device's cores, one thread a core, as a worker would be."""
    import torch

    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    if device.cores:
        os.sched_setaffinity(0, device.cores)
    torch.set_num_threads(max(1, len(device.cores)))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Company:
    """The other devices at work."""

    logs: Mapping[str, Path]  #: device -> what its companion writes down, a line a step
    workers: Sequence[Process] = ()
    sleeps: list[tuple[float, float]] = field(default_factory=list)  #: (begin, end), in order

    @contextlib.contextmanager
    def asleep(self) -> Iterator[None]:
        """The other devices idle, for a while."""
        began = time.monotonic()
        _tell(self.workers, signal.SIGSTOP)
        try:
            yield
        finally:
            _tell(self.workers, signal.SIGCONT)
            self.sleeps.append((began, time.monotonic()))

    def steps(self, device: str, since: float) -> FloatArray:
        """[steps, 3 + pieces] of a device since a moment of the monotonic clock, without those during which it slept: when the
        step ended, its CPU seconds, its seconds, and CPU seconds of each piece of the probe, nan where it was not read behind it."""
        lines = self.logs[device].read_text().splitlines() if self.logs[device].exists() else []
        rows = [[float(x) for x in line.split()] for line in lines[:-1]]  # the last one may be half a line
        found = np.array([r for r in rows if r[0] >= since]).reshape(-1, len(rows[0]) if rows else 4)
        begin, end = np.array(self.sleeps).reshape(-1, 2).T
        slept = np.searchsorted(begin, found[:, 1]) > np.searchsorted(end, found[:, 0] - found[:, 3])
        return np.delete(found[~slept], 1, axis=1)


@contextlib.contextmanager
def company(
    source: str,
    settings: Mapping[str, str],
    devices: Sequence[Device],
    size: int,
    pieces: Sequence[ProbePiece],
    splits: Sequence[Split] = (),
) -> Iterator[Company]:
    """While the context lasts, each of these devices, as far as they have cores of their own, trains the job's model on
    micro-batches of `size`, and reads a piece of the probe, of the same size, after every step."""
    taken, others = set[int](), []
    for d in devices:
        if d.kind == "cpu" and d.cores and not set(d.cores) & taken:
            taken |= set(d.cores)
            others.append(d)
    with temporary_folder("company") as folder:
        logs = {d.name: folder / f"{d.name}.log" for d in others}
        spec = {
            "source": source,
            "settings": dict(settings),
            "size": size,
            "pieces": [asdict(p) for p in pieces],
            "splits": splits_json(splits),
        }
        workers = [_start(logs[d.name].with_suffix(".json"), {**spec, "cores": d.cores}) for d in others]
        try:
            _wait_ready(list(logs.values()), workers)
            yield Company(logs, workers)
        finally:
            end(workers)


def _start(told: Path, spec: Mapping[str, object]) -> Process:
    told.write_text(json.dumps({**spec, "log": str(told.with_suffix(".log"))}))
    return spawn("partita.training.measure.company", told, env=threads_env(1))


def _tell(workers: Sequence[Process], what: signal.Signals) -> None:
    for w in workers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if w.poll() is None:
                os.killpg(w.pid, what)


def _wait_ready(files: Sequence[Path], workers: Sequence[Process]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and not all(
        (f.exists() and f.stat().st_size) or w.poll() is not None for f, w in zip(files, workers, strict=True)
    ):
        time.sleep(0.05)


def _keep_busy(spec: Mapping[str, Any]) -> None:
    """Train on one micro-batch again and again, until the parent goes away."""
    import torch

    from partita.memory import keep_freed_memory
    from partita.training.capture.model import capture
    from partita.training.job import call, load_job, micro_batches
    from partita.training.probing import Prober

    keep_freed_memory()
    torch.set_num_threads(1)
    job = load_job(str(spec["source"]), spec["settings"])
    model = job.build()
    device = torch.device("cpu")
    part = inputs, target = next(micro_batches(job.example(), int(spec["size"])))
    splits = read_splits(spec["splits"], BadInput, "what a companion is told")
    captured = capture(model, job.loss, part, precision=job.precision(device), splits=splits)
    prober = Prober(_pieces(spec), captured, part, device, job.precision(device))
    with open(spec["log"], "w", buffering=1) as log:
        while not parent_is_gone():
            began, worked = time.monotonic(), time.thread_time()
            with job.precision(device)():
                loss = job.loss(call(model, inputs), target)
            loss.backward()  # type: ignore[no-untyped-call]
            ended, work = time.monotonic(), time.thread_time() - worked
            readings = prober.read()
            print(ended, time.monotonic(), work, ended - began, *readings, file=log)


def _pieces(spec: Mapping[str, Any]) -> list[ProbePiece]:
    return [record(ProbePiece, p, BadInput, "what a companion is told") for p in spec["pieces"]]


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text())
    cores = set(told["cores"]) & os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    _keep_busy(told)
