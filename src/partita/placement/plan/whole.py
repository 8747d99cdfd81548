"""A placement and an order of the tasks, evaluated as a whole, for objectives that one moved task changes everywhere.

Two of them: the makespan of one sample, and the largest load where links differ. The makespan is the simulator's for the
program that the placement is lowered to (see `lower_placement`): every device runs its tasks in the order, a tensor is
sent when it is made, once to each device that reads it, a link serves its transfers in order. `Facts` and `value` say the
same in one pass over the tasks, some hundred times faster than lowering. (Where a link is shared, fairly or by several
devices, the pass is an estimate; what a plan claims is always the simulator's.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.plan.alarm import FlagArray
from partita.placement.plan.load import Bools, LoadModel
from partita.solve.compiled import compiled
from partita.solve.random import Words, between, seeded, uniform

MAKESPAN, SUM, OVERLAP = 0, 1, 2  #: objectives
MOST_LISTED = 20_000  #: tasks up to which they are listed by rank


class Facts(NamedTuple):
    """All that the objective of a placement depends on."""

    objective: int
    topological: IntArray  #: [tasks]
    atom_of: IntArray  #: [tasks]
    incoming_start: IntArray  #: [tasks + 1]
    incoming: IntArray  #: tensors a task reads, ascending
    made_start: IntArray  #: [tasks + 1]
    made: IntArray  #: tensors a task makes
    reader_start: IntArray  #: [tensors + 1]
    reader: IntArray  #: tasks that read a tensor
    producer: IntArray  #: [tensors]
    seconds: FloatArray  #: [tasks, classes]
    class_of: IntArray  #: [devices]
    pays: Bools  #: [devices]
    given: FloatArray  #: [tensors] seconds a transfer takes, nan where the link decides
    size: FloatArray  #: [tensors] bytes
    rate: FloatArray  #: [devices, devices]
    latency: FloatArray  #: [devices, devices]
    message: FloatArray  #: [devices, devices] seconds of the receiving device
    queue: IntArray  #: [devices, devices] what transfers wait for
    queues: int
    held: FloatArray  #: [atoms] bytes
    room: FloatArray  #: [devices] bytes


class Scratch(NamedTuple):
    """Where a pass keeps its notes; `arrives` is -1 everywhere before and after."""

    arrives: FloatArray  #: [tensors, devices]
    done: FloatArray  #: [tasks]
    place: IntArray  #: [tasks] position in the order


def facts_of(problem: PlacementProblem, model: LoadModel, objective: str) -> Facts:
    """The facts of a problem for "latency" or "throughput". O(tasks + readers + devices^2)."""
    graph, cluster = problem.graph, problem.cluster
    n = len(cluster.devices)
    tensor = np.repeat(np.arange(len(graph.producer)), np.diff(graph.readers.start))
    by_reader = np.lexsort((tensor, graph.readers.items))
    incoming_start = np.zeros(len(graph) + 1, np.int64)
    incoming_start[1:] = np.cumsum(np.bincount(graph.readers.items, minlength=len(graph)))
    links = [[cluster.link(a.name, b.name) for b in cluster.devices] for a in cluster.devices]
    queues: dict[str, int] = {}
    per_class = [cluster.devices[int(np.flatnonzero(model.class_of == c)[0])] for c in range(model.work_s.shape[1])]
    seconds = np.stack([problem.costs.seconds[:, problem.costs.column(d.kind)] / d.speed for d in per_class], axis=1)
    return Facts(
        MAKESPAN if objective == "latency" else SUM if problem.rule == "sum" else OVERLAP,
        graph.order, model.atom_of, incoming_start, tensor[by_reader].astype(np.int64),
        graph.tensors_of.start, graph.tensors_of.items, graph.readers.start, graph.readers.items, graph.producer,
        seconds, model.class_of, model.pays, problem.costs.transfer_s, graph.size_bytes,
        np.array([[k.rate_bytes_per_s for k in row] for row in links]),
        np.array([[k.latency_s for k in row] for row in links]),
        np.array([[k.message_s for k in row] for row in links]),
        np.array([[queues.setdefault(k.queue, len(queues)) for k in row] for row in links], np.int64).reshape(n, n),
        len(queues), model.memory_bytes, np.where(np.isfinite(model.room_bytes), model.room_bytes, 1e300),
    )  # fmt: skip


def value_of(facts: Facts, where: IntArray, order: IntArray) -> float:
    """The objective in seconds; `where` is [atoms], `order` [tasks] a topological order. O(tasks + readers)."""
    return float(_value(facts, where, order, _scratch(facts)))


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

    A step moves an atom, or a stretch of the atoms of `by_place` that are on one device, to another device; for the
    makespan, half the steps move a task past others of its device instead. `units` bounds the tasks and tensors looked at.
    """
    return _anneal(facts, where, order, by_place, int(units), seed & 0x7FFFFFFF, hot, stop)


def _scratch(facts: Facts) -> Scratch:
    tensors, tasks = len(facts.producer), len(facts.topological)
    return Scratch(np.full((tensors, len(facts.class_of)), -1.0), np.zeros(tasks), np.zeros(tasks, np.int64))


@compiled
def _value(f: Facts, where: IntArray, order: IntArray, s: Scratch) -> float:
    return _makespan(f, where, order, s) if f.objective == 0 else _largest_load(f, where)


