"""Rehearsals: what is held out, what the rows say of extrapolating from them, and by how much intervals widen."""

from __future__ import annotations

import numpy as np
import pytest
from models.synthetic import ROLES, runs

from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.model import Prediction
from partita.models.rehearse import ROWS, drift, question, rehearsals

WORLD = runs(90, noise=0.02, seed=2)


def test_the_largest_values_of_each_column_are_held_out() -> None:
    found = {}
    for r in rehearsals(WORLD.table, ROLES):
        values = WORLD.table.numbers(r.column)
        assert values[r.split.train].max() < values[r.split.test].min()
        assert r.taught == (len(set(values[r.split.train])) > 1)
        found.setdefault(r.column, []).append(sorted(set(values[r.split.test])))
    assert found["devices"] == [[8.0], [4.0]]
    assert set(found) == {"devices", "batch", "layers", "hidden"}


def test_settings_are_decided_by_the_question_that_will_be_asked() -> None:
    devices = WORLD.table.numbers("devices")
    assert [set(devices[s.test]) for s in question(WORLD.table, ROLES, "devices")] == [{8.0}, {4.0}]
    assert len(question(WORLD.table, ROLES, None)) == 3
    few = WORLD.table.take(devices <= 2)  # holding out 2 would leave one count, which teaches nothing
    asked = question(few, ROLES, "devices")
    assert all(len(set(few.numbers("devices")[s.train])) == 2 for s in asked)


def test_no_rehearsal_takes_many_rows() -> None:
    big = runs(2000, seed=1)
    assert max(len(s.train) for r in rehearsals(big.table, ROLES) for s in (r.split,)) <= ROWS


class Flat:
    """Says 1 of everything, and is almost sure of it."""

    name, explainable = "flat", False

    def predict(self, table: Table) -> Prediction:
        return Prediction.around(np.zeros(len(table)), np.full(len(table), 0.01))


def test_drift_is_how_fast_errors_grow_beyond_the_rows() -> None:
    """t = x^0.5 foretold as constant up to its largest value: an exponent that is wrong by 0.5."""
    x = np.repeat([1.0, 2.0, 4.0, 8.0, 16.0], 10)
    roles: dict[str, Role] = {"x": "size", "same": "size", "kind": "kind"}
    table = Table({"x": x, "same": np.tile([1.0, 2.0], 25), "kind": np.tile(["a", "b"], 25)})
    times = x**0.5

    def refit(train: Table, seen: np.ndarray) -> Flat:
        level, model = float(seen.max()), Flat()
        model.predict = lambda t: Prediction.around(np.full(len(t), np.log(level)), np.full(len(t), 1e-6))  # type: ignore[method-assign]
        return model

    found = drift(refit, table, times, roles)
    assert found["x"] == pytest.approx(0.5 / 1.6449, rel=1e-3)
    assert found["same"] == found["x"]  # with two values it teaches nothing: as bad as the worst
    assert "kind" not in found
