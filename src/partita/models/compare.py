"""Compare: every model fitted to the same rows and judged by the same others.

Which explainable model is the best is decided inside the training rows (the largest device counts held out where the
question is one of more devices, else folds), never by the rows that it is then judged by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.explainable import Beyond, Kind, choose_penalty, fit_formula, fit_hybrid
from partita.models.fitting import Penalty
from partita.models.model import Model, widening
from partita.models.opponents import OPPONENTS, fit_regressor
from partita.models.skeleton import Form, step_of
from partita.models.splits import Split, folds, largest_held_out
from partita.nouns.graph import FloatArray

Fitter = Callable[[Table, FloatArray], Model]
EXPLAINABLE = ("hybrid", "skeleton", "generic", "log-linear")
KINDS: tuple[Kind, ...] = ("skeleton", "generic")
MOST_STRETCH = 4.0
UNSEEN = 1.5  #: assumed where extrapolation cannot be rehearsed: one device count, or folds
SURE = 0.05  #: the strongest regularisation within so much of the least error is taken, where held-out rows ask the question
BLIND = 0.5  #: ... and where they cannot: one device count teaches nothing of regularising for others, so priors are trusted
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
    beyond: Beyond  #: for the skeleton and the hybrid


def settle(
    table: Table,
    times: FloatArray,
    roles: Mapping[str, Role],
    *,
    seed: int,
    split_by: str | None = None,
    kinds: Sequence[Kind] = KINDS,
) -> Settings:
    """Regularisation and reading of the formulas, from training rows alone."""
    splits = inner_splits(table, roles, split_by)
    tolerance = SURE if split_by is None or _extrapolates(table, split_by, splits[0]) else BLIND
    found = {k: choose_penalty(k, table, times, roles, splits, seed=seed, tolerance=tolerance) for k in kinds}
    forms = {k: fit_formula(k, table, times, roles, p, seed=seed).form for k, p in found.items()}
    plain = Settings(found, forms, Beyond())
    return replace(plain, beyond=_beyond(table, times, roles, plain, splits, seed=seed))


def _beyond(
    table: Table, times: FloatArray, roles: Mapping[str, Role], plain: Settings, splits: Sequence[Split], *, seed: int
) -> Beyond:
    """By how much the hybrid's intervals must be stretched where it extrapolates from the smaller device counts."""
    devices = step_of(table, roles, plain.forms["skeleton"]).devices
    split = splits[0]
    if devices[split.train].max() >= devices[split.test].min():
        return Beyond(
            float(devices.max()), UNSEEN
        )  # nothing inside the training rows asks for more devices than others have
    model = fit_model("hybrid", table.take(split.train), times[split.train], roles, plain, seed=seed)
    predicted = model.predict(table.take(split.test))
    stretch = widening(np.log(times[split.test] / predicted.time), predicted.log_sd)
    return Beyond(float(devices.max()), min(max(1.0, stretch), MOST_STRETCH))


def inner_splits(table: Table, roles: Mapping[str, Role], split_by: str | None) -> list[Split]:
    """Splits inside the training rows that ask what will be asked of the model: rows with the largest values of `split_by`
    held out, as far as the others can teach anything of them; folds otherwise."""
    every = folds(len(table), seed=0, count=3)
    if split_by is None:
        return every
    values = table.numbers(split_by)
    shards = [table.numbers(n) for n, r in roles.items() if r in ("data", "tensor", "pipeline")]
    return [s for s in largest_held_out(values) if teaches(values, shards, s)] or every


def _extrapolates(table: Table, split_by: str, split: Split) -> bool:
    """Whether every held-out row lies beyond the others in the split column."""
    values = table.numbers(split_by)
    return bool(values[split.test].min() > values[split.train].max())


def teaches(values: FloatArray, shards: Sequence[FloatArray], split: Split) -> bool:
    """Whether the rows that a split fits to tell how the time changes with the split column: they have several of its
    values, or, where it counts devices, several ways of using them."""
    return any(len(np.unique(v[split.train])) > 1 for v in (values, *shards))


def fit_model(
    name: str, table: Table, times: FloatArray, roles: Mapping[str, Role], settings: Settings, *, seed: int
) -> Model:
    """Any model by its name."""
    if name in OPPONENTS:
        return fit_regressor(name, table, times, roles, seed=seed)
    kind: Kind = "generic" if name == "generic" else "skeleton"
    formula = fit_formula(kind, table, times, roles, settings.penalties[kind], seed=seed, form=settings.forms[kind])
    if kind == "skeleton":
        formula = replace(formula, beyond=settings.beyond)
    return fit_hybrid(formula, table, times, seed=seed) if name == "hybrid" else formula


def fitter(name: str, roles: Mapping[str, Role], settings: Settings, seed: int) -> Fitter:
    """`fit_model` with everything but the rows settled."""
    return partial(_fit_rows, name, roles, settings, seed)


def _fit_rows(
    name: str, roles: Mapping[str, Role], settings: Settings, seed: int, table: Table, times: FloatArray
) -> Model:
    return fit_model(name, table, times, roles, settings, seed=seed)


def judge(fit: Fitter, table: Table, times: FloatArray, splits: Sequence[Split]) -> Score:
    """Fit and test over the splits."""
    spent, parts = 0.0, []
    for s in splits:
        began = time.perf_counter()
        model = fit(table.take(s.train), times[s.train])
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
    table: Table,
    times: FloatArray,
    roles: Mapping[str, Role],
    settings: Settings,
    *,
    seed: int,
    split_by: str | None = None,
) -> str:
    """The name of the explainable model to trust, from training rows alone; the hybrid unless another is clearly better."""
    split = inner_splits(table, roles, split_by)[:1]
    names = [n for n in EXPLAINABLE if n != "generic" or "generic" in settings.penalties]
    scores = {n: judge(fitter(n, roles, settings, seed), table, times, split).mape for n in names}
    best = min(scores, key=lambda n: scores[n])
    return best if scores[best] < CLEARLY * scores["hybrid"] else "hybrid"
