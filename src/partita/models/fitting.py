"""Fitting an expression: differential evolution to find the basin, least squares to reach its floor.

    minimise  sum over rows of rho( log t_hat - log t )  +  sum over parameters of rho( w sqrt(n) 0.05 pull((theta - mean) / sd) )

rho is the soft L1 loss, quadratic up to 5 % and linear beyond, so that a few bad rows do not bend the whole. The second sum
is the regularisation, of weight w: towards the prior of each parameter with pull(z) = z (L2), or its rounded root sqrt(|z|)
(L1, sparse: a parameter stays at its prior unless the data insist). rho bounds it too: a parameter that the data have moved
far is held no more strongly, by the row, than one a little off. `evolve` takes z^2 and |z| themselves: it only has to find the basin.
Deterministic for a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import differential_evolution, least_squares

from partita.models.expression import Expression
from partita.nouns.graph import FloatArray

Norm = Literal["l1", "l2"]
SOFT = 0.05  #: relative error up to which the loss is quadratic; also the unit of the penalty


@dataclass(frozen=True)
class Penalty:
    """How strongly parameters are held at their priors."""

    weight: float = 0.3
    norm: Norm = "l2"


@dataclass(frozen=True, eq=False)
class Fit:
    """Parameters found, and how well they are known."""

    theta: FloatArray  #: [parameters]
    covariance: FloatArray  #: [parameters, parameters] of theta, by Laplace's approximation
    noise: float  #: standard deviation of log t around the expression
    cost: float  #: the minimum


def fit(
    expression: Expression,
    times: FloatArray,
    mean: FloatArray,
    sd: FloatArray,
    penalty: Penalty,
    starts: Sequence[FloatArray],
) -> Fit:
    """The best of several descents. O(rows x parameters^2) a step; a few dozen steps from each start."""
    found = [_descend(expression, np.log(times), mean, sd, penalty, s) for s in starts]
    best = min(found, key=lambda r: r.cost)
    residual = expression.log_time(best.x)[0] - np.log(times)
    noise = float(max(1e-4, 1.4826 * np.median(np.abs(residual)), np.std(np.clip(residual, -0.3, 0.3))))
    jacobian = expression.log_time(best.x)[1]
    precision = jacobian.T @ jacobian / noise**2 + np.diag(1.0 / sd**2)
    covariance = np.asarray(np.linalg.pinv(precision, hermitian=True), np.float64)
    return Fit(best.x, covariance, noise, float(best.cost))


def _descend(
    expression: Expression, target: FloatArray, mean: FloatArray, sd: FloatArray, penalty: Penalty, start: FloatArray
) -> Any:
    scale = np.sqrt(penalty.weight**2 * len(target)) * SOFT

    def residuals(theta: FloatArray) -> FloatArray:
        pull, _ = _pull((theta - mean) / sd, penalty.norm)
        return np.concatenate([expression.log_time(theta)[0] - target, scale * pull])

    def jacobian(theta: FloatArray) -> FloatArray:
        _, slope = _pull((theta - mean) / sd, penalty.norm)
        return np.concatenate([expression.log_time(theta)[1], np.diag(scale * slope / sd)])

    reach = 12.0 * sd
    return least_squares(
        residuals, np.clip(start, mean - reach, mean + reach), jacobian, bounds=(mean - reach - 1e-9, mean + reach + 1e-9),
        loss="soft_l1", f_scale=SOFT, max_nfev=150, x_scale="jac",
    )  # fmt: skip


def _pull(z: FloatArray, norm: Norm) -> tuple[FloatArray, FloatArray]:
    """(residuals whose squares sum to the penalty, their slopes): z itself, or the root of |z|, rounded at zero."""
    if norm == "l2":
        return z, np.ones_like(z)
    smooth = np.sqrt(z * z + 1e-2)
    root = np.sqrt(smooth - 0.1 + 1e-6)
    return root, z / (2 * root * smooth)


def evolve(
    expression: Expression,
    times: FloatArray,
    mean: FloatArray,
    sd: FloatArray,
    penalty: Penalty,
    *,
    seed: int,
    generations: int = 150,
    rows: int = 400,
) -> FloatArray:
    """Parameters in the best basin that differential evolution finds within 4 sd of the priors.

    A seeded sample of at most `rows` rows is enough to tell basins apart; `fit` then uses all of them.
    """
    chance = np.random.default_rng(seed)
    keep = np.sort(chance.permutation(len(times))[:rows])
    part, target = expression.take(keep), np.log(times[keep])

    def cost(thetas: FloatArray) -> FloatArray:
        error = (part.log_times(thetas) - target[:, None]) / SOFT
        z = (thetas - mean[:, None]) / sd[:, None]
        pull = (np.abs(z) if penalty.norm == "l1" else z * z).mean(axis=0) * z.shape[0]
        found: FloatArray = (2 * (np.sqrt(1 + error**2) - 1)).mean(axis=0) + penalty.weight**2 * pull
        return found

    size = max(24, min(60, 3 * len(mean)))
    start = mean[None] + sd[None] * np.clip(chance.normal(size=(size, len(mean))), -2.5, 2.5)
    start[0] = mean
    found = differential_evolution(
        cost, list(zip(mean - 4 * sd, mean + 4 * sd, strict=True)), init=start, maxiter=generations, tol=1e-6,
        mutation=(0.4, 0.9), recombination=0.85, seed=seed, polish=False, vectorized=True, updating="deferred",
    )  # fmt: skip
    return np.asarray(found.x, np.float64)
