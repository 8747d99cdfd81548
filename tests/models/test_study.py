"""The study: what is refused before a fit, what is compared, and how close the models come to measured data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from models.synthetic import VTRAIN, needs_vtrain, runs

from partita.models.capture.table import Table, TableError
from partita.models.compare import EXPLAINABLE, Fitter, judge
from partita.models.formula import Formula
from partita.models.hybrid import Hybrid
from partita.models.opponents import threadpool_limits
from partita.models.study import Study, learning_curve, prepare, study

ITERATION = "iteration time (ms)"
WORLD = runs(90, noise=0.02, seed=2)


def changed(**columns: Any) -> Table:
    return Table({**WORLD.full().columns, **columns})


def bad_row(column: str, value: float) -> Table:
    cells = WORLD.full().numbers(column).copy()
    cells[4] = value
    return changed(**{column: cells})


def some(rows: int) -> Table:
    return WORLD.full().take(np.arange(rows))


def elements(factor: float) -> Table:
    """Two columns of one quantity, one row in another unit."""
    bytes_ = WORLD.table.numbers("hidden") * 4.0
    return changed(bytes=np.where(np.arange(90) == 7, bytes_ * factor, bytes_))


one_count = WORLD.full().take(np.flatnonzero(WORLD.table.numbers("devices") == 2))


@pytest.mark.parametrize(
    ("table", "asked", "said"),
    [
        (bad_row("step_s", 0.0), {}, "1 values that are no times \\(line 6: 0\\)"),
        (bad_row("step_s", -2.0), {}, "line 6: -2"),
        (one_count, {"split_by": "devices", "up_to": 2.0}, "cannot split by 'devices': the same in all rows \\(2\\)"),
        (WORLD.full(), {"split_by": "devices", "up_to": 1.0}, "training rows have 'devices' = 1: nothing tells"),
        (WORLD.full(), {"split_by": "devices", "up_to": 8.0}, "no row has 'devices' above 8"),
        (WORLD.full(), {"split_by": "devices", "up_to": 0.5}, "no row has 'devices' up to 0.5"),
        (WORLD.full(), {"split_by": "devices"}, "needs --train-up-to"),
        (WORLD.full(), {"split_by": "optimizer", "up_to": 1.0}, "column 'optimizer' is text"),
        (WORLD.full(), {"split_by": "gpus", "up_to": 1.0}, "no column named 'gpus'"),
        (WORLD.full(), {"drop": ["nothing"]}, "no column named 'nothing'"),
        (Table({"a": np.ones(20), "t": np.ones(20)}), {"target": "t"}, "no column besides 't' varies"),
        (elements(1000.0), {}, "'hidden' over 'bytes' is 0.25 in most rows, a thousand times off in line 9"),
        (elements(1e-3), {}, "a thousand times off in line 9"),
        (some(9), {}, "7 training rows for 5 inputs, which need at least 8"),
        (some(3), {}, "training rows for"),
        (changed(step_s=np.array(["1"] * 89 + ["fast"])), {}, "row 90 is 'fast'"),
    ],
)  # fmt: skip
def test_what_gives_no_honest_fit_is_refused_in_a_sentence(table: Table, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(TableError, match=said) as caught:
        prepare(table, **{"target": "step_s", **asked})
    assert "hint:" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1000.0, 1e-3])
def test_times_in_another_unit_are_found_by_the_fit(factor: float) -> None:
    times = WORLD.times.copy()
    times[[5, 50]] *= factor
    with pytest.raises(TableError, match=r"2 times of 'step_s' are a thousand times off.*line 7.*line 52"):
        study(prepare(changed(step_s=times), "step_s"), models=("skeleton",))


def test_columns_that_can_be_no_inputs_are_left_out_and_named() -> None:
    table = changed(
        same=np.full(90, 3.0),
        host=np.array([f"h{i}" for i in range(90)]),
        seed=np.arange(90.0) % 4,
        speed=WORLD.times * 2,
    )
    p = prepare(Table(table.columns, ("load", "speed")), "step_s", drop=["layers"])
    why = dict(p.left_out)
    assert set(why) == {"same", "host", "seed", "speed", "layers"}
    assert "3" in why["same"]
    assert "identifier" in why["host"]
    assert why["layers"] == "dropped on request"
    assert why["speed"] == "known only after a run"
    assert set(p.roles) == set(p.table.names) == {"devices", "batch", "hidden", "optimizer"}


def test_a_column_that_gives_the_time_away_is_pointed_at() -> None:
    p = prepare(changed(energy=WORLD.times * 300), "step_s")
    assert [n for n in p.notes if "'energy' follows the time" in n]
    assert prepare(WORLD.full(), "step_s").notes == ()


@pytest.mark.slow
def test_texts_are_categories() -> None:
    """A kind with three levels of known factors: left-out rows are predicted as well as the noise lets."""
    t, chance = runs(100, seed=4), np.random.default_rng(0)
    activation = chance.choice(["relu", "gelu", "tanh"], 100)
    factor = np.select([activation == "gelu", activation == "tanh"], [1.5, 2.0], 1.0)
    found = study(
        prepare(Table({**t.table.columns, "activation": activation, "t": t.truth * factor}), "t"), models=("hybrid",)
    )
    assert found.prepared.roles["activation"] == "kind"
    assert found.scores[0].mape < 0.02
    if found.best == "hybrid":
        two = [
            found.model.predict(Table({**found.prepared.table.columns, "activation": np.array([a] * 100)})).time
            for a in ("tanh", "relu")
        ]
        assert np.median(two[0] / two[1]) == pytest.approx(2.0, rel=0.05)


@pytest.fixture(scope="module")
def found() -> Study:
    with threadpool_limits(1):
        return study(prepare(WORLD.full(), "step_s"), models=("hybrid", "log-linear"))


@pytest.mark.slow
def test_every_model_is_judged_by_rows_it_has_not_seen(found: Study) -> None:
    assert [s.name for s in found.scores] == ["hybrid", "log-linear"]
    for score in found.scores:
        assert sorted(score.rows.astype(int)) == list(range(90))
        np.testing.assert_allclose(score.predicted / WORLD.times[score.rows.astype(int)] - 1, score.errors)
    assert found.best in EXPLAINABLE
    assert found.model.name == found.best
    assert found.scores[0].mape < 0.05


@pytest.mark.slow
def test_the_learning_curve_ends_at_the_score_of_all_rows(found: Study) -> None:
    curve = learning_curve(found)
    rows = [n for n, _ in curve]
    assert rows == sorted(rows)
    assert rows[-1] == len(found.prepared.splits[0].train)
    assert curve[-1][1] < 2 * curve[0][1]


@pytest.mark.slow
def test_tested_rows_do_not_influence_what_is_chosen() -> None:
    """Nonsense in the rows that judge changes neither settings, nor the chosen model, nor what is predicted."""
    few = WORLD.table.numbers("devices") <= 4
    honest, spoiled = (
        prepare(changed(step_s=t), "step_s", split_by="devices", up_to=4)
        for t in (WORLD.times, np.where(few, WORLD.times, WORLD.times * np.linspace(2, 5, 90)))
    )
    one, other = (
        judge(Fitter(p.roles, p.split_by), ["skeleton"], p.table, p.times, p.splits[0]) for p in (honest, spoiled)
    )
    assert one.settings == other.settings
    np.testing.assert_array_equal(one.scores[0].predicted, other.scores[0].predicted)
    assert study(honest, models=("skeleton",)).best == study(spoiled, models=("skeleton",)).best


@pytest.mark.slow
def test_in_folds_too_settings_are_chosen_without_the_rows_that_judge() -> None:
    p = prepare(WORLD.full(), "step_s")
    (fold, *_) = p.splits
    spoiled = p.times.copy()
    spoiled[fold.test] *= np.linspace(2, 5, len(fold.test))
    one, other = (judge(Fitter(p.roles), ["hybrid"], p.table, t, fold) for t in (p.times, spoiled))
    assert one.settings == other.settings
    np.testing.assert_array_equal(one.scores[0].predicted, other.scores[0].predicted)
    for name in ("low", "high"):
        np.testing.assert_array_equal(getattr(one.scores[0], name), getattr(other.scores[0], name))


def test_the_final_model_knows_the_range_of_all_rows() -> None:
    found = study(prepare(WORLD.full(), "step_s", split_by="devices", up_to=4), models=("skeleton",))
    formula = found.model.formula if isinstance(found.model, Hybrid) else found.model
    assert isinstance(formula, Formula)
    assert formula.scale.span["devices"] == (1.0, 8.0)
    assert not formula.beyond(WORLD.table).any()
    twice = Table({**WORLD.table.columns, "devices": WORLD.table.numbers("devices") * 2})
    assert np.all((formula.beyond(twice) > 0) == (WORLD.table.numbers("devices") == 8))


@pytest.mark.slow
def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    say: Callable[[str, int, int], None] = lambda what, done, total: told.append((what, done, total))  # noqa: E731
    study(prepare(some(40), "step_s"), models=("skeleton",), progress=say)
    assert [d for _, d, _ in told] == list(range(7))
    assert all(t == 7 for _, _, t in told)


# ---- measured data ----------------------------------------------------------------------------------------------------------


def hybrid_on_vtrain(up_to: float) -> tuple[float, float]:
    """(mean error, coverage) of the hybrid fitted up to a number of GPUs, on those above."""
    p = prepare(Table.read(VTRAIN), ITERATION, split_by="# GPUs", up_to=up_to)
    with threadpool_limits(1):
        (score,) = judge(Fitter(p.roles, p.split_by), ["hybrid"], p.table, p.times, p.splits[0]).scores
    return score.mape, float(score.inside.mean())


@pytest.mark.slow
@needs_vtrain
def test_vtrain_from_two_devices_to_four_and_eight() -> None:
    mape, inside = hybrid_on_vtrain(2)
    assert mape <= 0.1
    assert 0.85 <= inside <= 0.97


@pytest.mark.slow
@needs_vtrain
def test_vtrain_from_two_and_four_devices_to_eight() -> None:
    mape, inside = hybrid_on_vtrain(4)
    assert mape <= 0.06
    assert 0.85 <= inside <= 0.97


@pytest.mark.slow
@needs_vtrain
def test_vtrain_in_five_folds() -> None:
    with threadpool_limits(1):
        found = study(prepare(Table.read(VTRAIN), ITERATION), models=("hybrid",))
    (score,) = found.scores
    assert found.best == "hybrid"
    assert score.mape <= 0.035
    assert 0.85 <= score.inside.mean() <= 0.95
    assert score.fit_s <= 30
