"""Splits: which rows a model is fitted to, and which it is judged by.

A random split flatters every model: for each held-out row there is a near neighbour. Where the question is "what would
more devices bring?", the largest counts are held out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import FloatArray, IntArray

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
