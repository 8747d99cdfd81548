"""Stopping in good order when nobody but a signal says so: under torchrun, or where ranks were started by hand.

The ranks get the signal at different moments, or only one gets it, yet all must stop after the same step. So every
quarter of a second or so of training they put together whether anyone was asked: an all-reduce that runs beside the next
step and is read at its end, by all of them alike.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from partita.errors import WorkerFailed

_BETWEEN_S = 0.25  #: torchrun kills 30 s after its SIGTERM; asking more often would only cost


class StopRequest:
    """Whether a signal has asked this rank to stop; the first one while `heeded` is noted, any other one ends it at once."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.asked = ""  #: the signal's name
        self.stopped = False  #: all ranks have agreed to
        self._heeded = False

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Somebody looks at `asked` from time to time."""
        self._heeded = True
        try:
            yield
        finally:
            self._heeded = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """SIGTERM and SIGINT are requests."""
        before = {n: signal.signal(n, self._hear) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = bool(self.asked), signal.Signals(number).name
        if again or not self._heeded:
            raise WorkerFailed(f"rank {self.rank} was ended by {self.asked}", rank=-1, doing="")


class Agreement:
    """All ranks' requests put together; every rank calls `reached` after every step."""

    def __init__(self, request: StopRequest) -> None:
        self._request = request
        self._work: Any = None
        self._said = torch.zeros(2)
        self._wait = 0  #: steps until they ask again

    def reached(self, step_s: float) -> bool:
        """All ranks are to stop now: the same answer on every rank after the same step."""
        if self._work is not None:
            self._work.wait()
            self._work = None
            stop, slowest_s = self._said.tolist()
            if stop:
                self._request.stopped = True
                return True
            self._wait = min(max(int(_BETWEEN_S / max(slowest_s, 1e-4)), 1), 1000)
        self._wait -= 1
        if self._wait <= 0:
            self._said = torch.tensor([1.0 if self._request.asked else 0.0, step_s])
            self._work = dist.all_reduce(self._said, dist.ReduceOp.MAX, async_op=True)
        return False
