"""This machine: its devices with their cores and memory, and the facts that go beside every figure."""

from __future__ import annotations

import os

import torch

from partita.errors import ClusterError
from partita.nouns.cluster import Device


def local_devices(n: int | None = None) -> tuple[Device, ...]:
    """n devices of this machine: its GPUs if it has any, else its cores, one each. None: all of them.

    More CPU devices than cores share the cores in turn: that works, and is slow. Raises ClusterError below 1.
    """
    if n is not None and n < 1:
        raise ClusterError(f"{n} devices asked for", hint="ask for at least 1")
    gpus = torch.cuda.device_count()
    if gpus and (n is None or n <= gpus):
        sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(gpus)]
        return tuple(Device(f"cuda:{i}", "cuda", float(sizes[i])) for i in range(n or gpus))
    cores = sorted(os.sched_getaffinity(0))
    count = n or len(cores)
    share = _available_bytes() / count
    return tuple(Device(f"cpu{i}", "cpu", share, cores=(cores[i % len(cores)],)) for i in range(count))


def _available_bytes() -> float:
    with open("/proc/meminfo") as file:
        rows = dict(line.split(":") for line in file)
    return float(rows["MemAvailable"].split()[0]) * 1024
