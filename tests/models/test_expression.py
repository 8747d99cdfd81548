"""Expressions: values, logarithms and Jacobians of sums of power terms agree with each other and with differences."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.models.expression import Expression, Term

COUNT = 5  #: entries of theta, the last one the norm's


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    """Up to four terms in two groups over a few rows, the first group two-sided; one term is always positive."""
    rows = draw(st.integers(1, 6))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    terms = [Term("rest", np.ones(rows), np.ones((rows, 1)), np.array([0]), group=1)]
    for i in range(draw(st.integers(1, 4))):
        columns = chance.permutation(COUNT - 1)[: draw(st.integers(1, COUNT - 1))]
        phi = chance.uniform(0.1, 3.0, rows) * (chance.random(rows) > 0.2)
        group, side = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        terms.append(Term(f"t{i}", phi, chance.normal(size=(rows, len(columns))), columns, group, side * (group == 0)))
    return Expression(tuple(terms), (COUNT - 1, -1))


thetas = st.lists(st.floats(-2, 2), min_size=COUNT, max_size=COUNT).map(np.array)


@settings(max_examples=150, deadline=None)
@given(expressions(), thetas)
def test_the_jacobian_is_what_differences_say(expression: Expression, theta: np.ndarray) -> None:
    log_time, jacobian = expression.log_time(theta)
    step = 1e-5
    for k in range(COUNT):
        up, down = theta.copy(), theta.copy()
        up[k] += step
        down[k] -= step
        slope = (np.log(expression.time(up)) - np.log(expression.time(down))) / (2 * step)
        np.testing.assert_allclose(jacobian[:, k], slope, atol=2e-6)
    np.testing.assert_allclose(log_time, np.log(expression.time(theta)), rtol=1e-12)


@settings(max_examples=100, deadline=None)
@given(expressions(), st.lists(thetas, min_size=1, max_size=4))
def test_many_candidates_at_once_are_each_alone(expression: Expression, candidates: list[np.ndarray]) -> None:
    together = expression.log_times(np.stack(candidates, axis=1))
    for k, theta in enumerate(candidates):
        np.testing.assert_allclose(together[:, k], np.log(expression.time(theta)), atol=1e-10)


@settings(max_examples=50, deadline=None)
@given(expressions(), thetas)
def test_rows_do_not_know_each_other(expression: Expression, theta: np.ndarray) -> None:
    whole = expression.time(theta)
    for row in range(len(whole)):
        np.testing.assert_allclose(expression.take(np.array([row])).time(theta), whole[[row]], rtol=1e-12)


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(-3, 3))
def test_two_sides_take_between_the_longer_and_the_sum(a: float, b: float, theta: float) -> None:
    one = np.ones((1, 1))
    terms = tuple(Term(str(s), np.array([v]), one * 0, np.array([0]), 0, s) for s, v in enumerate((a, b)))
    joined = Expression(terms, (0,))
    k = 1 + np.exp(theta)
    (time,) = joined.time(np.array([theta]))
    assert max(a, b) * (1 - 1e-12) <= time <= (a + b) * (1 + 1e-12)
    np.testing.assert_allclose(time, (a**k + b**k) ** (1 / k))
    shares = joined.values(np.array([theta]))[0]
    assert (shares[0] >= shares[1]) == (a >= b)  # what is hidden counts for less


def test_extremes_stay_finite() -> None:
    term = Term("a", np.ones(1), np.full((1, 1), 1e4), np.array([0]))
    for theta in (-50.0, 50.0):
        assert np.isfinite(Expression((term,), (-1,)).log_times(np.array([[theta]]))).all()
