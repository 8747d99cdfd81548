"""Local search: the best of many rules, then annealing over orders, within a budget that is counted in work.

The same problem, seed and budget give the same plan as long as the clock does not strike before the work is done.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import IntArray
from partita.solve.random import seeded
from partita.spark.plan.anneal import Walk, anneal
from partita.spark.plan.rules import RULES, more_orders, to_and_fro
from partita.spark.plan.shop import Numbered, tails, timed, value_of

WORK_PER_S = 4e7  #: operations timed in a second of budget: what a slow core does
MOST_WORK = 1 << 50
CHUNKS = 40  #: looks at the clock in a phase
HEATS = (1.0, 0.5, 0.25, 0.5, 0.25, 0.12)  #: of each phase, in operations of mean length
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


def starts(work: Numbered, mean: bool) -> Found:
    """The best order by a rule; with the makespan, improved from the end and from the beginning in turn."""
    plans = [found(work, rule(work), mean, name) for name, rule in RULES.items()]
    plans += [found(work, order, mean, "rules") for order in more_orders(work.shop)]
    best = min(plans, key=lambda p: p.value_s)
    if not mean:
        for plan in sorted(plans, key=lambda p: p.value_s)[:4]:
            plans += [found(work, order, mean, "rules") for order in to_and_fro(work.shop, plan.order, 6)]
        best = min(plans, key=lambda p: p.value_s)
    return best


def improved(
    work: Numbered, start: Found, mean: bool, *, budget_s: float, deadline: float, seed: int, target_s: float
) -> Found:
    """The best order seen by annealing from `start`, in phases that begin with the best one; stops at target_s, and at the
    moment `deadline` of time.monotonic().

    O(budget); an operation timed is the unit of work.
    """
    shop = work.shop
    n = len(shop.net)
    mean_s = float(shop.net.sum() + shop.cpu.sum()) / (2 * n)
    tail, random = tails(shop), seeded(seed & 0x7FFFFFFF)
    best, target = start, target_s * (1 + NEAR)
    quota = int(min(MOST_WORK, WORK_PER_S * budget_s)) // len(HEATS)
    for heat in HEATS:
        walk = Walk(best.order.copy(), best.order.copy(), np.array([best.value_s, best.value_s]))
        heat_s = heat * mean_s / (len(shop.release) if mean else 1)
        done = 0
        for k in range(1, CHUNKS + 1):
            if time.monotonic() > deadline or walk.values[1] <= target:
                break
            reach = max(4, n // 4)
            done = anneal(shop, tail, walk, mean, random, heat_s, reach, done, quota * k // CHUNKS, quota, target)
        if walk.values[1] < best.value_s:
            best = found(work, walk.best, mean, "search")
    return best
