"""The correction: what a formula leaves over, as a sum of small functions of one, two and three columns.

A Gaussian process on the logarithm of measured over predicted. Its covariance is a sum over orders 1 to 3 of products of
one kernel a column (additive Gaussian processes: Duvenaud, Nickisch, Rasmussen 2011),

    k(x, y) = sum_o w_o e_o(k_1(x_1, y_1), ..., k_D(x_D, y_D)) / C(D, o),      k_d = exp(-|x_d - y_d| / l_d)

e_o being the elementary symmetric polynomial; with more than three columns the product of all of them is added, which
ties rows that are alike in everything. Numbers are compared by the logarithm of their ratio, kinds by being equal.
Where rows are far from all that was measured, the correction fades to a factor of 1 and its variance grows: beyond the
measured range the formula speaks alone. Lengths, weights and noise maximise the evidence on a seeded sample of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import comb

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from partita.models.capture.inputs import Scale, text_of
from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.nouns.graph import FloatArray

ORDER = 3
ROWS = 300  #: rows that decide lengths and weights
UNLIKE = 3.0  #: distance between two levels of a kind, as that between numbers a factor 8 apart (log2)


@dataclass(frozen=True, eq=False)
class Correction:
    """A factor on a predicted time, and how sure it is."""

    points: FloatArray  #: [rows, columns] what it was fitted at; a kind is a number a level
    kinds: tuple[bool, ...]  #: [columns]
    lengths: FloatArray  #: [columns]
    weights: FloatArray  #: [orders] variance of each order, and of the product of all columns
    noise: float  #: variance
    weighted: FloatArray  #: [rows] inverse covariance times residual
    smooth: bool = False  #: k_d = exp(-(x_d - y_d)^2 / 2 l_d^2): goes on beyond the rows as it went within them

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """([rows] mean of the log factor, [rows] its standard deviation, noise included)."""
        cross = self.covariance(points, self.points)
        factor = cho_factor(
            self.covariance(self.points, self.points) + self.noise * np.eye(len(self.points)), lower=True
        )
        explained = np.einsum("ij,ji->i", cross, cho_solve(factor, cross.T))
        spread = np.sqrt(np.maximum(self.weights.sum() - explained, 0.0) + self.noise)
        return cross @ self.weighted, spread

    def left_out(self, residual: FloatArray) -> tuple[FloatArray, FloatArray]:
        """([rows] error, [rows] standard deviation) of each row as predicted from all the others, in closed form."""
        inverse = np.linalg.inv(self.covariance(self.points, self.points) + self.noise * np.eye(len(self.points)))
        diagonal = np.diag(inverse)
        return (inverse @ residual) / diagonal, np.sqrt(1.0 / diagonal)

    def moved(self, points: FloatArray, residual: FloatArray) -> Correction:
        """The same lengths, weights and noise on other rows."""
        covariance = self.covariance(points, points) + self.noise * np.eye(len(points))
        return replace(self, points=points, weighted=cho_solve(cho_factor(covariance, lower=True), residual))

    def covariance(self, a: FloatArray, b: FloatArray) -> FloatArray:
        return _covariance(a, b, self.kinds, self.lengths, self.weights, self.smooth)


def points_of(table: Table, roles: Mapping[str, Role], scale: Scale) -> tuple[FloatArray, tuple[bool, ...]]:
    """([rows, columns] the coordinates of each row, [columns] which of them are kinds)."""
    columns, kinds = [], []
    for name, role in roles.items():
        if role == "kind":
            number = {level: float(i) for i, level in enumerate(scale.levels[name])}
            columns.append(np.array([number.get(c, -1.0) for c in text_of(table, name).tolist()]))
        elif role != "derived":
            columns.append(scale.log(table, name) / np.log(2.0))
        if role != "derived":
            kinds.append(role == "kind")
    return np.stack(columns, axis=1), tuple(kinds)


def fit_correction(
    points: FloatArray,
    kinds: tuple[bool, ...],
    residual: FloatArray,
    *,
    seed: int,
    smooth: bool = False,
    rows: int = ROWS,
) -> Correction:
    """The correction of `residual` = log(measured / predicted). O(rows^3) once, and a few hundred times for `rows` rows."""
    keep = np.random.default_rng(seed).permutation(len(points))[:rows]
    sample, target, n = points[keep], residual[keep], points.shape[1]
    variance, orders = float(np.var(residual)) + 1e-8, n if n <= ORDER else ORDER + 1

    def evidence(q: FloatArray) -> float:
        covariance = _covariance(sample, sample, kinds, np.exp(q[:n]), np.exp(q[n:-1]), smooth) + np.exp(
            q[-1]
        ) * np.eye(len(sample))
        try:
            factor = cho_factor(covariance, lower=True)
        except np.linalg.LinAlgError:
            return 1e12
        return float(0.5 * target @ cho_solve(factor, target) + np.log(np.diag(factor[0])).sum())

    start = np.concatenate([np.full(n, 1.0), np.log(np.full(orders, variance / orders)), [np.log(variance * 0.1)]])
    least = np.log(max(1e-6, variance * 1e-3))
    bounds = (
        [(-1.0, 4.0)] * n
        + [(np.log(variance) - 8, np.log(variance) + 2.5)] * orders
        + [(least, max(np.log(variance) + 0.5, least + 1.0))]
    )
    found = minimize(evidence, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 20}).x
    lengths, weights, noise = np.exp(found[:n]), np.exp(found[n:-1]), float(np.exp(found[-1]))
    return Correction(points, kinds, lengths, weights, noise, residual, smooth).moved(points, residual)


def _covariance(
    a: FloatArray, b: FloatArray, kinds: tuple[bool, ...], lengths: FloatArray, weights: FloatArray, smooth: bool
) -> FloatArray:
    """[a, b]. The symmetric polynomials grow column by column: e_o += e_(o-1) k_d."""
    shape = (len(a), len(b))
    e = [np.ones(shape)] + [np.zeros(shape) for _ in range(ORDER)]
    together = np.ones(shape)
    for d, kind in enumerate(kinds):
        apart = a[:, d][:, None] - b[:, d][None]
        if smooth and not kind:
            near = np.exp(-0.5 * (apart / lengths[d]) ** 2)
        else:
            near = np.exp(-(UNLIKE * (apart != 0) if kind else np.abs(apart)) / lengths[d])
        together *= near
        for o in range(ORDER, 0, -1):
            e[o] += e[o - 1] * near
    orders = range(1, min(ORDER, len(kinds)) + 1)
    total: FloatArray = sum((weights[o - 1] / comb(len(kinds), o) * e[o] for o in orders), np.zeros(shape))
    if len(weights) > ORDER:
        total += weights[ORDER] * together
    return total
