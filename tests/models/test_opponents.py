"""The opponents: plain regressors under the contract of every model."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from models.synthetic import ROLES, runs

from partita.errors import MissingDependency
from partita.models.capture.table import Table
from partita.models.opponents import OPPONENTS, fit_regressor, threadpool_limits
from partita.models.splits import above, folds

pytest.importorskip("sklearn")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "gradient boosting" else n for n in OPPONENTS]
)
def test_an_opponent_learns_and_its_intervals_hold(name: str) -> None:
    world = runs(240, noise=0.05, seed=1)
    first = np.arange(240) < 120
    with threadpool_limits(1):
        model, same = (
            fit_regressor(name, world.table.take(first), world.times[first], ROLES, seed=0) for _ in range(2)
        )
    found = model.predict(world.table.take(~first))
    errors = found.time / world.times[~first] - 1
    assert np.abs(errors).mean() < 0.3 < np.abs(np.median(world.times) / world.times[~first] - 1).mean()
    assert 0.8 <= np.mean((found.low <= world.times[~first]) & (world.times[~first] <= found.high)) <= 0.98
    np.testing.assert_array_equal(found.time, same.predict(world.table.take(~first)).time)
    assert (model.name, model.explainable) == (name, name == "log-linear")


def test_a_product_of_powers_is_what_log_linear_is_made_for() -> None:
    table = runs(100).table
    factor = np.where(table.columns["optimizer"] == "adam", 1.4, 1.0)
    truth = 0.3 * table.numbers("layers") ** 1.2 * table.numbers("devices") ** -0.8 * factor
    model = fit_regressor("log-linear", table.take(np.arange(60)), truth[:60], ROLES, seed=0)
    np.testing.assert_allclose(model.predict(table).time, truth, rtol=0.01)


def test_a_level_never_seen_is_no_error() -> None:
    world = runs(80)
    model = fit_regressor("log-linear", world.table, world.times, ROLES, seed=0)
    new = Table({**world.table.columns, "optimizer": np.array(["lamb"] * 80)})
    assert np.all(np.isfinite(model.predict(new).time))


def test_without_scikit_learn_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.import_module

    def refuse(name: str, package: str | None = None) -> object:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return found(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)
    world = runs(40)
    with pytest.raises(MissingDependency, match="scikit-learn"):
        fit_regressor("log-linear", world.table, world.times, ROLES, seed=0)


@pytest.mark.parametrize("rows", [5, 23, 100])
def test_folds_test_every_row_once(rows: int) -> None:
    parts = folds(rows, seed=3)
    np.testing.assert_array_equal(np.sort(np.concatenate([s.test for s in parts])), np.arange(rows))
    assert all(np.array_equal(np.sort(np.concatenate([s.train, s.test])), np.arange(rows)) for s in parts)


def test_rows_above_a_value_are_held_out() -> None:
    devices = np.array([1.0, 8.0, 2.0, 4.0, 1.0, 8.0, 4.0])
    one = above(devices, 2.0)
    assert (set(devices[one.train]), set(devices[one.test])) == ({1.0, 2.0}, {4.0, 8.0})
