"""Rehearsals: what the rows themselves say of extrapolating from them.

For every column of numbers the rows with its largest value are held out, and foretold from the others. It shows which form
and which regularisation extrapolate best (`choose`), and by how much a prediction beyond the rows drifts from the truth:

    |log t - log t_hat|  <=  Z sqrt( sd^2 + (s_c d)^2 )     for 90 % of the rows held out in column c

d is how far a row lies outside, as the logarithm of the ratio to the nearest value seen: a wrong exponent makes an error
that grows with it. s_c is the smallest for which that holds, and the root mean square of these over the values held out. A
column of which the others would be a single value cannot be rehearsed; there the root mean square of those that can stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.models.capture.roles import COUNTING, Role
from partita.models.capture.table import Table
from partita.models.model import COVERAGE, Model, Z
from partita.models.splits import Split, above, folds
from partita.nouns.graph import FloatArray, IntArray

ROWS = 400  #: at most so many rows are fitted to in a rehearsal: a few dozen constants need no more
FEWEST = 8  #: rows below which nothing is fitted
LEVELS = 8  #: of a column with more values than this a quarter of the rows is held out, and not its largest value alone
Refit = Callable[[Table, FloatArray], Model]


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The rows with the largest values of a column held out."""

    column: str
    split: Split
    taught: bool  #: whether the rows fitted to have several values of the column


def rehearsals(table: Table, roles: Mapping[str, Role], columns: Sequence[str] | None = None) -> list[Rehearsal]:
    """Of each column the largest values held out, and then the next, as far as the rows that remain teach anything."""
    found = []
    for name in columns or [n for n, r in roles.items() if r not in ("kind", "derived")]:
        values = table.numbers(name)
        for split in _held_out(values):
            if len(split.train) >= FEWEST:
                found.append(Rehearsal(name, _thinned(split), len(np.unique(values[split.train])) > 1))
    return found


def _held_out(values: FloatArray) -> list[Split]:
    levels = np.unique(values)
    if len(levels) > LEVELS:
        levels = np.unique(np.quantile(values, [0.0, 0.5, 0.75, 1.0], method="lower"))
    if len(levels) < 2:
        return []
    found = [above(values, float(levels[-2]))]
    if len(levels) > 3:
        lower = np.flatnonzero(values <= levels[-2])
        inner = above(values[lower], float(levels[-3]))
        found.append(Split(lower[inner.train], lower[inner.test]))
    return found


def _thinned(split: Split) -> Split:
    return Split(thinned(split.train), thinned(split.test))


def thinned(rows: IntArray) -> IntArray:
    """At most ROWS of some rows, always the same."""
    return rows if len(rows) <= ROWS else np.sort(np.random.default_rng(0).choice(rows, ROWS, replace=False))


def question(table: Table, roles: Mapping[str, Role], split_by: str | None) -> list[Split]:
    """Splits inside the rows that ask what will be asked of the model.

    The largest values of `split_by` held out. Where the smaller ones are a single value, which teaches nothing: those of the
    other columns that count, if it counts devices; else those of any column. Folds where no column is asked about.
    """
    apart = [_thinned(s) for s in folds(len(table), seed=0, count=3)]
    if split_by is None:
        return apart
    counting = [n for n, r in roles.items() if r in COUNTING] if roles[split_by] in COUNTING else []
    for columns in ([split_by], counting, None):
        asked = [r.split for r in rehearsals(table, roles, columns) if r.taught] if columns != [] else []
        if asked:
            return asked
    return [r.split for r in rehearsals(table, roles, [split_by])] or apart


def drift(refit: Refit, table: Table, times: FloatArray, roles: Mapping[str, Role]) -> dict[str, float]:
    """Column -> s_c, for every column of numbers; `refit` fits what is to be judged to other rows, without any drift."""
    every = [(r, slopes(refit, table, times, r)) for r in rehearsals(table, roles)]
    taught = [(r.column, s) for r, s in every if r.taught] or [(r.column, s) for r, s in every]
    known = {n: _pooled([_level(s) for c, s in taught if c == n]) for n in dict.fromkeys(c for c, _ in taught)}
    usual = _pooled(list(known.values()))
    return {n: known.get(n, usual) for n, r in roles.items() if r not in ("kind", "derived")}


def _pooled(deviations: Sequence[float]) -> float:
    """Standard deviations as one: each held-out level is one observation of how far a prediction drifts."""
    return float(np.sqrt(np.mean(np.square(deviations)))) if len(deviations) else 0.0


def slopes(refit: Refit, table: Table, times: FloatArray, r: Rehearsal) -> FloatArray:
    """[held-out rows] the s_c with which the interval of each would just have held its time."""
    model, test = refit(table.take(r.split.train), times[r.split.train]), table.take(r.split.test)
    predicted, values = model.predict(test), table.numbers(r.column)
    error = np.log(times[r.split.test] / predicted.time)
    out = np.log(np.maximum(values[r.split.test], 1e-12) / max(values[r.split.train].max(), 1e-12))
    found: FloatArray = np.sqrt(np.maximum((error / Z) ** 2 - predicted.log_sd**2, 0.0)) / np.maximum(out, 1e-3)
    return found


def _level(slopes: FloatArray) -> float:
    """The slope that covers 90 % of new rows (conformal: a little more than 90 % of few)."""
    n = len(slopes)
    return float(np.quantile(slopes, min(1.0, np.ceil((n + 1) * COVERAGE) / n)))
