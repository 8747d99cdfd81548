"""Intervals hold as often as they say, verdicts follow their rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmark_scripts import loaded
from hypothesis import given
from hypothesis import strategies as st

intervals = loaded("intervals")
Claim, Interval = intervals.Claim, intervals.Interval
times = st.lists(st.floats(0.1, 10.0), min_size=6, max_size=30)


def test_19_of_20_intervals_hold_the_true_ratio() -> None:
    chance, trials, inside = np.random.default_rng(0), 400, 0
    for k in range(trials):
        machine = np.exp(0.1 * chance.normal(size=24))  # a slow round is slow for both
        a = 1.8 * machine * np.exp(0.03 * chance.normal(size=24))
        b = 1.0 * machine * np.exp(0.03 * chance.normal(size=24))
        found = intervals.ratio(a.tolist(), b.tolist(), resamples=500, seed=k)
        inside += found.low <= 1.8 <= found.high
    assert 0.91 <= inside / trials <= 0.995


def test_what_a_round_does_to_all_cancels_out() -> None:
    chance = np.random.default_rng(1)
    machine = np.exp(0.4 * chance.normal(size=30))
    a, b = (2.0 * machine).tolist(), machine.tolist()
    paired = intervals.ratio(a, b)
    assert (paired.low, paired.value, paired.high) == pytest.approx((2.0, 2.0, 2.0))
    apart = intervals.ratio(a, chance.permutation(b).tolist())
    assert apart.high - apart.low > 0.1


@given(times, st.floats(0.01, 100.0))
def test_the_unit_does_not_matter(samples: list[float], unit: float) -> None:
    seconds = intervals.over_medians([1.0], [samples], resamples=50)
    scaled = intervals.over_medians([unit], [[unit * s for s in samples]], resamples=50)
    assert scaled.low == pytest.approx(seconds.low)
    assert scaled.high == pytest.approx(seconds.high)


@given(times)
def test_the_same_samples_and_seed_give_the_same_interval(samples: list[float]) -> None:
    first, again = (intervals.ratio(samples, samples[::-1], resamples=50, seed=3) for _ in range(2))
    assert first == again
    assert first.low <= first.high


def test_a_few_rounds_give_a_value_and_no_interval() -> None:
    found = intervals.ratio([2.0] * 5, [1.0] * 5)
    assert found.value == 2.0
    assert not found.known
    assert found.ends is None


@pytest.mark.parametrize("columns", [((1.0, 2.0), (1.0,)), ((),), ()])
def test_columns_that_do_not_belong_together_are_refused(columns: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(ValueError, match="rounds"):
        intervals.bootstrap(lambda *m: m[0], *columns)


def test_a_mean_in_place_of_the_median() -> None:
    found = intervals.bootstrap(lambda a: a, [0.0] * 9 + [10.0], middle=np.mean)
    assert found.value == 1.0
    assert found.high > 1.0


@pytest.mark.parametrize(
    ("ends", "drift", "said"),
    [
        ((1.8, 1.9), 0.1, "met"),
        ((1.7, 1.9), 0.1, "met"),  # the claim's own end belongs to it
        ((1.5, 1.6), 0.1, "missed"),
        ((1.6, 1.8), 0.1, "the machine was too restless to tell"),
        ((1.8, 1.9), 0.3, "the machine was too restless to tell"),
        ((1.5, 1.6), 0.3, "the machine was too restless to tell"),
        ((math.nan, math.nan), 0.1, "the machine was too restless to tell"),
    ],
)
def test_verdicts_on_a_least_value(ends: tuple[float, float], drift: float, said: str) -> None:
    found = intervals.verdict(Claim("at least 1.7", low=1.7, most_drift=0.25), Interval(1.7, *ends), drift)
    assert found["verdict"] == said


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((0.95, 1.05), "met"),
        ((0.85, 1.15), "the machine was too restless to tell"),
        ((1.05, 1.15), "the machine was too restless to tell"),
        ((1.12, 1.15), "missed"),
        ((0.7, 0.8), "missed"),
    ],
)
def test_verdicts_on_a_value_between_two(ends: tuple[float, float], said: str) -> None:
    assert intervals.verdict(Claim("near 1", 0.9, 1.1), Interval(1.0, *ends), 0.0)["verdict"] == said


def test_figures_without_time_are_judged_on_any_machine() -> None:
    claim = Claim("none", high=0, most_drift=math.inf)
    assert intervals.verdict(claim, Interval.exact(0), 5.0)["verdict"] == "met"
    assert intervals.verdict(claim, Interval.exact(1), 5.0)["verdict"] == "missed"


def test_a_verdict_says_why_in_a_line() -> None:
    found = intervals.verdict(Claim("twice", low=2.0), Interval(2.3, 2.1, 2.5), 0.4)
    assert found["low"] == 2.0
    assert found["high"] is None
    assert "drifted by 40%" in intervals.sentences({"speed": found})


def test_an_error_is_not_told_where_the_machine_drifted() -> None:
    """Nor a difference: drift makes it larger by no factor."""
    for value in (0.01, -0.01):
        claim = Claim("a gain", low=-0.03, high=0.03, grows=False)
        found = Interval(value, value, value)
        assert [intervals.verdict(claim, found, d)["verdict"] for d in (0.1, 0.5)] == ["met", intervals.UNTOLD]


def test_within_rounds_the_machine_may_drift_as_it_likes() -> None:
    """A ratio of medians does not see that every round says 2."""
    machine = np.linspace(1.0, 3.0, 12)
    a, b = (2.0 * machine).tolist(), machine.tolist()
    found = intervals.ratio_within_rounds(a, b)
    assert (found.low, found.value, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert (
        intervals.verdict(Claim("twice", low=1.9, most_drift=intervals.WITHIN_ROUNDS), found, 2.0)["verdict"] == "met"
    )
    half = intervals.within_rounds(lambda x, y: 1 - y / x, a, b)
    assert half.value == pytest.approx(0.5)
