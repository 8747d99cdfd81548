"""What the board says of whole steps: those that every rank has told, in their order, each once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from partita.training.runtime.worker_status import Board, Ran


@dataclass(frozen=True)
class StepSeen:
    """A step as all ranks together saw it."""

    step: int
    loss: float
    step_s: float  #: of the rank that took longest
    samples: int
    compute_s: Mapping[str, float]  #: device -> seconds that it computed; those that had nothing to do are missing


@dataclass
class StepLog:
    """Reads the steps of a generation of workers off its board. The board keeps the last few dozen: look often."""

    devices: Sequence[str]  #: [ranks]
    _next: int = field(default=0, init=False)  #: 0: whatever comes first

    def new(self, board: Board) -> Iterator[StepSeen]:
        """Steps that have not been told yet. Those that the board does not hold any more are left out."""
        rows = board.rows()
        last = max(r.step for r in rows)
        step = self._next or max(1, last - 1)
        while step <= last:
            told = [board.ran(r, step) for r in range(len(self.devices))]
            if all(told):
                yield self._together([t for t in told if t])
                self._next = step + 1
            elif min(r.step for r in rows) <= step + 1 or not self._next:  # a rank is still at it
                return
            step += 1

    def _together(self, told: Sequence[Ran]) -> StepSeen:
        first = told[0]
        loss = next((t.loss for t in told if not math.isnan(t.loss)), math.nan)
        computed = {d: t.compute_s for d, t in zip(self.devices, told, strict=True) if t.compute_s > 0}
        return StepSeen(first.step, loss, max(t.step_s for t in told), first.samples, computed)
