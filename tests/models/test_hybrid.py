"""The explainable models: intervals that hold, seeds that agree, terms that sum up, regularisation that is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from models.synthetic import ROLES, VTRAIN, Runs, needs_vtrain, runs

from partita.models.capture.table import Table
from partita.models.compare import Fitter
from partita.models.fitting import Penalty
from partita.models.formula import Formula, fit_formula
from partita.models.hybrid import Hybrid, fit_hybrid
from partita.models.model import Model, Prediction, widening
from partita.models.opponents import threadpool_limits
from partita.models.skeleton import Form
from partita.models.study import prepare


def skeleton_of(world: Runs, seed: int = 0) -> Formula:
    return fit_formula("skeleton", world.table, world.times, world.roles, Penalty(0.1), seed=seed, form=Form())


def hybrid_of(world: Runs, seed: int = 0) -> Hybrid:
    return fit_hybrid(skeleton_of(world, seed), world.table, world.times, seed=seed)


@pytest.mark.parametrize("fitter", [skeleton_of, hybrid_of])
def test_nine_tenths_lie_inside_the_intervals(fitter: Callable[[Runs], Model]) -> None:
    """New rows of the same truth with 5 % of noise, over four worlds."""
    inside = []
    for seed in range(4):
        world = runs(500, seed=seed, noise=0.05)
        first = np.arange(500) < 150
        found = fitter(world.where(first)).predict(world.table.take(~first))
        inside += [(found.low <= world.times[~first]) & (world.times[~first] <= found.high)]
    assert 0.85 <= np.mean(inside) <= 0.95


@pytest.mark.slow
def test_intervals_widen_where_nothing_was_measured() -> None:
    world = runs(60, noise=0.03, devices=(1, 2))
    fitter = Fitter(ROLES, "devices")
    model = fitter.fit("hybrid", world.table, world.times, fitter.settle(world.table, world.times))
    far = Table({**world.table.columns, "devices": world.table.numbers("devices") * 16})
    near, beyond = model.predict(world.table), model.predict(far)
    assert np.median(beyond.high / beyond.low) > 1.5 * np.median(near.high / near.low)
    assert np.all(beyond.low < beyond.time)


def spread(predictions: list[np.ndarray]) -> float:
    """The largest relative distance between two predictions of one row."""
    every = np.stack(predictions)
    return float((every.max(axis=0) / every.min(axis=0) - 1).max())


def test_seeds_agree_within_a_percent() -> None:
    """Ten of them below, on measured rows."""
    world = runs(80, noise=0.03)
    assert spread([hybrid_of(world, seed).predict(world.table).time for seed in range(3)]) < 0.01


@pytest.mark.slow
@needs_vtrain
def test_ten_seeds_agree_within_a_percent_on_vtrain() -> None:
    p = prepare(Table.read(VTRAIN), "iteration time (ms)")
    found = []
    with threadpool_limits(1):
        for seed in range(10):
            fitter = Fitter(p.roles, seed=seed)
            found.append(fitter.fit("hybrid", p.table, p.times, fitter.settle(p.table, p.times)).predict(p.table).time)
    assert spread(found) < 0.01


def test_terms_sum_to_the_time() -> None:
    world = runs(60, noise=0.03)
    for kind in ("skeleton", "generic"):
        formula = fit_formula(kind, world.table, world.times, ROLES, Penalty(0.3), seed=0, form=Form())  # type: ignore[arg-type]
        terms = formula.terms(world.table)
        assert all(np.all(v >= 0) for v in terms.values())
        np.testing.assert_allclose(sum(terms.values()), formula.predict(world.table).time, rtol=1e-9)


def test_a_hybrid_is_its_formula_times_a_factor_and_closer_to_what_was_measured() -> None:
    world = runs(150, noise=0.0)
    # what no formula here has: a plateau for one pair of values
    odd = (world.table.numbers("layers") == 8) & (world.table.columns["optimizer"] == "adam")
    bent = Runs(world.table, world.times * np.where(odd, 1.3, 1.0), world.truth * np.where(odd, 1.3, 1.0), ROLES)
    first = np.arange(150) < 100
    model = hybrid_of(bent.where(first))
    test = bent.where(~first)
    np.testing.assert_allclose(
        model.predict(test.table).time, model.formula.predict(test.table).time * model.factor(test.table), rtol=1e-9
    )
    errors = [np.abs(m.predict(test.table).time / test.truth - 1).mean() for m in (model, model.formula)]
    assert errors[0] < 0.6 * errors[1]


def test_where_two_have_a_say_the_middle_is_told_and_the_interval_holds_both() -> None:
    world = runs(60, noise=0.03)
    one, other = (hybrid_of(replace(world, times=world.times * f)) for f in (1.0, 2.0))
    both = replace(one, others=((0.25, other),))
    a, b, mixed = (m.predict(world.table) for m in (one, other, both))
    np.testing.assert_allclose(mixed.time, a.time**0.75 * b.time**0.25)
    np.testing.assert_allclose(both.formula.predict(world.table).time * both.factor(world.table), mixed.time)
    apart = np.log(b.time / a.time)
    variance = 0.75 * a.log_sd**2 + 0.25 * b.log_sd**2 + 0.75 * 0.25 * apart**2
    np.testing.assert_allclose(mixed.log_sd, np.sqrt(variance))


def test_the_generic_expression_finds_a_sum_of_powers() -> None:
    """t = (3 layers + 0.02 hidden^1.5) devices^-0.7 + 0.5, rows held out."""
    world = runs(200)
    t = world.table
    truth = (3 * t.numbers("layers") + 0.02 * t.numbers("hidden") ** 1.5) * t.numbers("devices") ** -0.7 + 0.5
    first = np.arange(200) < 120
    model = fit_formula("generic", t.take(first), truth[first], ROLES, Penalty(0.03), seed=0)
    assert np.abs(model.predict(t.take(~first)).time / truth[~first] - 1).mean() < 0.03


def test_widening_makes_nine_tenths_of_errors_fit() -> None:
    chance = np.random.default_rng(0)
    sds = chance.uniform(0.01, 0.1, 2000)
    errors = 1.7 * sds * chance.normal(size=2000)
    factor = widening(errors, sds)
    assert factor == pytest.approx(1.7, rel=0.05)
    p = Prediction.around(np.zeros(2000), factor * sds)
    assert np.mean((p.low <= np.exp(errors)) & (np.exp(errors) <= p.high)) == pytest.approx(0.9, abs=0.002)
