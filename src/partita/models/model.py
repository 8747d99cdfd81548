"""The contract of every model here, and what all of them give: a time with an interval that is meant to cover 90 %."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from partita.models.capture.table import Table
from partita.nouns.graph import FloatArray

COVERAGE = 0.9
Z = 1.6449  #: standard deviations on either side of the middle that hold 90 % of a normal distribution


@dataclass(frozen=True, eq=False)
class Prediction:
    """Row by row, in the unit of the target."""

    time: FloatArray
    low: FloatArray
    high: FloatArray

    @staticmethod
    def around(log_time: FloatArray, log_sd: FloatArray) -> Prediction:
        """From a mean and a standard deviation of log t, each [rows]."""
        reach = np.exp(Z * np.minimum(log_sd, 5.0))
        middle = np.exp(log_time)
        return Prediction(middle, middle / reach, middle * reach)

    @property
    def log_sd(self) -> FloatArray:
        """[rows] the standard deviation of log t that the intervals claim."""
        claimed: FloatArray = np.log(self.high / self.low) / (2 * Z)
        return claimed


class Model(Protocol):
    """Something that was fitted to rows and tells the time of others."""

    @property
    def name(self) -> str: ...

    @property
    def explainable(self) -> bool:
        """Whether it can be written down as a formula whose parts have a meaning."""

    def predict(self, table: Table) -> Prediction: ...


def widening(errors: FloatArray, sds: FloatArray) -> float:
    """By how much the standard deviations must be stretched so that 90 % of these errors lie inside (conformal).

    `errors` [rows] of log t, made without the row itself or at least without fitting to it; `sds` [rows] as the model claims.

    >>> round(widening(np.linspace(-1, 1, 101), np.full(101, 1.0)), 3)
    0.559
    """
    n = len(errors)
    level = min(1.0, np.ceil((n + 1) * COVERAGE) / n)
    return float(np.quantile(np.abs(errors) / np.maximum(sds, 1e-9), level) / Z)
