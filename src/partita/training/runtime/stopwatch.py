"""Start and end of every instruction, in seconds of this rank's clock.

On a CPU a computation has ended when the call returns. On a GPU it has only been queued: there, events on the stream are
read after the step (untried: no GPU was at hand when this was written).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from partita.nouns.graph import FloatArray, IntArray


class Stopwatch:
    """Times of n places; `start[k]` and `end[k]` are nanoseconds of time.perf_counter_ns()."""

    def __init__(self, n: int) -> None:
        self.start: IntArray = np.zeros(n, np.int64)
        self.end: IntArray = np.zeros(n, np.int64)

    def begin(self, k: int) -> None:
        self.start[k] = time.perf_counter_ns()

    def finish(self, k: int) -> None:
        self.end[k] = time.perf_counter_ns()

    def read(self) -> tuple[FloatArray, FloatArray]:
        """(start, end) in seconds."""
        return self.start / 1e9, self.end / 1e9


class CudaStopwatch(Stopwatch):
    """Events on the current stream, tied to the host's clock when they are read."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self._events: list[tuple[Any, Any]] = [(_event(), _event()) for _ in range(n)]

    def begin(self, k: int) -> None:
        self._events[k][0].record()

    def finish(self, k: int) -> None:
        self._events[k][1].record()

    def read(self) -> tuple[FloatArray, FloatArray]:
        """(start, end): how long before an event that happens now. A span between events is a float32 of milliseconds, so
        it has to be short: counted from the start of the process it would be off by 1 ms after three hours."""
        now = _event()
        now.record()
        now.synchronize()
        now_s = time.perf_counter()
        start = [now_s - a.elapsed_time(now) / 1e3 for a, _ in self._events]
        end = [now_s - b.elapsed_time(now) / 1e3 for _, b in self._events]
        return np.array(start), np.array(end)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def stopwatch_for(device: torch.device, n: int) -> Stopwatch:
    return CudaStopwatch(n) if device.type == "cuda" else Stopwatch(n)
