"""What the probe says while a job runs: every rank reads it between its steps, for a hundredth of their time."""

from __future__ import annotations

import math

import numpy as np
import torch

from partita.nouns.probe import AT_ONCE, Probe, Readings
from partita.training.probing import Prober
from partita.training.runtime.checkpoint import gather_tensors

_MOST = 3  #: readings after a step; more tell little that is new
_PART = 0.01  #: of a step's time that may be spent on reading the probe after it


class Recorder:
    """One rank's readings, a row a step."""

    def __init__(self, probe: Probe, device: torch.device) -> None:
        self._probe, self._prober = probe, Prober(probe.pieces, device)
        self._rows: list[tuple[float, ...]] = []  # core share, seconds of each piece
        self._saved_s = AT_ONCE * probe.seconds  # a short run takes some before it has earned them

    def after(self, step_s: float, core_share: float) -> None:
        """Note a step: what it had of its core, and a reading where time has been saved up for it. The ranks' steps are
        equally long, so they read together, as they compute together."""
        self._saved_s += _PART * step_s
        pieces: tuple[float, ...] = (math.nan,) * len(self._probe.pieces)
        each_s = AT_ONCE * self._probe.seconds
        times = min(_MOST, int(self._saved_s / each_s))
        if times:
            found = [
                self._prober.read(AT_ONCE) for _ in range(times)
            ]  # as in measuring: the first of several finds caches cold
            pieces = tuple(sum(column) / times for column in zip(*found, strict=True))
            self._saved_s -= times * each_s
        self._rows.append((core_share, *pieces))

    def rows(self) -> torch.Tensor:
        """[steps, 1 + pieces]"""
        return torch.tensor(self._rows, dtype=torch.float64).reshape(-1, 1 + len(self._probe.pieces))


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
