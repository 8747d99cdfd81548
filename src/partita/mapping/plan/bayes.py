"""Bayesian optimisation over mappings, by Optuna's samplers, every trial simulated.

Thousands of raw categories teach a surrogate nothing, so a trial is a few numbers that mean something:

    cut 1 .. D-1      where the line of groups is cut, as shares of the work        (floats; D - 1 devices follow the first)
    group 1 .. G      "stay" with the cuts, or a device                             (categories)
    urgency           from 0, tasks in the order of the line, to 1, by upward rank  (float)

Groups are what sending would cost most to part (`coarse`). The mappings known before are the first trials as far as numbers
can say them. Samplers: "gp", a Gaussian process with an acquisition function (Optuna's GPSampler); "tpe", the tree-structured
Parzen estimator (Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011); "random".
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from partita.errors import MissingDependency
from partita.mapping.plan.coarse import groups
from partita.mapping.plan.decode import priorities_of, values_of
from partita.mapping.plan.question import Finding, Mapped, Question, Search, best_of
from partita.nouns.graph import FloatArray, IntArray
from partita.placement.plan.upward_rank import by_rank, upward_ranks

Sampler = Literal["gp", "tpe", "random"]
MOST_GROUPS = 12
STAY = -1
TRIALS_PER_S: Mapping[Sampler, float] = MappingProxyType({"gp": 4.0, "tpe": 60.0, "random": 150.0})
MOST_TRIALS: Mapping[Sampler, int] = MappingProxyType({"gp": 100, "tpe": 400, "random": 1000})
FEWEST_TRIALS = 8


def available() -> bool:
    """Whether Optuna is installed."""
    return importlib.util.find_spec("optuna") is not None


def bayes(
    question: Question, known: Sequence[Mapped], budget_s: float, seed: int, *, sampler: Sampler = "gp"
) -> Finding:
    """The best of so many trials as the budget counts, and of what is known. Raises MissingDependency without Optuna."""
    if not available():
        raise MissingDependency("method 'bayes' needs Optuna", hint="pip install 'partita[mapping]'")
    best = best_of(known)
    if question.devices == 1:
        return Finding(best)
    trials = max(FEWEST_TRIALS, min(MOST_TRIALS[sampler], int(budget_s * TRIALS_PER_S[sampler])))
    encoding = Encoding.of(question)
    asked = study(sampler, seed)
    for mapped in known:
        asked.enqueue_trial(encoding.numbers(mapped), skip_if_exists=True)
    for _ in range(trials):
        trial = asked.ask()
        met = encoding.mapped(encoding.suggested(trial))
        best = best_of([best, met])
        asked.tell(trial, met.value_s if np.isfinite(met.value_s) else 10.0 * encoding.serial_s)
    return Finding(best, 0.0, trials)


@contextmanager
def silenced() -> Iterator[None]:
    """Studies are made in here: Optuna's experimental features say each time that they are. Which warnings are shown is one
    thing for the whole process, so that threads cannot each change it and put it back: it is done once, around them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*experimental")
        yield


def study(sampler: Sampler, seed: int) -> Any:
    """Optuna's study with a sampler: ask, suggest, tell. It warns unless it is `silenced`."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = {
        "gp": partial(optuna.samplers.GPSampler, n_startup_trials=10),
        "tpe": partial(optuna.samplers.TPESampler, multivariate=True),
        "random": optuna.samplers.RandomSampler,
    }[sampler](seed=seed & 0x7FFFFFFF)
    return optuna.create_study(sampler=made)


@dataclass(frozen=True, eq=False)
class Encoding:
    """Mappings as few numbers."""

    question: Question
    group: IntArray  #: [atoms]
    share: FloatArray  #: [groups] of all work before the middle of a group, along the line
    early: FloatArray  #: [tasks] priorities of the graph's order, from 1 to 0
    urgent: FloatArray  #: [tasks] priorities by upward rank, from 1 to 0
    serial_s: float

    @staticmethod
    def of(question: Question) -> Encoding:
        group = groups(question, MOST_GROUPS)
        work = np.bincount(group[question.facts.atom_of], question.mean_s)
        total = float(work.sum()) or 1.0
        ranked = by_rank(question.facts, upward_ranks(question.facts, question.mean_s, question.mean_transfer_s))
        n = max(1, question.tasks - 1)
        early, urgent = (1 + priorities_of(o) / n for o in (question.facts.topological, ranked))
        return Encoding(question, group, (np.cumsum(work) - work / 2) / total, early, urgent, total)

    @property
    def groups(self) -> int:
        return len(self.share)

    def suggested(self, trial: Any) -> dict[str, Any]:
        """The numbers of a trial, chosen by its sampler."""
        devices = range(self.question.devices)
        choices = [STAY, *devices]
        numbers = {f"cut {d}": trial.suggest_float(f"cut {d}", 0.0, 1.0) for d in devices[1:]}
        numbers |= {f"group {g}": trial.suggest_categorical(f"group {g}", choices) for g in range(self.groups)}
        return {**numbers, "urgency": trial.suggest_float("urgency", 0.0, 1.0)}

    def mapped(self, numbers: Mapping[str, Any]) -> Mapped:
        """The mapping that numbers say."""
        cuts = np.sort([numbers[f"cut {d}"] for d in range(1, self.question.devices)])
        device = np.searchsorted(cuts, self.share).astype(np.int64)
        said = np.array([numbers[f"group {g}"] for g in range(self.groups)], np.int64)
        device = np.where(said == STAY, device, said)
        priority = (1 - numbers["urgency"]) * self.early + numbers["urgency"] * self.urgent
        where = device[self.group]
        value, order = values_of(self.question, where[None], priority[None])
        return Mapped(float(value[0]), where, order[0], "bayes")

    def numbers(self, mapped: Mapped) -> dict[str, Any]:
        """Numbers near a mapping: every group where most of its atoms are; stretches of one device by cuts."""
        devices = self.question.devices
        votes = np.zeros((self.groups, devices))
        np.add.at(votes, (self.group, mapped.where), 1.0)
        home = votes.argmax(axis=1)
        used = list(dict.fromkeys(home.tolist()))
        in_line = bool((np.diff([used.index(h) for h in home.tolist()]) >= 0).all()) and used == sorted(used)
        ends = [float(self.share[home < d].max(initial=-0.0)) if in_line else 1.0 for d in range(1, devices)]
        numbers: dict[str, Any] = {f"cut {d}": min(1.0, ends[d - 1] + 1e-9) for d in range(1, devices)}
        numbers |= {f"group {g}": STAY if in_line else int(home[g]) for g in range(self.groups)}
        return {**numbers, "urgency": 0.0 if mapped.name in ("single", "intuitive") else 1.0}


def with_sampler(sampler: Sampler) -> Search:
    """The search with a sampler."""
    return partial(bayes, sampler=sampler)
