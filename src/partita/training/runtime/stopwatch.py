"""Start and end of every instruction, in seconds of this rank's clock, and the share of its core that it had meanwhile.

On a CPU a computation has ended when the call returns. On a GPU it has only been queued: there, events on the stream are
read after the step (untried: no GPU was at hand when this was written).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
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

    def __init__(self, computes: Sequence[bool]) -> None:
        """`computes` [n]: a computation, which never waits for anybody: what it is kept from its core is not its own doing."""
        self._computes = list(computes)
        self._at = [k for k, c in enumerate(computes) if c]
        self.start, self.end, self.work = ([0] * len(self._computes) for _ in range(3))

    def begin(self, k: int) -> None:
        self.start[k] = time.perf_counter_ns()
        if self._computes[k]:
            self.work[k] = -time.thread_time_ns()

    def finish(self, k: int) -> None:
        if self._computes[k]:
            self.work[k] += time.thread_time_ns()
        self.end[k] = time.perf_counter_ns()

    def core_share(self) -> float:
        """The part of its computing time during which the thread was on its core; nan where it computed nothing."""
        spent = sum(self.end[k] - self.start[k] for k in self._at)
        return min(1.0, sum(self.work[k] for k in self._at) / spent) if spent else math.nan

    def worked(self) -> list[float]:
        """[n] seconds of each computation: of the thread's CPU time where it computes alone, as by `work_clock`."""
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


def stopwatch_for(device: torch.device, computes: Sequence[bool]) -> Stopwatch:
    """The stopwatch of a device for so many instructions; `computes` [n] says which are computations."""
    return CudaStopwatch(computes) if device.type == "cuda" else Stopwatch(computes)
