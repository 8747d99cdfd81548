"""Simulated annealing over orders, in machine code.

A move takes an operation some places later or earlier on its machine. What it passes and what must stay on its side of it
(its successors when it goes later, its predecessors when it goes earlier) goes along, so that every move gives an order again
and every order can be reached.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.solve.random import Words, between, uniform
from partita.spark.plan.shop import Shop


class Walk(NamedTuple):
    """Where annealing stands; the kernel writes into it."""

    order: IntArray  #: [2n]
    best: IntArray  #: [2n] the best order seen
    values: FloatArray  #: [2] of `order` and of `best`


class Lanes(NamedTuple):
    """What each lane of the network, then each of the CPU, does in time."""

    begin: FloatArray  #: [lanes n] of the phases of lane m, from m n on
    finish: FloatArray  #: [lanes n]
    phases: IntArray  #: [lanes] how many
    solid: IntArray  #: [lanes] from this phase on, without a gap
    same: IntArray  #: [lanes] of a trial: so many first phases are as before it


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
    """Go on from `done` to `until` of `quota` units of work (an operation placed on one lane of two is one); returns the work done.

    The temperature falls from `heat_s` to nothing over the quota. Stops at target_s. tail: [n] as `tails` gives it.
    """
    n, lanes = len(shop.net), shop.width.sum()
    order = walk.order
    position = np.empty(2 * n, np.int64)
    start, before = np.zeros(2 * n), np.zeros(2 * n)
    lane, lane_before = np.zeros(2 * n, np.int64), np.zeros(2 * n, np.int64)
    kept = _lanes(n, lanes)
    trial = _lanes(n, lanes)
    counts = np.zeros((2 * n + 1, 2 * lanes), np.int64)  # before a place: phases of each lane, `solid` of each
    marked = np.zeros(2 * n, np.bool_)
    saved, passed, moved = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    jobs_done = np.zeros(len(shop.release))
    _place(shop, tail, order, 0, start, before, lane, lane_before, trial, np.inf)
    _settle(shop, order, 1, start, lane, kept, counts, position)
    trial.same[:] = 0
    begin, finish, kept_begin, kept_finish = trial.begin, trial.finish, kept.begin, kept.finish
    while done < until and walk.values[1] > target_s:
        op = between(random, 0, 2 * n)
        far = 1 + int(reach * uniform(random) ** 3)
        step = 1 if uniform(random) < 0.5 else -1
        low, high = _move(shop, order, position[op], step, far, marked, saved, passed, moved)
        done += max(0, high - low) + 4
        if low > high:
            continue
        cooling = 1.0 - done / quota
        limit = walk.values[0] - heat_s * cooling * cooling * np.log(uniform(random) + 1e-300)
        for m in range(lanes):
            trial.phases[m], trial.solid[m] = counts[low, m], counts[low, lanes + m]
            for k in range(m * n + trial.same[m], m * n + counts[low, m]):
                begin[k], finish[k] = kept_begin[k], kept_finish[k]
            done += max(0, counts[low, m] - trial.same[m]) // 8
            trial.same[m] = counts[low, m]
        last = _place(shop, tail, order, low, start, before, lane, lane_before, trial, np.inf if mean else limit)
        done += (last - low) * lanes // 2
        value = np.inf
        if last == 2 * n:
            value = _value(shop, start, jobs_done, mean)
        if value <= limit:
            low = _settle(shop, order, low, start, lane, kept, counts, position)
            for m in range(lanes):
                trial.same[m] = min(trial.same[m], counts[low, m])
            done += (n - low // 2) * lanes // 2
            walk.values[0] = value
            if value < walk.values[1]:
                walk.values[1] = value
                walk.best[:] = order
        else:
            for k in range(low, last):
                start[order[k]], lane[order[k]] = before[order[k]], lane_before[order[k]]
            order[low : high + 1] = saved[: high + 1 - low]
    return done


@compiled
def _place(
    shop: Shop,
    tail: FloatArray,
    order: IntArray,
    low: int,
    start: FloatArray,
    before: FloatArray,
    lane: IntArray,
    lane_before: IntArray,
    lanes: Lanes,
    limit: float,
) -> int:
    """Place the operations from place `low` of the order on, each in the first gap of its machine that is long enough; what
    their starts and lanes were goes to `before` and `lane_before`. Returns the place where it ended: behind the last one, or
    where the makespan was seen to exceed the limit."""
    n = len(shop.net)
    net, cpu, ready, first, parent = (
        shop.net,
        shop.cpu,
        shop.ready,
        shop.parent_first,
        shop.parent,
    )  # read once: it is dear
    begin, finish, count, solid, same = lanes.begin, lanes.finish, lanes.phases, lanes.solid, lanes.same
    networks, all_lanes = shop.width[0], shop.width[0] + shop.width[1]
    for k in range(low, 2 * n):
        op = order[k]
        if op < n:
            at, length, left, first_lane, end_lane = ready[op], net[op], tail[op], 0, networks
            for e in range(first[op], first[op + 1]):
                at = max(at, start[n + parent[e]] + cpu[parent[e]])
        else:
            at, length, left = start[op - n] + net[op - n], cpu[op - n], tail[op - n] - net[op - n]
            first_lane, end_lane = networks, all_lanes
        if length > 0:  # in the first gap from `at` on; of gaps that begin together, in the one that wastes least
            m, i, soonest, waste = 0, 0, np.inf, np.inf
            for a in range(first_lane, end_lane):
                gap, then = _gap(begin, finish, a * n, a * n + count[a], a * n + solid[a], at, length)
                idle = then - (finish[gap - 1] if gap > a * n else 0.0)
                if then < soonest or (then == soonest and idle < waste):
                    m, i, soonest, waste = a, gap, then, idle
            at, last = soonest, m * n + count[m]
            same[m] = min(same[m], i - m * n)
            if i < last:
                solid[m] += 1
                for j in range(last, i, -1):
                    begin[j], finish[j] = begin[j - 1], finish[j - 1]
            elif i > m * n and at > finish[i - 1]:
                solid[m] = count[m]
            begin[i], finish[i] = at, at + length
            count[m] += 1
            lane_before[op] = lane[op]
            lane[op] = m
        before[op] = start[op]
        start[op] = at
        if (at + left) * (1 - 1e-12) > limit:
            return k + 1
    return 2 * n


@compiled
def _gap(
    begin: FloatArray, finish: FloatArray, first: int, last: int, solid: int, at: float, length: float
) -> tuple[int, float]:
    """(place, start) of a phase in the first gap from `at` on of a lane whose phases are first .. last - 1."""
    i = solid
    if i < last and begin[i] < at + length:  # not before what has no gap
        at, i = max(at, finish[last - 1]), last
    while i > first and finish[i - 1] > at:
        i -= 1
    while i < last and begin[i] < at + length:
        at = max(at, finish[i])
        i += 1
    return i, at


@compiled
def _lanes(n: int, lanes: int) -> Lanes:
    count, solid, same = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    return Lanes(np.empty(lanes * n), np.empty(lanes * n), count, solid, same)


@compiled
def _settle(
    shop: Shop,
    order: IntArray,
    low: int,
    start: FloatArray,
    lane: IntArray,
    kept: Lanes,
    counts: IntArray,
    position: IntArray,
) -> int:
    """Sort the order by start from place `low` on, as is nearly done already, and note what each lane does. Equal ones
    keep their order, so that what is waited for stays before. Returns the first place that changed. O(2n - low + moves)."""
    n, lanes = len(shop.net), len(kept.phases)
    net, cpu, begin, finish = shop.net, shop.cpu, kept.begin, kept.finish
    for k in range(max(1, low), 2 * n):
        op = order[k]
        at, i = start[op], k
        while i > 0 and start[order[i - 1]] > at:
            order[i] = order[i - 1]
            i -= 1
        order[i] = op
        low = min(low, i)
    low = max(0, low - 1)
    for k in range(low, 2 * n):
        op = order[k]
        at = start[op]
        position[op] = k
        for column in range(2 * lanes):
            counts[k + 1, column] = counts[k, column]
        length = net[op] if op < n else cpu[op - n]
        if length > 0:
            m = lane[op]
            phases = counts[k, m]
            i = m * n + phases
            if phases > 0 and at > finish[i - 1]:
                counts[k + 1, lanes + m] = phases
            begin[i], finish[i] = at, at + length
            counts[k + 1, m] = phases + 1
    return low


@compiled
def _value(shop: Shop, start: FloatArray, done: FloatArray, mean: bool) -> float:
    """The makespan, or the mean over jobs of completion minus release."""
    n = len(shop.net)
    job, cpu, release = shop.job, shop.cpu, shop.release
    done[:] = 0.0
    for s in range(n):
        done[job[s]] = max(done[job[s]], start[n + s] + cpu[s])
    if not mean:
        return float(done.max())
    total = 0.0
    for j in range(len(done)):
        total += done[j] - release[j]
    return total / len(done)


@compiled
def _move(
    shop: Shop,
    order: IntArray,
    at: int,
    step: int,
    far: int,
    marked: BoolArray,
    saved: IntArray,
    kept: IntArray,
    moved: IntArray,
) -> tuple[int, int]:
    """Move the operation at place `at` past `far` more of its machine: later (step 1), and what waits for it with it, or
    earlier (step -1), and what it waits for. Returns the places (low, high) that changed, low > high for none; `saved` has
    what stood there."""
    n = len(shop.net)
    later = step > 0
    first, near = (shop.parent_first, shop.parent) if later else (shop.child_first, shop.child)
    other_phase = n if later else 0  # of a stage next to it: it has computed before, or fetches after
    op = order[at]
    left, taken, passed, k = 0, 1, 0, at + step
    moved[0] = op
    marked[op] = True
    while 0 <= k < 2 * n and passed < far and abs(k - at) < 64 * far:
        other = order[k]
        linked = False
        if (other >= n) == later:
            linked = marked[other - step * n]
        else:
            stage = other % n
            for e in range(first[stage], first[stage + 1]):
                linked = linked or marked[other_phase + near[e]]
        if linked:
            marked[other] = True
            moved[taken] = other
            taken += 1
        else:
            kept[left] = other
            left += 1
            passed += (other < n) == (op < n)
        k += step
    for i in range(taken):
        marked[moved[i]] = False
    if passed == 0:
        return 1, 0
    low, high = min(at, k - step), max(at, k - step)
    saved[: high + 1 - low] = order[low : high + 1]
    for i in range(left):
        order[at + step * i] = kept[i]
    for i in range(taken):
        order[at + step * (left + i)] = moved[i]
    return low, high
