"""What the probe says while a job runs: every rank reads it between its steps, for a hundredth of their time."""

from __future__ import annotations

import math

import numpy as np
import torch

from partita.nouns.probe import Probe, Readings
from partita.training.probing import Prober
from partita.training.runtime.checkpoint import gather_tensors

_MOST = 4  #: readings after a step; more tell little that is new
_LENT = 6  #: readings that a run need not have earned, or one of each piece: of a short job there is one piece, and one reading tells little
_SPREAD_S = 20.0  #: over which they are spread, or over the run if that is shorter
_PART = 0.01  #: of a step's time that may be spent on reading the probe after it


class Recorder:
    """One rank's readings, a row a step."""

    def __init__(self, probe: Probe, prober: Prober, steps: int | None) -> None:
        """`steps` that the run is going to take; None where nobody knows."""
        self._prober, self._pieces = prober, len(probe.pieces)
        self._unread = (math.nan,) * self._pieces
        self._lent = max(self._pieces, _LENT)
        self._left = steps
        self._rows: list[tuple[float, ...]] = []  # core share, seconds of computing, seconds of each piece
        self._cold = False  # the next step is the first by its plan
        self._begin()

    def after(self, step_s: float, core_share: float, worked_s: float) -> None:
        """Note a step: what it had of its core and how long it computed, and readings where time has been saved up for them, or is
        lent. The ranks' steps are equally long, so they read together, as they compute together."""
        self._saved_s += _PART * step_s
        lent = self._due(step_s)
        times, takes_s = lent, self._prober.takes_s
        while times < min(_MOST, self._pieces) and takes_s(times + 1) - takes_s(lent) <= self._saved_s:
            times += 1
        known_s = math.nan if self._cold else worked_s
        self._rows.append((core_share, known_s, *(self._prober.read(times) if times else self._unread)))
        self._given += lent
        self._cold = False
        self._saved_s -= takes_s(times) - takes_s(lent)

    def _due(self, step_s: float) -> int:
        """Readings that are lent after this step. They are spread: those next to each other say the same of a machine that is another one
        a second later."""
        self._took_s += step_s
        steps = self._lent if self._left is None else max(1, self._left)
        through = max((len(self._rows) + 1) / steps, self._took_s / _SPREAD_S)
        due = math.ceil(min(through, 1.0) * self._lent - 1e-9)
        return min(_MOST, self._pieces, due - self._given)

    def forget(self) -> None:
        """What was noted so far belongs to another plan; it begins again, with the same pieces."""
        self._left = None if self._left is None else self._left - len(self._rows)
        self._rows.clear()
        self._begin()

    def compute_otherwise(self) -> None:
        """Another plan begins: what steps took until now is not compared with what they will take, and its first one is slow; the
        readings stand."""
        self._rows = [(share, math.nan, *seconds) for share, _, *seconds in self._rows]
        self._cold = True

    def _begin(self) -> None:
        self._saved_s = self._took_s = 0.0
        self._given = 0  # of the readings that are lent

    def rows(self) -> torch.Tensor:
        """[steps, 2 + pieces]"""
        return torch.tensor(self._rows, dtype=torch.float64).reshape(-1, 2 + self._pieces)


def gathered(recorder: Recorder | None, devices: tuple[str, ...], rank: int) -> Readings | None:
    """All ranks' readings on rank 0, None elsewhere and where the plan knows no probe. Every rank calls it."""
    if recorder is None:
        return None
    rows = gather_tensors({f"readings.{rank}": recorder.rows()}, rank, len(devices))
    if rank > 0:
        return None
    return readings_of([rows[f"readings.{r}"] for r in range(len(devices))], devices)


def readings_of(rows: list[torch.Tensor], devices: tuple[str, ...]) -> Readings:
    """`rows` [devices] of [steps, 2 + pieces]."""
    table = np.stack([r.numpy() for r in rows])
    return Readings(devices, table[:, :, 2:], table[:, :, 0], table[:, :, 1])
