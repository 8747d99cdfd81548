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


class Machines(NamedTuple):
    """What each machine does, in time."""

    begin: FloatArray  #: [2n] of the phases on the network, then, from n on, of those on the CPU
    finish: FloatArray  #: [2n]
    phases: IntArray  #: [2] how many
    solid: IntArray  #: [2] from this phase on, without a gap
    same: IntArray  #: [2] of a trial: so many first phases are as before it


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
    """Go on from `done` to `until` of `quota` units of work (an operation placed is one); returns the work done.

    The temperature falls from `heat_s` to nothing over the quota. Stops at target_s. tail: [n] as `tails` gives it.
    """
    n = len(shop.net)
    order = walk.order
    position = np.empty(2 * n, np.int64)
    start, before = np.zeros(2 * n), np.zeros(2 * n)
    kept = _machines(n)
    trial = _machines(n)
    counts = np.zeros((2 * n + 1, 4), np.int64)  # before a place: phases of each machine, `solid` of each
    marked = np.zeros(2 * n, np.bool_)
    saved, passed, moved = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    jobs_done = np.zeros(len(shop.release))
    _place(shop, tail, order, 0, start, before, trial, np.inf)
    _settle(shop, order, 1, start, kept, counts, position)
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
        for m in range(2):
            trial.phases[m], trial.solid[m] = counts[low, m], counts[low, 2 + m]
            for k in range(m * n + trial.same[m], m * n + counts[low, m]):
                begin[k], finish[k] = kept_begin[k], kept_finish[k]
            done += max(0, counts[low, m] - trial.same[m]) // 8
            trial.same[m] = counts[low, m]
        last = _place(shop, tail, order, low, start, before, trial, np.inf if mean else limit)
        done += last - low
        value = np.inf
        if last == 2 * n:
            value = _value(shop, start, jobs_done, mean)
        if value <= limit:
            low = _settle(shop, order, low, start, kept, counts, position)
            for m in range(2):
                trial.same[m] = min(trial.same[m], counts[low, m])
            done += n - low // 2
            walk.values[0] = value
            if value < walk.values[1]:
                walk.values[1] = value
                walk.best[:] = order
        else:
            for k in range(low, last):
                start[order[k]] = before[order[k]]
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
    machines: Machines,
    limit: float,
) -> int:
    """Place the operations from place `low` of the order on, each in the first gap of its machine that is long enough; what
    their starts were goes to `before`. Returns the place where it ended: behind the last one, or where the makespan was
    seen to exceed the limit."""
    n = len(shop.net)
    net, cpu, ready, first, parent = (
        shop.net,
        shop.cpu,
        shop.ready,
        shop.parent_first,
        shop.parent,
    )  # read once: it is dear
    begin, finish, count = machines.begin, machines.finish, machines.phases
    solid, same = machines.solid, machines.same
    for k in range(low, 2 * n):
        op = order[k]
        if op < n:
            at, length, left, m = ready[op], net[op], tail[op], 0
            for e in range(first[op], first[op + 1]):
                at = max(at, start[n + parent[e]] + cpu[parent[e]])
        else:
            at, length, left, m = start[op - n] + net[op - n], cpu[op - n], tail[op - n] - net[op - n], 1
        if length > 0:  # in the first gap from `at` on
            last = m * n + count[m]
            i = m * n + solid[m]
            if i < last and begin[i] < at + length:  # not before what has no gap
                at, i = max(at, finish[last - 1]), last
            while i > m * n and finish[i - 1] > at:
                i -= 1
            while i < last and begin[i] < at + length:
                at = max(at, finish[i])
                i += 1
            same[m] = min(same[m], i - m * n)
            if i < last:
                solid[m] += 1
                for j in range(last, i, -1):
                    begin[j], finish[j] = begin[j - 1], finish[j - 1]
            elif i > m * n and at > finish[i - 1]:
                solid[m] = count[m]
            begin[i], finish[i] = at, at + length
            count[m] += 1
        before[op] = start[op]
        start[op] = at
        if (at + left) * (1 - 1e-12) > limit:
            return k + 1
    return 2 * n


@compiled
def _machines(n: int) -> Machines:
    count, solid, same = np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64)
    return Machines(np.empty(2 * n), np.empty(2 * n), count, solid, same)


@compiled
def _settle(
    shop: Shop, order: IntArray, low: int, start: FloatArray, kept: Machines, counts: IntArray, position: IntArray
) -> int:
    """Sort the order by start from place `low` on, as is nearly done already, and note what each machine does. Equal ones
    keep their order, so that what is waited for stays before. Returns the first place that changed. O(2n - low + moves)."""
    n = len(shop.net)
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
    network, processor, solid_network, solid_processor = counts[low]
    for k in range(low, 2 * n):
        op = order[k]
        at = start[op]
        position[op] = k
        counts[k, 0], counts[k, 1], counts[k, 2], counts[k, 3] = network, processor, solid_network, solid_processor
        if op < n and net[op] > 0:
            if network > 0 and at > finish[network - 1]:
                solid_network = network
            begin[network], finish[network] = at, at + net[op]
            network += 1
        if op >= n and cpu[op - n] > 0:
            if processor > 0 and at > finish[n + processor - 1]:
                solid_processor = processor
            begin[n + processor], finish[n + processor] = at, at + cpu[op - n]
            processor += 1
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
    marked: npt.NDArray[np.bool_],
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
