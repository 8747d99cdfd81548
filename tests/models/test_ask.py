"""Questions: names that people use, typical rows, and advice that is the best of all candidates."""

from __future__ import annotations

import numpy as np
import pytest
from models.synthetic import ROLES, runs

from partita.errors import Infeasible
from partita.models.ask import Question, advise, as_table, beyond, parse_inputs, typical, unit_s
from partita.models.capture.roles import Role
from partita.models.capture.table import Table, TableError
from partita.models.fitting import Penalty
from partita.models.formula import Formula, fit_formula
from partita.models.skeleton import Form

WORLD = runs(80, seed=1)
MODEL: Formula = fit_formula("skeleton", WORLD.table, WORLD.times, ROLES, Penalty(0.1), seed=0, form=Form())

SHARDS: dict[str, Role] = {
    "# GPUs": "devices", "global batch": "batch", "micro batch": "micro_batch", "tensor parallelism": "tensor", "data parallelism": "data",
}  # fmt: skip
SHARDED = Table(
    {
        "# GPUs": np.array([2.0, 4.0, 4.0, 8.0]),
        "global batch": np.array([16.0, 16.0, 32.0, 32.0]),
        "micro batch": np.array([4.0, 4.0, 4.0, 8.0]),
        "tensor parallelism": np.array([2.0, 2.0, 2.0, 1.0]),
        "data parallelism": np.array([1.0, 2.0, 2.0, 8.0]),
    }
)


@pytest.mark.parametrize(
    ("told", "column"),
    [("# GPUs=4", "# GPUs"), ("devices=4", "# GPUs"), ("gpus=4", "# GPUs"), ("batch=4", "global batch"), ("micro=4", "micro batch"),
     ("tensor=4", "tensor parallelism"), ("data=4", "data parallelism")],
)  # fmt: skip
def test_a_column_by_its_name_its_role_or_a_word(told: str, column: str) -> None:
    assert parse_inputs([told], SHARDED, SHARDS) == {column: 4.0}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("parallelism=2", "may be 'tensor parallelism' or 'data parallelism'"),
        ("nonsense=2", "no input is named 'nonsense'"),
        ("batch", "is no COLUMN=VALUE"),
        ("batch=many", "'many' is none"),
        ("batch=-1", "cannot be -1"),
        ("batch=nan", "cannot be nan"),
        ("batch=inf", "cannot be inf"),
    ],
)
def test_what_fits_no_column_or_several_is_refused(told: str, said: str) -> None:
    with pytest.raises(TableError, match=said):
        parse_inputs([told], SHARDED, SHARDS)


def test_a_typical_row_is_the_commonest_near_what_is_named() -> None:
    assert typical(WORLD.table, ROLES, {"optimizer": "sgd", "layers": 8.0})["optimizer"] == "sgd"
    t = Table({"a": np.array([1.0, 1.0, 2.0, 2.0, 2.0]), "b": np.array([5.0, 5.0, 7.0, 7.0, 9.0])})
    roles: dict[str, Role] = {"a": "size", "b": "size"}
    assert typical(t, roles, {}) == {"a": 2.0, "b": 5.0}
    assert typical(t, roles, {"a": 2.0}) == {"a": 2.0, "b": 7.0}
    assert typical(t, roles, {"a": 4.0})["a"] == 4.0


def test_devices_stay_the_product_of_their_parts() -> None:
    assert typical(SHARDED, SHARDS, {"# GPUs": 16.0})["data parallelism"] * 2 == 16.0
    assert typical(SHARDED, SHARDS, {"data parallelism": 3.0, "tensor parallelism": 2.0})["# GPUs"] == 6.0
    with pytest.raises(TableError, match="5 devices are not"):
        typical(SHARDED, SHARDS, {"# GPUs": 5.0, "tensor parallelism": 2.0})
    with pytest.raises(TableError, match="8 devices are not"):
        typical(SHARDED, SHARDS, {"# GPUs": 8.0, "tensor parallelism": 2.0, "data parallelism": 2.0})


