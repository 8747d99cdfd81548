"""The torch device of a rank, which ranks share one, and the groups in which ranks speak with each other.

The CUDA paths are untried: no GPU was at hand when they were written. `benchmarks/gpu.sh` tries them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from partita.errors import ClusterError
from partita.nouns.cluster import Cluster, Device


def work_clock(device: torch.device) -> Callable[[], float]:
    """The clock by which work is timed: the CPU time of this thread, so that what others take of its core does not count as work;
    where several threads compute, and on a GPU (when what was asked of it is done), the time itself."""
    if device.type != "cuda":
        return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def torch_device(cluster: Cluster, name: str) -> torch.device:
    """The torch device that a device of the cluster stands for on this machine. Raises ClusterError where it has none such."""
    device = cluster.by_name[name]
    if device.kind != "cuda":
        return torch.device("cpu")
    return torch.device("cuda", gpu_number(cluster, device, torch.cuda.device_count()))


def gpu_number(cluster: Cluster, device: Device, gpus: int) -> int:
    """Which of its machine's `gpus` GPUs a device is: the number at the end of its name.

    Where the numbers go on from one host to the next, so that this one is beyond its machine's, it is the place among its
    host's numbers. Raises ClusterError where that is beyond them too.

    >>> names = ["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]
    >>> c = Cluster(tuple(Device(n, "cuda", host=h) for h, ns in zip("ab", names) for n in ns))
    >>> [gpu_number(c, d, 2) for d in c.devices]
    [0, 1, 0, 1]
    """
    number = _number(device)
    if number < gpus:
        return number
    on_host = sorted({_number(d) for d in cluster.devices if d.kind == "cuda" and d.host == device.host})
    place = on_host.index(number)
    several_hosts = len({d.host for d in cluster.devices}) > 1
    if not several_hosts or place >= gpus:
        raise ClusterError(
            f"{device.name} is GPU {place if several_hosts else number} of {device.host}, which has {gpus}",
            hint="let a CUDA device's name end with its number on its host, e.g. cuda:0",
        )
    return place


def _number(device: Device) -> int:
    digits = "".join(c for c in device.name.rpartition(":")[2] if c.isdigit())
    return int(digits or 0)


def share_gpus(cluster: Cluster, names: Sequence[str]) -> bool:
    """Two of these devices are one GPU, which NCCL refuses.

    >>> c = Cluster((Device("a:0", "cuda"), Device("b:0", "cuda"), Device("c:0", "cuda", host="far")))
    >>> share_gpus(c, ["a:0", "b:0"]), share_gpus(c, ["a:0", "c:0"])
    (True, False)
    """
    gpus = [(d.host, _number(d)) for d in map(cluster.by_name.__getitem__, names) if d.kind == "cuda"]
    return len(set(gpus)) < len(gpus)


def backend_for(cluster: Cluster, names: Sequence[str]) -> str:
    """gloo; with CUDA devices, a rank each, NCCL beside it."""
    cuda = any(cluster.by_name[n].kind == "cuda" for n in names)
    return "cpu:gloo,cuda:nccl" if cuda and not share_gpus(cluster, names) else "gloo"


def subgroup(ranks: Sequence[int]) -> Any:
    """A process group of some ranks, as patient as that of all; torch's own default is half an hour. Every rank calls it."""
    return dist.new_group(list(ranks), timeout=patience())


def patience() -> timedelta | None:
    """How long the group of all ranks waits for a silent peer; None where torch does not tell."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu")) if dist.group.WORLD else None
    found = getattr(getattr(backend, "options", None), "_timeout", None)
    return found if isinstance(found, timedelta) else None


def direction_groups(ranks: int, rank: int, device: torch.device) -> dict[tuple[int, int], Any]:
    """An NCCL communicator for every (from, to), so that no direction waits for another. Every rank calls it.

    NCCL makes a communicator at its first message, and waits there for the other side: ranks whose first messages go in
    opposite orders would wait for ever. So all of them send one now, in one order.
    """
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    groups = {pair: dist.new_group(sorted(pair), timeout=patience(), backend="nccl") for pair in pairs}
    for (source, target), group in groups.items():
        if rank == source:
            dist.send(torch.zeros(1, device=device), target, group=group)
        elif rank == target:
            dist.recv(torch.zeros(1, device=device), source, group=group)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return groups
