"""A placement and an order of the tasks, evaluated as a whole, for objectives that one moved task changes everywhere.

Two of them: the makespan of one sample (`simulate.makespan`), and the largest load where links differ. What a plan claims
is always the simulator's.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.placement.plan.alarm import FlagArray
from partita.placement.plan.upward_rank import by_rank, ready_freely, upward_ranks
from partita.simulate.makespan import MAKESPAN, SUM, Facts, Scratch, makespan, scratch, send, transfer_s
from partita.solve.compiled import compiled
from partita.solve.random import Words, between, seeded, uniform

SWAPS = 0.15  #: of the steps that change devices
MOST_LISTED = 20_000  #: tasks up to which they are listed by rank


def value_of(facts: Facts, where: IntArray, order: IntArray) -> float:
    """The objective in seconds; `where` is [atoms], `order` [tasks] a topological order. O(tasks + readers)."""
    return float(_value(facts, where, order, scratch(facts)))


def listed(facts: Facts, where: IntArray) -> IntArray:
    """[tasks] a topological order for a placement: list scheduling by upward rank.

    Among the tasks that could start first, the one with the longest way to the end goes first, so that no device waits for
    one task while it could run another. O(tasks x ready tasks + readers); graphs of more than MOST_LISTED tasks keep the
    graph's order.
    """
    return _listed(facts, where) if len(facts.topological) <= MOST_LISTED else facts.topological.copy()


def earliest_finish(facts: Facts) -> IntArray:
    """[atoms] by descending mean upward rank, every atom where its first task ends first (Topcuoglu et al., HEFT, IEEE
    TPDS 13(3), 2002), links taken to be free; memory respected where possible."""
    return _earliest_finish(facts, _by_mean_rank(facts))


def annealed(
    facts: Facts, where: IntArray, order: IntArray, by_place: IntArray, units: float, seed: int, hot: float, stop: FlagArray
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """([atoms], [tasks]) the best placement and order met from these; never worse. Deterministic for a seed unless stopped.

    A step moves an atom, or a stretch of the atoms of `by_place` that are on one device, to another device, or swaps two
    atoms, which full devices allow where they take no atom more; for the makespan, half the steps move a task past others
    of its device instead. `units` bounds the tasks and tensors looked at.
    """
    return _anneal(facts, where, order, by_place, int(units), seed & 0x7FFFFFFF, hot, stop)


@compiled
def _value(f: Facts, where: IntArray, order: IntArray, s: Scratch) -> float:
    return makespan(f, where, order, s) if f.objective == MAKESPAN else _largest_load(f, where)


@compiled
def _largest_load(f: Facts, where: IntArray) -> float:
    devices = len(f.class_of)
    compute, inward, outward = np.zeros(devices), np.zeros(devices), np.zeros(devices)
    for i in range(len(f.topological)):
        d = where[f.atom_of[i]]
        compute[d] += f.seconds[i, f.class_of[d]]
    met = np.full(devices, -1, np.int64)
    for k in range(len(f.producer)):
        p = where[f.atom_of[f.producer[k]]]
        slowest = 0.0
        for e in range(f.reader_start[k], f.reader_start[k + 1]):
            d = where[f.atom_of[f.reader[e]]]
            if d != p and met[d] != k:
                met[d] = k
                busy = transfer_s(f, k, p, d)
                inward[d] += busy
                slowest = max(slowest, busy)
        outward[p] += slowest
    worst = 0.0
    for d in range(devices):
        load = compute[d]
        if f.pays[d]:
            load = load + inward[d] + outward[d] if f.objective == SUM else max(load, inward[d], outward[d])
        worst = max(worst, load)
    return worst


@compiled
def _ranks(f: Facts, where: IntArray) -> FloatArray:
    """[tasks] seconds from a task's start to the end of the longest way from it, messages included."""
    rank = np.zeros(len(f.topological))
    for i in f.topological[::-1]:
        p = where[f.atom_of[i]]
        way = 0.0
        for m in range(f.made_start[i], f.made_start[i + 1]):
            k = f.made[m]
            for e in range(f.reader_start[k], f.reader_start[k + 1]):
                v = f.reader[e]
                d = where[f.atom_of[v]]
                sent = 0.0 if d == p else transfer_s(f, k, p, d) + f.latency[p, d] + f.message[p, d]
                way = max(way, sent + rank[v])
        rank[i] = f.seconds[i, f.class_of[p]] + way
    return rank


