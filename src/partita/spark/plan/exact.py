"""Exact orders by constraint programming (OR-tools CP-SAT): an interval for each phase, no more at once on a machine than it has lanes.

Times become whole numbers, rounded down, so that the program's bound holds for the problem as it is: every schedule is one
of the program's, no later. The value is that of the order with the times as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import MissingDependency
from partita.nouns.graph import IntArray
from partita.solve import constraint_solver
from partita.spark.plan.search import Found, found
from partita.spark.plan.shop import Numbered, Shop, completions, order_of, timed

GRAIN = float(1 << 48)  #: units that the horizon is divided into, by the jobs
MOST_PAIRED = 120  #: with more stages, pairs get no literals: they would be too many


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the solver found within its limits."""

    best: Found
    bound_s: float  #: no schedule has a smaller value
    complete: bool  #: the search ended: the bound is the least value, but for rounding


def solve(work: Numbered, start: Found, mean: bool, *, limit_s: float, seed: int, bound_s: float) -> Outcome:
    """A schedule no worse than `start`, and a bound. Deterministic unless the clock strikes first.

    bound_s: a bound that is known. Raises MissingDependency without OR-tools.
    """
    if not constraint_solver.available():
        raise MissingDependency("the exact method needs OR-tools", hint="pip install 'partita[planner]'")
    from ortools.sat.python import cp_model

    shop = work.shop
    n, jobs = len(shop.net), len(shop.release)
    start_s = timed(shop, start.order)
    base = float(shop.release.min())
    end_s = completions(shop, start_s) - base
    late = shop.release - base
    horizon_s = float(end_s.max())
    if mean:  # no job of a better schedule ends later, nor one that has no needless wait
        horizon_s = float(late.max() + min((end_s - late).sum(), shop.net.sum() + shop.cpu.sum()))
    if horizon_s <= 0 or limit_s <= 0:
        return Outcome(start, bound_s, start.value_s <= bound_s)
    grain = GRAIN / jobs
    scale = grain / horizon_s
    whole = _whole(shop, base, scale)
    times = timed(whole, start.order).astype(np.int64)
    program, begin, ended = _program(cp_model, whole, times, int(grain) + 1)
    slack = 2 * n + jobs + 1  # what rounding down takes of any end, at most
    if mean:
        total = sum(ended)
        least = (bound_s + float(shop.release.mean()) - base) * scale * jobs * (1 - 1e-9) - slack * jobs
    else:
        total = program.new_int_var(0, int(grain) + 1, "")
        program.add_max_equality(total, ended)
        least = (bound_s - base) * scale * (1 - 1e-9) - slack
    program.add(total >= max(0, math.floor(least)))
    program.minimize(total)
    solver, status = constraint_solver.solved(program, seed=seed, limit_s=limit_s)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Outcome(start, bound_s, False)
    order = order_of(shop, np.array([solver.value(v) for v in begin], np.float64))
    better = found(work, order, mean, "exact")
    proved = float(solver.best_objective_bound) / scale
    proved = proved / jobs + base - float(shop.release.mean()) if mean else proved + base
    complete = bool(status == cp_model.OPTIMAL)
    best = better if better.value_s < start.value_s else start
    return Outcome(best, max(bound_s, proved), complete)


def _whole(shop: Shop, base: float, scale: float) -> Shop:
    """The shop in whole units, rounded down, its first release at 0."""

    def units(times: Any) -> Any:
        return np.floor(times * scale)

    return shop._replace(net=units(shop.net), cpu=units(shop.cpu), ready=units(shop.ready - base), release=units(shop.release - base))  # fmt: skip


def _program(cp_model: Any, shop: Shop, hint: IntArray, horizon: int) -> tuple[Any, list[Any], list[Any]]:
    """(the program, [2n] starts of the operations, [jobs] ends of the jobs).

    Two phases of a machine with one lane that nothing else orders get a literal for who is first: with these the solver proves in
    milliseconds what it does not prove in seconds by intervals alone.
    """
    program, n = cp_model.CpModel(), len(shop.net)
    length = np.concatenate([shop.net, shop.cpu]).astype(np.int64).tolist()
    ready = shop.ready.astype(np.int64).tolist()
    begin = [program.new_int_var(ready[k % n], horizon, "") for k in range(2 * n)]
    for k, at in enumerate(hint.tolist()):
        program.add_hint(begin[k], at)
    alone = (shop.width == 1).tolist()  # a machine that does one phase at a time
    for m, machine in enumerate((range(n), range(n, 2 * n))):
        busy = [program.new_fixed_size_interval_var(begin[k], length[k], "") for k in machine if length[k] > 0]
        if alone[m]:
            program.add_no_overlap(busy)
        else:
            program.add_cumulative(busy, [1] * len(busy), int(shop.width[m]))
    for a, b in _unordered(shop) if n <= MOST_PAIRED else ():
        for i, j in ((a, b), (n + a, n + b)):
            if length[i] > 0 and length[j] > 0 and alone[i >= n]:
                first = program.new_bool_var("")
                program.add(begin[j] >= begin[i] + length[i]).only_enforce_if(first)
                program.add(begin[i] >= begin[j] + length[j]).only_enforce_if(first.negated())
                program.add_hint(first, bool(hint[i] < hint[j]))
    done = [program.new_int_var(0, horizon, "") for _ in shop.release]
    for s in range(n):
        program.add(begin[n + s] >= begin[s] + length[s])
        for p in shop.parent[shop.parent_first[s] : shop.parent_first[s + 1]].tolist():
            program.add(begin[s] >= begin[n + p] + length[n + p])
        if shop.child_first[s] == shop.child_first[s + 1]:
            program.add(done[int(shop.job[s])] >= begin[n + s] + length[n + s])
    return program, begin, done


def _unordered(shop: Shop) -> list[tuple[int, int]]:
    """Pairs of stages neither of which is an ancestor of the other. O(n (n + edges))."""
    n = len(shop.net)
    before = np.zeros((n, n), np.bool_)  # [stage, ancestor]
    for s in range(n):
        for p in shop.parent[shop.parent_first[s] : shop.parent_first[s + 1]]:
            before[s] |= before[p]
            before[s, p] = True
    return [(a, b) for b in range(n) for a in range(b) if not before[b, a]]
