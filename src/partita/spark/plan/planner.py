"""The planner of the DAG shop: a problem and a method give a schedule with a bound.

auto           rules, then local search, then, where the shop is small, a proof; more search where there is none
search         rules and local search
exact          a short search, then the rest of the budget for the proof
johnson ..     one rule, no search
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import cache

from partita.errors import BadInput
from partita.nouns.plan import Verdict, checked_bound
from partita.solve import constraint_solver
from partita.spark.plan.bounds import Bound, bound_of
from partita.spark.plan.exact import solve
from partita.spark.plan.fluid import delay_stage, fair
from partita.spark.plan.rules import RULES
from partita.spark.plan.search import Found, found, improved, starts
from partita.spark.plan.shop import Numbered, lanes_of, numbered, timed
from partita.spark.plan.writes import with_writes, without_writes
from partita.spark.problem import ShopJob, ShopProblem, ShopStage
from partita.spark.schedule import Objective, ShopFile, Start

METHODS = ("auto", "exact", "search", *RULES)
OBJECTIVES: tuple[Objective, ...] = ("makespan", "mean-completion")
BASELINES = ("fifo", "sjf", "fair", "delaystage")
FEW_STAGES = 120  #: auto asks for a proof up to so many
SEARCH_S = 5e-3  #: of search for each stage before a proof is tried
CLOSE = 1e-9  #: a gap this small is none


def plan_spark(
    problem: ShopProblem,
    method: str = "auto",
    objective: Objective = "makespan",
    *,
    budget_s: float = 1.0,
    seed: int = 0,
) -> ShopFile:
    """The schedule, its bound, and the problem. Raises BadInput for an unknown method or objective."""
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r}", hint=f"known: {', '.join(METHODS)}; {_fluid(method)}")
    if objective not in OBJECTIVES:
        raise BadInput(f"unknown objective {objective!r}", hint=f"known: {', '.join(OBJECTIVES)}")
    compile_kernels()
    if problem.writes:
        file = plan_spark(without_writes(problem), method, objective, budget_s=budget_s, seed=seed)
        return with_writes(file, problem)
    early = min((j.release_s for j in problem.jobs), default=0.0)
    if early > 0:  # small differences of large times would be lost
        file = plan_spark(_moved(problem, -early), method, objective, budget_s=budget_s, seed=seed)
        return _begun_later(file, problem, early)
    began = time.monotonic()
    work, mean = numbered(problem), objective == "mean-completion"
    bound = bound_of(work.shop, mean)
    best, bound = (
        (found(work, RULES[method](work), mean, method), bound)
        if method in RULES
        else _searched(work, mean, bound, method, budget_s, began, seed)
    )
    proved, spent = checked_bound(best.value_s, bound.value_s), time.monotonic() - began
    verdict = Verdict(best.value_s, proved, bound.name, best.method, spent, objective, baselines(work, mean))
    return ShopFile(schedule(work, best), verdict, problem)


def _moved(problem: ShopProblem, by_s: float) -> ShopProblem:
    return replace(problem, jobs=tuple(replace(j, release_s=max(0.0, j.release_s + by_s)) for j in problem.jobs))


def _begun_later(file: ShopFile, problem: ShopProblem, by_s: float) -> ShopFile:
    """The plan of `problem`, whose times are `by_s` later; mean completions count from releases."""
    rows = tuple(replace(r, network_start_s=r.network_start_s + by_s, cpu_start_s=r.cpu_start_s + by_s) for r in file.schedule)  # fmt: skip
    v = file.verdict
    if v.objective == "makespan":
        compared = {n: x + by_s for n, x in v.compared_s.items()}
        v = replace(v, value_s=v.value_s + by_s, lower_bound_s=v.lower_bound_s + by_s, compared_s=compared)
    return ShopFile(rows, v, problem)


@cache
def compile_kernels() -> None:
    """Compile what planning runs, so that it takes nothing of a budget: seconds at the first call on a machine."""
    stages = (ShopStage(1.0, 2.0), ShopStage(2.0, 1.0, (0,)), ShopStage(1.0, 1.0, (0,)))
    problem = ShopProblem((ShopJob(stages), ShopJob(stages, 1.0)))
    for mean, executors in ((False, 1), (True, 2)):
        work = numbered(replace(problem, executors=executors))
        bound_of(work.shop, mean)
        improved(work, starts(work, mean), mean, budget_s=1e-4, deadline=math.inf, seed=0, target_s=0.0)
        baselines(work, mean)


def _fluid(method: str) -> str:
    """What to say of a name that is a baseline and no method."""
    fluid = method in BASELINES
    return (
        f"{method} shares the machines and has no order: its value stands in compared_s" if fluid else "default: auto"
    )


def _searched(
    work: Numbered, mean: bool, bound: Bound, method: str, budget_s: float, began: float, seed: int
) -> tuple[Found, Bound]:
    """The best order, and the better bound of both."""
    deadline = began + budget_s
    plans = starts(work, mean)
    proves = method == "exact" or (
        method == "auto" and len(work.shop.net) <= FEW_STAGES and constraint_solver.available()
    )

    def better(share: float, lot: int) -> Found:
        until = min(deadline, time.monotonic() + share * budget_s)
        return improved(work, plans, mean, budget_s=share * budget_s, deadline=until, seed=seed + lot, target_s=bound.value_s)  # fmt: skip

    best = better(min(0.2, SEARCH_S * len(work.shop.net) / budget_s) if proves else 1.0, 0)
    if not proves or best.value_s <= bound.value_s * (1 + CLOSE):
        return best, bound
    limit = (deadline - time.monotonic()) * (1.0 if method == "exact" else 0.6)
    proof = solve(work, best, mean, limit_s=limit, seed=seed, bound_s=bound.value_s)
    if proof.complete:
        return proof.best, Bound(proof.bound_s, "exact")
    if proof.bound_s > bound.value_s:
        bound = Bound(proof.bound_s, "constraint programming, cut short")
    plans = [proof.best, *plans]
    return (proof.best if method == "exact" else better(0.4, 1)), bound


def schedule(work: Numbered, best: Found) -> tuple[Start, ...]:
    """The starts of the stages, by the start of fetching. O(n log n)."""
    n = len(work.shop.net)
    at = timed(work.shop, best.order)
    lane = lanes_of(at[n:], work.shop.cpu)
    rows = zip(work.job.tolist(), work.stage.tolist(), at[:n].tolist(), at[n:].tolist(), lane.tolist(), strict=True)
    return tuple(Start(*r) for r in sorted(rows, key=lambda r: (r[2], r[3], r[0], r[1])))


def baselines(work: Numbered, mean: bool) -> dict[str, float]:
    """The values of what is done without a plan; FIFO and SJF take turns, the others share."""
    shop = work.shop
    taken = {name: found(work, RULES[name](work), mean, name).value_s for name in ("fifo", "sjf")}
    return {**taken, "fair": fair(shop, mean), "delaystage": delay_stage(shop, mean)}
