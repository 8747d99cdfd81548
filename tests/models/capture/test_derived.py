"""Derived columns: what others determine counts once, and what merely goes along stays."""

from __future__ import annotations

import numpy as np
import pytest

from partita.models.capture.derived import derived
from partita.models.capture.inputs import Parameters, scale_of
from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.skeleton import Form, skeleton

CHANCE = np.random.default_rng(0)
LAYERS, HIDDEN = CHANCE.choice([8.0, 16, 32, 64], 80), CHANCE.choice([256.0, 512, 1024, 4096], 80)
BATCH, SEQUENCE = CHANCE.choice([1.0, 2, 4, 8], 80), CHANCE.choice([512.0, 1024, 2048], 80)
MODEL = {"layers": LAYERS, "hidden": HIDDEN, "batch": BATCH, "sequence": SEQUENCE}
ROLES: dict[str, Role] = {"layers": "size", "hidden": "size", "batch": "batch", "sequence": "size"}


@pytest.mark.parametrize(
    ("name", "column", "of"),
    [
        ("parameters", 12 * LAYERS * HIDDEN**2, {"layers", "hidden"}),
        ("params (B)", (12 * LAYERS * HIDDEN**2 + 30000 * HIDDEN) / 1e9, {"layers", "hidden"}),
        ("tokens", BATCH * SEQUENCE, {"batch", "sequence"}),
        ("ffn hidden", 4 * HIDDEN, {"hidden"}),
        ("what", 3 * SEQUENCE**2, {"sequence"}),
        ("flops", BATCH * SEQUENCE * LAYERS * HIDDEN**2, {"batch", "sequence", "layers", "hidden"}),
    ],
)
def test_what_others_determine_is_found(name: str, column: np.ndarray, of: set[str]) -> None:
    found = derived(Table({name: column, **MODEL}), {name: "size", **ROLES})
    assert list(found) == [name]
    assert set(found[name]) >= of


def test_what_only_goes_along_stays() -> None:
    """Layers and widths that grow together are two quantities; a count of its own is none of theirs; the user is not doubted."""
    together = Table({"layers": LAYERS, "hidden": LAYERS * 64.0})
    assert derived(together, {"layers": "size", "hidden": "size"}) == {}
    own = Table({"parameters": CHANCE.choice([1e6, 1e7, 1e8], 80), **MODEL})
    assert derived(own, {"parameters": "size", **ROLES}) == {}
    copy = Table({"parameters": LAYERS * HIDDEN**2, **MODEL})
    assert derived(copy, {"parameters": "size", **ROLES}, ["parameters"]) == {}


@pytest.mark.parametrize("beside", ["parameters", "ffn hidden"])
def test_a_larger_model_is_expected_to_grow_as_if_each_quantity_stood_there_once(beside: str) -> None:
    """The exponents that computing is expected to have, summed along layers x 2, width x 2 and what follows from them."""
    columns = {"parameters": LAYERS * HIDDEN**2, "ffn hidden": HIDDEN * CHANCE.choice([2.0, 4.0], 80)}
    expected = []
    for extra in ((), (beside,)):
        table = Table({**MODEL, **{n: columns[n] for n in extra}})
        roles: dict[str, Role] = {**ROLES, **dict.fromkeys(extra, "size")}
        roles |= dict.fromkeys(derived(table, roles), "derived")
        parameters = Parameters()
        skeleton(table, roles, Form(), scale_of(table, roles), parameters)
        grows = {"layers": 1.0, "hidden": 1.0, "parameters": 3.0, "ffn hidden": 1.0}
        means = dict(zip(parameters.names, parameters.mean, strict=True))
        expected.append(sum(g * means.get(f"compute^{n}", 0.0) for n, g in grows.items()))
    assert expected[0] == pytest.approx(expected[1]) == pytest.approx(2.7)
