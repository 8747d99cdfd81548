"""Company: the same model running on the other cores while one core is measured.

python -m partita.training.measure.company SPEC.json       (started by `company`)
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from partita.nouns.cluster import Device
from partita.spawn import Process, end, parent_is_gone, spawn, threads_env

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


@contextlib.contextmanager
def company(source: str, settings: Mapping[str, str], devices: Sequence[Device], size: int) -> Iterator[None]:
    """While the context lasts, every other device's cores train the job's model on micro-batches of `size`."""
    taken, others = set(devices[0].cores), []
    for d in devices[1:]:
        if d.kind == "cpu" and d.cores and not set(d.cores) & taken:
            taken |= set(d.cores)
            others.append(d)
    with tempfile.TemporaryDirectory(prefix="partita-company-") as folder:
        workers = [_start(Path(folder) / f"{d.name}.json", source, settings, d, size) for d in others]
        try:
            _wait_ready([Path(folder) / f"{d.name}.ready" for d in others], workers)
            yield
        finally:
            end(workers)


def _start(told: Path, source: str, settings: Mapping[str, str], device: Device, size: int) -> Process:
    ready = str(told.with_suffix(".ready"))
    spec = {"source": source, "settings": dict(settings), "cores": device.cores, "size": size, "ready": ready}
    told.write_text(json.dumps(spec))
    return spawn("partita.training.measure.company", told, env=threads_env(1))


def _wait_ready(files: Sequence[Path], workers: Sequence[Process]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and not all(
        f.exists() or w.poll() is not None for f, w in zip(files, workers, strict=True)
    ):
        time.sleep(0.05)


def _keep_busy(spec: Mapping[str, object]) -> None:
    """Train on one micro-batch again and again, until the parent goes away."""
    import torch

    from partita.memory import keep_freed_memory
    from partita.training.job import call, load_job, micro_batches

    keep_freed_memory()
    torch.set_num_threads(1)
    job = load_job(str(spec["source"]), spec["settings"])  # type: ignore[arg-type]
    model = job.build()
    inputs, target = next(micro_batches(job.example(), int(str(spec["size"]))))
    while not parent_is_gone():
        job.loss(call(model, inputs), target).backward()  # type: ignore[no-untyped-call]
        Path(str(spec["ready"])).touch()


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text())
    cores = set(told["cores"]) & os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    _keep_busy(told)
