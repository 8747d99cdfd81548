"""Explanations: the formula that is written can be worked out by hand, shares sum up, effects are derivatives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
import pytest
from models.synthetic import ROLES, runs

from partita.models.capture.table import Table
from partita.models.fitting import Penalty
from partita.models.formula import Formula, fit_formula
from partita.models.hybrid import fit_hybrid
from partita.models.opponents import fit_regressor
from partita.models.report.explain import corrections, effects, elasticity, explanation, shares, write_formula
from partita.models.skeleton import Form, step_of
from partita.models.study import prepare

WORLD = runs(100, noise=0.02, seed=3)
PREPARED = prepare(WORLD.full(), "step_s", roles=ROLES)


def formula(kind: str = "skeleton") -> Formula:
    return fit_formula(kind, WORLD.table, WORLD.times, ROLES, Penalty(0.1), seed=0, form=Form())  # type: ignore[arg-type]


SKELETON, GENERIC = formula(), formula("generic")


def by_hand(text: str, f: Formula, row: int) -> float:
    """The value of a written formula at a row: numbers, symbols of the legend, powers and factors of levels."""
    head, *lines = text.splitlines()
    step = step_of(WORLD.table, ROLES, Form())
    symbols = {
        "S": step.micro_batches[row], "(R-1)/R": 1 - 1 / step.replicas[row], "1/(T p)": 1.0,
        "samples": step.samples[row], "devices": step.devices[row], "replicas": step.replicas[row],
    }  # fmt: skip
    terms = {}
    for line in lines:
        name, _, product = line.partition(" = ")
        factors = [factor(p, symbols, f, row) for p in product.split(" · ")]
        # an indicator's term of the generic expression is there where the row has the level
        column, _, level = name.partition("=")
        there = not level or WORLD.table.columns[column][row] == level
        terms[name] = math.prod(factors) * there
    total = 0.0
    for part in re.split(r" \+ (?![^(]*\))", head.partition(" = ")[2]):
        joined = re.fullmatch(r"norm_([\d.]+)\((.*), (.*)\)", part)
        if joined:
            k, a, b = float(joined[1]), *(sum(terms[n] for n in joined[i].split(" + ")) for i in (2, 3))
            total += (a**k + b**k) ** (1 / k)
        else:
            total += terms[part]
    return total


def factor(text: str, symbols: Mapping[str, float], f: Formula, row: int) -> float:
    if text in symbols:
        return symbols[text]
    if level := re.fullmatch(r"([\d.e+-]+)\[(\w+)=(\w+)\]", text):
        return float(level[1]) if WORLD.table.columns[level[2]][row] == level[3] else 1.0
    if power := re.fullmatch(r"(\w+)~\^(-?[\d.]+)", text):
        return float((WORLD.table.numbers(power[1])[row] / f.scale.reference[power[1]]) ** float(power[2]))
    if power := re.fullmatch(r"(\w+)\^(-?[\d.]+)", text):
        return float(symbols[power[1]] ** float(power[2]))
    return float(text)


@pytest.mark.parametrize("f", [SKELETON, GENERIC], ids=["skeleton", "generic"])
def test_what_is_written_can_be_worked_out_by_hand(f: Formula) -> None:
    text, legend = write_formula(f, WORLD.table, "step_s")
    assert text.startswith("step_s = ")
    predicted = f.predict(WORLD.table).time
    worked_out = np.array([by_hand(text, f, row) for row in range(len(predicted))])
    np.testing.assert_allclose(worked_out, predicted, rtol=0.06)  # exponents are written with two digits
    for symbol, _ in legend:
        assert symbol.partition("(a")[0].rstrip("k") in text


def test_shares_sum_to_one_and_say_what_they_are() -> None:
    found = shares(SKELETON, WORLD.table)
    assert sum(r["share"] for r in found) == pytest.approx(1.0)
    assert [r["share"] for r in found] == sorted((r["share"] for r in found), reverse=True)
    assert all(r["says"] for r in found)


def test_an_elasticity_is_the_sum_of_exponents_weighted_by_shares() -> None:
    expression, theta = SKELETON.expression(WORLD.table), SKELETON.fit.theta
    values = expression.values(theta)
    exact = np.zeros(len(values))
    for i, t in enumerate(expression.terms):
        for at in t.columns:
            if SKELETON.parameters.names[at].endswith("^hidden"):
                exact += values[:, i] / values.sum(axis=1) * theta[at]
    np.testing.assert_allclose(elasticity(SKELETON, WORLD.table, "hidden"), exact, atol=1e-3)


def test_an_effect_of_a_kind_is_the_factor_between_its_levels() -> None:
    found = {e["column"]: e for e in effects(SKELETON, PREPARED)}
    levels = found["optimizer"]["levels"]
    assert math.prod(levels.values()) == pytest.approx(1.0)
    adam, sgd = (
        SKELETON.predict(Table({**WORLD.table.columns, "optimizer": np.array([o] * 100)})).time for o in ("adam", "sgd")
    )
    assert levels["adam"] / levels["sgd"] == pytest.approx(float(np.exp(np.mean(np.log(adam / sgd)))))
    assert found["layers"]["low"] <= found["layers"]["elasticity"] <= found["layers"]["high"]
    assert found["layers"]["elasticity"] > 0.3  # more layers, more time


def test_a_hybrid_says_where_its_formula_is_corrected() -> None:
    odd = WORLD.table.columns["optimizer"] == "adam"
    bent = WORLD.times * np.where(odd & (WORLD.table.numbers("layers") == 8), 1.5, 1.0)
    f = fit_formula("skeleton", WORLD.table, bent, ROLES, Penalty(1.0), seed=0, form=Form())
    model = fit_hybrid(f, WORLD.table, bent, seed=0)
    found = corrections(model, WORLD.table)
    ranges = [r["factor_high"] / r["factor_low"] for r in found]
    assert ranges == sorted(ranges, reverse=True)
    assert "layers" in found[0]["columns"]
    told = explanation(model, PREPARED)
    assert told is not None
    assert "correction" in told["formula"].splitlines()[0]
    assert set(told) == {"formula", "legend", "shares", "effects", "corrections"}


def test_only_what_has_a_formula_is_explained() -> None:
    pytest.importorskip("sklearn")
    linear, trees = (
        fit_regressor(n, WORLD.table, WORLD.times, ROLES, seed=0) for n in ("log-linear", "gradient boosting")
    )
    assert explanation(trees, PREPARED) is None
    told = explanation(linear, PREPARED)
    assert told is not None
    assert {e["column"] for e in told["effects"]} == set(ROLES)
