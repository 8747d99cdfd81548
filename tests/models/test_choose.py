"""Settings: decided from priors and training rows alone; where the form of a training step does not hold, it is given up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from models.synthetic import ROLES, runs

from partita.models import choose as module
from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.choose import choose, held_out, settle
from partita.models.compare import Fitter
from partita.models.fitting import Penalty
from partita.models.formula import fit_formula
from partita.models.rehearse import question
from partita.models.skeleton import Form


def test_every_fit_that_chooses_starts_from_the_priors_and_sees_no_held_out_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is chosen is what a fit without any help from the held-out rows would choose."""
    world = runs(90, noise=0.02)
    splits = question(world.table, ROLES, "devices")
    seen: list[int] = []

    def watched(kind: Any, table: Table, times: Any, *rest: Any, **more: Any) -> Any:
        seen.append(len(table))
        return fit_formula(kind, table, times, *rest, **more)

    monkeypatch.setattr(module, "fit_formula", watched)
    chosen = choose("skeleton", world.table, world.times, ROLES, splits, seed=0)
    assert set(seen[1:]) == {
        len(s.train) for s in splits
    }  # the first decides how roles are read, and hands on no constants
    errors = {
        p: np.mean(
            np.concatenate(
                [held_out("skeleton", world.table, world.times, ROLES, p, chosen.form, s, seed=0) for s in splits]
            )
        )
        for p in (Penalty(w, n) for n in module.NORMS for w in module.WEIGHTS)
    }
    assert errors[chosen.penalty] == chosen.error <= (1 + module.ALIKE) * min(errors.values())
    assert all(
        p.weight <= chosen.penalty.weight for p, e in errors.items() if e <= (1 + module.ALIKE) * min(errors.values())
    )


@pytest.mark.slow
def test_constants_held_at_their_priors_have_a_say_where_rows_lie_beyond_the_others() -> None:
    """Half of it where they foretold held-out rows as well, less the worse they did, none within the rows."""
    world = runs(60, noise=0.02)
    settings = settle(world.table, world.times, ROLES, seed=0, split_by="devices")
    assert (settings.main.kind, settings.fallback) == ("skeleton", None)  # a training step is recognised
    better, worse = settings.errors[settings.main], settings.errors[module.HELD]
    weight = min(1.0, (better + module.NOISE) / (worse + module.NOISE)) ** 2
    assert settings.share == pytest.approx(weight / (1 + weight))
    (other,) = Fitter(ROLES, "devices").fit("hybrid", world.table, world.times, settings).others  # type: ignore[attr-defined]
    assert other[0] == settings.share
    assert other[1].formula.penalty.weight == max(module.WEIGHTS)
    assert settle(world.table, world.times, ROLES, seed=0).share == 0.0


def test_what_is_no_training_step_falls_back_and_says_so() -> None:
    """t = x^-0.7 y^2 of columns without meaning: more of x is less time, which a sum of pieces of work does not expect."""
    chance = np.random.default_rng(1)
    table = Table({n: chance.choice([1.0, 2.0, 4.0, 8.0, 16.0], 120) for n in ("x", "y", "z")})
    roles: Mapping[str, Role] = dict.fromkeys(table.names, "size")
    times = table.numbers("x") ** -0.7 * table.numbers("y") ** 2 * np.exp(0.02 * chance.normal(size=120))
    settings = settle(table, times, roles, seed=0, split_by="x")
    assert (settings.main.kind, settings.main.smooth) == ("power law", True)
    assert settings.fallback is not None
    assert "the rows do not support the form of a training step" in settings.fallback


@pytest.mark.parametrize("form", [Form(), Form(batch_is_global=False, per_epoch=True)])
def test_a_reading_that_the_rows_leave_open_is_the_commonest(form: Form) -> None:
    """One batch and one count: a step and an epoch cannot be told apart, and a step is what people measure."""
    world = runs(60, noise=0.01, devices=(2,), form=form)
    table = Table({**world.table.columns, "batch": np.full(60, 32.0)})
    found = fit_formula("skeleton", table, world.times, {**ROLES, "batch": "batch?"}, Penalty(), seed=0, starts=1)
    assert not found.form.per_epoch
