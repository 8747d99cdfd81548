"""Start and end of every instruction, in seconds of this rank's clock, and the share of its core that it had meanwhile.

On a CPU a computation has ended when the call returns. On a GPU it has only been queued: there, events on the stream are
read after the step (untried: no GPU was at hand when this was written).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from partita.nouns.graph import FloatArray

Stamps = tuple[list[int], list[int]]  #: (start, end) of each place, nanoseconds of time.perf_counter_ns()


def in_seconds(stamps: Stamps) -> tuple[FloatArray, FloatArray]:
    start, end = stamps
    return np.array(start) / 1e9, np.array(end) / 1e9


class Stopwatch:
    """Times of n places; `start[k]` and `end[k]` are nanoseconds of time.perf_counter_ns(). Those that compute are timed by
    the thread's CPU time, too. Plain lists: a step of four instructions writes and reads them in 3 to 4 us, arrays in 9 (2-core Xeon,
    2026-11-25)."""

    def __init__(self, computes: Sequence[bool], *, waits: bool = False) -> None:
        """`computes` [n]: a computation, which never waits for anybody: what it is kept from its core is not its own doing.
        `waits`: other places wait for others, and then, woken, for the core."""
        self._computes = list(computes)
        self._at = [k for k, c in enumerate(computes) if c]
        self.start, self.end, self.work = ([0] * len(self._computes) for _ in range(3))
        self._queue = _CoreQueue() if waits else None
        self._queued_ns = 0

    def begin_step(self) -> None:
        """Before the first place."""
        self._queued_ns = self._queue.waited_ns() if self._queue else 0

    def begin(self, k: int) -> None:
        self.start[k] = time.perf_counter_ns()
        if self._computes[k]:
            self.work[k] = -time.thread_time_ns()

    def finish(self, k: int) -> None:
        if self._computes[k]:
            self.work[k] += time.thread_time_ns()
        self.end[k] = time.perf_counter_ns()

    def aside(self, function: Callable[..., object], *arguments: object) -> int:
        """Call what is not of the step, between two places; nanoseconds that it took."""
        queued, began = self._queue.waited_ns() if self._queue else 0, time.perf_counter_ns()
        function(*arguments)
        self._queued_ns += self._queue.waited_ns() - queued if self._queue else 0
        return time.perf_counter_ns() - began

    def core_share(self) -> float:
        """The part of its computing time during which the thread was on its core; nan where it computed nothing. A thread that
        others have woken waits for its core, too: with a competitor on it, for longer than a short computation takes."""
        spent, worked = sum(self.end[k] - self.start[k] for k in self._at), sum(self.work[k] for k in self._at)
        queued = self._queue.waited_ns() - self._queued_ns if self._queue else 0
        return min(1.0, worked / max(spent, worked + queued)) if spent else math.nan

    def worked_s(self) -> float:
        """All computations of a step, as `worked`; nan without one, and where it is not known before the device is waited for."""
        worked = self.worked()
        return math.fsum(worked[k] for k in self._at) or math.nan

    def worked(self) -> list[float]:
        """[n] seconds of each place, of which those of computations count: of the thread's CPU time where it computes alone, as by
        `work_clock`."""
        if torch.get_num_threads() > 1:
            return [(b - a) / 1e9 for a, b in zip(self.start, self.end, strict=True)]
        return [w / 1e9 for w in self.work]

    def computed_s(self) -> float:
        """Seconds in computations; nan without one."""
        start, end = self.read()
        return float((end - start)[self._at].sum()) if len(self._at) else math.nan

    def stamps(self) -> Stamps:
        return self.start[:], self.end[:]

    def read(self) -> tuple[FloatArray, FloatArray]:
        """(start, end) in seconds."""
        return in_seconds(self.stamps())


class _CoreQueue:
    """How long this thread has been ready to run while another one had its core. The file is kept open: opening it takes 9 us,
    reading it 2.6 (EPYC, 2026-11-29)."""

    def __init__(self) -> None:
        self._file = -1
        with contextlib.suppress(OSError):  # a system that keeps no such account
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)

    def waited_ns(self) -> int:
        """Since the thread began; 0 where it is not known."""
        return int(os.pread(self._file, 64, 0).split()[1]) if self._file >= 0 else 0


class CudaStopwatch(Stopwatch):
    """Events on the current stream, tied to the host's clock when they are read."""

    def __init__(self, computes: Sequence[bool]) -> None:
        super().__init__(computes)
        self._events: list[tuple[Any, Any]] = [(_event(), _event()) for _ in computes]

    def begin(self, k: int) -> None:
        self._events[k][0].record()

    def finish(self, k: int) -> None:
        self._events[k][1].record()

    def core_share(self) -> float:
        """1: nobody else computes on this GPU, as far as it tells."""
        return 1.0

    def worked_s(self) -> float:
        return math.nan

    def worked(self) -> list[float]:
        start, end = self.read()
        return [float(s) for s in end - start]

    def stamps(self) -> Stamps:
        """How long before an event that happens now. A span between events is a float32 of milliseconds, so
        it has to be short: counted from the start of the process it would be off by 1 ms after three hours."""
        now = _event()
        now.record()
        now.synchronize()
        now_ns = time.perf_counter_ns()
        start = [now_ns - round(1e6 * a.elapsed_time(now)) for a, _ in self._events]
        end = [now_ns - round(1e6 * b.elapsed_time(now)) for _, b in self._events]
        return start, end


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def stopwatch_for(device: torch.device, computes: Sequence[bool], *, waits: bool) -> Stopwatch:
    """The stopwatch of a device for so many instructions; `computes` [n] says which are computations, `waits` whether some
    wait for other devices."""
    return CudaStopwatch(computes) if device.type == "cuda" else Stopwatch(computes, waits=waits)
