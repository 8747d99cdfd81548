"""Compare: every model fitted to the same rows and judged by the same others.

Settings, and which explainable model is the best, are decided inside the rows that are fitted to, anew for each split: the
rows that judge a model have said nothing before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.choose import CLEARLY, HELD, KINDS, Settings, settle
from partita.models.formula import Formula, Kind, fit_formula
from partita.models.hybrid import Hybrid, fit_hybrid
from partita.models.model import Model
from partita.models.opponents import OPPONENTS, fit_regressor
from partita.models.rehearse import drift, question
from partita.models.splits import Split
from partita.nouns.graph import FloatArray, IntArray

EXPLAINABLE = ("hybrid", "skeleton", "generic", "log-linear")


@dataclass(frozen=True, eq=False)
class Score:
    """How one model did on rows that it had not seen."""

    name: str
    explainable: bool
    errors: FloatArray  #: [tested rows] predicted / measured - 1
    inside: FloatArray  #: [tested rows] 1 where the interval held the truth
    rows: IntArray  #: [tested rows] their numbers
    predicted: FloatArray  #: [tested rows]
    low: FloatArray
    high: FloatArray
    fit_s: float  #: seconds of one fit, on average

    @property
    def mape(self) -> float:
        return float(np.mean(np.abs(self.errors)))


@dataclass(frozen=True)
class Fitter:
    """How models are fitted to rows: settings decided from them, then constants."""

    roles: Mapping[str, Role]
    split_by: str | None = None
    seed: int = 0
    kinds: tuple[Kind, ...] = KINDS

    def settle(self, table: Table, times: FloatArray) -> Settings:
        return settle(table, times, self.roles, seed=self.seed, split_by=self.split_by, kinds=self.kinds)

    def fit(self, name: str, table: Table, times: FloatArray, settings: Settings) -> Model:
        """Any model by its name."""
        if name in OPPONENTS:
            return fit_regressor(name, table, times, self.roles, seed=self.seed)
        if name == "hybrid":
            return self._hybrid(table, times, settings)
        kind: Kind = "generic" if name == "generic" else "skeleton"
        return self._formula(kind, table, times, settings)

    def best(self, table: Table, times: FloatArray, settings: Settings) -> str:
        """The name of the explainable model to trust, from these rows alone; the hybrid unless another is clearly better."""
        split = question(table, self.roles, self.split_by)[:1]
        names = [n for n in EXPLAINABLE if n != "generic" or "generic" in settings.choices]
        train, test = table.take(split[0].train), table.take(split[0].test)
        scores = {}
        for name in names:
            model = self.fit(name, train, times[split[0].train], settings)
            scores[name] = float(np.mean(np.abs(model.predict(test).time / times[split[0].test] - 1)))
        best = min(scores, key=lambda n: scores[n])
        return best if scores[best] < CLEARLY * scores["hybrid"] else "hybrid"

    def _formula(self, kind: Kind, table: Table, times: FloatArray, settings: Settings) -> Formula:
        formula = self._plain(kind, settings, table, times)
        return replace(
            formula, drift=drift(lambda t, s: self._plain(kind, settings, t, s, 1), table, times, self.roles)
        )

    def _hybrid(self, table: Table, times: FloatArray, settings: Settings) -> Hybrid:
        found = self._mixed(table, times, settings, 3)
        known = drift(lambda t, s: self._mixed(t, s, settings, 1, found), table, times, self.roles)
        return replace(found, formula=replace(found.formula, drift=known))

    def _mixed(
        self, table: Table, times: FloatArray, settings: Settings, starts: int, like: Hybrid | None = None
    ) -> Hybrid:
        """The hybrid and those that have a say in it; with the lengths and weights of the corrections of another, if given."""
        candidates = [settings.main, HELD] if settings.share else [settings.main]
        known = [None, None] if like is None else [like.correction, *(h.correction for _, h in like.others)]
        parts = [
            fit_hybrid(
                c.formula(settings.choices, table, times, self.roles, seed=self.seed, starts=starts), table, times,
                seed=self.seed, smooth=c.smooth, like=k,
            )
            for c, k in zip(candidates, known, strict=False)
        ]  # fmt: skip
        return replace(parts[0], others=tuple((settings.share, h) for h in parts[1:]))

    def _plain(self, kind: Kind, settings: Settings, table: Table, times: FloatArray, starts: int = 3) -> Formula:
        """A formula whose intervals know nothing yet of extrapolating."""
        choice = settings.choices[kind]
        return fit_formula(
            kind, table, times, self.roles, choice.penalty, seed=self.seed, form=choice.form, starts=starts
        )


@dataclass(frozen=True, eq=False)
class Judged:
    """One split: what was decided from its training rows, and how each model did on the others."""

    settings: Settings
    scores: tuple[Score, ...]


def judge(fitter: Fitter, names: Sequence[str], table: Table, times: FloatArray, split: Split) -> Judged:
    """Settle, fit and test."""
    train, seen = table.take(split.train), times[split.train]
    settings = fitter.settle(train, seen)
    return Judged(settings, tuple(_score(fitter, n, settings, table, times, split) for n in names))


def _score(fitter: Fitter, name: str, settings: Settings, table: Table, times: FloatArray, split: Split) -> Score:
    began = time.perf_counter()
    model = fitter.fit(name, table.take(split.train), times[split.train], settings)
    spent = time.perf_counter() - began
    p, truth = model.predict(table.take(split.test)), times[split.test]
    inside = ((truth >= p.low) & (truth <= p.high)).astype(np.float64)
    return Score(name, model.explainable, p.time / truth - 1, inside, split.test, p.time, p.low, p.high, spent)


def joined(parts: Sequence[Judged]) -> tuple[Score, ...]:
    """The scores of all splits as one for each model."""
    every = [tuple(p.scores[i] for p in parts) for i in range(len(parts[0].scores))]
    return tuple(_joined(of_one) for of_one in every)


def _joined(scores: Sequence[Score]) -> Score:
    first, fields = scores[0], ("errors", "inside", "rows", "predicted", "low", "high")
    arrays: dict[str, Any] = {f: np.concatenate([getattr(s, f) for s in scores]) for f in fields}
    return replace(first, **arrays, fit_s=float(np.mean([s.fit_s for s in scores])))
