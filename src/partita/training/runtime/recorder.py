"""What the probe says while a job runs: every rank reads it, while it waits for others where that is long enough, for a hundredth of the
time; a few readings are lent before that."""

from __future__ import annotations

import math

import numpy as np
import torch

from partita.nouns.probe import Probe, Readings, row_means
from partita.training.probing import AT_ONCE, Prober
from partita.training.runtime.checkpoint import gather_tensors
from partita.training.runtime.interpreter import Meanwhile

_LENT = 6  #: readings that a run need not have saved up for, or one of each piece: of a short job there is one piece, and one tells little
_SPREAD_S = 20.0  #: over which they are spread, or over the run if that is shorter
_MOST_ROWS = 1 << 14  #: of a longer run a row is two steps, or four: a file of 600,000 would be too long to be read
_PART = 0.01  #: of a step's time that may be spent on reading the probe


class Recorder:
    """One rank's readings, a row a step; of long runs a row stands for several."""

    def __init__(self, probe: Probe, prober: Prober, steps: int | None) -> None:
        """`steps` that the run is going to take; None where nobody knows."""
        self._prober, self._pieces = prober, len(probe.pieces)
        self._most = min(AT_ONCE, self._pieces)  # at once
        self._unread = (math.nan,) * self._pieces
        self._seconds = self._unread  # of this step
        self._lends = max(self._pieces, _LENT)
        self._left = steps
        self._cold = False  # the next step is the first by another plan
        self._begin()

    def _begin(self) -> None:
        self._rows: list[tuple[float, ...]] = []  # core share, seconds of computing, seconds of each piece
        self._latest: list[tuple[float, ...]] = []  # steps that are no row yet
        self.each = 1  #: steps a row
        self._steps = 0
        self._saved_s = self._took_s = 0.0
        self._given = 0  # of the readings that are lent
        self._due = self._lent = 0  # readings of this step, and how many of them are lent

    def begin(self) -> Meanwhile | None:
        """To be called in the next step while this rank waits for others: the readings for which time has been saved up, or is lent; None
        where there are none. Those for which it does not wait long enough are taken `after` the step.

        While it waits the others compute, as they did in measuring, and nobody waits for a reading that takes no longer than the latest
        did. The ranks' steps are equally long, so most readings are in the same ones, if not always as many.
        """
        if (self._cold or not self._steps) and self._left != 1:
            return None  # what is read in a plan's first step, which is slow, says 6 % less than what is read in the others
        self._lent = self._to_lend()
        takes_s = self._prober.takes_s
        self._due = self._lent
        while self._due < self._most and takes_s(self._due + 1) - takes_s(self._lent) <= self._saved_s:
            self._due += 1
        return self._meanwhile if self._due else None

    def after(self, step_s: float, core_share: float, worked_s: float) -> None:
        """Note a step: what it had of its core, how long it computed, and what was read in it."""
        self._read(self._due)
        self._note((core_share, math.nan if self._cold else worked_s, *self._seconds))
        self._seconds, self._cold = self._unread, False
        self._steps += 1
        self._took_s += step_s
        most_s = self._prober.takes_s(self._most)  # a step that was stopped saves no more
        self._saved_s = min(self._saved_s + _PART * step_s, most_s)

    def _note(self, step: tuple[float, ...]) -> None:
        self._latest.append(step)
        if len(self._latest) < self.each:
            return
        self._rows += _means(self._latest, self.each)
        self._latest.clear()
        if len(self._rows) == _MOST_ROWS:
            self._rows, self.each = _means(self._rows, 2), 2 * self.each

    def _meanwhile(self, wait_s: float) -> None:
        fit = max((n for n in range(1, self._due + 1) if self._prober.takes_s(n) <= wait_s), default=0)
        self._read(fit, waits=True)

    def _read(self, times: int, *, waits: bool = False) -> None:
        """So many of those that are due; those that are lent come first, the rest of the others another time. What is lent to a rank that
        waits anyway is a present; behind a step it is paid back from what later ones save."""
        if not times:
            return
        found, takes_s = self._prober.read(times), self._prober.takes_s
        self._seconds = tuple(b if math.isnan(a) else a for a, b in zip(found.tolist(), self._seconds, strict=True))
        lent = min(times, self._lent)
        self._given += lent
        self._saved_s -= takes_s(times) - takes_s(lent if waits else 0)
        self._lent -= lent
        self._due = self._lent

    def _to_lend(self) -> int:
        """Readings that are lent in the next step. They are spread: those next to each other say the same of a machine that is another one
        a second later."""
        steps = self._lends if self._left is None else max(1, self._left - 1)  # without the first
        through = max(max(1, self._steps) / steps, self._took_s / _SPREAD_S)
        due = math.ceil(min(through, 1.0) * self._lends - 1e-9)
        return min(self._most, due - self._given)

    def forget(self) -> None:
        """What was noted so far belongs to another plan; it begins again, with the same pieces, and what is not paid back yet."""
        self._left = None if self._left is None else self._left - self._steps
        owed_s = min(self._saved_s, 0.0)
        self._begin()
        self._saved_s = owed_s

    def compute_otherwise(self) -> None:
        """Another plan begins: what steps took until now is not compared with what they will take, and its first one is slow; the
        readings stand."""
        self._rows, self._latest = (
            [(share, math.nan, *seconds) for share, _, *seconds in rows] for rows in (self._rows, self._latest)
        )
        self._cold = True

    def rows(self) -> torch.Tensor:
        """[rows, 2 + pieces]"""
        rest = _means(self._latest, len(self._latest)) if self._latest else []
        return torch.tensor(self._rows + rest, dtype=torch.float64).reshape(-1, 2 + self._pieces)


def _means(rows: list[tuple[float, ...]], each: int) -> list[tuple[float, ...]]:
    """Of what is known in each so many of them."""
    if each == 1:
        return rows[:]
    groups = np.array(rows).reshape(len(rows) // each, each, -1)
    return [tuple(row) for row in row_means(groups.swapaxes(1, 2)).tolist()]


def gathered(recorder: Recorder | None, devices: tuple[str, ...], rank: int) -> Readings | None:
    """All ranks' readings on rank 0, None elsewhere and where the plan knows no probe. Every rank calls it."""
    if recorder is None:
        return None
    rows = gather_tensors({f"readings.{rank}": recorder.rows()}, rank, len(devices))
    if rank > 0:
        return None
    return _readings([rows[f"readings.{r}"] for r in range(len(devices))], devices, recorder.each)


def own_readings(recorder: Recorder, device: str) -> Readings:
    """Of this rank, for a device that it had alone."""
    return _readings([recorder.rows()], (device,), recorder.each)


def _readings(rows: list[torch.Tensor], devices: tuple[str, ...], each: int) -> Readings:
    """`rows` [devices] of [rows, 2 + pieces]."""
    table = np.stack([r.numpy() for r in rows])
    return Readings(devices, table[:, :, 2:], table[:, :, 0], table[:, :, 1], each)
