"""The hybrid: a formula times a correction, exp( sum of small functions of one to three columns )  (correction.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.models.capture.table import Table
from partita.models.correction import ROWS, Correction, fit_correction, points_of
from partita.models.formula import Formula
from partita.models.model import Prediction, widening
from partita.nouns.graph import FloatArray


@dataclass(frozen=True, eq=False)
class Hybrid:
    """A formula and the correction of what it leaves over."""

    formula: Formula
    correction: Correction
    widen: float
    name: str = "hybrid"
    explainable: bool = True

    def predict(self, table: Table) -> Prediction:
        log_time, unknown = self.formula.log_time(table)
        more, spread = self.correction.at(points_of(table, self.formula.roles, self.formula.scale)[0])
        # near measured rows the correction has made up for wrong constants: their doubt counts as far as it has faded
        faded = np.minimum(spread**2 / (self.correction.weights.sum() + self.correction.noise), 1.0)
        inside = self.widen * np.sqrt(faded * unknown**2 + spread**2)
        return Prediction.around(log_time + more, np.hypot(inside, self.formula.beyond(table)))

    def factor(self, table: Table) -> FloatArray:
        """[rows] what the formula's time is multiplied by."""
        return np.exp(self.correction.at(points_of(table, self.formula.roles, self.formula.scale)[0])[0])


def fit_hybrid(
    formula: Formula,
    table: Table,
    times: FloatArray,
    *,
    seed: int,
    smooth: bool = False,
    like: Correction | None = None,
    rows: int = ROWS,
) -> Hybrid:
    """The correction of a fitted formula on the rows it was fitted to; with the lengths and weights of another, if given."""
    points, kinds = points_of(table, formula.roles, formula.scale)
    residual = np.log(times) - formula.log_time(table)[0]
    if like is None:
        correction = fit_correction(points, kinds, residual, seed=seed, smooth=smooth, rows=rows)
    else:
        correction = like.moved(points, residual)
    errors, sds = correction.left_out(residual)
    return Hybrid(formula, correction, widening(errors, sds))
