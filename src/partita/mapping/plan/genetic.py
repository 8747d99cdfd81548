"""A genetic search over devices and priorities, the whole population evaluated at once by the simulator.

A child takes both from one parent, and on a stretch of the topological order from the other; then chance moves a group, a
stretch or a task next to what it talks to, and shifts priorities. The best live on. Everything is counted, nothing timed:
the same inputs, budget and seed give the same mapping. Sources: Holland, "Adaptation in Natural and Artificial Systems",
1975; for graphs of tasks, Wang et al., "Task Matching and Scheduling in Heterogeneous Computing Environments Using a
Genetic-Algorithm-Based Approach", JPDC 47, 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from partita.mapping.plan.coarse import groups
from partita.mapping.plan.decode import priorities_of, values_of
from partita.mapping.plan.question import Finding, Mapped, Question, best_of
from partita.nouns.graph import FloatArray, IntArray

UNITS_PER_S = 5e7  #: tasks and tensors decoded and simulated in a second
GENERATION_S = 0.004  #: of breeding one, beside that
POPULATION = 64
ELITE = 8  #: that live on
MOST_GROUPS = 24
#: (question, [mappings, atoms] devices, [mappings, tasks] priorities) -> ([mappings] seconds, [mappings, tasks] orders)
Worth = Callable[[Question, IntArray, FloatArray], tuple[FloatArray, IntArray]]


def genetic(question: Question, known: Sequence[Mapped], budget_s: float, seed: int) -> Finding:
    """The best mapping of so many generations as the budget counts. Never worse than what it begins with."""
    if question.devices == 1:
        return Finding(best_of(known))
    found, tried = bred(question, known, generations(question, budget_s), seed, values_of)
    return Finding(best_of([*known, found[0]]), 0.0, tried)


def generations(question: Question, worth_s: float) -> int:
    """How many a budget counts, at least one."""
    return max(1, int(worth_s / (GENERATION_S + POPULATION * 3 * question.cost_units / UNITS_PER_S)))


def bred(question: Question, known: Sequence[Mapped], number: int, seed: int, worth: Worth) -> tuple[list[Mapped], int]:
    """(the last of so many generations, the best first, how many children there were). `worth` says what a mapping is worth: the
    simulator (`values_of`), or a surrogate of what was measured."""
    tried = 0
    breeder = _Breeder(question, groups(question, MOST_GROUPS), np.random.default_rng(seed))
    where, priority = breeder.first(known)
    value, orders = worth(question, where, priority)
    for _ in range(number):
        rank = np.argsort(value, kind="stable")
        where, value, orders = where[rank], value[rank], orders[rank]
        priority = -np.argsort(orders, axis=1).astype(np.float64)
        children, urgencies = breeder.children(where, priority)
        values, theirs = worth(question, children, urgencies)
        tried += len(children)
        where, value = np.concatenate([where[:ELITE], children]), np.concatenate([value[:ELITE], values])
        orders = np.concatenate([orders[:ELITE], theirs])
    rank = np.argsort(value, kind="stable")
    return [Mapped(float(value[k]), where[k].copy(), orders[k].copy(), "genetic") for k in rank.tolist()], tried


@dataclass(frozen=True, eq=False)
class _Breeder:
    """Makes mappings out of others."""

    question: Question
    group: IntArray  #: [atoms]
    chance: np.random.Generator

    def first(self, known: Sequence[Mapped]) -> tuple[IntArray, FloatArray]:
        """[population] what is known, and mutants of it."""
        ordered = sorted((m for m in known if np.isfinite(m.value_s)), key=lambda m: m.value_s)[:POPULATION]
        where = np.stack([ordered[k % len(ordered)].where for k in range(POPULATION)])
        priority = np.stack([priorities_of(ordered[k % len(ordered)].order) for k in range(POPULATION)])
        fresh = np.arange(POPULATION) >= len(ordered)
        self._mutate(where, priority, np.flatnonzero(fresh))
        return where, priority

    def children(self, where: IntArray, priority: FloatArray) -> tuple[IntArray, FloatArray]:
        """[population - elite] of parents sorted by value, the better ones more often."""
        n, q, chance = POPULATION - ELITE, self.question, self.chance
        one, other = (np.minimum(*chance.integers(0, len(where), (2, n))) for _ in range(2))
        ends = np.sort(chance.integers(0, q.tasks + 1, (n, 2)), axis=1)
        place = np.empty(q.tasks, np.int64)
        place[q.facts.topological] = np.arange(q.tasks)
        inside = (place >= ends[:, :1]) & (place < ends[:, 1:])
        first = np.full(q.model.atoms, q.tasks)
        np.minimum.at(first, q.facts.atom_of, place)
        held = (first >= ends[:, :1]) & (first < ends[:, 1:])
        child = np.where(held, where[other], where[one])
        urgency = np.where(inside, priority[other], priority[one])
        self._mutate(child, urgency, np.arange(n))
        return child, urgency

    def _mutate(self, where: IntArray, priority: FloatArray, rows: IntArray) -> None:
        """Changes rows in place: each by one to three small changes."""
        for x in rows.tolist():
            for _ in range(int(self.chance.integers(1, 4))):
                self._change(where[x], priority[x], int(self.chance.integers(0, 5)))

    def _change(self, where: IntArray, priority: FloatArray, kind: int) -> None:
        q, chance = self.question, self.chance
        device = int(chance.integers(0, q.devices))
        if kind == 0:  # a group
            where[self.group == chance.integers(0, int(self.group.max()) + 1)] = device
        elif kind == 1:  # those of a stretch that are on one device
            first, span = int(chance.integers(0, len(where))), 1 + int(len(where) ** chance.random())
            stretch = q.by_place[first : first + span]
            where[stretch[where[stretch] == where[stretch[0]]]] = device
        elif kind == 2:  # an atom next to what it reads or makes
            tensor = int(chance.integers(0, max(1, len(q.facts.producer))))
            if len(q.facts.reader):
                maker = q.facts.atom_of[q.facts.producer[tensor]]
                readers = q.facts.atom_of[
                    q.facts.reader[q.facts.reader_start[tensor] : q.facts.reader_start[tensor + 1]]
                ]
                if len(readers):
                    reader = readers[int(chance.integers(0, len(readers)))]
                    if chance.random() < 0.5:
                        where[reader] = where[maker]
                    else:
                        where[maker] = where[reader]
        elif kind == 3:  # two atoms change places
            a, b = chance.integers(0, len(where), 2)
            where[[a, b]] = where[[b, a]]
        else:  # a few tasks earlier or later
            some = chance.integers(0, len(priority), 1 + int(chance.integers(0, 4)))
            priority[some] += chance.normal(0.0, 1 + len(priority) / 20, len(some))
