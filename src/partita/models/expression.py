"""Expressions: a positive sum of power terms, the common form of every explainable model here.

    t(x) = sum over groups g of  norm_k( sum of terms of side 0, sum of terms of side 1 )
    term = phi(x) * exp(X(x) . theta)

A term is a product of powers of the columns: X holds their logarithms, theta their exponents and the logarithm of the
coefficient, and phi >= 0 a factor that is known (how many micro-batches, (n-1)/n of an all-reduce). Most groups have one
side. Where two sides hide behind each other (computing and launching, say), norm_k(a, b) = (a^k + b^k)^(1/k) joins them:
k = 1 adds, k -> infinity takes the larger one; k = 1 + exp(theta of the group).

d log t / d theta is a sum of X weighted by the shares of the terms, so a Jacobian costs hardly more than a value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from partita.nouns.graph import FloatArray, IntArray

MOST = 80.0  #: exponents of e are cut here, so that a search that strays meets large numbers and no infinity


@dataclass(frozen=True, eq=False)
class Term:
    """phi(x) exp(X . theta[columns])."""

    name: str
    phi: FloatArray  #: [rows] known factor, >= 0
    design: FloatArray  #: [rows, m]
    columns: IntArray  #: [m] which entries of theta the design multiplies
    group: int = 0
    side: int = 0  #: terms of one group on different sides hide behind each other

    def raw(self, thetas: FloatArray) -> FloatArray:
        """[rows, candidates] from [parameters, candidates]."""
        found: FloatArray = self.phi[:, None] * np.exp(np.minimum(self.design @ thetas[self.columns], MOST))
        return found


@dataclass(frozen=True, eq=False)
class Expression:
    """Terms over the rows of one table."""

    terms: tuple[Term, ...]
    norms: tuple[int, ...]  #: [groups] entry of theta that gives the group's k; -1: k = 1

    def take(self, rows: IntArray) -> Expression:
        """The same expression over some of its rows."""
        return Expression(tuple(replace(t, phi=t.phi[rows], design=t.design[rows]) for t in self.terms), self.norms)

    def values(self, theta: FloatArray) -> FloatArray:
        """[rows, terms] what each term contributes to the time; a row sums to its time."""
        raw = np.stack([t.raw(theta[:, None])[:, 0] for t in self.terms], axis=1)
        for g, at in enumerate(self.norms):
            if at >= 0:
                members = [i for i, t in enumerate(self.terms) if t.group == g]
                weight = self._weights(raw[:, members], members, 1.0 + float(np.exp(theta[at])))
                raw[:, members] *= weight
        return raw

    def time(self, theta: FloatArray) -> FloatArray:
        """[rows] in the unit of the target."""
        total: FloatArray = self.values(theta).sum(axis=1)
        return total

    def log_times(self, thetas: FloatArray) -> FloatArray:
        """[rows, candidates] log t of many candidates at once, from [parameters, candidates]."""
        total = np.zeros((len(self.terms[0].phi), thetas.shape[1]))
        for g, at in enumerate(self.norms):
            sides = [np.zeros_like(total), np.zeros_like(total)]
            for t in self.terms:
                if t.group == g:
                    sides[t.side] += t.raw(thetas)
            k = 1.0 + np.exp(thetas[at]) if at >= 0 else np.ones(thetas.shape[1])
            total += _norm(sides[0], sides[1], k)
        return np.log(np.maximum(total, 1e-300))

    def log_time(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """([rows] log t, [rows, parameters] its Jacobian)."""
        values = self.values(theta)
        total = np.maximum(values.sum(axis=1), 1e-300)
        jacobian = np.zeros((len(total), len(theta)))
        for i, t in enumerate(self.terms):
            jacobian[:, t.columns] += (values[:, i] / total)[:, None] * t.design
        for at in self.norms:
            if at >= 0:
                jacobian[:, at] += self._slope(theta, at)
        return np.log(total), jacobian

    def _weights(self, raw: FloatArray, members: list[int], k: float) -> FloatArray:
        """[rows, members] d joined / d term; by Euler's theorem the weighted terms sum to the joined time."""
        side = np.array([self.terms[i].side for i in members])
        a, b = raw[:, side == 0].sum(axis=1), raw[:, side == 1].sum(axis=1)
        joined = _norm(a[:, None], b[:, None], np.array([k]))[:, 0]
        power: FloatArray = (np.where(side[None] == 0, a[:, None], b[:, None]) / joined[:, None]) ** (k - 1)
        return power

    def _slope(self, theta: FloatArray, at: int) -> FloatArray:
        """[rows] d log t / d theta[at], by a central difference."""
        near = np.stack([theta, theta], axis=1)
        near[at] += [1e-4, -1e-4]
        logs = self.log_times(near)
        slope: FloatArray = (logs[:, 0] - logs[:, 1]) / 2e-4
        return slope


def _norm(a: FloatArray, b: FloatArray, k: FloatArray) -> FloatArray:
    """(a^k + b^k)^(1/k) without overflow; a, b [rows, candidates], k [candidates]."""
    top = np.maximum(np.maximum(a, b), 1e-300)
    low = np.minimum(a, b) / top
    joined: FloatArray = top * (1 + low**k) ** (1 / k)
    return joined
