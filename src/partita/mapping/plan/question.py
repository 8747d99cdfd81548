"""Question: a problem as the searches read it, and what they bring back.

A mapping is a device for every atom (tasks that must share one) and a topological order of all tasks; every device runs its
tasks in that order. Its value is the makespan of one iteration: every task once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.plan.line_starts import line
from partita.placement.plan.load import LoadModel, load_model
from partita.placement.plan.whole import listed, value_of
from partita.simulate.makespan import Facts, facts_of


@dataclass(frozen=True, eq=False)
class Mapped:
    """A mapping and what it comes to."""

    value_s: float
    where: IntArray  #: [atoms] number of the device
    order: IntArray  #: [tasks] a topological order
    name: str  #: who found it


@dataclass(frozen=True, eq=False)
class Finding:
    """What a search brings back."""

    best: Mapped
    bound_s: float = 0.0  #: no mapping is quicker
    tried: int = 0  #: mappings evaluated
    phases: tuple[tuple[str, float], ...] = ()  #: (step of the search, best value behind it in seconds)


@dataclass(frozen=True, eq=False)
class Question:
    """A problem and what all searches derive from it."""

    problem: PlacementProblem
    model: LoadModel
    facts: Facts

    @staticmethod
    def of(problem: PlacementProblem) -> Question:
        return Question(problem, load_model(problem), facts_of(problem, "latency"))

    @property
    def devices(self) -> int:
        return len(self.facts.class_of)

    @property
    def tasks(self) -> int:
        return len(self.facts.topological)

    @property
    def cost_units(self) -> int:
        """Tasks and tensors that one evaluation looks at: what budgets are counted in."""
        return self.tasks + 2 * len(self.facts.incoming) + 100

    @cached_property
    def by_place(self) -> IntArray:
        """[atoms] along the graph's topological order."""
        return line(self.model, self.facts.topological)

    @cached_property
    def mean_s(self) -> FloatArray:
        """[tasks] seconds, the mean over the devices that can run it."""
        seconds = self.facts.seconds[:, self.facts.class_of]
        able = np.isfinite(seconds)
        mean: FloatArray = np.where(able, seconds, 0.0).sum(axis=1) / np.maximum(1, able.sum(axis=1))
        return mean

    @cached_property
    def mean_transfer_s(self) -> FloatArray:
        """[tensors] seconds from one device to another, the mean over all pairs; 0 on one device."""
        f, n = self.facts, self.devices
        apart = ~np.eye(n, dtype=np.bool_)
        if n == 1:
            return np.zeros(len(f.producer))
        pace, lag = float((1.0 / f.rate[apart]).mean()), float((f.latency + f.message)[apart].mean())
        return np.where(np.isnan(f.given), f.size * pace, f.given) + lag

    def mapped(self, where: IntArray, order: IntArray, name: str) -> Mapped:
        """The mapping with its value; infinite where it does not fit."""
        value = value_of(self.facts, where, order) if self.model.fits(where) else math.inf
        return Mapped(value, where, order, name)

    def listed(self, where: IntArray, name: str) -> Mapped:
        """A placement with the better of two orders: the graph's, and that of list scheduling by upward rank."""
        if not self.model.fits(where):
            return Mapped(math.inf, where, self.facts.topological, name)
        orders = (self.facts.topological, listed(self.facts, where))
        return min((self.mapped(where, o, name) for o in orders), key=lambda m: m.value_s)


#: (question, mappings to begin with, seconds, seed) -> what was found; never worse than the best to begin with.
Search = Callable[[Question, Sequence[Mapped], float, int], Finding]


def best_of(found: Sequence[Mapped]) -> Mapped:
    """The quickest; of equals the first."""
    return min(found, key=lambda m: m.value_s)
