"""Convergence: how many steps a training run needs to its target, as a function of the global batch.

    steps(B) = S_min ( 1 + B_noise / B )           images(B) = B steps(B) = S_min ( B + B_noise )

    S_min     steps that are needed however large the batch
    B_noise   the batch at which a step has as much noise as signal: below it twice the batch nearly halves the steps,
              above it hardly saves any

McCandlish, Kaplan, Amodei, "An empirical model of large-batch training", arXiv 1812.06162, eq. 2.7 with E_min = S_min
B_noise. It holds where the learning rate suits every batch. Found from pilot runs to the same target with other seeds; runs
of one batch differ by chance, so steps are a spread, and a new run's is wider than that of their mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls
from scipy.stats import t as student

from partita.errors import BadInput, refuse
from partita.models.model import COVERAGE
from partita.nouns.graph import FloatArray

ROUNDS = 50  #: of reweighting; it settles in about five


class ConvergenceError(BadInput):
    """Pilot runs from which no steps can be foreseen."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A positive quantity: its middle, and the standard deviation and degrees of freedom of its logarithm's error."""

    middle: float
    log_sd: float
    freedom: float

    @property
    def low(self) -> float:
        return self.middle / self._reach

    @property
    def high(self) -> float:
        return self.middle * self._reach

    @property
    def _reach(self) -> float:
        """The factor to either end of the interval that holds 90 % of new values."""
        return math.exp(min(self.log_sd * float(student.ppf((1 + COVERAGE) / 2, self.freedom)), 5.0))

    def times(self, other: Spread) -> Spread:
        """The product of two independent ones; its degrees of freedom by Welch and Satterthwaite."""
        return _joined(self.middle * other.middle, (self.log_sd, self.freedom), (other.log_sd, other.freedom))

    def plus(self, other: Spread) -> Spread:
        """The sum of two independent ones; each counts as far as it makes up the sum."""
        total = self.middle + other.middle
        mine, its = (x.log_sd * x.middle / total for x in (self, other))
        return _joined(total, (mine, self.freedom), (its, other.freedom))

    @staticmethod
    def of(values: FloatArray) -> Spread:
        """A new value, after these [values], at least two of them: their median, their scatter, and what so few leave open."""
        scatter = float(np.log(values).std(ddof=1))
        return Spread(float(np.median(values)), scatter * math.sqrt(1 + 1 / len(values)), len(values) - 1)


def _joined(middle: float, *parts: tuple[float, float]) -> Spread:
    """Independent errors (standard deviation, degrees of freedom) together."""
    total = sum(sd**2 for sd, _ in parts)
    doubt = sum(sd**4 / freedom for sd, freedom in parts)
    return Spread(middle, math.sqrt(total), total**2 / doubt if doubt > 0 else math.inf)


@dataclass(frozen=True, eq=False)
class Convergence:
    """What pilot runs say of a job's steps."""

    fewest_steps: float  #: S_min; 0 where the pilots show no such limit
    fewest_images: float  #: E_min = S_min B_noise; 0 where they show no gain from larger batches
    covariance: FloatArray  #: [2, 2] of (fewest_steps, fewest_images)
    noise: float  #: standard deviation of log steps from run to run
    freedom: int  #: degrees of freedom of `noise`

    @property
    def noise_batch(self) -> float:
        """B_noise; inf where no limit of the steps shows."""
        return self.fewest_images / self.fewest_steps if self.fewest_steps > 0 else math.inf

    def steps(self, batch: float) -> Spread:
        """Steps of one new run with this global batch. O(1)."""
        weights = np.array([1.0, 1.0 / batch])
        middle = float(weights @ np.array([self.fewest_steps, self.fewest_images]))
        unknown = float(weights @ self.covariance @ weights) / middle**2
        return Spread(middle, math.sqrt(self.noise**2 + unknown), self.freedom)


def fit_convergence(batches: FloatArray, steps: FloatArray) -> Convergence:
    """S_min and E_min >= 0 from pilot runs: `batches` [runs] global batches, `steps` [runs] what each took to the target.

    Least squares of the relative errors, by non-negative least squares with the weights 1 / steps(B) renewed until they
    settle: the errors are those of runs, which scatter in proportion. Raises ConvergenceError for fewer than three runs,
    runs of one batch only, or numbers that are no steps. O(rounds x runs).
    """
    _check(batches, steps)
    design = np.column_stack([np.ones(len(batches)), 1.0 / batches])
    expected = steps.astype(np.float64)
    for _ in range(ROUNDS):
        found, _ = nnls(design / expected[:, None], steps / expected)
        before, expected = expected, design @ found
        if np.allclose(before, expected, rtol=1e-12):
            break
    freedom = len(steps) - 2
    noise = math.sqrt(float(np.sum(np.log(steps / expected) ** 2)) / freedom)
    scaled = design / expected[:, None]
    covariance = np.asarray(noise**2 * np.linalg.inv(scaled.T @ scaled), np.float64)
    return Convergence(float(found[0]), float(found[1]), covariance, noise, freedom)


def crossing(images: FloatArray, score: FloatArray, target: float) -> float:
    """Images at which a run's score first reached `target`, on the line between two judgements; nan: it never did.

    `images` [judgements] ascending, `score` [judgements] growing as training goes on, as an accuracy does.

    >>> crossing(np.array([100.0, 200.0, 300.0]), np.array([0.3, 0.5, 0.4]), 0.4)
    150.0
    """
    reached = np.flatnonzero(score >= target)
    if len(reached) == 0:
        return math.nan
    k = int(reached[0])
    if k == 0:
        return float(images[0])
    share = (target - score[k - 1]) / (score[k] - score[k - 1])
    return float(images[k - 1] + share * (images[k] - images[k - 1]))


def _check(batches: FloatArray, steps: FloatArray) -> None:
    faults = [
        f"run {i}: batch {b:g}, {s:g} steps"
        for i, (b, s) in enumerate(zip(batches, steps, strict=True))
        if not (b > 0 and s > 0 and math.isfinite(b) and math.isfinite(s))
    ]
    refuse(ConvergenceError, faults, "the pilot runs", hint="leave runs out that never reached the target")
    if len(batches) < 3 or len(np.unique(batches)) < 2:
        raise ConvergenceError(
            f"{len(batches)} pilot runs with {len(np.unique(batches))} different batches",
            hint="run at least three, with two batches; the third tells how far runs scatter",
        )
