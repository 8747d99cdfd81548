"""Plan a mapping by a method's name: seeds, pieces between waists, a search on each, the best of all; and a bound.

    single, intuitive, heft, heft-links     what they say, be it worse than another
    cp-sat                      the judge: optimal where it ends in time, with its own bound
    bayes                       Bayesian optimisation; bayes-tpe and bayes-random: with another sampler
    genetic                     a genetic search
    hybrid                      bayes, genetic and a polish, in turn
    auto                        cp-sat where a piece is small, and hybrid where that does not end

Every search begins with single, intuitive and heft, on each piece and on the whole, and is never worse than they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np

from partita.errors import BadInput, Infeasible
from partita.mapping.plan import bayes, cp_sat
from partita.mapping.plan.genetic import genetic
from partita.mapping.plan.heft import heft, heft_over_links
from partita.mapping.plan.hybrid import hybrid
from partita.mapping.plan.intuitive import intuitive, single
from partita.mapping.plan.polish import polished
from partita.mapping.plan.question import Finding, Mapped, Question, Search, best_of
from partita.mapping.plan.waists import Piece, pieces, whole
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import BoolArray, Task, TaskGraph
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile, Verdict, checked_bound
from partita.page.text import size
from partita.placement.plan.alarm import THREADS
from partita.placement.plan.candidates import candidates, nothing_fits, plan_file
from partita.placement.plan.device_limit import useful
from partita.placement.plan.from_arrays import placement_plan, simulated_s
from partita.placement.plan.latency import latency_bound
from partita.solve import constraint_solver

CLOSED = 1e-9  #: a gap, as a share, at which there is nothing left to find
MOST_TO_PROVE = 40  #: tasks of a piece up to which `auto` tries the constraint program first
HINT = 0.2  #: of the judge's budget, to find what the program has to beat
PROGRAM = "constraint program"


def judge(question: Question, known: Sequence[Mapped], budget_s: float, seed: int) -> Finding:
    """The constraint program, told what a short polish finds: what it has to beat decides how soon it ends."""
    first = polished(question, known, HINT * budget_s, seed)
    return cp_sat.cp_sat(question, [*known, first.best], (1 - HINT) * budget_s, seed)


def auto(question: Question, known: Sequence[Mapped], budget_s: float, seed: int) -> Finding:
    """The constraint program where it may come to its end, then hybrid unless it did."""
    if not constraint_solver.available() or question.tasks > MOST_TO_PROVE:
        return hybrid(question, known, budget_s, seed)
    proven = judge(question, known, budget_s / 2, seed)
    if proven.best.value_s <= proven.bound_s * (1 + cp_sat.PROVEN):
        return proven
    found = hybrid(question, [*known, proven.best], budget_s / 2, seed)
    return Finding(found.best, proven.bound_s, proven.tried + found.tried, found.phases)


SEEDS: Mapping[str, Callable[[Question], Sequence[Mapped]]] = MappingProxyType(
    {
        "single": lambda q: [*single(q)],
        "intuitive": lambda q: [*intuitive(q)],
        "heft": lambda q: [heft(q)],
        "heft-links": lambda q: [heft_over_links(q)],
    }
)
SEARCHES: Mapping[str, Search] = MappingProxyType(
    {"cp-sat": judge, "bayes": bayes.bayes, "bayes-tpe": bayes.with_sampler("tpe"),
     "bayes-random": bayes.with_sampler("random"), "genetic": genetic, "polish": polished, "hybrid": hybrid, "auto": auto}
)  # fmt: skip
METHODS = (*SEEDS, *SEARCHES)


def plan_mapping(problem: PlacementProblem, *, method: str = "auto", budget_s: float = 10.0, seed: int = 0) -> PlanFile:
    """A mapping of least makespan of one iteration, its bound, and what it was compared with.

    Deterministic for a seed: work is counted, not timed, unless a processor is so slow that the constraint program's limit
    in seconds strikes. Raises Infeasible where nothing fits, or not what the method is, BadInput for an unknown method,
    MissingDependency where the method's package is not there.
    """
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r} for a mapping", hint=f"known: {', '.join(METHODS)}")
    problem.expect_fit()
    asked, problem = problem, useful(problem)
    compile_kernels()
    began = time.monotonic()
    question = Question.of(problem)
    compared = {name: best_of(ms) for name, make in SEEDS.items() if (ms := make(question))}
    if method in SEEDS and not (method in compared and np.isfinite(compared[method].value_s)):
        raise no_room(question, method)
    compared |= _rest(question) if not any(np.isfinite(m.value_s) for m in compared.values()) else {}
    bound, how = latency_bound(problem, question.model)
    best = compared.get(method) or best_of([*compared.values()])
    compared_s = {name: m.value_s for name, m in compared.items()}
    if method in SEARCHES and np.isfinite(best.value_s):
        answer = in_pieces(question, SEARCHES[method], method, budget_s, seed)
        best = best_of([best, answer.best])
        bound, how = max((bound, how), (answer.bound_s, answer.bound))
        compared_s |= {**answer.phases, method: best.value_s}
    if not np.isfinite(best.value_s):
        raise no_room(question, method)
    device_of = best.where[question.model.atom_of]
    value = simulated_s(problem, placement_plan(problem, device_of, best.order))
    compared_s = {n: v for n, v in {**compared_s, method: value}.items() if np.isfinite(v)}
    name = method if best.name == method else f"{method} ({best.name})"
    spent = time.monotonic() - began
    verdict = Verdict(value, checked_bound(value, bound), how, name, spent, "latency", compared_s)
    file = plan_file(problem, device_of, verdict, best.order)
    return PlanFile(file.plan, verdict, asked)


@dataclass(frozen=True, eq=False)
class Answer:
    """What the pieces' answers come to."""

    best: Mapped
    bound_s: float
    bound: str
    phases: Mapping[str, float]  #: step -> value behind it


