"""The hybrid: a formula times a correction, exp( sum of small functions of one to three columns )  (correction.py).

Others may have a say in it: log t is then the mean of all by their shares (`choose`), and where they differ it is less sure.
"""

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
    others: tuple[tuple[float, Hybrid], ...] = ()  #: (share of log t, what has it)
    name: str = "hybrid"
    explainable: bool = True

    def predict(self, table: Table) -> Prediction:
        log_time, inside = self.log_time(table)
        return Prediction.around(log_time, np.hypot(inside, self.formula.beyond(table)))

    def log_time(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """([rows] log t, [rows] its standard deviation within the rows): those of a mixture of normal distributions."""
        shares = np.array([1.0 - sum(w for w, _ in self.others), *(w for w, _ in self.others)])[:, None]
        said = [h._alone(table) for h in (self, *(h for _, h in self.others))]
        times, sds = np.stack([t for t, _ in said]), np.stack([s for _, s in said])
        mean: FloatArray = (shares * times).sum(axis=0)
        return mean, np.sqrt((shares * (sds**2 + (times - mean) ** 2)).sum(axis=0))

    def _alone(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """As `log_time`, without the others."""
        log_time, unknown = self.formula.log_time(table)
        more, spread = self.correction.at(points_of(table, self.formula.roles, self.formula.scale)[0])
        # near measured rows the correction has made up for wrong constants: their doubt counts as far as it has faded
        faded = np.minimum(spread**2 / (self.correction.weights.sum() + self.correction.noise), 1.0)
        return log_time + more, self.widen * np.sqrt(faded * unknown**2 + spread**2)

    def factor(self, table: Table) -> FloatArray:
        """[rows] what the formula's time is multiplied by."""
        return np.exp(self.log_time(table)[0] - self.formula.log_time(table)[0])


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
