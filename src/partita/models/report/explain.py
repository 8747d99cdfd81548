"""Explain: an explainable model in words and numbers.

formula       every term with its constants, in the unit of the target
shares        how the time of all rows divides over the terms
effects       what each column does: d log t / d log x of a number, the factor of each level of a kind
corrections   which columns the formula alone does not do justice to, and by how much
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from partita.models.capture.inputs import text_of
from partita.models.capture.table import Table
from partita.models.expression import Expression, Term
from partita.models.formula import Formula
from partita.models.hybrid import Hybrid
from partita.models.model import Model
from partita.models.opponents import Regressor, features
from partita.models.skeleton import SPREAD
from partita.models.study import Prepared
from partita.nouns.graph import FloatArray

STEP = 1.02  #: factor by which a column is changed to see what it does
MOST_FACTORS = 7  #: factors of a product that are written out; the others hardly matter
SAYS = {
    "compute": "forward and backward of the samples that go through at once",
    "traffic": "activations read and written: all that is no matrix product",
    "launch": "work per micro-batch whatever is in it; hides behind computing, or is hidden by it",
    "slices": "exchange inside the layers, between tensor-parallel slices",
    "hops": "activations between pipeline stages",
    "exchange": "gradients among the replicas",
    "across": "gradients among the hosts",
    "update": "the optimizer's step",
    "rest": "what is always there",
    "product": "a product of powers: the rows do not support more",
    "base": "scaled by the devices, of no column",
    "C": "what is always there",
}
SYMBOLS = {
    "slots": ("S", "slots of a step: (micro-batches + stages - 1) / stages"),
    "ring": ("(R-1)/R", "R replicas: the part of the gradients that a ring sends"),
    "slices": ("(T-1)/T", "T tensor-parallel slices"),
    "hops": ("H", "crossings between stages: (micro-batches + stages - 1) (stages - 1) / stages"),
    "hosts": ("(h-1)/h", "h hosts"),
    "shard": ("1/(T p)", "the part of the model that one device holds"),
}
FACTOR_OF = {"compute": ("slots",), "traffic": ("slots",), "launch": ("slots",), "slices": ("slots", "slices"), "hops": ("hops",), "exchange": ("shard", "ring"), "update": ("shard",), "across": ("shard", "hosts")}  # fmt: skip


def explanation(model: Model, prepared: Prepared) -> dict[str, Any] | None:
    """Everything above as JSON values; None for a model that is not explainable."""
    table = prepared.table
    if isinstance(model, Regressor):
        return _of_regressor(model, prepared) if model.explainable else None
    formula = model.formula if isinstance(model, Hybrid) else model
    if not isinstance(formula, Formula):
        return None
    written, legend = write_formula(formula, table, prepared.target)
    corrected = isinstance(model, Hybrid)
    return {
        "formula": written.replace("\n", " ) · correction\n", 1).replace(" = ", " = ( ", 1) if corrected else written,
        "legend": legend,
        "shares": shares(formula, table),
        "effects": effects(model, prepared),
        "corrections": corrections(model, table) if isinstance(model, Hybrid) else [],
    }


def write_formula(formula: Formula, table: Table, target: str) -> tuple[str, list[list[str]]]:
    """(the formula, a term a line; [symbol, meaning] of each symbol in it)."""
    expression = formula.expression(table)
    has = set(formula.roles.values())
    lines, used = [], dict[str, str]()
    for t in expression.terms:
        known = [
            SYMBOLS[f] for f in (FACTOR_OF.get(t.name, ()) if formula.kind == "skeleton" else ()) if _present(f, has)
        ]
        used |= dict(known)
        lines.append(f"{t.name} = {_product(formula, expression, t, [s for s, _ in known])}")
    return "\n".join([f"{target} = {_sum(formula, expression)}", *lines]), [
        *([f"{n}~", f"{n} / {formula.scale.reference[n]:.4g}"] for n in formula.scale.reference if _appears(lines, n)),
        *([s, m] for s, m in used.items()),
        *(
            [["norm_k(a, b)", "(a^k + b^k)^(1/k): the longer hides the shorter"]]
            if "norm_" in _sum(formula, expression)
            else []
        ),
    ]


def _appears(lines: list[str], name: str) -> bool:
    return any(f"{name}~" in line for line in lines)


def _present(factor: str, has: set[Any]) -> bool:
    """Whether the table has the columns that make a known factor more than 1."""
    needs = {
        "slots": {"micro_batch", "pipeline"},
        "slices": {"tensor"},
        "hops": {"pipeline"},
        "shard": {"tensor", "pipeline"},
    }
    return bool(needs.get(factor, set(SPREAD)) & has)


def _sum(formula: Formula, expression: Expression) -> str:
    """ "max(compute + slices, launch) + exchange + ...": which terms add up and which hide behind each other."""
    parts = []
    for g, at in enumerate(expression.norms):
        sides = [[t.name for t in expression.terms if t.group == g and t.side == s] for s in (0, 1)]
        if at >= 0 and sides[1]:
            k = 1 + float(np.exp(formula.fit.theta[at]))
            parts.append(f"norm_{k:.2g}({' + '.join(sides[0])}, {' + '.join(sides[1])})")
        else:
            parts += [*sides[0], *sides[1]]
    return " + ".join(parts)


def _product(formula: Formula, expression: Expression, term: Term, known: list[str]) -> str:
    """One term: its coefficient, its known factors, and powers in the order of how much they matter."""
    theta, names = formula.fit.theta, formula.parameters.names
    coefficient = float(np.exp(theta[term.columns[0]]))
    powers = []
    for position, at in enumerate(term.columns[1:], start=1):
        matters = abs(float(theta[at])) * float(np.ptp(term.design[:, position]))
        label = names[at].split("^", 1)[-1] if "^" in names[at] else names[at].split(":", 1)[-1]
        label = label or names[at].rstrip("^")
        if ":" in names[at]:
            powers.append((matters, f"{float(np.exp(theta[at])):.3g}[{label}]"))
        else:
            mark = "~" if label in formula.scale.reference else ""
            powers.append((matters, f"{label.strip('()') if not mark else label}{mark}^{float(theta[at]):.2f}"))
    shown = [text for matters, text in sorted(powers, reverse=True)[:MOST_FACTORS] if matters > 0.005]
    return " · ".join([f"{coefficient:.4g}", *known, *shown])


def shares(formula: Formula, table: Table) -> list[dict[str, Any]]:
    """Each term's share of the time, averaged over the rows; they sum to 1."""
    terms = formula.terms(table)
    total = sum(terms.values(), np.zeros(len(table)))
    rows = [{"term": n, "share": float(np.mean(v / total)), "says": SAYS.get(n, f"of {n}")} for n, v in terms.items()]
    return sorted(rows, key=lambda r: -float(str(r["share"])))


