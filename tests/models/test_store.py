"""The store: a model comes back as it was, and a damaged file is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.synthetic import ROLES, runs
from small_worlds import JUNK, places_in, refused_or

from partita.errors import BadInput
from partita.models.capture.table import Table
from partita.models.fitting import Penalty
from partita.models.formula import Formula, fit_formula
from partita.models.hybrid import fit_hybrid
from partita.models.model import Model
from partita.models.opponents import fit_regressor
from partita.models.skeleton import Form
from partita.models.store import ModelError, read_model, write_model

WORLD = runs(40, noise=0.03)


def formula(kind: Any) -> Formula:
    return fit_formula(kind, WORLD.table, WORLD.times, ROLES, Penalty(0.3), seed=0, form=Form())


def model(name: str) -> Model:
    if name == "hybrid":
        alone = fit_hybrid(formula("skeleton"), WORLD.table, WORLD.times, seed=0)
        return replace(alone, others=((0.4, fit_hybrid(formula("power law"), WORLD.table, WORLD.times, seed=0)),))
    return formula(name)


def write(m: Model, path: Path) -> Path:
    return write_model(path, m, WORLD.table, WORLD.times, "step_s")


@pytest.mark.parametrize("name", ["generic", "skeleton", "hybrid"])
def test_what_is_written_predicts_the_same(name: str, tmp_path: Path) -> None:
    written = model(name)
    stored = read_model(write(written, tmp_path / "m.json"))
    new = Table({**WORLD.table.columns, "devices": WORLD.table.numbers("devices") * 3})
    for table in (WORLD.table, new):
        before, after = written.predict(table), stored.model.predict(table)
        for part in ("time", "low", "high"):
            np.testing.assert_allclose(getattr(after, part), getattr(before, part), rtol=1e-9)
    assert stored.target == "step_s"
    assert stored.model.name == name
    np.testing.assert_array_equal(stored.times, WORLD.times)
    again = write_model(tmp_path / "again.json", stored.model, stored.table, stored.times, stored.target)
    assert again.read_text() == (tmp_path / "m.json").read_text()


def test_a_plain_regressor_is_none_of_ours_to_store(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    fitted = fit_regressor("log-linear", WORLD.table, WORLD.times, ROLES, seed=0)
    with pytest.raises(ModelError, match="log-linear"):
        write(fitted, tmp_path / "m.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "partita-plan", "version": 1}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(ModelError):
        read_model(tmp_path / "m.json")


@pytest.mark.parametrize("share", [-0.1, 0.7, float("nan"), "much"])
def test_a_share_that_cannot_be_is_refused(share: float | str, tmp_path: Path) -> None:
    value = json.loads(write(model("hybrid"), tmp_path / "m.json").read_text())
    value["correction"]["others"][0]["share"] = share
    (tmp_path / "m.json").write_text(json.dumps(value))
    with pytest.raises(ModelError, match="damaged"):
        read_model(tmp_path / "m.json")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a damaged constant may overflow before it is refused
def test_damage_anywhere_is_refused_or_harmless(tmp_path: Path) -> None:
    """Junk in place of 150 values of a stored hybrid: a sentence, or a model that still predicts numbers."""
    value = json.loads(write(model("hybrid"), tmp_path / "m.json").read_text())
    chance, places = np.random.default_rng(0), places_in(value)
    few = [
        p for p in places if len(p) < 4 or p[0] != "correction"
    ]  # else most damage would hit the covariance's numbers
    for _ in range(150):
        place = few[chance.integers(len(few))] if chance.random() < 0.8 else places[chance.integers(len(places))]
        damaged = copy.deepcopy(value)
        inside = damaged
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = JUNK[chance.integers(len(JUNK))]
        (tmp_path / "m.json").write_text(json.dumps(damaged))
        stored = refused_or(lambda: read_model(tmp_path / "m.json"), BadInput)
        if stored is not None:
            assert np.all(np.isfinite(stored.model.predict(stored.table).time)), place
