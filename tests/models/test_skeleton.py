"""The skeleton: counts from roles, terms by hand, and truth made by itself comes back, also beyond what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from models.synthetic import ROLES, Runs, runs

from partita.models.capture.inputs import Parameters, scale_of
from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.fitting import Penalty
from partita.models.formula import Formula, fit_formula, open_forms
from partita.models.skeleton import Form, skeleton, step_of

LIGHT = Penalty(0.1)


def one(**columns: float) -> Table:
    return Table({n: np.array([float(v)]) for n, v in columns.items()})


def fitted(world: Runs, form: Form | None = None) -> Formula:
    return fit_formula("skeleton", world.table, world.times, world.roles, LIGHT, seed=0, form=form)


def worst(model: Formula, world: Runs) -> float:
    return float(np.abs(model.predict(world.table).time / world.truth - 1).max())


def mape(model: Formula, world: Runs) -> float:
    return float(np.abs(model.predict(world.table).time / world.truth - 1).mean())


@pytest.mark.parametrize(
    ("columns", "roles", "form", "expected"),
    [
        ({"n": 8, "b": 64}, {"n": "devices", "b": "batch"}, Form(), (8, 8, 8, 1)),
        ({"n": 8, "b": 64}, {"n": "devices", "b": "local_batch"}, Form(), (8, 8, 64, 1)),
        ({"n": 8, "b": 64}, {"n": "devices", "b": "batch?"}, Form(batch_is_global=True), (8, 8, 8, 1)),
        ({"n": 8, "b": 64}, {"n": "devices", "b": "batch?"}, Form(batch_is_global=False), (8, 8, 64, 1)),
        ({"n": 8, "t": 2, "b": 64, "m": 4}, {"n": "devices", "t": "tensor", "b": "batch", "m": "micro_batch"}, Form(), (8, 4, 4, 4)),
        ({"d": 3, "t": 2, "p": 2, "b": 30}, {"d": "data", "t": "tensor", "p": "pipeline", "b": "batch"}, Form(), (12, 3, 10, 1)),
        ({"h": 2, "g": 4, "b": 64}, {"h": "hosts", "g": "per_host", "b": "batch"}, Form(), (8, 8, 8, 1)),
        ({"h": 4, "b": 64}, {"h": "hosts", "b": "batch"}, Form(), (4, 4, 16, 1)),
    ],
)  # fmt: skip
def test_counts_are_what_the_roles_stand_for(
    columns: dict[str, float], roles: dict[str, Role], form: Form, expected: tuple[float, ...]
) -> None:
    step = step_of(one(**columns), roles, form)
    assert (step.devices[0], step.replicas[0], step.samples[0], step.micro_batches[0]) == expected


def test_a_pipelined_step_by_hand() -> None:
    """8 micro-batches through 4 stages: (8 + 3) / 4 slots; hops (8 + 3) 3/4; nothing to exchange with one replica."""
    roles: dict[str, Role] = {"p": "pipeline", "d": "data", "b": "batch", "m": "micro_batch"}
    table = one(p=4, d=1, b=32, m=4)
    phi = {t.name: t.phi[0] for t in skeleton(table, roles, Form(), scale_of(table, roles), Parameters()).terms}
    expected = {"compute": 11 / 4, "launch": 11 / 4, "update": 1 / 4, "hops": 33 / 4, "exchange": 0.0, "rest": 1.0}
    assert phi.items() >= expected.items()


def test_slices_and_hosts_by_hand() -> None:
    roles: dict[str, Role] = {"n": "devices", "h": "hosts", "t": "tensor", "b": "batch"}
    table = one(n=8, h=2, t=2, b=32)
    phi = {t.name: t.phi[0] for t in skeleton(table, roles, Form(), scale_of(table, roles), Parameters()).terms}
    assert phi["slices"] == 1 / 2
    assert phi["exchange"] == 3 / 4 / 2  # 4 replicas, each device has half of the model
    assert phi["across"] == 1 / 2 / 2


def test_a_column_may_be_called_like_a_part_of_the_formula() -> None:
    """A size named "samples" has exponents of its own: no entry of theta stands twice in one term."""
    roles: dict[str, Role] = {"devices": "size", "replicas": "devices", "samples": "size", "b": "batch"}
    table = Table({n: np.array([1.0, 2.0, 4.0]) for n in roles})
    for term in skeleton(table, roles, Form(), scale_of(table, roles), Parameters()).terms:
        assert len(set(term.columns.tolist())) == len(term.columns)


def test_constants_depend_on_the_roles_and_not_on_the_rows() -> None:
    world, names = runs(40), []
    for rows in (slice(0, 10), slice(10, 40)):
        parameters = Parameters()
        skeleton(world.table.take(np.arange(40)[rows]), ROLES, Form(), scale_of(world.table, ROLES), parameters)
        names.append(parameters.names)
    assert names[0] == names[1]


@pytest.mark.parametrize("seed", [0, 1])
def test_what_the_skeleton_made_comes_back(seed: int) -> None:
    world = runs(160, seed=seed, noise=0.02)
    first = np.arange(160) < 100
    assert mape(fitted(world.where(first), Form()), world.where(~first)) < 0.02


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_from_two_devices_to_eight(seed: int) -> None:
    """Four times the devices that were ever measured."""
    world = runs(200, seed=seed, noise=0.01)
    few = world.table.numbers("devices") <= 2
    model = fitted(world.where(few), Form())
    assert mape(model, world.where(world.table.numbers("devices") == 8)) < 0.08
    assert worst(model, world.where(few)) < 0.05


@pytest.mark.parametrize("form", [Form(True, False), Form(False, False), Form(True, True)])
def test_the_data_decide_what_is_left_open(form: Form) -> None:
    """Whose samples a batch counts, and whether a time is that of a step or of an epoch."""
    roles: dict[str, Role] = {**ROLES, "batch": "batch?"}
    world = runs(120, form=form, roles=roles, noise=0.01)
    assert form in open_forms("skeleton", roles)
    found = fitted(world)
    if not form.per_epoch:  # an epoch's sum of local and of global batches differ by a factor that exponents can absorb
        assert found.form == form
    assert mape(found, world) < 0.02