def effects(model: Model, prepared: Prepared) -> list[dict[str, Any]]:
    """What each column does to the prediction, all others as they are."""
    rows: list[dict[str, Any]] = []
    for name, role in prepared.roles.items():
        if role == "kind":
            rows.append(
                {"column": name, "role": role, "elasticity": None, "levels": _levels(model, prepared.table, name)}
            )
            continue
        e = elasticity(model, prepared.table, name)
        low, middle, high = (float(np.quantile(e, q)) for q in (0.1, 0.5, 0.9))
        rows.append({"column": name, "role": role, "elasticity": middle, "low": low, "high": high})
    return rows


def elasticity(model: Model, table: Table, name: str) -> FloatArray:
    """[rows] d log t / d log x of a numeric column, by the formula (a correction is constant between measured values)."""
    smooth: Model = model.formula if isinstance(model, Hybrid) else model
    up, down = (changed(table, {name: table.numbers(name) * f}) for f in (STEP, 1 / STEP))
    found: FloatArray = np.log(smooth.predict(up).time / smooth.predict(down).time) / (2 * np.log(STEP))
    return found


def _levels(model: Model, table: Table, name: str) -> dict[str, float]:
    """Level -> factor on the time, over the geometric mean of all levels."""
    levels = sorted(set(text_of(table, name).tolist()))
    logs = {v: float(np.mean(np.log(model.predict(changed(table, {name: _all(table, name, v)})).time))) for v in levels}
    mean = float(np.mean(list(logs.values())))
    return {v: float(np.exp(x - mean)) for v, x in logs.items()}


def _all(table: Table, name: str, level: str) -> Any:
    return np.full(len(table), level) if table.is_text(name) else np.full(len(table), float(level))


def changed(table: Table, columns: Mapping[str, Any]) -> Table:
    """The table with some columns replaced."""
    return Table({**table.columns, **columns}, table.afterwards)


def corrections(model: Hybrid, table: Table, most: int = 6) -> list[dict[str, Any]]:
    """The single columns and pairs along which the correction varies most, and its range there."""
    log_factor = np.log(model.factor(table))
    rows: list[dict[str, Any]] = []
    for size in (1, 2):
        for columns in combinations(model.formula.roles, size):
            keys = np.unique(np.stack([text_of(table, c) for c in columns], axis=1), axis=0, return_inverse=True)[
                1
            ].ravel()
            counts = np.bincount(keys)
            if len(counts) > len(table) / 4:
                continue
            means = np.bincount(keys, log_factor) / counts
            rows.append(
                {
                    "columns": list(columns),
                    "factor_low": float(np.exp(means.min())),
                    "factor_high": float(np.exp(means.max())),
                }
            )
    return sorted(rows, key=lambda r: -float(np.log(r["factor_high"] / r["factor_low"])))[:most]


def _of_regressor(model: Regressor, prepared: Prepared) -> dict[str, Any]:
    """A linear model in logarithms is a product of powers: its coefficients are the exponents."""
    fitted = model.fitted
    x = features(prepared.table, model.roles, model.scale)
    constant = float(np.exp(fitted.intercept_))
    return {
        "formula": f"{prepared.target} = {constant:.4g} · product of powers ({x.shape[1]} exponents; see the effects)",
        "legend": [],
        "shares": [],
        "effects": effects(model, prepared),
        "corrections": [],
    }