@compiled
def _transfer(f: Facts, k: int, p: int, d: int) -> float:
    """Seconds that tensor k occupies the link from device p to device d."""
    return float(f.size[k] / f.rate[p, d]) if np.isnan(f.given[k]) else float(f.given[k])


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
                busy = _transfer(f, k, p, d)
                inward[d] += busy
                slowest = max(slowest, busy)
        outward[p] += slowest
    worst = 0.0
    for d in range(devices):
        load = compute[d]
        if f.pays[d]:
            load = load + inward[d] + outward[d] if f.objective == 1 else max(load, inward[d], outward[d])
        worst = max(worst, load)
    return worst


@compiled
def _makespan(f: Facts, where: IntArray, order: IntArray, s: Scratch) -> float:
    free, link_free = np.zeros(len(f.class_of)), np.zeros(f.queues)
    for x in range(len(order)):
        s.place[order[x]] = x
    last = 0.0
    for i in order:
        d = where[f.atom_of[i]]
        at = free[d]
        for e in range(f.incoming_start[i], f.incoming_start[i + 1]):
            k = f.incoming[e]
            if s.arrives[k, d] >= 0.0:  # the first of the device's tasks that reads it
                at = max(at, s.arrives[k, d]) + f.message[where[f.atom_of[f.producer[k]]], d]
                s.arrives[k, d] = -1.0
        free[d] = at + f.seconds[i, f.class_of[d]]
        s.done[i] = free[d]
        last = max(last, free[d])
        _send(f, where, i, d, s, link_free, s.place)
    return last


@compiled
def _send(f: Facts, where: IntArray, i: int, p: int, s: Scratch, link_free: FloatArray, place: IntArray) -> None:
    """Task i has ended on device p: what it made goes to the devices that read it, first read first."""
    while True:  # a task sends few messages: the next one is looked for each time
        best_k, best_d, best_place = -1, -1, len(place)
        for m in range(f.made_start[i], f.made_start[i + 1]):
            k = f.made[m]
            for e in range(f.reader_start[k], f.reader_start[k + 1]):
                v = f.reader[e]
                d = where[f.atom_of[v]]
                if (
                    d != p
                    and s.arrives[k, d] < 0.0
                    and (place[v] < best_place or (place[v] == best_place and k < best_k))
                ):
                    best_k, best_d, best_place = k, d, place[v]
        if best_k < 0:
            return
        q = f.queue[p, best_d]
        link_free[q] = max(link_free[q], s.done[i]) + _transfer(f, best_k, p, best_d)
        s.arrives[best_k, best_d] = link_free[q] + f.latency[p, best_d]


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
                sent = 0.0 if d == p else _transfer(f, k, p, d) + f.latency[p, d] + f.message[p, d]
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
        _send(f, where, i, p, s, link_free, place)
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


@compiled
def _by_mean_rank(f: Facts) -> IntArray:
    """[tasks] a topological order by descending upward rank, times and links taken at their mean."""
    n, classes = f.seconds.shape
    share = np.zeros(classes)
    for c in f.class_of:
        share[c] += 1.0
    pace = (1.0 / f.rate).mean()
    rank = np.zeros(n)
    for i in f.topological[::-1]:
        way = 0.0
        for m in range(f.made_start[i], f.made_start[i + 1]):
            k = f.made[m]
            sent = f.size[k] * pace if np.isnan(f.given[k]) else f.given[k]
            for e in range(f.reader_start[k], f.reader_start[k + 1]):
                way = max(way, sent + rank[f.reader[e]])
        total, able = 0.0, 0.0
        for c in range(classes):
            if np.isfinite(f.seconds[i, c]):
                total += share[c] * f.seconds[i, c]
                able += share[c]
        rank[i] = way + (total / able if able > 0.0 else 0.0)
    place = np.empty(n)
    for x in range(n):
        place[f.topological[x]] = x
    order = np.argsort(place)
    return order[np.argsort(-rank[order], kind="mergesort")]  # of equals, the graph's order


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
            at = free[d]
            for e in range(f.incoming_start[i], f.incoming_start[i + 1]):
                k = f.incoming[e]
                u = f.producer[k]
                p = where[f.atom_of[u]]
                came = done[u]
                if p != d:
                    came += _transfer(f, k, p, d) + f.latency[p, d] + f.message[p, d]
                at = max(at, came)
            end[d] = at + f.seconds[i, f.class_of[d]]
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
    f: Facts, where: IntArray, runs: Bools, left: FloatArray, by_place: IntArray, moved: IntArray, random: Words
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
        x, y, k, p, q, need = 0, 0, 0, 0, 0, 0.0
        if f.objective == 0 and uniform(random) < 0.5:
            x, y = _reordered(f, where, order, s.place, random)
            if x == y:
                continue
            _shifted(order, x, y)
        else:
            k, q, need = _chosen(f, where, runs, left, by_place, moved, random)
            if k == 0:
                continue
            p = where[moved[0]]
            for z in range(k):
                where[moved[z]] = q
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
            if x != y:
                _shifted(order, y, x)
                for z in range(min(x, y), max(x, y) + 1):
                    s.place[order[z]] = z
    return best_where, best_order
