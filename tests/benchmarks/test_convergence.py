"""Steps to a target by the batch: exact laws recovered, intervals that hold, bad runs refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from benchmark_scripts import loaded
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

law_of_steps = loaded("convergence")
ConvergenceError, Spread = law_of_steps.ConvergenceError, law_of_steps.Spread
crossing, fit_convergence = law_of_steps.crossing, law_of_steps.fit_convergence

BATCHES = np.array([16.0, 64.0, 64.0, 256.0])


def law(fewest: float, noise_batch: float, batches: np.ndarray) -> np.ndarray:
    return fewest * (1 + noise_batch / batches)


@settings(deadline=None)
@given(st.floats(1.0, 1e5), st.floats(0.1, 1e5))
def test_a_law_without_noise_is_recovered(fewest: float, noise_batch: float) -> None:
    found = fit_convergence(BATCHES, law(fewest, noise_batch, BATCHES))
    for batch in (8.0, 100.0, 1000.0):
        spread = found.steps(batch)
        assert spread.middle == pytest.approx(law(fewest, noise_batch, np.array([batch]))[0], rel=1e-6)
        assert spread.high == pytest.approx(spread.low, rel=1e-3)


def test_its_constants_mean_what_the_law_says() -> None:
    found = fit_convergence(BATCHES, law(300.0, 80.0, BATCHES))
    assert found.fewest_steps == pytest.approx(300.0)
    assert found.noise_batch == pytest.approx(80.0)
    assert found.steps(80.0).middle == pytest.approx(600.0)  # at the noise batch, twice the fewest


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([16.0, 64.0, 200.0]), st.floats(10.0, 1e4)), min_size=4, max_size=8))
def test_no_more_steps_with_a_larger_batch_nor_fewer_images(runs: list[tuple[float, float]]) -> None:
    batches, steps = (np.array(c) for c in zip(*runs, strict=True))
    if len(np.unique(batches)) < 2:
        return
    found = fit_convergence(batches, steps)
    asked = [4.0, 16.0, 50.0, 300.0, 5000.0]
    middles = [found.steps(b).middle for b in asked]
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(middles))
    images = [s * b for s, b in zip(middles, asked, strict=True)]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(images))


def test_the_unit_of_steps_does_not_matter() -> None:
    steps = np.array([2100.0, 700.0, 760.0, 420.0])
    one, ten = fit_convergence(BATCHES, steps), fit_convergence(BATCHES, 10 * steps)
    assert ten.steps(128.0).middle == pytest.approx(10 * one.steps(128.0).middle)
    assert ten.steps(128.0).log_sd == pytest.approx(one.steps(128.0).log_sd)


def test_nine_of_ten_intervals_hold_a_new_run() -> None:
    chance, inside, trials = np.random.default_rng(0), 0, 600
    batches = np.array([32.0, 32.0, 128.0, 128.0])
    for _ in range(trials):
        found = fit_convergence(batches, law(300.0, 80.0, batches) * np.exp(0.05 * chance.normal(size=4)))
        new = float(law(300.0, 80.0, np.array([64.0]))[0] * np.exp(0.05 * chance.normal()))
        spread = found.steps(64.0)
        inside += spread.low <= new <= spread.high
    assert 0.86 < inside / trials < 0.94


def test_far_from_the_pilots_less_is_known() -> None:
    found = fit_convergence(np.array([32.0, 32.0, 128.0, 128.0]), np.array([1000.0, 1060.0, 500.0, 480.0]))
    assert found.steps(1024.0).log_sd > found.steps(64.0).log_sd > found.noise


def test_pilots_that_scatter_more_give_a_wider_interval() -> None:
    steps = law(300.0, 80.0, BATCHES)
    calm, wild = (fit_convergence(BATCHES, steps * (1 + e * np.array([0, 1, -1, 0]))) for e in (0.02, 0.1))
    assert wild.steps(100.0).high / wild.steps(100.0).low > calm.steps(100.0).high / calm.steps(100.0).low


@pytest.mark.parametrize(
    ("batches", "steps", "said"),
    [
        ([32.0, 64.0], [10.0, 8.0], "2 pilot runs"),
        ([32.0, 32.0, 32.0], [10.0, 8.0, 9.0], "1 different"),
        ([32.0, 64.0, 64.0], [10.0, math.nan, 9.0], "run 1"),
        ([32.0, 64.0, 0.0], [10.0, 9.0, 9.0], "run 2"),
    ],
)
def test_runs_that_say_too_little_are_refused(batches: list[float], steps: list[float], said: str) -> None:
    with pytest.raises(ConvergenceError, match=said):
        fit_convergence(np.array(batches), np.array(steps))


def test_a_spread_reaches_as_far_as_students_distribution() -> None:
    spread = Spread(100.0, 0.1, 2.0)
    assert math.log(spread.high / 100.0) == pytest.approx(0.1 * float(student.ppf(0.95, 2.0)))
    assert spread.low * spread.high == pytest.approx(100.0**2)


def test_a_product_of_spreads() -> None:
    few, sure = Spread(10.0, 0.3, 2.0), Spread(5.0, 0.4, math.inf)
    both = few.times(sure)
    assert both.middle == 50.0
    assert both.log_sd == pytest.approx(0.5)
    assert 2.0 < both.freedom < math.inf
    assert few.times(Spread(1.0, 0.0, math.inf)).freedom == pytest.approx(2.0)


def test_a_sum_of_spreads() -> None:
    large, small = Spread(30.0, 0.1, 2.0), Spread(10.0, 0.4, 5.0)
    both = large.plus(small)
    assert both.middle == 40.0
    assert both.log_sd * 40.0 == pytest.approx(math.hypot(3.0, 4.0))
    assert both.freedom == pytest.approx(25.0**2 / (9.0**2 / 2 + 16.0**2 / 5))
    assert large.plus(Spread(0.0, 1.0, 1.0)).high == pytest.approx(large.high)


def test_nine_of_ten_new_values_lie_in_the_spread_of_a_few() -> None:
    chance, trials = np.random.default_rng(1), 1000
    values = np.exp(0.1 * chance.normal(size=(trials, 5)))
    spreads = [Spread.of(v[:4]) for v in values]
    inside = [s.low <= v[4] <= s.high for s, v in zip(spreads, values, strict=True)]
    assert 0.85 < np.mean(inside) < 0.94


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), st.floats(0.05, 0.95))
def test_a_crossing_lies_where_the_score_first_reaches_the_target(score: list[float], target: float) -> None:
    images = 100.0 * np.arange(1, len(score) + 1)
    found = crossing(images, np.array(score), target)
    reached = [i for i, s in enumerate(score) if s >= target]
    if not reached:
        assert math.isnan(found)
    else:
        before = images[reached[0] - 1] if reached[0] else images[0]
        assert before <= found <= images[reached[0]]
