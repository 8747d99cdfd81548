"""Planners against every placement (and, for latency, every order) of tiny problems: raw bounds, values, claims.

A planner refuses a bound above its value by an InternalError, so a bound that reaches these tests is raw.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
from placement.plan.every_placement import (
    Where,
    contiguous,
    every_order,
    largest_load,
    makespan,
    placements,
    random_problem,
)

from partita.errors import Infeasible
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile
from partita.placement.plan.contiguous_plan import plan_contiguous
from partita.placement.plan.free import plan_free

CLOSE = 1e-9


def contiguous_throughput(problem: PlacementProblem) -> PlanFile:
    return plan_contiguous(problem, replicas=False, budget_s=0.2)


def contiguous_latency(problem: PlacementProblem) -> PlanFile:
    return plan_contiguous(problem, "latency", budget_s=0.2)


def free_throughput(problem: PlacementProblem) -> PlanFile:
    return plan_free(problem, budget_s=0.1)


def free_latency(problem: PlacementProblem) -> PlanFile:
    return plan_free(problem, "latency", budget_s=0.05)


PLANNERS = {"contiguous throughput": contiguous_throughput, "contiguous latency": contiguous_latency,
            "free throughput": free_throughput, "free latency": free_latency}  # fmt: skip


def problem_for(name: str, seed: int) -> PlacementProblem:
    if "latency" in name:  # every order of every placement is looked at
        return random_problem(seed, 4 if seed % 2 else 5, 3 if seed % 2 else 2)
    return random_problem(seed, 3 if seed % 4 == 0 else 5, 3, training=seed % 4 == 0)


def optimum(problem: PlacementProblem, name: str) -> float:
    allowed = [w for w in placements(problem) if "free" in name or contiguous(problem, w)]
    if "latency" in name:
        return min((makespan(problem, w, o) for w in allowed for o in every_order(problem, w)), default=math.inf)
    return min((largest_load(problem, w) for w in allowed), default=math.inf)


def value_of(problem: PlacementProblem, plan: PlacementPlan, name: str) -> tuple[Where, float]:
    """The plan's placement, and its objective by definition."""
    number = {d.name: k for k, d in enumerate(problem.cluster.devices)}
    where = tuple(number[plan.placement[t.id]] for t in problem.graph.tasks)
    if "throughput" in name:
        return where, largest_load(problem, where)
    orders = tuple(tuple(problem.graph.index[t] for t in plan.order.get(d.name, ())) for d in problem.cluster.devices)
    return where, makespan(problem, where, orders)


def verdict_on(name: str, seed: int) -> str:
    """What a planner's answer to a random problem is worth; "wrong ..." where it claims what is not so."""
    problem = problem_for(name, seed)
    best = optimum(problem, name)
    try:
        file = PLANNERS[name](problem)
    except Infeasible:
        return (
            "rightly infeasible"
            if math.isinf(best)
            else "nothing found"
            if name == "free throughput"
            else "wrong: infeasible"
        )
    plan = file.plan
    assert isinstance(plan, PlacementPlan)
    where, value = value_of(problem, plan, name)
    said = file.verdict
    if where not in set(placements(problem)) or ("contiguous" in name and not contiguous(problem, where)):
        return "wrong: not feasible"
    if not math.isclose(said.value_s, value, rel_tol=CLOSE, abs_tol=1e-12):
        return f"wrong: value {said.value_s}, by definition {value}"
    if said.lower_bound_s > best * (1 + CLOSE) + 1e-12:
        return f"wrong: bound {said.lower_bound_s} ({said.bound}) above {best}"
    optimal = value <= best * (1 + CLOSE) + 1e-12
    if not optimal and (said.bound == "exact" or said.gap < CLOSE):
        return f"wrong: {value} is called exact, {best} is possible"
    return "optimal and proven" if optimal and said.gap < 1e-5 else "optimal" if optimal else "not optimal"


def tally(name: str, seeds: range, judge: Callable[[str, int], str] = verdict_on) -> Counter[str]:
    """How often each answer came; every wrong one with its seed."""
    answers = {seed: judge(name, seed) for seed in seeds}
    return Counter(f"{a} (seed {seed})" if a.startswith("wrong") else a for seed, a in answers.items())


@pytest.mark.parametrize("name", PLANNERS)
def test_nothing_claimed_is_wrong(name: str) -> None:
    found = tally(name, range(30))
    assert not [a for a in found if a.startswith("wrong")], found
    assert found["optimal"] + found["optimal and proven"] >= 0.7 * (30 - found["rightly infeasible"])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNERS)
def test_nothing_claimed_is_wrong_in_500_problems(name: str) -> None:
    found = tally(name, range(1000, 1500))
    print(name, dict(found))
    assert not [a for a in found if a.startswith("wrong")], found