@compiled
def _listed(f: Facts, where: IntArray) -> IntArray:
    n = len(f.topological)
    rank = _ranks(f, where)
    place = np.empty(n, np.int64)  # by rank: in which order a task's messages go
    by_rank = np.argsort(-rank)
    for x in range(n):
        place[by_rank[x]] = x
    waiting = np.zeros(n, np.int64)
    ready_at = np.zeros(n)
    ready = np.empty(n, np.int64)
    count = 0
    for i in f.topological:
        waiting[i] = f.incoming_start[i + 1] - f.incoming_start[i]
        if waiting[i] == 0:
            ready[count] = i
            count += 1
    s = Scratch(np.full((len(f.producer), len(f.class_of)), -1.0), np.zeros(n), place)
    free, link_free = np.zeros(len(f.class_of)), np.zeros(f.queues)
    order = np.empty(n, np.int64)
    for x in range(n):
        best, start = -1, np.inf
        for y in range(count):
            at = max(ready_at[ready[y]], free[where[f.atom_of[ready[y]]]])
            if best < 0 or at < start or (at == start and rank[ready[y]] > rank[ready[best]]):
                best, start = y, at
        i = ready[best]
        count -= 1
        ready[best] = ready[count]
        order[x] = i
        p = where[f.atom_of[i]]
        free[p] = start + f.seconds[i, f.class_of[p]]
        s.done[i] = free[p]
        send(f, where, i, p, s, link_free, place)
        for m in range(f.made_start[i], f.made_start[i + 1]):
            k = f.made[m]
            for e in range(f.reader_start[k], f.reader_start[k + 1]):
                v = f.reader[e]
                d = where[f.atom_of[v]]
                came = free[p] if d == p else s.arrives[k, d] + f.message[p, d]
                ready_at[v] = max(ready_at[v], came)
                waiting[v] -= 1
                if waiting[v] == 0:
                    ready[count] = v
                    count += 1
    return order


def _by_mean_rank(f: Facts) -> IntArray:
    """[tasks] a topological order by descending upward rank, times and links taken at their mean."""
    sent = np.where(np.isnan(f.given), f.size * (1.0 / f.rate).mean(), f.given)
    return by_rank(f, upward_ranks(f, _mean_s(f), sent))


@compiled
def _mean_s(f: Facts) -> FloatArray:
    """[tasks] the mean over the devices that can run it; 0 where none can."""
    n, classes = f.seconds.shape
    share = np.zeros(classes)
    for c in f.class_of:
        share[c] += 1.0
    mean = np.zeros(n)
    for i in range(n):
        total, able = 0.0, 0.0
        for c in range(classes):
            if np.isfinite(f.seconds[i, c]):
                total += share[c] * f.seconds[i, c]
                able += share[c]
        mean[i] = total / able if able > 0.0 else 0.0
    return mean


@compiled
def _earliest_finish(f: Facts, order: IntArray) -> IntArray:
    devices = len(f.class_of)
    where = np.full(len(f.held), -1, np.int64)
    free, left, end = np.zeros(devices), f.room.copy(), np.zeros(devices)
    done = np.zeros(len(order))
    for i in order:
        a = f.atom_of[i]
        best = where[a]
        for d in range(devices):
            end[d] = max(free[d], ready_freely(f, where, done, i, d)) + f.seconds[i, f.class_of[d]]
        if best < 0:
            for d in range(devices):
                fits = np.isfinite(end[d]) and f.held[a] <= left[d]
                if fits and (best < 0 or end[d] < end[best]):
                    best = d
            if best < 0:
                best = int(np.argmin(end))
            where[a] = best
            left[best] -= f.held[a]
        free[best] = end[best]
        done[i] = end[best]
    return where


@compiled
def _shifted(order: IntArray, x: int, y: int) -> None:
    """The task at position x goes to position y; those between close up."""
    i = order[x]
    step = 1 if y > x else -1
    for z in range(x, y, step):
        order[z] = order[z + step]
    order[y] = i


@compiled
def _reordered(f: Facts, where: IntArray, order: IntArray, place: IntArray, random: Words) -> tuple[int, int]:
    """(position, another one) between which a task may move past another of its device; equal where it may not."""
    x = between(random, 0, len(order))
    i = order[x]
    low, high = 0, len(order) - 1
    for e in range(f.incoming_start[i], f.incoming_start[i + 1]):
        low = max(low, place[f.producer[f.incoming[e]]] + 1)
    for m in range(f.made_start[i], f.made_start[i + 1]):
        k = f.made[m]
        for e in range(f.reader_start[k], f.reader_start[k + 1]):
            high = min(high, place[f.reader[e]] - 1)
    d = where[f.atom_of[i]]
    past, y = between(random, 1, 4), x
    step, end = (-1, low) if uniform(random) < 0.5 else (1, high)
    z = x
    while z != end and past > 0:
        z += step
        if where[f.atom_of[order[z]]] == d:
            y = z
            past -= 1
    return x, y


