"""Local search: the best of many rules, then annealing over orders, within a budget that is counted in work.

The same problem, seed and budget give the same plan as long as the clock does not strike before the work is done.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import IntArray
from partita.solve.compiled import heard
from partita.solve.random import seeded
from partita.spark.plan.anneal import Walk, anneal
from partita.spark.plan.dispatch import dispatched, ranks
from partita.spark.plan.rules import RULES, more_orders, to_and_fro
from partita.spark.plan.shop import Numbered, completions, tails, timed, value_of

WORK_PER_S = 1.2e7  #: operations placed in a second of budget: what a slow core does
MOST_WORK = 1 << 50
CHUNKS = 20  #: looks at the clock in a phase
ROUNDS = 3
HEATS = (0.5, 0.25, 0.12, 0.06)  #: of each phase of a round, in operations of mean length
REACH = 0.8  #: of a move at most, in stages
EXCHANGES = 120  #: of two jobs, at most,
MOST_STAGES = 200_000  #: and so many stages put into order by them
MOST_CELLS = 5_000_000  #: stages x lanes that are annealed
NEAR = 1e-12  #: a value so close to the bound is the bound


@dataclass(frozen=True, eq=False)
class Found:
    """An order and its value."""

    order: IntArray  #: [2n]
    value_s: float
    method: str


def found(work: Numbered, order: IntArray, mean: bool, method: str) -> Found:
    """The order with its value. O(n + edges)."""
    return Found(order, value_of(work.shop, timed(work.shop, order), mean), method)


def starts(work: Numbered, mean: bool) -> list[Found]:
    """Orders by rules, the best first, no two of one value; improved from the end and from the beginning in turn (makespan)
    or by exchanging jobs (mean completion)."""
    plans = [found(work, rule(work), mean, name) for name, rule in RULES.items()]
    plans += [found(work, order, mean, "rules") for order in more_orders(work.shop)]
    plans.sort(key=lambda p: p.value_s)
    if mean:
        plans += [q for p in plans[:2] for q in exchanged(work, p)]
    else:
        plans += [found(work, o, mean, "rules") for p in plans[:4] for o in to_and_fro(work.shop, p.order, 6)]
    first: dict[float, Found] = {}
    for plan in sorted(plans, key=lambda p: p.value_s):
        first.setdefault(plan.value_s, plan)
    return list(first.values())


def exchanged(work: Numbered, start: Found) -> list[Found]:
    """Plans that serve the jobs one after the other where they compete: in the order in which `start` ends them, and with
    two of them exchanged as long as that helps."""
    shop = work.shop
    tail, jobs = tails(shop), len(shop.release)

    def plan(order: IntArray) -> Found:
        place = np.empty(jobs, np.int64)
        place[order] = np.arange(jobs)
        rank = ranks(place[shop.job], -tail)
        return found(work, dispatched(shop, rank, rank, False), True, "rules")

    order = np.argsort(completions(shop, timed(shop, start.order)), kind="stable")
    most = min(EXCHANGES, MOST_STAGES // len(shop.net))
    plans, left, moved = [plan(order)], most, True
    best = plans[0].value_s
    while moved and left > 0:
        moved = False
        for i in range(jobs):
            for j in range(i + 1, min(jobs, i + 1 + max(1, most // (2 * jobs)))):
                if left == 0:
                    break
                order[i], order[j] = order[j], order[i]
                plans.append(plan(order))
                left -= 1
                if plans[-1].value_s < best:
                    best, moved = plans[-1].value_s, True
                else:
                    order[i], order[j] = order[j], order[i]
    return plans


def improved(
    work: Numbered, begin: list[Found], mean: bool, *, budget_s: float, deadline: float, seed: int, target_s: float
) -> Found:
    """The best order seen by annealing: from the first plans of `begin`, one after the other, then from the best one, each
    time in phases that go on from the phase before; stops at target_s, and at the moment `deadline` of time.monotonic().

    O(budget); an operation placed is the unit of work.
    """
    shop = work.shop
    n = len(shop.net)
    mean_s = float(shop.net.sum() + shop.cpu.sum()) / (2 * n)
    tail, random = tails(shop), seeded(seed & 0x7FFFFFFF)
    best, target, reach = begin[0], target_s * (1 + NEAR), max(4, int(n * REACH))
    if n * int(shop.width.sum()) > MOST_CELLS:
        return best
    quota = int(min(MOST_WORK, WORK_PER_S * budget_s)) // (ROUNDS * len(HEATS))
    for turn in range(ROUNDS):
        here = begin[min(turn, len(begin) - 1)] if turn < ROUNDS - 1 else best
        for heat in HEATS:
            walk = Walk(here.order.copy(), here.order.copy(), np.array([here.value_s, here.value_s]))
            heat_s = heat * mean_s / (len(shop.release) if mean else 1)
            done = 0
            for k in range(1, CHUNKS + 1):
                if time.monotonic() > deadline or min(walk.values[1], best.value_s) <= target:
                    break
                done = heard(
                    anneal, shop, tail, walk, mean, random, heat_s, reach, done, quota * k // CHUNKS, quota, target
                )
            if walk.values[1] < here.value_s:
                here = found(work, walk.best, mean, "search")
        best = min(best, here, key=lambda p: p.value_s)
    return best
