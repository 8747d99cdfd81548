"""Measure the links between two ranks, one each way: rate, latency, what a message costs the devices at its ends, and what
summing gradients over it takes.

The two, pinned like workers, exchange messages of several sizes as a run's ranks do (`Transport`), each behind a little training and a
computation that fills the caches as the job's own do: half a megabyte takes 0.5 ms behind an Inception's segments, and 0.3 ms where
nothing else was touched since the last message; posting a kilobyte takes 50 to 100 us behind other work, and 10 us in a row
of them (AMD EPYC, 2026-11-23 and 28); and the longer that other work, the more: both ends and the way together took 50 to 90 us of a short
message behind 0.3 ms of it, 105 to 155 behind 1 ms, 160 to 225 behind 3 (2026-11-30). So a side works as long as a stage of the job does,
up to 1 ms. A line through the times of one way gives latency and
rate; the CPU time that a process spends on a message, and on a byte of it, is what posting or receiving it takes of its device, and
is no part of the latency. Through memory it is no part of the rate either: nothing else carries the bytes, and one side takes a message
while the other is still posting it. Of 98 us that both spend on a short one 58 pass until it is there (54 in a run; EPYC, 2026-11-30),
so both are charged that part of what they spend. A wire carries bytes while the ends work at those before and behind.
What a sum of gradients takes longer than its messages should is copying and adding.

Any two ranks of a process group may be measured (`exchange`), while others are. On one machine two processes are started for it:

    python -m partita.training.measure.links SPEC.json       (started by `link_between`)
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import nnls

from partita.errors import ClusterError
from partita.nouns.cluster import Device, Link
from partita.nouns.graph import FloatArray
from partita.simulate.exchange import ring_s
from partita.spawn import Process, end, ended_how, exit_codes, last_line, spawn, threads_env
from partita.temporary import temporary_folder

if TYPE_CHECKING:
    import torch

    from partita.training.capture.captured import TensorMeta
    from partita.training.runtime.mailbox import Mailboxes
    from partita.training.runtime.transport import Transport

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 19, 1 << 21)  #: bytes
GRADIENT_BYTES = (1 << 14, 1 << 21, 1 << 23)  #: of all gradients together; they lie in GRADIENTS tensors
GRADIENTS = 32
FEWEST = 3  #: times that anything is done, however slow the link is
#: Of all sizes: ways of a kilobyte in one go are over in 30 ms, and a virtual machine may be stopped for longer.
_TURNS = 5
_MESSAGES = 3  #: of a turn whose ends are timed, at most
_STREAM = 50  #: that follow each other on a wire, at most
_SUMS = 9  #: at most
_TAG = 1 << 20  #: of what the two say to each other meanwhile
_BETWEEN_S = 1e-3  #: for which a side is asked to work before it sends, at most
_MOST_BETWEEN = 1 << 25  #: bytes that it goes through: more would only take time
_WIDTH = 64  #: of the layers that it trains: code of theirs pushes that of messages out of the caches
_MOST_LAYERS = 4


_Turn = dict[bool, list[dict[str, float]]]  #: for the way there, and that back: a row for each size


@dataclass(frozen=True)
class Pace:
    """What is done between messages, and how often."""

    #: of all tensors that the job's tasks hand on for a micro-batch: they fill the caches between two messages
    job_bytes: float = _MOST_BETWEEN
    job_tasks: int = 2 * _MOST_LAYERS  #: forward ones, whose code does so, too
    #: that a micro-batch takes, forward and backward: a stage, one of two, works a quarter of it at once
    job_s: float = 4 * _BETWEEN_S
    repeats: int = 40  #: ways there and back, at most
    #: that the ways of each size may take, its messages with the work between, or sums; beyond that only FEWEST are done
    piece_s: float = 2.0

    @property
    def between(self) -> int:
        """Bytes that a side goes through before it sends."""
        return int(min(self.job_bytes, _MOST_BETWEEN))

    @property
    def between_s(self) -> float:
        """Seconds that a side works before it sends, at least."""
        return min(self.job_s / 4, _BETWEEN_S)

    @property
    def layers(self) -> int:
        """That a side trains before it sends: as many as a stage, one of two or more, has tasks."""
        return min(max(self.job_tasks // 2, 1), _MOST_LAYERS)

    @property
    def in_turn(self) -> Pace:
        """Of one of _TURNS."""
        return replace(self, repeats=math.ceil(self.repeats / _TURNS), piece_s=self.piece_s / _TURNS)

    def count(self, took_s: float, most: int) -> int:
        """How often something may be done that takes so long.

        >>> [Pace(piece_s=1.0).count(s, 40) for s in (1e-3, 0.1, 1.0)]
        [40, 10, 3]
        """
        return int(min(max(self.piece_s / took_s, FEWEST), most)) if took_s > 0 else most


def link_between(a: Device, b: Device, pace: Pace, *, timeout_s: float = 60.0) -> Link:
    """The link a -> b of this machine, measured. Raises ClusterError where the two processes cannot talk."""
    with temporary_folder("links") as folder:
        out = folder / "out.json"
        spec = {
            "rendezvous": f"file://{folder}/rendezvous",
            "out": str(out),
            "timeout_s": timeout_s,
            "pace": asdict(pace),
        }
        told = folder / "spec.json"
        told.write_text(json.dumps(spec))
        workers = [_start(told, rank, device) for rank, device in enumerate((a, b))]
        try:
            codes = exit_codes(workers, timeout_s)
        finally:
            end(workers)
        if any(code != 0 for code in codes):
            raise ClusterError(
                f"the link {a.name} -> {b.name} could not be measured: {_why(codes, (a, b), told, timeout_s)}",
                hint="give its rate in a cluster file",
            )
        return links_of(a.name, b.name, json.loads(out.read_text()))[0]


def _why(codes: Sequence[int | None], devices: Sequence[Device], told: Path, timeout_s: float) -> str:
    """What is wrong with processes that ended so; one that was killed comes first, for its peer fails of that."""
    failed = [(code, rank) for rank, code in enumerate(codes) if code]
    if not failed:
        return f"its processes have not ended in {timeout_s:.0f} s"
    code, rank = min(failed)
    why, said = f"the process on {devices[rank].name} {ended_how(code)}", last_line(_log(told, rank))
    return f"{why}: {said}" if said else why


def _start(told: Path, rank: int, device: Device) -> Process:
    env = {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo", "PARTITA_CORES": ",".join(map(str, device.cores))}
    env |= {"PARTITA_GPU": device.name} if device.kind == "cuda" else {}
    return spawn("partita.training.measure.links", told, env=threads_env(1) | env, log=_log(told, rank))


def _log(told: Path, rank: int) -> Path:
    return told.with_name(f"rank{rank}.log")


def links_of(a: str, b: str, found: Mapping[str, Any]) -> tuple[Link, Link]:
    """The links a -> b and b -> a of which `exchange` tells."""
    there = link_from(a, b, found["there"], wire=found["wire"])
    back = link_from(b, a, found["back"], wire=found["wire"])
    return with_sums(there, found["sums"]), with_sums(back, found["sums"])


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
    (slope, latency), (send_byte_s, send_s), (message_byte_s, message_s) = (
        _line(size, y, y) for y in (way, send, receive)
    )
    slope = slope if slope > 0 else float(way[-1] / size[-1])
    if not wire:
        send_byte_s, message_byte_s = _no_more_than(slope, send_byte_s, message_byte_s)
        send_s, message_s = _no_more_than(latency, send_s, message_s)
    carried = rows[-1]["stream_s"] / rows[-1]["bytes"] if wire else slope - send_byte_s - message_byte_s
    return Link(
        source, target, 1 / carried if carried > 0 else math.inf, max(latency - send_s - message_s, 0.0),
        message_s=message_s, message_s_per_byte=message_byte_s, send_s=send_s, send_s_per_byte=send_byte_s,
    )  # fmt: skip


def _no_more_than(way_s: float, send_s: float, receive_s: float) -> tuple[float, float]:
    """What both ends take in proportion, together no more than a way, where that is known: what lay in caches at the ends did not on the
    way, or the other way round, and they are at it at once."""
    part = way_s / (send_s + receive_s) if 0 < way_s < send_s + receive_s else 1.0
    return part * send_s, part * receive_s


def _line(x: FloatArray, y: FloatArray, scale: FloatArray) -> tuple[float, float]:
    """(slope, intercept) of the best line that is nowhere below 0; an error counts as a share of the `scale` there. Of one point,
    or without a scale, level.

    Short messages that are taken off a wire several at once may cost less each than their bytes do in a long one: then the
    best line begins at 0.

    >>> x = np.array([1.0, 2.0, 4.0])
    >>> [tuple(round(float(v), 3) for v in _line(x, y, np.ones(3))) for y in (3 * x + 1, 3 * x - 2, 6 - x)]
    [(3.0, 1.0), (2.333, 0.0), (0.0, 3.667)]
    """
    if len(x) < 2 or not scale.all():
        return 0.0, max(float(np.median(y)), 0.0)
    columns = np.stack([x / x.max(), np.ones(len(x))], axis=1)
    (slope, intercept), _ = nnls(columns / scale[:, None], y / scale)
    return float(slope / x.max()), float(intercept)


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
    return replace(link, sum_s=each, sum_s_per_byte=per_byte)


@dataclass(frozen=True)
class Peer:
    """The rank at the other end, as one of the two sees it; what they say to each other concerns no other rank."""

    rank: int  #: this one
    other: int
    transport: Transport
    wire: bool  #: between the two: they do not share memory
    group: Any = None  #: of the two; None: of all, where there are no others
    core_share: float = 1.0  #: of its core that this rank gets

    @staticmethod
    def of(
        rank: int, other: int, transport: Transport, mailboxes: Mailboxes | None, core_share: float, group: Any = None
    ) -> Peer:
        """Between GPUs the line through one way is all there is, and nothing counts as a wire."""
        return Peer(rank, other, transport, mailboxes is not None and other not in mailboxes, group, core_share)

    @property
    def leads(self) -> bool:
        """Of two one has to."""
        return self.rank < self.other

    def exchanged(self, mine: FloatArray) -> FloatArray:
        """The other's numbers for this rank's, as many."""
        import torch
        import torch.distributed as dist

        theirs = torch.zeros(len(mine), dtype=torch.float64)
        coming = dist.irecv(theirs, self.other, tag=_TAG)
        going = dist.isend(torch.from_numpy(mine), self.other, tag=_TAG)
        for work in (coming, going):
            if work is not None:
                work.wait()
        return np.asarray(theirs.numpy())

    def meet(self) -> None:
        """Go on when the other has come here, too."""
        self.exchanged(np.zeros(1))

    def led(self, number: int) -> int:
        """The number of the one that leads."""
        theirs = int(self.exchanged(np.array([float(number)]))[0])
        return number if self.leads else theirs


def exchange(peer: Peer, pace: Pace) -> dict[str, Any]:
    """What two ranks find out about the links between them, as `links_of` wants it: "there" is from the one that leads. Both call
    it; what it returns counts on the one that leads. All sizes are measured in _TURNS, the medians of which count, or in as many as there
    is time for."""
    began, turns = time.perf_counter(), list[_Turn]()
    while not turns or (len(turns) < _TURNS and peer.led(_fits(time.perf_counter() - began, len(turns), pace))):
        turns.append(_turn(peer, pace.in_turn))
    there, back = (
        [
            {name: statistics.median(t[way][k][name] for t in turns) for name in row}
            for k, row in enumerate(turns[0][way])
        ]
        for way in (True, False)
    )
    sums = [{"bytes": float(size), "sum_s": _sum_time(size, peer, pace)} for size in GRADIENT_BYTES]
    return {"there": there, "back": back, "sums": sums, "wire": peer.wire}


def _fits(took_s: float, turns: int, pace: Pace) -> bool:
    """Whether another turn like those that there were would end before the ways of all sizes have taken what they may."""
    return took_s * (turns + 1) / turns <= len(SIZES) * pace.piece_s


def _turn(peer: Peer, pace: Pace) -> _Turn:
    """Every size once, as often as `pace` says."""
    cuda = peer.transport.device.type == "cuda"
    rows: _Turn = {True: [], False: []}
    for size in SIZES:
        work = _Work(size, pace, peer.transport.device)
        way_s = float(np.median(_way_times(work, peer, pace)))
        work_s = work()  # behind those, for the first takes longer
        count = peer.led(pace.count(2 * (way_s + work_s), _MESSAGES))
        stream = peer.led(pace.count(2 * way_s, _STREAM)) if peer.wire else 0
        for there, found in rows.items():
            sends = there == peer.leads
            # a GPU computes on while its copy engines send
            ends = {"send_s": 0.0, "receive_s": 0.0} if cuda else _device_times(work, peer, count, sends=sends)
            stream_s = _stream_time(work.buffer, peer, stream, sends=sends) if peer.wire else 0.0
            found.append({"bytes": float(size), "way_s": way_s, **ends, "stream_s": stream_s})
    return rows


def _measure(spec: Mapping[str, Any]) -> None:
    """This process is one of two."""
    import torch

    from partita.training.runtime.join import Meeting, joined
    from partita.training.runtime.mailbox import open_mailboxes
    from partita.training.runtime.transport import Transport

    torch.set_num_threads(1)
    rank, gpu = int(os.environ["RANK"]), os.environ.get("PARTITA_GPU", "")
    device = torch.device(gpu or "cpu")
    meeting = Meeting(spec["timeout_s"], spec["rendezvous"], launched=True)
    with joined(meeting, rank, 2, "cpu:gloo,cuda:nccl" if gpu else "gloo", device):
        mailboxes = None if gpu else open_mailboxes(rank, 2)
        transport = Transport(device, "nccl" if gpu else "gloo", mailboxes=mailboxes)
        found = exchange(Peer.of(rank, 1 - rank, transport, mailboxes, 1.0), Pace(**spec["pace"]))
        if rank == 0:
            Path(spec["out"]).write_text(json.dumps(found))


class _Work:
    """What a side does before it sends, or takes what has come."""

    def __init__(self, size: int, pace: Pace, device: torch.device) -> None:
        """Its message has so many bytes."""
        import torch
        from torch import nn

        self.buffer, self._seconds = torch.zeros(size, dtype=torch.uint8, device=device), pace.between_s
        self._scratch = torch.ones(pace.between // 4, device=device)
        layers = [nn.Linear(_WIDTH, _WIDTH), nn.LayerNorm(_WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH)]
        self._model = nn.Sequential(*layers[: pace.layers]).to(device)
        self._batch = torch.ones(_WIDTH, _WIDTH, device=device)

    def __call__(self) -> float:
        """Go through the bytes and train; write the message last. The seconds that it takes."""
        began, ended = time.perf_counter(), -math.inf
        while ended < began + self._seconds:
            self._scratch.sum()
            self._model(self._batch).square().mean().backward()
            ended = time.perf_counter()
        self.buffer.fill_(1)
        _settle(self.buffer.device)
        return time.perf_counter() - began


def _way_times(work: _Work, peer: Peer, pace: Pace) -> FloatArray:
    """Seconds of one way of a message there and back, as a run sends it; on the rank that leads."""
    began = time.perf_counter()
    _there_and_back(work, peer)
    return _there_and_back(work, peer, peer.led(pace.count(time.perf_counter() - began, pace.repeats)))


def _there_and_back(work: _Work, peer: Peer, repeats: int = 1) -> FloatArray:
    """[repeats] seconds of a way, without those of the work on both sides."""
    meta, transport = _message(len(work.buffer)), peer.transport
    ahead = transport.device.type == "cpu"  # NCCL takes messages in one order on both sides
    rounds, worked = np.zeros(repeats), np.zeros(repeats)
    for i in range(repeats):
        coming = transport.receive(meta, peer.other, peer.rank, 0) if ahead else None
        _settle(transport.device)
        began = time.perf_counter()
        for sends in (peer.leads, not peer.leads):
            if sends:
                worked[i] = work()
                _send(work.buffer, peer, 0)
            else:
                (coming or transport.receive(meta, peer.other, peer.rank, 0)).wait()
            _settle(transport.device)
        rounds[i] = time.perf_counter() - began
    return np.asarray((rounds - worked - peer.exchanged(worked)) / 2)


def _send(tensor: torch.Tensor, peer: Peer, tag: int) -> None:
    """A message, until its sender is rid of it."""
    for going, _ in peer.transport.send([tensor], _message(len(tensor)), peer.rank, peer.other, tag):
        going.wait()


def _message(size: int) -> tuple[TensorMeta, ...]:
    """A message of so many bytes."""
    import torch

    from partita.training.capture.captured import TensorMeta

    return (TensorMeta((size,), (1,), torch.uint8, False),)


def _settle(device: torch.device) -> None:
    """Wait until a GPU has done what was asked of it."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_times(work: _Work, peer: Peer, count: int, *, sends: bool) -> dict[str, float]:
    """CPU seconds that a message takes of the device at either end, medians of so many, each behind work of that device; the longer the
    less of its core a device has."""
    mine = statistics.median((_send_s if sends else _receive_s)(work, peer, i) for i in range(count)) / peer.core_share
    theirs = float(peer.exchanged(np.array([mine]))[0])
    return {"send_s": mine if sends else theirs, "receive_s": theirs if sends else mine}


