"""Free placement for latency: any task on any device, in an order for every device, so that one sample is through early.

Starts: every device alone, chunks of topological orders, the contiguous plan, the earliest finish for every task (HEFT);
for each, the graph's order and the one that list scheduling gives. Then simulated annealing over placement and order
together, on both cores, from the best start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from partita.errors import BadInput
from partita.nouns.graph import IntArray
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile, Verdict, checked_bound
from partita.placement.plan.alarm import THREADS, alarm, processor_limit_s
from partita.placement.plan.candidates import Start, candidates, nothing_fits, plan_file
from partita.placement.plan.from_arrays import placement_plan, simulated_s
from partita.placement.plan.latency import latency_bound
from partita.placement.plan.line_starts import line
from partita.placement.plan.load import LoadModel, load_model
from partita.placement.plan.whole import annealed, earliest_finish, listed, value_of
from partita.simulate.makespan import MAKESPAN, Facts, facts_of

UNITS_PER_S = 1e8  # tasks and tensors looked at in a second, on the machine of anneal.UNITS_PER_S
CLOSED = 1e-9  # a gap, as a share, at which there is nothing left to find
METHODS = ("auto", "annealing", "earliest finish")


@dataclass(frozen=True, eq=False)
class Met:
    """A placement and an order, and what they come to."""

    value_s: float
    where: IntArray  #: [atoms]
    order: IntArray  #: [tasks]
    name: str


def plan_makespan(
    problem: PlacementProblem,
    *,
    method: str = "auto",
    budget_s: float = 10.0,
    seed: int = 0,
    start: Start | None = None,
) -> PlanFile:
    """A placement and an order of least makespan, with a lower bound: the critical path, or all the work shared out evenly.

    Deterministic as `plan_free` is. Raises as it does.
    """
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r} for latency", hint=f"known: {', '.join(METHODS)}")
    problem.expect_fit()
    model = load_model(problem)
    facts = facts_of(problem, "latency")
    compile_kernels(facts, model)
    began = time.monotonic()
    met = [m for w, name in _starts(problem, model, facts, start) if model.fits(w) for m in ordered(facts, w, name)]
    if not met:
        raise nothing_fits(model)
    best = min(met, key=lambda m: m.value_s)
    bound, how = latency_bound(problem, model)
    if method != "earliest finish" and best.value_s > bound * (1 + CLOSED):
        best = searched(model, facts, best, seed=seed, budget_s=budget_s)
    device_of = best.where[model.atom_of]
    plan = placement_plan(problem, device_of, best.order)
    value = simulated_s(problem, plan)
    spent = time.monotonic() - began
    verdict = Verdict(value, checked_bound(value, bound), how, f"free ({best.name})", spent, "latency")
    return plan_file(problem, device_of, verdict, best.order)


def ordered(facts: Facts, where: IntArray, name: str) -> list[Met]:
    """A placement with the graph's order, and with the one of list scheduling where orders matter."""
    if facts.objective != MAKESPAN:
        return [Met(value_of(facts, where, facts.topological), where, facts.topological, name)]
    return [Met(value_of(facts, where, o), where, o, name) for o in (facts.topological, listed(facts, where))]


def compile_kernels(facts: Facts, model: LoadModel) -> None:
    """Compile what a search runs, so that it takes nothing of the budget."""
    nothing = np.zeros(model.atoms, np.int64)
    earliest_finish(facts)
    value_of(facts, nothing, listed(facts, nothing))
    annealed(facts, nothing, facts.topological, line(model, facts.topological), 1, 0, 0.1, np.zeros(1, np.uint8))


def _starts(
    problem: PlacementProblem, model: LoadModel, facts: Facts, start: Mapping[str, str] | None
) -> Iterator[tuple[IntArray, str]]:
    yield from candidates(problem, model, start, objective="latency")
    yield earliest_finish(facts), "earliest finish"


def searched(model: LoadModel, facts: Facts, best: Met, *, seed: int, budget_s: float) -> Met:
    """Two rounds of annealing on two threads, the second colder and from the best of the first."""
    stop = np.zeros(1, np.uint8)
    by_place = line(model, facts.topological)
    with alarm(processor_limit_s(budget_s), stop):
        for turn, (share, hot) in enumerate(((0.5, 0.03), (0.3, 0.003))):
            units, base, first = share * budget_s * UNITS_PER_S, best, (seed & 0x7FFFFFFF) * 1000 + 2 * turn

            def run(
                side: int, base: Met = base, units: float = units, hot: float = hot, first: int = first
            ) -> tuple[IntArray, IntArray]:
                return annealed(
                    facts, base.where, base.order, by_place, units, first + side, hot / (1 + 4 * side), stop
                )

            with ThreadPoolExecutor(THREADS) as pool:
                for where, order in pool.map(run, range(2)):
                    if model.fits(where):
                        met = Met(value_of(facts, where, order), where, order, "annealing")
                        best = min([best, met, *ordered(facts, where, "annealing")], key=lambda m: m.value_s)
    return best
