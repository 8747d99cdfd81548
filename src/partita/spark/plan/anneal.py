"""Simulated annealing over orders, in machine code.

A move takes an operation some places later or earlier on its machine. What it passes and what must stay on its side of it
(its successors when it goes later, its predecessors when it goes earlier) goes along, so that every move gives an order again
and every order can be reached.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.solve.random import Words, between, uniform
from partita.spark.plan.shop import Shop


class Walk(NamedTuple):
    """Where annealing stands; the kernel writes into it."""

    order: IntArray  #: [2n]
    best: IntArray  #: [2n] the best order seen
    values: FloatArray  #: [2] of `order` and of `best`


@compiled
def anneal(
    shop: Shop,
    tail: FloatArray,
    walk: Walk,
    mean: bool,
    random: Words,
    heat_s: float,
    reach: int,
    done: int,
    until: int,
    quota: int,
    target_s: float,
) -> int:
    """Go on from `done` to `until` of `quota` units of work (an operation timed is one); returns the work done.

    The temperature falls from `heat_s` to nothing over the quota. Stops at target_s. tail: [n] as `tails` gives it.
    """
    n = len(shop.net)
    order = walk.order
    position = np.empty(2 * n, np.int64)
    end, before = np.zeros(2 * n), np.zeros(2 * n)
    free, trial_free = np.zeros((2 * n + 1, 3)), np.zeros((2 * n + 1, 3))  # network, CPU free; last end, before a place
    marked = np.zeros(2 * n, np.bool_)
    saved, kept, moved = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    jobs_done = np.zeros(len(shop.release))
    for k in range(2 * n):
        position[order[k]] = k
    _retimed(shop, tail, order, 0, end, before, free, np.inf)
    while done < until and walk.values[1] > target_s:
        op = between(random, 0, 2 * n)
        far = 1 + int(reach * uniform(random) ** 3)
        if uniform(random) < 0.5:
            low, high = _later(shop, order, position[op], far, marked, saved, kept, moved)
        else:
            low, high = _earlier(shop, order, position[op], far, marked, saved, kept, moved)
        done += high - low + 4
        if low > high:
            continue
        cooling = 1.0 - done / quota
        limit = walk.values[0] - heat_s * cooling * cooling * np.log(uniform(random) + 1e-300)
        trial_free[low] = free[low]
        last = _retimed(shop, tail, order, low, end, before, trial_free, np.inf if mean else limit)
        done += last - low
        value = np.inf
        if last == 2 * n:
            value = _mean(shop, end, jobs_done) if mean else trial_free[2 * n, 2]
        if value <= limit:
            walk.values[0] = value
            free[low:] = trial_free[low:]
            for k in range(low, high + 1):
                position[order[k]] = k
            if value < walk.values[1]:
                walk.values[1] = value
                walk.best[:] = order
        else:
            for k in range(low, last):
                end[order[k]] = before[order[k]]
            order[low : high + 1] = saved[: high + 1 - low]
    return done


@compiled
def _retimed(
    shop: Shop,
    tail: FloatArray,
    order: IntArray,
    low: int,
    end: FloatArray,
    before: FloatArray,
    free: FloatArray,
    limit: float,
) -> int:
    """Time the operations from place `low` on; what their ends were goes to `before`. Returns the place where it ended: at
    the end, or where the makespan was seen to exceed the limit."""
    n = len(shop.net)
    network, processor, top = free[low]
    for k in range(low, 2 * n):
        op = order[k]
        if op < n:
            at = shop.ready[op]
            for e in range(shop.parent_first[op], shop.parent_first[op + 1]):
                at = max(at, end[n + shop.parent[e]])
            if shop.net[op] > 0:
                at = max(at, network)
                network = at + shop.net[op]
            left = at + tail[op]
            at += shop.net[op]
        else:
            s = op - n
            at = end[s]
            if shop.cpu[s] > 0:
                at = max(at, processor)
                processor = at + shop.cpu[s]
            left = at + tail[s] - shop.net[s]
            at += shop.cpu[s]
            top = max(top, at)
        before[op] = end[op]
        end[op] = at
        free[k + 1, 0], free[k + 1, 1], free[k + 1, 2] = network, processor, top
        if left * (1 - 1e-12) > limit:
            return k + 1
    return 2 * n


@compiled
def _mean(shop: Shop, end: FloatArray, done: FloatArray) -> float:
    """The mean over jobs of completion minus release."""
    n = len(shop.net)
    done[:] = 0.0
    for s in range(n):
        done[shop.job[s]] = max(done[shop.job[s]], end[n + s])
    total = 0.0
    for j in range(len(done)):
        total += done[j] - shop.release[j]
    return total / len(done)


@compiled
def _later(
    shop: Shop,
    order: IntArray,
    at: int,
    far: int,
    marked: npt.NDArray[np.bool_],
    saved: IntArray,
    kept: IntArray,
    moved: IntArray,
) -> tuple[int, int]:
    """Move the operation at place `at` behind `far` more of its machine, and what waits for it with it. Returns the places
    (low, high) that changed, low > high for none; `saved` has what stood there."""
    n = len(shop.net)
    op = order[at]
    left, taken, passed, k = 0, 1, 0, at + 1
    moved[0] = op
    marked[op] = True
    while k < 2 * n and passed < far and k - at < 64 * far:
        other = order[k]
        waits = False
        if other >= n:
            waits = marked[other - n]
        else:
            for e in range(shop.parent_first[other], shop.parent_first[other + 1]):
                waits = waits or marked[n + shop.parent[e]]
        if waits:
            marked[other] = True
            moved[taken] = other
            taken += 1
        else:
            kept[left] = other
            left += 1
            passed += (other < n) == (op < n)
        k += 1
    for i in range(taken):
        marked[moved[i]] = False
    if passed == 0:
        return 1, 0
    saved[: k - at] = order[at:k]
    order[at : at + left] = kept[:left]
    order[at + left : k] = moved[:taken]
    return at, k - 1


@compiled
def _earlier(
    shop: Shop,
    order: IntArray,
    at: int,
    far: int,
    marked: npt.NDArray[np.bool_],
    saved: IntArray,
    kept: IntArray,
    moved: IntArray,
) -> tuple[int, int]:
    """Move the operation at place `at` before `far` more of its machine, and what it waits for with it; see `_later`."""
    n = len(shop.net)
    op = order[at]
    left, taken, passed, k = 0, 1, 0, at - 1
    moved[0] = op
    marked[op] = True
    while k >= 0 and passed < far and at - k < 64 * far:
        other = order[k]
        awaited = False
        if other < n:
            awaited = marked[n + other]
        else:
            for e in range(shop.child_first[other - n], shop.child_first[other - n + 1]):
                awaited = awaited or marked[shop.child[e]]
        if awaited:
            marked[other] = True
            moved[taken] = other
            taken += 1
        else:
            kept[left] = other
            left += 1
            passed += (other < n) == (op < n)
        k -= 1
    for i in range(taken):
        marked[moved[i]] = False
    if passed == 0:
        return 1, 0
    low = k + 1
    saved[: at + 1 - low] = order[low : at + 1]
    for i in range(taken):
        order[low + i] = moved[taken - 1 - i]
    for i in range(left):
        order[low + taken + i] = kept[left - 1 - i]
    return low, at
