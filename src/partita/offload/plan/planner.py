"""The planner of offloading: a problem and a method give a plan with a bound.

Every baseline is always among the candidates, so that no plan is worse than one of them. The same problem, method, seed
and budget give the same plan, as long as the budget is not the limit.
"""

from __future__ import annotations

import time
from dataclasses import replace

from partita.errors import BadInput
from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.nouns.plan import OffloadFile, Verdict, checked_bound
from partita.offload.plan.baselines import BASELINES, orders
from partita.offload.plan.bounds import Bound, bound_of
from partita.offload.plan.exact import solve
from partita.offload.plan.kernel import Shop
from partita.offload.plan.local import Pool, improve, pool_of, whole_pool
from partita.offload.plan.rounding import rounded
from partita.offload.plan.shop import Floor, Found, best_of, carried_over, found
from partita.offload.plan.two_cuts import is_chain, johnson, two_cuts

METHODS = ("auto", "exact", "local-search", "johnson", "two-cuts", "two-cuts+ends", *BASELINES)
MOVES_PER_S = 3e7  #: jobs looked at in a second of local search
FEW_THREADS = 4  #: more of them make a move dearer
MOST_BUDGET_S = 86_400.0  #: a longer one is cut to it
CLOSE = 1e-9  #: a gap this small is none


def plan_offload(problem: OffloadProblem, method: str = "auto", *, budget_s: float = 1.0, seed: int = 0) -> OffloadFile:
    """The plan, its bound, and the problem. Raises BadInput for an unknown method, and for one that is not for such jobs."""
    began = time.monotonic()
    budget_s = min(budget_s, MOST_BUDGET_S)
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r}", hint=f"known: {', '.join(METHODS)}")
    floor = _floor(problem)
    if method in BASELINES or method in ("johnson", "two-cuts", "two-cuts+ends"):
        bound = bound_of(floor)
        shop = floor.shop()
        best = _by_name(floor, shop, method)
    else:
        shop, best, bound = _searched(floor, method, budget_s, seed)
    plan = OffloadPlan(tuple(best.order.tolist()), floor.ids(shop, best.choice))
    proved, spent = checked_bound(best.makespan_s, bound.value_s), time.monotonic() - began
    return OffloadFile(plan, Verdict(best.makespan_s, proved, bound.name, best.method, spent, "makespan"), problem)


def _floor(problem: OffloadProblem) -> Floor:
    """Threads that no job could ever be on are left out."""
    return Floor.of(replace(problem, server_threads=min(problem.server_threads, len(problem.jobs))))


def _by_name(floor: Floor, shop: Shop, method: str) -> Found:
    if method in BASELINES:
        return BASELINES[method](shop)
    if method == "johnson":
        return johnson(shop)
    return two_cuts(shop, floor.kinds.networks[0], ends=method == "two-cuts+ends")


def _searched(floor: Floor, method: str, budget_s: float, seed: int) -> tuple[Shop, Found, Bound]:
    """The best plan found, and a bound on the makespan of every plan, be it ever so late.

    With deadlines the plan of least makespan comes first, for the bound, and for the case that it is late nowhere; if it
    is, the rest of the budget goes to the plan of least lateness.
    """
    if not floor.hurried:
        return _soonest(floor, method, budget_s, seed)
    free_shop, free, bound = _soonest(floor.without_deadlines(), method, budget_s / 2, seed)
    shop = floor.shop()
    best = carried_over(free_shop, free, shop)
    if best.late_s > 0:
        shop, best, _ = _soonest(floor, method, budget_s / 2, seed, (free_shop, free))
    exact = bound.name == "exact" and best.makespan_s > bound.value_s * (1 + CLOSE)
    return shop, best, replace(bound, name="exact without the deadlines") if exact else bound


def _soonest(
    floor: Floor, method: str, budget_s: float, seed: int, known: tuple[Shop, Found] | None = None
) -> tuple[Shop, Found, Bound]:
    """The best plan of all methods but the slow ones, improved; then a proof, or, where it takes too long, more search.

    The bound holds for every plan; where there are deadlines, the proof is one of least lateness and adds nothing to it.
    """
    bound = bound_of(floor)
    shop = floor.shop()
    moves = int(MOVES_PER_S * budget_s / (len(shop.kind) + 5) / max(1.0, shop.threads / FEW_THREADS))
    pool = pool_of(shop, bound.weights)
    starts = _starts(floor, shop, bound, seed)
    if known is not None:
        starts.append(carried_over(*known, shop))
    best = _improved(shop, best_of(starts), moves // 10, seed, bound, pool)
    if best.late_s == 0 and best.makespan_s <= bound.value_s * (1 + CLOSE):
        return shop, best, bound
    if method != "local-search":
        complete = all(c.complete for c in floor.cuts)
        proof = solve(shop, best, bound.weights, budget_s=budget_s if method == "exact" else budget_s / 2)
        if complete and proof.lower_bound_s > bound.value_s:
            name = "exact" if proof.complete else "search cut short"
            bound = replace(bound, value_s=proof.lower_bound_s, name=name)
        best = replace(proof.plan, method="exact" if complete and proof.complete else proof.plan.method)
        if proof.complete:
            return shop, best, bound
    best = _improved(shop, best, moves // 4, seed + 1, bound, pool)
    return shop, _improved(shop, best, moves // 4, seed + 2, bound, whole_pool(shop)), bound


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
    floor = _floor(problem)
    bound_of(floor)  # its cuts join the candidates
    shop = floor.shop()
    return {name: baseline(shop).makespan_s for name, baseline in BASELINES.items()}