def in_pieces(question: Question, search: Search, name: str, budget_s: float, seed: int) -> Answer:
    """A search on every piece between waists, alike pieces once, two at a time; their mappings put together."""
    between = pieces(question.problem)
    distinct = {p.shape: p for p in between}
    hard = [p for p in distinct.values() if not p.trivial]
    total = sum(len(p.tasks) for p in hard)
    work = [(p, question if len(between) == 1 else Question.of(useful(p.problem))) for p in distinct.values()]

    def solved(at: tuple[Piece, Question]) -> tuple[Finding, bool]:
        piece, own = at
        share = 0.0 if piece.trivial else budget_s * len(piece.tasks) / total
        return _solved(own, search, share, seed)

    with bayes.silenced(), ThreadPoolExecutor(THREADS) as pool:
        found = dict(zip(distinct, pool.map(solved, work), strict=True))
    parts = [(p, found[p.shape][0]) for p in between]
    mapped = whole(question, [(p, f.best) for p, f in parts], parts[0][1].best.name if len(between) == 1 else name)
    steps = dict.fromkeys(s for _, f in parts for s, _ in f.phases)
    phases = {s: sum(dict(f.phases).get(s, f.best.value_s) for _, f in parts) for s in steps}
    how = PROGRAM if any(by_program for _, by_program in found.values()) else "critical path and work between waists"
    return Answer(mapped, sum(f.bound_s for _, f in parts), how, phases)


def _solved(question: Question, search: Search, budget_s: float, seed: int) -> tuple[Finding, bool]:
    """(what a search finds in a piece, whether its bound is the search's own); nothing is searched where a seed is optimal."""
    known = begun_with(question)
    bound, _ = latency_bound(question.problem, question.model)
    if best_of(known).value_s <= bound * (1 + CLOSED) or budget_s <= 0:
        return Finding(best_of(known), bound), False
    found = search(question, known, budget_s, seed)
    own = found.bound_s > bound
    return Finding(found.best, max(bound, found.bound_s), found.tried, found.phases), own


def begun_with(question: Question) -> list[Mapped]:
    """The mappings that a search begins with: those that come to mind and fit, or else what a free placement begins with. Raises
    Infeasible where there is none."""
    known = [m for make in SEEDS.values() for m in make(question) if np.isfinite(m.value_s)]
    known = known or [*_rest(question).values()]
    if not known:
        raise no_room(question, "")
    return known


def no_room(question: Question, method: str) -> Infeasible:
    """The error where what a method says does not fit; of a search: where nothing was found that does."""
    model = question.model
    if method not in SEEDS:
        return nothing_fits(model)
    several = "a method that looks for what fits, e.g. --method hybrid"
    able: BoolArray = np.asarray(np.isfinite(model.work_s).all(axis=0))
    if method == "single" and not able.any():
        return Infeasible("no device runs all tasks", constraint="supported devices", relaxation=several)
    need, room = float(model.memory_bytes.sum()), model.room_bytes
    if method == "single":
        most = float(room[able[model.class_of]].max())
        return Infeasible(
            f"the tasks hold {size(need)}; the largest device that runs all of them has {size(most)}",
            constraint="memory",
            relaxation=f"a device with {need:.0f} bytes, or {several}",
        )
    return Infeasible(
        f"{method} finds no room for all tasks: they hold {size(need)}, the devices {size(float(room.sum()))}",
        constraint="memory",
        relaxation=f"{several}, or more memory a device",
    )


def _rest(question: Question) -> Mapping[str, Mapped]:
    """What a free placement begins with, where memory leaves none of the seeds."""
    found = candidates(question.problem, question.model, None, "latency")
    fitting = [m for w, name in found if np.isfinite((m := question.listed(w, name)).value_s)]
    return {m.name: m for m in sorted(fitting, key=lambda m: -m.value_s)}


@cache
def compile_kernels() -> None:
    """Compile what the searches run, so that it takes nothing of a budget."""
    graph = TaskGraph.build(
        "warm", [Task(x) for x in "abcd"], [("a", 1.0, ["b", "c"]), ("b", 1.0, ["d"]), ("c", 1.0, ["d"])]
    )
    costs = CostTable.given(("cpu",), [[1.0], [2.0], [2.0], [1.0]], np.full(3, np.nan))
    question = Question.of(PlacementProblem(graph, Cluster.uniform(2, rate_bytes_per_s=9.0), costs, np.zeros(4)))
    known = [m for make in SEEDS.values() for m in make(question)]
    genetic(question, known, 1e-6, 0)
    polished(question, known, 1e-6, 0)