def _send_s(work: _Work, peer: Peer, tag: int) -> float:
    """CPU seconds of this process that sending takes."""
    if peer.wire:
        peer.meet()
    work()
    began = time.process_time()
    _send(work.buffer, peer, tag)
    took = time.process_time() - began
    if not peer.wire:
        peer.meet()
    return took


def _receive_s(work: _Work, peer: Peer, tag: int) -> float:
    """CPU seconds of this process that receiving takes.

    A wire's message is taken as it comes, by a thread of its own, while the device works or waits: all that the process takes beyond the
    work counts. In memory a message waits until somebody asks for it; who looks for one that has not come works, which is no part
    of what it takes, so there it has come.
    """
    coming = peer.transport.receive(_message(len(work.buffer)), peer.other, peer.rank, tag)
    peer.meet()
    began, worked = time.process_time(), time.thread_time()
    work()
    worked = time.thread_time() - worked
    coming.wait()
    return time.process_time() - began - worked


def _stream_time(buffer: torch.Tensor, peer: Peer, count: int, *, sends: bool) -> float:
    """Seconds between two of so many messages that follow each other; receives are posted ahead."""
    meta, took = _message(len(buffer)), 0.0
    for _ in range(2):  # once to touch the memory
        coming = [] if sends else [peer.transport.receive(meta, peer.other, peer.rank, i) for i in range(count)]
        peer.meet()
        began = time.perf_counter()
        going = [
            w
            for i in range(count if sends else 0)
            for w in peer.transport.send([buffer], meta, peer.rank, peer.other, i)
        ]
        for c in (*(w for w, _ in going), *coming):
            c.wait()
        took = 0.0 if sends else (time.perf_counter() - began) / count
    return took + float(peer.exchanged(np.array([took]))[0])


