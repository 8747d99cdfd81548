"""Compare: every model fitted to the same rows and judged by the same others.

Which explainable model is the best is decided inside the training rows (the largest device counts held out, else folds),
never by the rows that it is then judged by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from partita.graph import FloatArray
from partita.predict.explainable import Kind, choose_penalty, fit_formula, fit_hybrid
from partita.predict.fitting import Penalty
from partita.predict.model import Model
from partita.predict.opponents import OPPONENTS, fit_regressor
from partita.predict.roles import COUNTING, Role
from partita.predict.skeleton import Form, step_of
from partita.predict.splits import Split, largest_held_out
from partita.predict.table import Table

Fitter = Callable[[Table, FloatArray], Model]
EXPLAINABLE = ("hybrid", "skeleton", "generic", "log-linear")
KINDS: tuple[Kind, ...] = ("skeleton", "generic")
CLEARLY = (
    0.95  #: another explainable model has to be so much better than the hybrid inside the training rows to be chosen
)


@dataclass(frozen=True, eq=False)
class Score:
    """How one model did on rows that it had not seen."""

    name: str
    explainable: bool
    errors: FloatArray  #: [tested rows] predicted / measured - 1
    inside: FloatArray  #: [tested rows] 1 where the interval held the truth
    rows: FloatArray  #: [tested rows] their numbers
    predicted: FloatArray  #: [tested rows]
    low: FloatArray
    high: FloatArray
    fit_s: float  #: seconds of one fit, on average

    @property
    def mape(self) -> float:
        return float(np.mean(np.abs(self.errors)))


@dataclass(frozen=True)
class Settings:
    """What is decided once for a table, before any model is judged."""

    penalties: Mapping[Kind, Penalty]
    forms: Mapping[Kind, Form]


def settle(table: Table, times: FloatArray, roles: Mapping[str, Role], *, seed: int) -> Settings:
    """Regularisation and reading of both formulas, from training rows alone."""
    splits = inner_splits(table, roles)
    found = {k: choose_penalty(k, table, times, roles, splits, seed=seed) for k in KINDS}
    forms = {k: fit_formula(k, table, times, roles, p, seed=seed).form for k, p in found.items()}
    return Settings(found, forms)


def inner_splits(table: Table, roles: Mapping[str, Role]) -> list[Split]:
    """Splits inside the training rows, the largest device counts held out."""
    has_devices = bool(set(COUNTING) & set(roles.values()))
    devices = step_of(table, roles, Form()).devices if has_devices else None
    return largest_held_out(devices, len(table))


def fit_model(
    name: str, table: Table, times: FloatArray, roles: Mapping[str, Role], settings: Settings, *, seed: int
) -> Model:
    """Any model by its name."""
    if name in OPPONENTS:
        return fit_regressor(name, table, times, roles, seed=seed)
    kind: Kind = "generic" if name == "generic" else "skeleton"
    formula = fit_formula(kind, table, times, roles, settings.penalties[kind], seed=seed, form=settings.forms[kind])
    return fit_hybrid(formula, table, times, seed=seed) if name == "hybrid" else formula


def judge(fitter: Fitter, table: Table, times: FloatArray, splits: Sequence[Split]) -> Score:
    """Fit and test over the splits."""
    spent, parts = 0.0, []
    for s in splits:
        began = time.perf_counter()
        model = fitter(table.take(s.train), times[s.train])
        spent += time.perf_counter() - began
        p = model.predict(table.take(s.test))
        parts.append((s.test, p.time, p.low, p.high))
    rows, predicted, low, high = (np.concatenate([p[i] for p in parts]) for i in range(4))
    truth = times[rows]
    inside = ((truth >= low) & (truth <= high)).astype(np.float64)
    return Score(
        model.name, model.explainable, predicted / truth - 1, inside, rows, predicted, low, high, spent / len(splits)
    )


def best_explainable(
    table: Table, times: FloatArray, roles: Mapping[str, Role], settings: Settings, *, seed: int
) -> str:
    """The name of the explainable model to trust, from training rows alone; the hybrid unless another is clearly better."""
    split = inner_splits(table, roles)[:1]
    scores = {
        name: judge(partial(_fit_named, name, roles, settings, seed), table, times, split).mape for name in EXPLAINABLE
    }
    best = min(scores, key=lambda n: scores[n])
    return best if scores[best] < CLEARLY * scores["hybrid"] else "hybrid"


def _fit_named(
    name: str, roles: Mapping[str, Role], settings: Settings, seed: int, table: Table, times: FloatArray
) -> Model:
    return fit_model(name, table, times, roles, settings, seed=seed)
