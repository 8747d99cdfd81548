"""Free placement: any task on any device, so that the largest load, or one sample's makespan, is least.

For throughput, a portfolio in rounds; in each, two threads work side by side and then share what they found:

    round       one thread                             the other                                     share
    first look  chunks of topological orders, the      bounds (work, minimum cuts), annealing from   5 %
                contiguous optimum, each device alone  the set that a minimum cut says is hardest
    proof       annealing, short restarts              the whole as a constraint program, to find    25 %
                                                       better or prove that there is none
    search      annealing, one long run; placements    sets of atoms, priced: a bound                45 %
                made of priced sets
    finish      annealing from the best                the same again, from the best now known       20 %

Large narrow graphs begin with the prices. Graphs of many parallel branches are too wide for them: a few devices at a time are
re-optimised with the constraint program instead, and the proof is tried again at the end. It ends early when the bound meets
the value. Where the first look meets nothing that fits, the constraint program looks for that first. Without OR-tools both threads anneal where there would be a constraint program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType

import numpy as np

from partita.errors import BadInput, MissingDependency
from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile, Verdict
from partita.placement.plan import exact
from partita.placement.plan.anneal import anneal
from partita.placement.plan.bounds import work_bound_s
from partita.placement.plan.candidates import Start, candidates, nothing_fits, plan_file
from partita.placement.plan.device_limit import useful
from partita.placement.plan.free_links import free_over_unequal_links
from partita.placement.plan.load import load_model
from partita.placement.plan.makespan import plan_makespan
from partita.placement.plan.min_cut import anchors, network
from partita.placement.plan.portfolio import (
    LARGEST_PROGRAM,
    Search,
    anchored,
    annealed,
    filled,
    fitted,
    narrow,
    parts,
    priced,
    provable,
    proven,
)
from partita.solve import constraint_solver

MOST_TO_PROVE = 200  #: atoms of a narrow graph up to which the constraint program is tried before the prices


def plan_free(
    problem: PlacementProblem,
    objective: str = "throughput",
    *,
    method: str = "auto",
    budget_s: float = 10.0,
    seed: int = 0,
    start: Start | None = None,
) -> PlanFile:
    """A placement of least objective, with a lower bound on every placement's, within about `budget_s` seconds.

    `start` (task id -> device name) is among the candidates; so are every device alone and, up to MOST_FOR_CONTIGUOUS
    atoms, the contiguous plan. The work is counted in units of the searches, not in seconds, so that the same inputs,
    budget and seed give the same plan; only where a processor is so slow that twice the budget of processor
    time ends before the units are spent, that decides; other load on the machine does not. Compiling the kernels (once an installation, about 10 s) and reading the input do not count.

    Raises Infeasible where nothing fits or nothing that fits is found, BadInput for an unknown method or objective,
    MissingDependency for method "program" without OR-tools.
    """
    if objective not in ("throughput", "latency"):
        raise BadInput(f"a graph cannot be placed for {objective!r}", hint="known: throughput, latency")
    problem.expect_fit()
    if start is None and (fewer := useful(problem)) is not problem:
        file = plan_free(fewer, objective, method=method, budget_s=budget_s, seed=seed)
        return replace(file, problem=problem)
    if objective == "latency":
        return plan_makespan(problem, method=method, budget_s=budget_s, seed=seed, start=start)
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r}", hint=f"known: {', '.join(METHODS)}")
    if problem.links_differ:
        alike = partial(plan_free, method=method, seed=seed, start=start)
        return free_over_unequal_links(problem, alike, budget_s, seed)
    return _throughput_plan(problem, method, budget_s, seed, start)


def _throughput_plan(
    problem: PlacementProblem, method: str, budget_s: float, seed: int, start: Start | None
) -> PlanFile:
    """The placement of least largest load over links of one rate."""
    compile_kernels()
    search = Search(load_model(problem), seed, budget_s)
    for where, name in candidates(problem, search.model, start):
        search.offer(where, name)
    search.raise_bound(work_bound_s(search.model), "linear relaxation")
    METHODS[method](search)
    if search.best is None:
        raise nothing_fits(search.model)
    spent = time.monotonic() - search.began
    verdict = Verdict(search.value_s, search.bound_s, search.bound, f"free ({search.method})", spent, "throughput")
    return plan_file(problem, search.best[search.model.atom_of], verdict)


def portfolio(search: Search) -> None:
    """The rounds above."""
    search.round([annealed(search, search.base, 0.05)], [anchored(search, 0.025)])
    if search.best is None and constraint_solver.available() and exact.size(search.model) <= LARGEST_PROGRAM:
        search.round([fitted(search, 0.2)])
    for next_round in (_proof, _search, _finish):
        if not search.closed:
            next_round(search)


def annealing(search: Search) -> None:
    """Annealing on both threads, from the best candidate and from what a minimum cut says is hardest."""
    search.round([annealed(search, search.base, 0.05)], [anchored(search, 0.025)])
    if not search.closed:
        search.round([annealed(search, search.base, 0.55)], [annealed(search, search.base, 0.55)])
    if not search.closed:
        search.round([annealed(search, search.base, 0.3, 1e-2)], [annealed(search, search.base, 0.3, 1e-3)])


def program(search: Search) -> None:
    """The constraint program alone."""
    if not constraint_solver.available():
        raise MissingDependency("method 'program' needs OR-tools", hint="pip install 'partita[planner]'")
    search.round([anchored(search, 0.05)])
    if not search.closed and search.best is not None and search.model.devices > 1:
        search.round([proven(search, 0.9)])


def first_candidates(search: Search) -> None:
    """The candidates and nothing more: chunks of topological orders, the contiguous plan, each device alone."""


def _proof(search: Search) -> None:
    """Short restarts beside the attempt to prove the best known."""
    heats = (0.1, 1.0, 0.1, 0.01)
    restarts = [annealed(search, search.base, 0.0625, hot) for hot in heats]
    if search.model.atoms > MOST_TO_PROVE and narrow(search):
        other = [priced(search, 0.25)]
    elif provable(search):
        other = [proven(search, 0.25)]
    else:
        other = [annealed(search, search.base, 0.0625, h) for h in heats]
    search.round(restarts, other)


def _search(search: Search) -> None:
    """One long run beside parts and a second run."""
    if narrow(search):
        search.round([filled(search, 0.2), annealed(search, search.base, 0.25)], [priced(search, 0.45)])
        return
    long = annealed(search, search.base, 0.45)
    if _has_parts(search):
        search.round([long], [parts(search, 0.2), annealed(search, search.base, 0.25)])
    else:
        search.round([long], [annealed(search, search.base, 0.45)])


def _finish(search: Search) -> None:
    """The best improved at low heat, and proven if it can be."""
    if narrow(search):
        search.round([filled(search, 0.12), annealed(search, search.base, 0.08, 1e-2)], [priced(search, 0.2)])
        return
    cool = annealed(search, search.base, 0.2, 1e-2)
    if _has_parts(search):
        search.round([cool], [*([proven(search, 0.12)] if provable(search) else []), parts(search, 0.08)])
    else:
        search.round([cool], [annealed(search, search.base, 0.2, 1e-3)])


def _has_parts(search: Search) -> bool:
    return constraint_solver.available() and search.best is not None and search.model.devices > 1


METHODS: Mapping[str, Callable[[Search], None]] = MappingProxyType(
    {"auto": portfolio, "annealing": annealing, "program": program, "chunks": first_candidates}
)


@cache
def compile_kernels() -> None:
    """Compile all kernels on a problem of three tasks."""
    graph = TaskGraph.build("warm", [Task(x) for x in "abc"], [("a", 1.0, ["b"]), ("b", 1.0, ["c"])])
    cluster = Cluster((Device("x"), Device("y")))
    costs = CostTable.given(["cpu"], [[1.0]] * 3, [0.1, 0.1])
    problem = PlacementProblem(graph, cluster, costs, np.zeros(3), "sum", frozenset({"cpu"}))
    model = load_model(problem)
    where = [w for w, _ in candidates(problem, model, None)][-1]
    anneal(model, where, units=100, seed=0)
    anchors(model, {0: network(model, 0)})
    anneal(replace(model, rule="overlap"), where, units=100, seed=0)