def _sum_time(size: int, peer: Peer, pace: Pace) -> float:
    """Seconds in which gradients are summed over both ranks, as a training step does; the median, after two to warm up."""
    import torch

    from partita.memory import keep_freed_memory

    keep_freed_memory()
    parameters = [torch.zeros(size // 4 // GRADIENTS, device=peer.transport.device) for _ in range(GRADIENTS)]
    for p in parameters:
        p.grad = torch.ones_like(p)  # it stays, and takes every sum: 2^(2 + _SUMS) at the end
    work = _Work(0, pace, peer.transport.device)
    warm_s = [_summed(parameters, work, peer) for _ in range(2)]
    count = peer.led(pace.count(work() + warm_s[-1], _SUMS))
    return statistics.median(_summed(parameters, work, peer) for _ in range(count))


def _summed(parameters: Sequence[torch.Tensor], work: _Work, peer: Peer) -> float:
    """Seconds of one sum, behind work."""
    from partita.training.runtime.gradients import begin_reduction

    work()
    peer.meet()
    began = time.perf_counter()
    begin_reduction(parameters, lambda flat, number: peer.transport.begin_sum(flat, peer.group, key=1 + number))()
    _settle(peer.transport.device)
    return time.perf_counter() - began


if __name__ == "__main__":
    cores = {int(c) for c in os.environ.get("PARTITA_CORES", "").split(",") if c}
    if cores & os.sched_getaffinity(0):
        os.sched_setaffinity(0, cores & os.sched_getaffinity(0))
    _measure(json.loads(Path(sys.argv[1]).read_text()))
    sys.stdout.flush()
    os._exit(0)
