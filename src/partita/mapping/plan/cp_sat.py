"""A mapping as a constraint program: the judge, exact where it comes to its end.

    x[a, d]      atom a is on device d                             exactly one d for every a
    s[i]         task i starts; [s, s + w) are disjoint on a device
    y[k, p, d]   tensor k goes from device p to device d           x of its maker on p, and some reader on d, p != d
    t[k, d]      tensor k starts to cross to d; [t, t + c) are disjoint on a link
    s[v] >= s[u] + w[u]                                            v reads what u makes
    s[v] >= t[k, d] + c[k]  where v is on d and u is not           t[k, d] >= s[u] + w[u]
    minimise T >= s[i] + w[i]

A link may serve its transfers in any order here, while a plan's are served as they are made: the program is a relaxation,
and a bound on it holds. Seconds become whole numbers, rounded down, which keeps bounds below. Equal devices are told apart by
the first atom on them (value precedence). Solver: OR-tools CP-SAT (an optional package), with one worker and a limit in
its own deterministic time, so that the answer does not depend on the machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.errors import MissingDependency
from partita.mapping.plan.question import Finding, Mapped, Question, best_of
from partita.nouns.graph import IntArray
from partita.solve import constraint_solver

GRAIN = 1 << 30  #: whole numbers to the value that is known
UNITS_PER_S = 0.2  #: deterministic time of CP-SAT in a second, cautiously
HARD = 4.0  #: budgets of wall-clock seconds after which it is cut off, should its own count not end it
PROVEN = 1e-6  #: a gap, as a share, that rounding leaves
START_S = 1e-5  #: times size ** 1.5: seconds until it gets going, which its count knows nothing of (150 to 2,000 tasks)
FIXED_S = 5.0  #: seconds beside that, more than the smallest budgets
LARGEST = 60_000  #: literals; a larger program has not got going within a minute, and is not begun
PRECEDENCE = 64  #: atoms by which equal devices are told apart


def size(question: Question) -> int:
    """Roughly how many literals the program has."""
    n = question.devices
    return question.model.atoms * n + len(question.facts.producer) * n * max(1, n - 1)


def cp_sat(question: Question, known: Sequence[Mapped], budget_s: float, seed: int) -> Finding:
    """The best mapping met and a bound on all; a program that would not get going within the budget is not begun. Raises MissingDependency without OR-tools."""
    if not constraint_solver.available():
        raise MissingDependency("method 'cp-sat' needs OR-tools", hint="pip install 'partita[planner]'")
    from ortools.sat.python import cp_model

    best = best_of(known)
    left_s = budget_s - START_S * size(question) ** 1.5
    if question.devices == 1 or not 0 < best.value_s < math.inf or size(question) > LARGEST or left_s <= 0:
        return Finding(best)
    program = _Program.of(cp_model.CpModel(), question, GRAIN / best.value_s)
    program.hint(best)
    solver, status = constraint_solver.solved(
        program.model, seed=seed, limit_s=HARD * budget_s + FIXED_S, limit_units=left_s * UNITS_PER_S
    )
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        bound = (
            best.value_s * (1 - 1e-6) if status == cp_model.INFEASIBLE else solver.best_objective_bound / program.scale
        )
        return Finding(best, max(0.0, bound))
    found = program.read(solver)
    return Finding(best_of([best, *found]), max(0.0, solver.best_objective_bound / program.scale), len(found))


@dataclass
class _Program:
    """The program and what its variables stand for."""

    model: Any
    question: Question
    scale: float
    x: list[dict[int, Any]] = field(default_factory=list)  #: [atoms] {device: literal}
    start: list[Any] = field(default_factory=list)  #: [tasks]
    end: list[Any] = field(default_factory=list)  #: [tasks]
    crossing: dict[tuple[int, int], Any] = field(default_factory=dict)  #: (tensor, device) -> literal
    leaves: dict[tuple[int, int], Any] = field(default_factory=dict)  #: (tensor, device) -> start of the crossing

    @staticmethod
    def of(model: Any, question: Question, scale: float) -> _Program:
        program = _Program(model, question, scale)
        program.add_atoms()
        program.add_tasks()
        program.add_tensors()
        top = model.new_int_var(0, GRAIN, "")
        for end in program.end:
            model.add(end <= top)
        model.minimize(top)
        return program

    def whole(self, seconds: float) -> int:
        return int(seconds * self.scale)

    def add_atoms(self) -> None:
        """Who may be where, in how much room, and which of equal devices comes first."""
        q, m = self.question, self.model
        for a in range(q.model.atoms):
            homes = [d for d in range(q.devices) if math.isfinite(q.model.work_s[a, q.facts.class_of[d]])]
            self.x.append({d: m.new_bool_var("") for d in homes})
            m.add_exactly_one(list(self.x[a].values()))
        for d, room in enumerate(q.model.room_bytes.tolist()):
            if float(q.model.memory_bytes.sum()) > room:
                grain = 2.0 ** (40 - math.frexp(max(1.0, room))[1])  # exact for halves too
                held = [(row[d], int(q.model.memory_bytes[a] * grain)) for a, row in enumerate(self.x) if d in row]
                m.add(sum(v * b for v, b in held) <= int(room * grain))
        rank = _ranks_among_equals(q)
        by_place = q.by_place.tolist()[:PRECEDENCE]
        for d, twin in rank.items():
            for k, a in enumerate(by_place):
                if d in self.x[a]:
                    m.add_bool_or(
                        [self.x[a][d].negated(), *(self.x[b][twin] for b in by_place[:k] if twin in self.x[b])]
                    )

    def add_tasks(self) -> None:
        """When they run: one after another on a device."""
        q, m = self.question, self.model
        on: dict[int, list[Any]] = defaultdict(list)
        for i in range(q.tasks):
            row = self.x[int(q.facts.atom_of[i])]
            took = {d: self.whole(float(q.facts.seconds[i, q.facts.class_of[d]])) for d in row}
            start = m.new_int_var(0, GRAIN, "")
            same = len(set(took.values())) == 1
            end = start + next(iter(took.values())) if same else m.new_int_var(0, GRAIN, "")
            if not same:
                m.add(end == start + sum(row[d] * w for d, w in took.items()))
            for d, w in took.items():
                on[d].append(m.new_optional_interval_var(start, w, end, row[d], ""))
            self.start.append(start)
            self.end.append(end)
        for intervals in on.values():
            m.add_no_overlap(intervals)

    def add_tensors(self) -> None:
        """What reads waits for what is made, and for its crossing."""
        q, m = self.question, self.model
        on: dict[int, list[Any]] = defaultdict(list)
        for k, u in enumerate(q.facts.producer.tolist()):
            readers = q.facts.reader[q.facts.reader_start[k] : q.facts.reader_start[k + 1]].tolist()
            maker = self.x[int(q.facts.atom_of[u])]
            for v in readers:
                m.add(self.start[v] >= self.end[u])
            for d in range(q.devices):
                here = [
                    (v, self.x[int(q.facts.atom_of[v])][d]) for v in readers if d in self.x[int(q.facts.atom_of[v])]
                ]
                sources = [p for p in maker if p != d]
                if here and sources and {int(q.facts.atom_of[v]) for v in readers} != {int(q.facts.atom_of[u])}:
                    self._add_crossing(k, u, d, here, sources, on)
        for queue, intervals in on.items():
            if queue not in _fair(q):
                m.add_no_overlap(intervals)

    def _add_crossing(
        self, k: int, u: int, d: int, here: list[tuple[int, Any]], sources: list[int], on: dict[int, list[Any]]
    ) -> None:
        """Tensor k, made by task u, to device d from any of the others."""
        m, f = self.model, self.question.facts
        maker = self.x[int(f.atom_of[u])]
        away = maker[d].negated() if d in maker else True
        took = {p: self.whole(float(f.size[k] / f.rate[p, d] if np.isnan(f.given[k]) else f.given[k])) for p in sources}
        lag = {p: self.whole(float(f.latency[p, d] + f.message[p, d])) for p in sources}
        least = min(took[p] + lag[p] for p in sources)
        if max(took[p] + lag[p] for p in sources) == 0:
            return
        crosses, leaves = m.new_bool_var(""), m.new_int_var(0, GRAIN, "")
        self.crossing[k, d], self.leaves[k, d] = crosses, leaves
        m.add(leaves >= self.end[u])
        reads = {v.index: v for _, v in here}.values()
        for v in reads:
            m.add_bool_or([v.negated(), crosses] if away is True else [v.negated(), maker[d], crosses])
        m.add_bool_or([crosses.negated(), *reads])
        if away is not True:
            m.add_implication(crosses, away)
        for p in sources:
            uses = crosses if len(sources) == 1 else m.new_bool_var("")
            if len(sources) > 1:
                m.add_bool_or([crosses.negated(), maker[p].negated(), uses])
                m.add_implication(uses, crosses)
                m.add_implication(uses, maker[p])
            if took[p] > 0:
                on[int(f.queue[p, d])].append(m.new_optional_fixed_size_interval_var(leaves, took[p], uses, ""))
            for v, reads_here in here:
                if len({took[s] + lag[s] for s in sources}) > 1:
                    m.add(self.start[v] >= leaves + took[p] + lag[p]).only_enforce_if(uses, reads_here)
        for v, reads_here in here:
            m.add(self.start[v] >= leaves + least).only_enforce_if(crosses, reads_here)
            there = maker.get(d, 0)
            m.add(self.start[v] >= self.end[u] + least * (reads_here - there))

    def hint(self, known: Mapped) -> None:
        """Where the best known mapping puts things."""
        for a, row in enumerate(self.x):
            for d, v in row.items():
                self.model.add_hint(v, d == known.where[a])

    def read(self, solver: Any) -> list[Mapped]:
        """The mapping found: tasks by when they start, and by list scheduling."""
        q = self.question
        where = np.array([next(d for d, v in row.items() if solver.boolean_value(v)) for row in self.x], np.int64)
        if not q.model.fits(where):
            return []
        place = np.empty(q.tasks)
        place[q.facts.topological] = np.arange(q.tasks)
        starts, ends = (np.array([solver.value(v) for v in vs]) for vs in (self.start, self.end))
        order: IntArray = np.lexsort((place, ends, starts)).astype(np.int64)
        return [q.mapped(where, order, "cp-sat"), q.listed(where, "cp-sat")]


def _ranks_among_equals(question: Question) -> dict[int, int]:
    """{device: the one before it of its class}, where links are all alike."""
    f = question.facts
    apart = ~np.eye(question.devices, dtype=np.bool_)
    alike = all(len(np.unique(a[apart])) == 1 for a in (f.rate, f.latency, f.message))
    if not alike or f.queues not in (1, 2, question.devices**2):
        return {}
    twins: dict[int, int] = {}
    for d in range(1, question.devices):
        before = np.flatnonzero(f.class_of[:d] == f.class_of[d])
        if len(before) and f.pays[before[-1]] == f.pays[d]:
            twins[d] = int(before[-1])
    return twins


def _fair(question: Question) -> set[int]:
    """Queues whose transfers share the rate, so that they may overlap."""
    cluster, f = question.problem.cluster, question.facts
    names = [d.name for d in cluster.devices]
    return {
        int(f.queue[p, d])
        for p, a in enumerate(names)
        for d, b in enumerate(names)
        if p != d and cluster.link(a, b).fair
    }
