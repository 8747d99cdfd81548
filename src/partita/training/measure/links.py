"""Measure the link between two local ranks: rate, latency, what a message costs the devices at its ends, and what
summing gradients over it takes.

Two processes, pinned like workers, exchange messages of several sizes as a run's ranks do (`Transport`), each behind a
computation that fills the caches as the job's own do: half a megabyte takes 0.5 ms behind an Inception's segments, and 0.3 ms where
nothing else was touched since the last message (AMD EPYC, 2026-11-23). A line through the times of one way gives latency and
rate; the CPU time that a process spends on a message, and on a byte of it, is what posting or receiving it takes of its device, and
is no part of the latency. Through memory it is no part of the rate either: nothing else carries the bytes. A wire carries them while the ends
work at those before and behind.
What a sum of gradients takes longer than its messages should is copying and adding.

    python -m partita.training.measure.links SPEC.json       (started by `link_between`)
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ClusterError
from partita.nouns.cluster import Device, Link
from partita.nouns.graph import FloatArray
from partita.simulate.exchange import ring_s
from partita.spawn import Process, end, ended_how, last_line, spawn, threads_env

if TYPE_CHECKING:
    import torch

    from partita.training.runtime.transport import Transport

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 19, 1 << 21)  #: bytes
GRADIENT_BYTES = (1 << 14, 1 << 21, 1 << 23)  #: of all gradients together; they lie in GRADIENTS tensors
GRADIENTS = 32
_BETWEEN_S = 1e-3  #: for which a side works before it sends, at least
_MOST_BETWEEN = 1 << 25  #: bytes that it goes through: more would only take time


def link_between(
    a: Device, b: Device, *, job_bytes: float = _MOST_BETWEEN, repeats: int = 40, timeout_s: float = 60.0
) -> Link:
    """The link a -> b of this machine, measured; `job_bytes`: of all tensors that the job's tasks hand on for a micro-batch, which
    fill the caches between two messages. Raises ClusterError where the two processes cannot talk."""
    with tempfile.TemporaryDirectory(prefix="partita-links-") as folder:
        out = Path(folder) / "out.json"
        spec = {"rendezvous": f"file://{folder}/rendezvous", "out": str(out), "repeats": repeats}
        spec["between"] = int(min(job_bytes, _MOST_BETWEEN))
        told = Path(folder) / "spec.json"
        told.write_text(json.dumps(spec))
        workers = [_start(told, rank, device) for rank, device in enumerate((a, b))]
        try:
            codes = [w.wait(timeout_s) for w in workers]
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"the link {a.name} -> {b.name} could not be measured in {timeout_s:.0f} s",
                hint="give its rate in a cluster file",
            ) from error
        finally:
            end(workers)
        if any(codes):
            rank = next(r for r, code in enumerate(codes) if code)
            why = f"its process {ended_how(codes[rank])}: {last_line(_log(told, rank))}"
            raise ClusterError(
                f"the link {a.name} -> {b.name} could not be measured, {why}",
                hint="give its rate in a cluster file",
            )
        found = json.loads(out.read_text())
        return measured_link(a.name, b.name, found)


def _start(told: Path, rank: int, device: Device) -> Process:
    env = {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo", "PARTITA_CORES": ",".join(map(str, device.cores))}
    env |= {"PARTITA_GPU": device.name} if device.kind == "cuda" else {}
    return spawn("partita.training.measure.links", told, env=threads_env(1) | env, log=_log(told, rank))


def _log(told: Path, rank: int) -> Path:
    return told.with_name(f"rank{rank}.log")


def measured_link(source: str, target: str, found: Mapping[str, Any]) -> Link:
    """The link that a measurement tells of, as `_measure` writes it down."""
    return with_sums(link_from(source, target, found["messages"], wire=found["wire"]), found["sums"])


def link_from(source: str, target: str, rows: list[dict[str, float]], *, wire: bool = False) -> Link:
    """Lines through (bytes, seconds) of one way and of the ends. A `wire` carries bytes while the ends work, as many a second as of
    long messages that follow each other (`stream_s`).

    >>> rows = [
    ...     {"bytes": b, "way_s": 1.5e-4 + b / 1e9, "send_s": 2e-5 + b / 5e9, "receive_s": 3e-5, "stream_s": b / 9e8}
    ...     for b in (1e3, 1e5, 1e6)
    ... ]
    >>> link = link_from("a", "b", rows); round(link.latency_s * 1e6), round(link.rate_bytes_per_s / 1e6)
    (100, 1250)
    >>> round(link.send_s * 1e6), round(link.message_s * 1e6), round(link.send_s_per_byte * 1e12)
    (20, 30, 200)
    >>> round(link_from("a", "b", rows, wire=True).rate_bytes_per_s / 1e6)
    900
    """
    size = np.array([r["bytes"] for r in rows])
    way, send, receive = (np.array([r[w] for r in rows]) for w in ("way_s", "send_s", "receive_s"))
    (slope, latency), *ends = (_line(size, y, y) for y in (way, send, receive))
    (send_byte_s, send_s), (message_byte_s, message_s) = ((max(each, 0.0), max(once, 0.0)) for each, once in ends)
    slope = slope if slope > 0 else float(way[-1] / size[-1])
    if (
        not wire and send_byte_s + message_byte_s > slope
    ):  # what lay in caches there did not on the way, or the other way round
        part = slope / (send_byte_s + message_byte_s)
        send_byte_s, message_byte_s = part * send_byte_s, part * message_byte_s
    carried = rows[-1]["stream_s"] / rows[-1]["bytes"] if wire else slope - send_byte_s - message_byte_s
    return Link(
        source, target, 1 / carried if carried > 0 else math.inf, max(latency - send_s - message_s, 0.0),
        message_s=message_s, message_s_per_byte=message_byte_s, send_s=send_s, send_s_per_byte=send_byte_s,
    )  # fmt: skip


def _line(x: FloatArray, y: FloatArray, scale: FloatArray) -> tuple[float, float]:
    """(slope, intercept); an error counts as a share of the `scale` there. Of one point, or without a scale, level."""
    if len(x) < 2 or not scale.all():
        return 0.0, float(np.median(y))
    slope, intercept = np.polyfit(x, y, 1, w=1 / scale)
    return float(slope), float(intercept)


def with_sums(link: Link, rows: list[dict[str, float]]) -> Link:
    """The link with what summing gradients over two devices takes beyond its messages: a sum, and a byte of it.

    >>> link = Link("a", "b", 1e9, 1e-4)
    >>> rows = [{"bytes": b, "sum_s": 2 * 1e-4 + 5e-4 + 3e-9 * b} for b in (1e4, 1e6, 1e7)]
    >>> found = with_sums(link, rows); round(found.sum_s * 1e6), round(found.sum_s_per_byte * 1e9, 6)
    (500, 2.0)
    """
    size, took = np.array([r["bytes"] for r in rows]), np.array([r["sum_s"] for r in rows])
    beyond = took - ring_s(2, size, link.rate_bytes_per_s, link.latency_s)  # what the ends take of a byte among it
    per_byte, each = _line(size, beyond, took)
    return replace(link, sum_s=max(each, 0.0), sum_s_per_byte=max(per_byte, 0.0))


def _measure(spec: dict[str, object]) -> None:
    import torch
    import torch.distributed as dist

    from partita.training.runtime.mailbox import open_mailboxes
    from partita.training.runtime.transport import Transport

    torch.set_num_threads(1)
    rank, gpu = int(os.environ["RANK"]), os.environ.get("PARTITA_GPU", "")
    device = torch.device(gpu or "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo", init_method=str(spec["rendezvous"]), rank=rank, world_size=2
    )
    mailboxes = None if gpu else open_mailboxes(rank, 2)
    transport = Transport(device, "nccl" if gpu else "gloo", mailboxes=mailboxes)
    wire = mailboxes is not None and 1 - rank not in mailboxes  # between GPUs the line through one way is all there is
    rows = []
    for size in SIZES:
        ways = _way_times(size, rank, transport, int(str(spec["repeats"])), int(str(spec["between"])))
        ends = {"send_s": 0.0, "receive_s": 0.0, "stream_s": 0.0}  # a GPU computes on while its copy engines send
        ends = ends if gpu else _device_times(size, rank, transport, wire=wire)
        rows.append({"bytes": float(size), "way_s": float(np.median(ways)), **ends})
    sums = [{"bytes": float(size), "sum_s": _sum_time(size, transport)} for size in GRADIENT_BYTES]
    if rank == 0:
        Path(str(spec["out"])).write_text(json.dumps({"messages": rows, "sums": sums, "wire": wire}))
    dist.barrier()


def _way_times(size: int, rank: int, transport: Transport, repeats: int, between: int) -> FloatArray:
    """[repeats] seconds of one way of a message there and back, as a run sends it; on rank 0.

    Before it sends, a side computes on so many bytes, and what it sends comes last."""
    import torch
    import torch.distributed as dist

    from partita.training.capture.captured import TensorMeta

    meta = (TensorMeta((size,), (1,), torch.uint8, False),)
    buffer = torch.zeros(size, dtype=torch.uint8, device=transport.device)
    scratch = torch.ones(between // 4, device=transport.device)
    ahead = transport.device.type == "cpu"  # NCCL takes messages in one order on both sides
    rounds, worked = np.zeros(repeats), torch.zeros(repeats, dtype=torch.float64)
    for i in range(repeats):
        coming = transport.receive(meta, 1 - rank, rank, 0) if ahead else None
        _settle(transport.device)
        began = time.perf_counter()
        for sender in (0, 1):
            if rank == sender:
                worked[i] = _work(scratch, buffer)
                for work, _ in transport.send([buffer], meta, rank, 1 - rank, 0):
                    work.wait()
            else:
                (coming or transport.receive(meta, 1 - rank, rank, 0)).wait()
            _settle(transport.device)
        rounds[i] = time.perf_counter() - began
    dist.all_reduce(worked)
    return np.asarray((rounds - worked.numpy()) / 2)


def _work(scratch: torch.Tensor, buffer: torch.Tensor) -> float:
    """Go through one and write the other; the seconds that it takes."""
    began = time.perf_counter()
    while time.perf_counter() < began + _BETWEEN_S:
        scratch.sum()
    buffer.fill_(1)
    _settle(scratch.device)
    return time.perf_counter() - began


def _settle(device: torch.device) -> None:
    """Wait until a GPU has done what was asked of it."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_times(
    size: int, rank: int, transport: Transport, count: int = 50, *, wire: bool = False
) -> dict[str, float]:
    """CPU seconds that one message takes of the device at either end, of many that follow each other; receives are posted ahead.

    From a wire a message is taken as it comes, mostly before anybody asks for it. In memory it waits until then; who looks for one
    that has not come works, which is no part of what it takes, so there all have come.
    """
    import torch
    import torch.distributed as dist

    from partita.training.capture.captured import TensorMeta

    meta, tensor = (TensorMeta((size,), (1,), torch.uint8, False),), [torch.zeros(size, dtype=torch.uint8)]
    spent = torch.zeros(3, dtype=torch.float64)
    for _ in range(2):  # once to touch the memory
        coming = [transport.receive(meta, 0, 1, i) for i in range(count)] if rank else []
        dist.barrier()
        began, clock = time.process_time(), time.perf_counter()
        for works in [transport.send(tensor, meta, 0, 1, i) for i in range(0 if rank else count)]:
            for work, _ in works:
                work.wait()
        spent_s = time.process_time() - began
        if not wire:
            dist.barrier()
            began = time.process_time()
        for c in coming:
            c.wait()
        spent.zero_()
        spent[rank] = (time.process_time() - began if rank else spent_s) / count
        spent[2] = (time.perf_counter() - clock) / count if rank else 0.0
    dist.all_reduce(spent)
    return {"send_s": float(spent[0]), "receive_s": float(spent[1]), "stream_s": float(spent[2])}


def _sum_time(size: int, transport: Transport, repeats: int = 9) -> float:
    """Seconds in which gradients are summed over both ranks, as a training step does; the median, after two to warm up."""
    import torch
    import torch.distributed as dist

    from partita.memory import keep_freed_memory
    from partita.training.runtime.gradients import begin_reduction

    keep_freed_memory()
    parameters = [torch.zeros(size // 4 // GRADIENTS, device=transport.device) for _ in range(GRADIENTS)]
    took = []
    for _ in range(repeats + 2):
        dist.barrier()
        began = time.perf_counter()
        begin_reduction(parameters, lambda flat, number: transport.begin_sum(flat, key=1 + number))()
        _settle(transport.device)
        took.append(time.perf_counter() - began)
    return statistics.median(took[2:])


if __name__ == "__main__":
    cores = {int(c) for c in os.environ.get("PARTITA_CORES", "").split(",") if c}
    if cores & os.sched_getaffinity(0):
        os.sched_setaffinity(0, cores & os.sched_getaffinity(0))
    _measure(json.loads(Path(sys.argv[1]).read_text()))
    sys.stdout.flush()
    os._exit(0)
