"""The planner of offloading: a problem and a method give a plan with a bound.

Every baseline is always among the candidates, so that no plan is worse than one of them. The same problem, method, seed
and budget give the same plan, as long as the budget is not the limit.
"""

from __future__ import annotations

import time
from dataclasses import replace

from partita.errors import BadInput
from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.offload.plan.baselines import BASELINES, orders
from partita.offload.plan.bounds import Bound, bound_of
from partita.offload.plan.exact import solve
from partita.offload.plan.kernel import Shop
from partita.offload.plan.local import Pool, improve, pool_of, whole_pool
from partita.offload.plan.rounding import rounded
from partita.offload.plan.shop import Floor, Found, best_of, found
from partita.offload.plan.two_cuts import is_chain, johnson, two_cuts

METHODS = ("auto", "exact", "local-search", "johnson", "two-cuts", "two-cuts+ends", *BASELINES)
MOVES_PER_S = 3e7  #: jobs looked at in a second of local search
CLOSE = 1e-9  #: a gap this small is none


def plan_offload(problem: OffloadProblem, method: str = "auto", *, budget_s: float = 1.0, seed: int = 0) -> OffloadPlan:
    """The plan. Raises BadInput for an unknown method, and for one that is not for such jobs."""
    began = time.monotonic()
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r}", hint=f"known: {', '.join(METHODS)}")
    floor = Floor.of(problem)
    bound = bound_of(floor)
    shop = floor.shop()
    if method in BASELINES:
        best = BASELINES[method](shop)
    elif method == "johnson":
        best = johnson(shop)
    elif method in ("two-cuts", "two-cuts+ends"):
        best = two_cuts(shop, floor.kinds.networks[0], ends=method == "two-cuts+ends")
    else:
        best, bound = _searched(floor, shop, bound, method, budget_s, seed)
    return OffloadPlan(
        tuple(best.order.tolist()),
        floor.ids(shop, best.choice),
        best.makespan_s,
        min(bound.value_s, best.makespan_s),
        bound.name,
        best.method,
        time.monotonic() - began,
    )


def _searched(floor: Floor, shop: Shop, bound: Bound, method: str, budget_s: float, seed: int) -> tuple[Found, Bound]:
    """The best plan of all methods but the slow ones, improved; then a proof, or, where it takes too long, more search."""
    moves = int(MOVES_PER_S * budget_s / (len(shop.kind) + 5))
    pool = pool_of(shop, bound.weights)
    best = _improved(shop, best_of(_starts(floor, shop, bound, seed)), moves // 10, seed, bound, pool)
    if best.late_s == 0 and best.makespan_s <= bound.value_s * (1 + CLOSE):
        return best, bound
    if method != "local-search":
        complete = all(c.complete for c in floor.cuts)
        proof = solve(shop, best, bound.weights, budget_s=budget_s if method == "exact" else budget_s / 2)
        if complete and proof.lower_bound_s > bound.value_s:
            name = "exact" if proof.complete else "search cut short"
            bound = replace(bound, value_s=proof.lower_bound_s, name=name)
        best = replace(proof.plan, method="exact" if complete and proof.complete else proof.plan.method)
        if proof.complete:
            return best, bound
    best = _improved(shop, best, moves // 4, seed + 1, bound, pool)
    return _improved(shop, best, moves // 4, seed + 2, bound, whole_pool(shop)), bound


def _starts(floor: Floor, shop: Shop, bound: Bound, seed: int) -> list[Found]:
    """Every baseline, rounded proportions, Johnson's orders for the best of them, two cuts for equal chains."""
    plans = [*(b(shop) for b in BASELINES.values()), johnson(shop), *rounded(shop, bound, seed)]
    if len(shop.first) == 2 and is_chain(floor.kinds.networks[0]):
        plans.append(two_cuts(shop, floor.kinds.networks[0], ends=True))
    choice = best_of(plans).choice
    return plans + [found(shop, o, choice, "johnson") for o in orders(shop, choice)]


def _improved(shop: Shop, best: Found, moves: int, seed: int, bound: Bound, pool: Pool) -> Found:
    better = improve(shop, best, steps=moves, seed=seed, pool=pool, target_s=bound.value_s)
    return replace(better, method="local-search") if better.value < best.value else best


def baselines(problem: OffloadProblem) -> dict[str, float]:
    """Makespan of every baseline, the way `plan_offload` finds it with the method of that name and seed 0."""
    floor = Floor.of(problem)
    bound_of(floor)  # its cuts join the candidates
    shop = floor.shop()
    return {name: baseline(shop).makespan_s for name, baseline in BASELINES.items()}
