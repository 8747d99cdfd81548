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
    """Events on the current stream, tied to the host's clock at the first read."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self._events: list[tuple[Any, Any]] = [(_event(), _event()) for _ in range(n)]
        torch.cuda.synchronize()
        self._origin = _event()
        self._origin.record()
        torch.cuda.synchronize()
        self._origin_s = time.perf_counter()

    def begin(self, k: int) -> None:
        self._events[k][0].record()

    def finish(self, k: int) -> None:
        self._events[k][1].record()

    def read(self) -> tuple[FloatArray, FloatArray]:
        torch.cuda.synchronize()
        start = [self._origin_s + self._origin.elapsed_time(a) / 1e3 for a, _ in self._events]
        end = [self._origin_s + self._origin.elapsed_time(b) / 1e3 for _, b in self._events]
        return np.array(start), np.array(end)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def stopwatch_for(device: torch.device, n: int) -> Stopwatch:
    return CudaStopwatch(n) if device.type == "cuda" else Stopwatch(n)