def test_rows_must_have_every_input() -> None:
    with pytest.raises(TableError, match="the rows lack 'layers'"):
        as_table([{n: 1.0 for n in ROLES if n != "layers"}], WORLD.table)


def test_what_lies_beyond_is_said() -> None:
    row = typical(WORLD.table, ROLES, {})
    assert beyond(row, WORLD.table) == ""
    said = beyond({**row, "devices": 64.0, "optimizer": "lamb"}, WORLD.table)
    assert "devices = 64 lies outside 1 to 8" in said
    assert "optimizer = lamb was never measured" in said


@pytest.mark.parametrize(
    ("target", "unit"),
    [
        ("iteration time (ms)", 1e-3),
        ("step_s", 1.0),
        ("time", 1.0),
        ("time_us", 1e-6),
        ("epoch minutes", 60.0),
        ("hours", 3600.0),
    ],
)
def test_a_unit_by_the_name(target: str, unit: float) -> None:
    assert unit_s(target) == unit


def asked(question: Question, target: str = "step_s", **named: float | str) -> dict[str, object]:
    return advise(MODEL, WORLD.table, ROLES, Form(), target, named, question)


def brute_force() -> list[tuple[float, float, float, float]]:
    """(batch, devices, seconds, device-hours) of 50,000 samples for every measured count and two doublings beyond."""
    found = []
    for batch in (16, 32, 64, 128, 256, 512, 1024):
        for devices in (1, 2, 4, 8, 16, 32):
            row = typical(WORLD.table, ROLES, {"batch": float(batch), "devices": float(devices)})
            (step_s,) = MODEL.predict(as_table([row], WORLD.table)).time
            seconds = step_s * 50_000 / batch
            found.append((float(batch), float(devices), seconds, seconds * devices / 3600))
    return found


def test_advice_is_the_best_of_all_candidates() -> None:
    every = brute_force()
    quickest = min(every, key=lambda r: r[2])
    deadline = 3 * quickest[2]
    thrifty = min((r for r in every if r[2] <= deadline), key=lambda r: r[3])
    cheapest = min(every, key=lambda r: r[3])
    for question, best in (
        (Question(50_000), quickest),
        (Question(50_000, deadline), thrifty),
        (Question(50_000, None, 2.5), cheapest),
        (Question(50_000, deadline, 2.5), thrifty),
    ):
        advice = asked(question)
        assert len(advice["rows"]) == len(every)  # type: ignore[arg-type]
        row = advice["rows"][advice["best"]]  # type: ignore[index]
        assert (row["inputs"]["batch"], row["inputs"]["devices"]) == best[:2]
        assert row["total_s"] == pytest.approx(best[2])
        assert row["device_hours"] == pytest.approx(best[3])
        if question.price_per_device_hour:
            assert row["cost"] == pytest.approx(2.5 * best[3])


def test_the_unit_of_the_target_counts() -> None:
    seconds, milliseconds = asked(Question(1000)), asked(Question(1000), "step (ms)")
    for a, b in zip(seconds["rows"], milliseconds["rows"], strict=True):  # type: ignore[call-overload]
        assert a["total_s"] == pytest.approx(1000 * b["total_s"])


def test_what_is_named_stays() -> None:
    rows = asked(Question(1000), batch=64.0, optimizer="sgd")["rows"]
    assert {r["inputs"]["batch"] for r in rows} == {64.0}  # type: ignore[attr-defined]
    assert len(rows) == 6  # type: ignore[arg-type]


def test_a_deadline_nobody_keeps_names_the_one_that_is_kept() -> None:
    with pytest.raises(Infeasible, match="the fastest takes") as caught:
        asked(Question(50_000, 1e-3))
    assert caught.value.constraint == "deadline"
    least = min(r[2] for r in brute_force())
    advice = asked(Question(50_000, least * 1.0001))
    assert advice["rows"][advice["best"]]["total_s"] == pytest.approx(least)  # type: ignore[index]
