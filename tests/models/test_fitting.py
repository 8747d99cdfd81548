"""Fitting: constants come back, bad rows do not bend them, priors hold where data are silent, doubt is honest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from partita.models.expression import Expression, Term
from partita.models.fitting import Fit, Norm, Penalty, evolve, fit

MEAN, SD = np.zeros(3), np.array([3.0, 1.0, 1.0])
FREE = Penalty(1e-3)


def power(rows: int, seed: int, *, silent: bool = False) -> Expression:
    """exp(a) x^p y^q; `silent`: y is 1 in all rows."""
    chance = np.random.default_rng(seed)
    x, y = chance.uniform(-2, 2, (2, rows))
    design = np.stack([np.ones(rows), x, 0 * y if silent else y], axis=1)
    return Expression((Term("only", np.ones(rows), design, np.arange(3)),), (-1,))


def fitted(expression: Expression, times: np.ndarray, penalty: Penalty = FREE) -> Fit:
    return fit(expression, times, MEAN, SD, penalty, [MEAN])


def test_constants_come_back() -> None:
    expression, truth = power(60, 0), np.array([0.7, 1.3, -0.8])
    np.testing.assert_allclose(fitted(expression, expression.time(truth)).theta, truth, atol=1e-3)


def test_a_few_bad_rows_do_not_bend_the_whole() -> None:
    expression, truth = power(100, 1), np.array([0.7, 1.3, -0.8])
    times = expression.time(truth)
    times[:5] *= 10.0
    straight = np.linalg.lstsq(expression.terms[0].design, np.log(times), rcond=None)[0]
    robust = fitted(expression, times).theta
    assert np.abs(robust - truth).max() < 0.03
    assert np.abs(robust - truth).max() < 0.3 * np.abs(straight - truth).max()


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_where_the_data_say_nothing_the_prior_stands(norm: Norm) -> None:
    expression = power(80, 2, silent=True)
    found = fitted(expression, expression.time(np.array([0.7, 1.3, 9.9])), Penalty(0.1, norm))
    assert abs(found.theta[2]) < 1e-6
    assert np.sqrt(found.covariance[2, 2]) == pytest.approx(SD[2], rel=1e-3)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_stronger_regularisation_stays_closer_to_the_priors(norm: Norm) -> None:
    expression = power(60, 3)
    times = expression.time(np.array([0.7, 1.3, -0.8]))
    far = [np.abs(fitted(expression, times, Penalty(w, norm)).theta / SD).sum() for w in (0.01, 0.3, 3.0, 100.0)]
    assert all(a >= b - 1e-9 for a, b in pairwise(far))
    assert far[-1] < 0.5 * far[0]


def test_doubt_is_what_repeating_the_measurement_shows() -> None:
    """The claimed standard deviations of constants against those over 60 repetitions, and the noise against the truth."""
    truth, noise = np.array([0.7, 1.3, -0.8]), 0.04
    found = []
    for seed in range(60):
        expression = power(80, seed)
        times = expression.time(truth) * np.exp(noise * np.random.default_rng(1000 + seed).normal(size=80))
        found.append(fitted(expression, times))
    claimed = np.mean([np.sqrt(np.diag(f.covariance)) for f in found], axis=0)
    shown = np.std([f.theta for f in found], axis=0)
    assert np.all((shown / claimed > 0.7) & (shown / claimed < 1.4))
    assert np.mean([f.noise for f in found]) == pytest.approx(noise, rel=0.15)


def test_the_best_of_several_descents_is_kept() -> None:
    expression = power(40, 4)
    times = expression.time(np.array([0.7, 1.3, -0.8]))
    alone = [fit(expression, times, MEAN, SD, FREE, [s]).cost for s in (MEAN, MEAN + 2.0)]
    assert fit(expression, times, MEAN, SD, FREE, [MEAN, MEAN + 2.0]).cost == min(alone)


def two_powers(rows: int) -> Expression:
    """exp(a) x^p + exp(b) x^q: swapping the two gives a second basin."""
    x = np.random.default_rng(5).uniform(-2, 2, rows)
    design = np.stack([np.ones(rows), x], axis=1)
    return Expression(
        tuple(Term(n, np.ones(rows), design, np.array(c)) for n, c in (("a", [0, 1]), ("b", [2, 3]))), (-1,)
    )


def test_evolution_finds_a_basin_from_which_the_truth_is_reached() -> None:
    expression, mean, sd = two_powers(600), np.zeros(4), np.array([2.0, 1.5, 2.0, 1.5])
    truth = np.array([1.0, 1.5, 0.0, -2.0])
    times = expression.time(truth)
    one, same = (evolve(expression, times, mean, sd, FREE, seed=7, generations=60) for _ in range(2))
    np.testing.assert_array_equal(one, same)
    assert np.all(np.abs(one - mean) <= 4 * sd)
    assert np.abs(expression.time(one) / times - 1).mean() < 0.5 * np.abs(expression.time(mean) / times - 1).mean()
    found = fit(expression, times, mean, sd, FREE, [one])
    assert np.abs(expression.time(found.theta) / times - 1).max() < 0.02
