"""What the probe says while a job runs: every rank reads it between its steps, for a hundredth of their time."""

from __future__ import annotations

import math

import numpy as np
import torch

from partita.nouns.probe import Probe, Readings
from partita.training.probing import Prober
from partita.training.runtime.checkpoint import gather_tensors

_MOST = 4  #: readings after a step; more tell little that is new
_PART = 0.01  #: of a step's time that may be spent on reading the probe after it


class Recorder:
    """One rank's readings, a row a step."""

    def __init__(self, probe: Probe, prober: Prober, steps: int | None) -> None:
        """`steps` that the run is going to take; None where nobody knows."""
        self._prober, self._pieces = prober, len(probe.pieces)
        self._each_s = prober.reading_s
        self._unread = (math.nan,) * self._pieces
        # A short run reads every piece once without having earned it, and not all of them at its beginning: readings next to each other
        # say the same of a machine that is another one a second later.
        self._lent_at_once = min(_MOST, math.ceil(self._pieces / max(1, steps))) if steps is not None else 1
        self._rows: list[tuple[float, ...]] = []  # core share, seconds of each piece
        self.forget()

    def after(self, step_s: float, core_share: float) -> None:
        """Note a step: what it had of its core, and readings where time has been saved up for them, or is lent. The ranks' steps
        are equally long, so they read together, as they compute together."""
        self._saved_s += _PART * step_s
        lent = min(self._lent_at_once, self._lent)
        times = min(_MOST, self._pieces, lent + int(self._saved_s / self._each_s))
        self._rows.append((core_share, *(self._prober.read(times) if times else self._unread)))
        self._lent -= lent
        self._saved_s -= (times - lent) * self._each_s

    def forget(self) -> None:
        """What was noted so far belongs to another plan; it begins again, with the same pieces."""
        self._rows.clear()
        self._saved_s, self._lent = 0.0, self._pieces

    def rows(self) -> torch.Tensor:
        """[steps, 1 + pieces]"""
        return torch.tensor(self._rows, dtype=torch.float64).reshape(-1, 1 + self._pieces)


def gathered(recorder: Recorder | None, devices: tuple[str, ...], rank: int) -> Readings | None:
    """All ranks' readings on rank 0, None elsewhere and where the plan knows no probe. Every rank calls it."""
    if recorder is None:
        return None
    rows = gather_tensors({f"readings.{rank}": recorder.rows()}, rank, len(devices))
    if rank > 0:
        return None
    return readings_of([rows[f"readings.{r}"] for r in range(len(devices))], devices)


def readings_of(rows: list[torch.Tensor], devices: tuple[str, ...]) -> Readings:
    """`rows` [devices] of [steps, 1 + pieces]."""
    table = np.stack([r.numpy() for r in rows])
    return Readings(devices, table[:, :, 1:], table[:, :, 0])
