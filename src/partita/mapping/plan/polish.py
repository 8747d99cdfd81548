"""Local search on the simulator: atoms, stretches and pairs of atoms change devices, tasks pass others of their device.

Simulated annealing that ends without heat: first several runs from the best known, of different heat and along different
lines (breadth first, depth first), then two cool ones from the best of them. Two threads; every run has a seed of its own.
Source: Kirkpatrick, Gelatt, Vecchi, "Optimization by Simulated Annealing", Science 220, 1983; as a planner of placements:
FlexFlow (Jia, Zaharia, Aiken, MLSys 2019), which takes steps of one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from partita.mapping.plan.question import Finding, Mapped, Question, best_of
from partita.nouns.graph import IntArray
from partita.placement.plan.alarm import THREADS, FlagArray
from partita.placement.plan.line_starts import depth_first, line
from partita.placement.plan.whole import annealed

UNITS_PER_S = 7e7  #: tasks and tensors that one thread looks at in a second
HEATS = (0.1, 0.03, 0.3, 0.1, 0.03, 0.01, 0.1, 0.3)  #: of first runs, as shares of the value ...
COOL = 0.003  #: ... and of the last
SMALL = 100  #: tasks; in larger graphs a step changes less of the value, and heat is less as they are larger
FIRST = 0.7  #: share of the budget that the first runs have
FEWEST = 15_000  #: mappings that a first run evaluates, or there are fewer runs; 100 a task where that is more


@dataclass(frozen=True, eq=False)
class _Run:
    """A run of annealing from a mapping."""

    base: Mapped
    line: IntArray  #: [atoms] stretches of it move together
    units: float
    seed: int
    heat: float


def polished(question: Question, known: Sequence[Mapped], budget_s: float, seed: int) -> Finding:
    """The best met from the best known, for so much work as the budget counts."""
    best = best_of(known)
    if question.devices == 1 or not 0 < best.value_s < np.inf:
        return Finding(best)
    graph, stop = question.problem.graph, np.zeros(1, np.uint8)
    lines = (question.by_place, line(question.model, depth_first(graph.successors, graph.predecessors)))
    units, number = THREADS * budget_s * UNITS_PER_S, (seed & 0xFFFFF) * 2 * len(HEATS)
    most = int(FIRST * units / (max(FEWEST, 100 * question.tasks) * question.cost_units))
    mild = min(1.0, SMALL / question.tasks) ** 1.5
    count = max(THREADS, min(len(HEATS), most // THREADS * THREADS))
    first = [_Run(best, lines[k // 2 % 2], FIRST * units / count, number + k, HEATS[k] * mild) for k in range(count)]
    found = _all(question, first, stop)
    best = best_of([best, *found])
    last = [
        _Run(best, lines[k], (1 - FIRST) * units / THREADS, number + count + k, COOL * mild) for k in range(THREADS)
    ]
    return Finding(best_of([best, *_all(question, last, stop)]), 0.0, int(units / question.cost_units))


def _all(question: Question, runs: Sequence[_Run], stop: FlagArray) -> list[Mapped]:
    """What runs come to, each with its own order and the one of list scheduling."""

    def ended(run: _Run) -> list[Mapped]:
        base = run.base
        where, order = annealed(question.facts, base.where, base.order, run.line, run.units, run.seed, run.heat, stop)
        return [question.mapped(where, order, "polish"), question.listed(where, "polish")]

    with ThreadPoolExecutor(THREADS) as pool:
        return [m for found in pool.map(ended, runs) for m in found]
