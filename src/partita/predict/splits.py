"""Splits: which rows a model is fitted to, and which it is judged by.

A random split flatters every model: for each held-out row there is a near neighbour. Where the question is "what would
more devices bring?", the largest counts are held out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.graph import FloatArray, IntArray

FOLDS = 5


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers."""

    train: IntArray
    test: IntArray


def folds(rows: int, *, seed: int, count: int = FOLDS) -> list[Split]:
    """Every row is tested once."""
    order = np.random.default_rng(seed).permutation(rows)
    parts = [np.sort(order[k::count]) for k in range(count)]
    return [Split(np.setdiff1d(np.arange(rows), p), p) for p in parts]


def above(values: FloatArray, most: float) -> Split:
    """Fitted to the rows up to `most`, judged by those above."""
    return Split(np.flatnonzero(values <= most), np.flatnonzero(values > most))


def largest_held_out(devices: FloatArray | None, rows: int) -> list[Split]:
    """Splits inside the training rows: the largest device count against the smaller ones, and the next largest where two
    smaller ones remain; folds where there is only one count."""
    counts = np.unique(devices) if devices is not None else np.array([])
    if devices is None or len(counts) < 2:
        return folds(rows, seed=0, count=3)
    found = [above(devices, counts[-2])]
    if len(counts) > 3:
        lower = np.flatnonzero(devices <= counts[-2])
        inner = above(devices[lower], counts[-3])
        found.append(Split(lower[inner.train], lower[inner.test]))
    return found