@compiled
def _chosen(
    f: Facts, where: IntArray, runs: BoolArray, left: FloatArray, by_place: IntArray, moved: IntArray, random: Words
) -> tuple[int, int, float]:
    """(how many atoms of `moved` go, to which device, their bytes); 0 atoms where the device does not take them."""
    n, devices = len(where), len(f.class_of)
    first = between(random, 0, n)
    p = where[by_place[first]]
    q = where[by_place[max(0, first - 1)]] if uniform(random) < 0.3 else between(random, 0, devices)
    if q == p:
        q = (p + 1 + between(random, 0, devices - 1)) % devices
    span = 1 if uniform(random) < 0.5 else 1 + int(n ** uniform(random))
    k, need, allowed = 0, 0.0, True
    for x in range(first, min(n, first + span)):
        a = by_place[x]
        if where[a] == p:
            moved[k] = a
            k += 1
            need += f.held[a]
            allowed = allowed and runs[a, f.class_of[q]]
    return (k if allowed and need <= left[q] else 0), q, need


@compiled
def _swapped(
    f: Facts, where: IntArray, runs: BoolArray, left: FloatArray, moved: IntArray, random: Words
) -> tuple[int, int, float]:
    """(how many atoms change places, the device of the second, bytes that it gets more); `moved` holds the two; 0 where
    they may not."""
    a, b = between(random, 0, len(where)), between(random, 0, len(where))
    p, q = where[a], where[b]
    need = f.held[a] - f.held[b]
    moved[0], moved[1] = a, b
    allowed = p != q and need <= left[q] and -need <= left[p] and runs[a, f.class_of[q]] and runs[b, f.class_of[p]]
    return (2 if allowed else 0), q, need


@compiled
def _anneal(
    f: Facts, base: IntArray, base_order: IntArray, by_place: IntArray, units: int, seed: int, hot: float, stop: FlagArray
) -> tuple[IntArray, IntArray]:  # fmt: skip
    random = seeded(seed)
    n, devices, tasks = len(base), len(f.class_of), len(base_order)
    where, order = base.copy(), base_order.copy()
    best_where, best_order = base.copy(), base_order.copy()
    runs = np.ones((n, f.seconds.shape[1]), np.bool_)
    for i in range(tasks):
        for c in range(f.seconds.shape[1]):
            runs[f.atom_of[i], c] = runs[f.atom_of[i], c] and np.isfinite(f.seconds[i, c])
    left = f.room.copy()
    for a in range(n):
        left[where[a]] -= f.held[a]
    s = Scratch(np.full((len(f.producer), devices), -1.0), np.zeros(tasks), np.zeros(tasks, np.int64))
    for x in range(tasks):
        s.place[order[x]] = x
    now = _value(f, where, order, s)
    best = now
    moved = np.empty(n, np.int64)
    cost = tasks + 2 * len(f.incoming) + 100
    spent = 0
    while spent < units and stop[0] == 0 and devices > 1 and best > 0:
        share = spent / (0.9 * units)
        heat = hot * 1e-3**share if share < 1.0 else 0.0
        spent += 20
        x, y, k, p, q, need, swap = 0, 0, 0, 0, 0, 0.0, False
        if f.objective == MAKESPAN and uniform(random) < 0.5:
            x, y = _reordered(f, where, order, s.place, random)
            if x == y:
                continue
            _shifted(order, x, y)
        else:
            swap = uniform(random) < SWAPS
            if swap:
                k, q, need = _swapped(f, where, runs, left, moved, random)
            else:
                k, q, need = _chosen(f, where, runs, left, by_place, moved, random)
            if k == 0:
                continue
            p = where[moved[0]]
            for z in range(k):
                where[moved[z]] = q
            if swap:
                where[moved[1]] = p
        then = _value(f, where, order, s)
        spent += cost + k
        change = (then - now) / best
        if change <= 0.0 or (heat > 0.0 and uniform(random) < np.exp(-change / heat)):
            now = then
            left[p] += need
            left[q] -= need
            if now < best:
                best = now
                best_where[:] = where
                best_order[:] = order
        else:
            for z in range(k):
                where[moved[z]] = p
            if swap:
                where[moved[1]] = q
            if x != y:
                _shifted(order, y, x)
                for z in range(min(x, y), max(x, y) + 1):
                    s.place[order[z]] = z
    return best_where, best_order
