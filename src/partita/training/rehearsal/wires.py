"""Emulated links: messages travel over the real transport, and arrive when a link of the cluster would have brought them.

The sender keeps a token bucket for each of its links: a message begins when the one before it has left, occupies the link for
its bytes over the rate, and arrives a latency later. That moment travels with it, and its receiver waits for it. So a message
whose bytes were cut down to the cap is paid for in full. Where several devices share a medium, they share its bucket.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partita.nouns.program import Op, Program
from partita.simulate.simulator import Durations
from partita.training.capture.captured import TensorMeta
from partita.training.rehearsal.pacer import Pacer
from partita.training.runtime.transport import Transport

STAMP = TensorMeta((1,), (1,), torch.float64, False)  #: when the message arrives, beside its tensors
_FREE = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Ride:
    """What carrying a message takes."""

    queue: str  #: of the link
    busy_s: float
    lag_s: float
    handling_s: float  #: of the device that receives it


def rides_of(program: Program, durations: Durations, tags: Mapping[int, int]) -> dict[int, Ride]:
    """Tag -> what carrying that message takes; `tags` of sends and receives, as the interpreter numbers them."""
    found: dict[int, Ride] = {}
    handling = {tags[i]: float(durations.busy_s[i]) for i in tags if program.op[i] == Op.RECV}
    for i, tag in tags.items():
        if program.op[i] == Op.SEND:
            queue = program.queues[program.queue[i]]
            found[tag] = Ride(queue, float(durations.busy_s[i]), float(durations.lag_s[i]), handling.get(tag, 0.0))
    return found


@dataclass
class Buckets:
    """When each link is free again. Links of this rank alone stand here, those that others share in a file each."""

    folder: Path
    shared: frozenset[str]  #: links over which several devices send
    free_s: dict[str, float] = field(default_factory=dict)
    _files: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(program: Program, folder: Path) -> Buckets:
        senders: dict[str, set[str]] = {}
        for i in np.flatnonzero((program.op == Op.SEND) | (program.op == Op.REDUCE)).tolist():
            route = program.pieces[program.piece[i]].route
            senders.setdefault(program.queues[program.queue[i]], set()).add(route[0])
        return Buckets(folder, frozenset(q for q, ds in senders.items() if len(ds) > 1))

    def take(self, queue: str, ready_s: float, busy_s: float) -> float:
        """Occupy a link as soon as it is free from `ready_s` on; returns until when."""
        if queue not in self.shared:
            self.free_s[queue] = end = max(ready_s, self.free_s.get(queue, 0.0)) + busy_s
            return end
        with self._locked(queue) as file:
            said = os.pread(file, _FREE.size, 0)
            before = _FREE.unpack(said)[0] if said else 0.0
            end = max(ready_s, before) + busy_s
            os.pwrite(file, _FREE.pack(end), 0)
        return end

    def free_at(self, queue: str) -> float:
        """When a link is free again."""
        return self.take(queue, 0.0, 0.0)

    @contextmanager
    def _locked(self, queue: str) -> Iterator[int]:
        if queue not in self._files:
            name = hashlib.sha256(queue.encode(errors="surrogatepass")).hexdigest()
            self._files[queue] = os.open(self.folder / f"link-{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        file = self._files[queue]
        fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)


@dataclass
class Arriving:
    """A message that is on its way."""

    inner: Any
    pacer: Pacer
    handling_s: float

    def wait(self) -> list[Tensor]:
        """Its tensors, once the link has brought them and the device has taken them in."""
        before = self.pacer.now_s
        tensors: list[Tensor] = self.inner.wait()
        stamp = tensors.pop()
        self.pacer.come(max(before, float(stamp)) + self.handling_s)
        return tensors


class PacedTransport:
    """A transport whose messages take as long as the cluster's links would."""

    def __init__(self, real: Transport, pacer: Pacer, buckets: Buckets, rides: Mapping[int, Ride]) -> None:
        self.real, self.pacer, self.buckets, self.rides = real, pacer, buckets, rides

    def receive(self, metas: tuple[TensorMeta, ...], source: int, target: int, tag: int) -> Arriving:
        inner = self.real.receive((*metas, STAMP), source, target, 2 * tag)
        return Arriving(inner, self.pacer, self.rides[tag].handling_s)

    def send(
        self, tensors: Sequence[Tensor], metas: tuple[TensorMeta, ...], source: int, target: int, tag: int
    ) -> list[tuple[Any, Tensor]]:
        ride = self.rides[tag]
        arrives_s = self.buckets.take(ride.queue, self.pacer.now_s, ride.busy_s) + ride.lag_s
        stamp = torch.tensor([arrives_s], dtype=torch.float64)
        return self.real.send([*tensors, stamp], (*metas, STAMP), source, target, 2 * tag)


@dataclass(frozen=True)
class EmulatedSum:
    """A sum of gradients, on a rank that takes part."""

    number: int
    ranks: tuple[int, ...]
    hops: tuple[tuple[str, float], ...]  #: [ranks] queue of the link to the next member, and for how long it is taken
    lag_s: float
    payload_bytes: int

    def end_s(self, ready_s: float, free_s: Sequence[float]) -> dict[str, float]:
        """Queue -> when the sum leaves it, where all members are ready then and their links free."""
        found: dict[str, float] = {}
        for (queue, _), free in zip(self.hops, free_s, strict=True):
            found[queue] = max(found.get(queue, ready_s), free)
        for queue, busy in self.hops:
            found[queue] += busy
        return found


@dataclass
class EmulatedSums:
    """What ends a step, emulated: see `interpreter.Optimising`. All members tell each other when they were ready and how long
    their links are taken, beside zeros in place of the gradients; so each knows when the last link is done."""

    transport: Transport
    pacer: Pacer
    buckets: Buckets
    rank: int
    sums: Mapping[int, tuple[EmulatedSum, Any]]  #: number -> it, and the group of its ranks
    norm: tuple[EmulatedSum, Any] | None
    update_s: float

    def reduce(self, group: int) -> Callable[[], None]:
        return self._begin(*self.sums[group])

    def reduce_norm(self) -> None:
        if self.norm is not None:
            self._begin(*self.norm)()

    def update(self) -> None:
        self.pacer.until(self.pacer.now_s + self.update_s)

    def _begin(self, s: EmulatedSum, group: Any) -> Callable[[], None]:
        n, me = len(s.ranks), s.ranks.index(self.rank)
        told = torch.zeros(2 * n, dtype=torch.float64)
        told[me], told[n + me] = self.pacer.now_s, self.buckets.free_at(s.hops[me][0])
        zeros = torch.zeros(max(n, s.payload_bytes), dtype=torch.uint8)
        ends = [self.transport.begin_sum(part, group, key=1 + 2 * s.number + k) for k, part in enumerate((told, zeros))]

        def finish() -> None:
            before = self.pacer.now_s
            for end in ends:
                end()
            done = s.end_s(float(told[:n].max()), told[n:].tolist())
            mine = s.hops[me][0]
            self.buckets.take(mine, done[mine], 0.0)
            self.pacer.come(max(before, max(done.values()) + s.lag_s))

        return finish
