"""The linearised program: cut one topological order of the units.

The same recursion as `contiguous`, over positions instead of downsets. With a candidate position for every unit it is the
optimum of that order; a long order is cut at chosen positions first, and then again at every position near the cuts found.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.placement.plan.replicated import ReplicatedStage, Replication
from partita.placement.plan.throughput import Int8Array, Int32Array, Part, Vectors, Work, vectors
from partita.solve.compiled import compiled
from partita.solve.units import Units

MOST_POSITIONS = 1500  #: looked at in one pass
ZOOMS = 4  #: passes around the cuts found


@dataclass(frozen=True, eq=False)
class Line:
    """Units in an order, and what a device that holds a piece of it computes and pays."""

    order: IntArray  #: [units] unit at each place
    least: FloatArray  #: [units + 1] work before each position, on the fastest type
    memory: FloatArray  #: [units + 1]
    seconds: FloatArray  #: [units + 1, types]
    cannot: FloatArray  #: [units + 1, types]
    start: IntArray  #: [spans + 1] its places in `places`
    places: IntArray  #: places of the units of each span, ascending
    weight: FloatArray  #: [spans]

    @staticmethod
    def of(work: Work, order: IntArray) -> Line:
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        spans = work.spans
        owner = np.repeat(np.arange(len(spans.weight)), np.diff(spans.units.start))
        places = place[spans.units.items]
        places = places[np.lexsort((places, owner))]

        def before(rows: FloatArray) -> FloatArray:
            return np.concatenate([np.zeros((1, *rows.shape[1:])), np.cumsum(rows[order], axis=0)])

        return Line(
            order, before(work.least_s), before(work.memory_bytes), before(work.seconds), before(work.cannot),
            spans.units.start, places, spans.weight,
        )  # fmt: skip

    def cut_weights(self) -> FloatArray:
        """[units + 1] weight of the spans that have units on both sides of a position."""
        change = np.zeros(len(self.order) + 2)
        np.add.at(change, self.places[self.start[:-1]] + 1, self.weight)
        np.add.at(change, self.places[self.start[1:] - 1] + 1, -self.weight)
        return np.cumsum(change)[:-1]


def best_cut(
    work: Work, order: IntArray, upper_s: float = np.inf, counts: Vectors | None = None
) -> tuple[float, list[Part]] | None:
    """The least largest load below `upper_s` found along an order, and its parts; None: none below.

    `counts`: how many devices of each type may be used; left out, all there are. Optimal for the order and these counts
    where it has at most MOST_POSITIONS units. O(positions x (window x vectors + open spans)).
    """
    line, vs = Line.of(work, order), counts or vectors(work.counts)
    n = len(order)
    positions = spread(line, MOST_POSITIONS) if n + 1 > MOST_POSITIONS else np.arange(n + 1)
    coarse = (
        _pass(work, line, spread(line, 200), upper_s, vs) if n > 400 else None
    )  # its value narrows the windows of the fine
    found = _pass(work, line, positions, coarse[0] * (1 + 1e-12) if coarse else upper_s, vs) or coarse
    for _ in range(ZOOMS if n + 1 > MOST_POSITIONS else 0):
        again = _pass(work, line, _near(found[1], n, MOST_POSITIONS), found[0], vs) if found else None
        if again is None:
            break
        found = again
    if found is None:
        return None
    value, ends, kinds = found
    return value, [Part(t, order[i:j]) for t, i, j in zip(kinds, [0, *ends], ends, strict=False) if j > i]


def best_cut_replicated(
    work: Work, replication: Replication, order: IntArray, upper_s: float
) -> tuple[float, list[ReplicatedStage]] | None:
    """The same for stages with replicas, as in `replicated`."""
    if work.cannot.any():
        return None
    line, n = Line.of(work, order), len(order)
    weights = np.concatenate([[0.0], np.cumsum(replication.weight_bytes[order])])
    torn = line.cut_weights()
    positions = spread(line, MOST_POSITIONS) if n + 1 > MOST_POSITIONS else np.arange(n + 1)
    found: tuple[float, list[ReplicatedStage]] | None = None
    for _ in range(ZOOMS if n + 1 > MOST_POSITIONS else 1):
        compute = line.seconds[positions, 0]
        chain = np.zeros((len(positions), 0), np.uint64)
        again = replication.cheapest(
            chain, compute, weights[positions], line.memory[positions], torn[positions], upper_s
        )
        if again is None:
            break
        cuts = [(int(positions[i]), int(positions[j]), m) for i, j, m in again[1]]
        found = again[0], [ReplicatedStage(order[i:j], m) for i, j, m in cuts]
        upper_s, positions = again[0], _near([j for _, j, _ in cuts], n, MOST_POSITIONS)
    return found


_Found = tuple[float, list[int], list[int]]  # (value, end of each part, type of each part)


def spread(line: Line, most: int) -> IntArray:
    """Positions in about equal steps of work; in each step the one that tears least, and its border."""
    cut = line.cut_weights()
    bins = np.floor(line.least / max(float(line.least[-1]), 1e-300) * (most // 2)).astype(np.int64)
    first = np.lexsort((np.arange(len(bins)), cut, bins))
    chosen = first[np.flatnonzero(np.diff(bins[first], prepend=-1))]
    return np.unique(np.concatenate([[0, len(bins) - 1], chosen, np.flatnonzero(np.diff(bins, prepend=-1))]))


def _near(ends: list[int], n: int, most: int) -> IntArray:
    """Positions around the cuts, equally many around each."""
    reach = max(2, most // (2 * len(ends)))
    around = [np.arange(max(0, e - reach), min(n, e + reach) + 1) for e in ends if e < n]
    return np.unique(np.concatenate([[0, n], *around])).astype(np.int64)


def _pass(work: Work, line: Line, positions: IntArray, upper_s: float, vs: Vectors) -> _Found | None:
    """The program over these positions."""
    least = line.least[positions]
    if np.isfinite(upper_s):
        absorbs = work.absorbs(upper_s) * (1 + 1e-9)
        slack = 1e-9 * least[-1]
        low = np.searchsorted(least, least[-1] - (np.array(work.counts) - vs.used) @ absorbs - slack, side="left")
        high = np.searchsorted(least, vs.used @ absorbs + slack, side="right") - 1
    else:
        absorbs = np.full(len(work.types), np.inf)
        low, high = np.zeros(len(vs.used), np.int64), np.full(len(vs.used), len(least) - 1)
        high[0] = 0
    value, came, kind = _least_worst(
        positions, least, line.memory[positions], line.seconds[positions], line.cannot[positions], line.start, line.places,
        line.weight, work.pays, work.room, vs.after, low, high, absorbs, upper_s,
        work.overlap,
    )  # fmt: skip
    best = int(value[:, -1].argmin())
    if not value[best, -1] < upper_s:
        return None
    before = {(int(vs.after[v, t]), t): v for v in range(len(vs.after)) for t in range(len(work.types))}
    ends, kinds, at, v = [], [], len(positions) - 1, best
    while at > 0:
        ends.append(int(positions[at]))
        kinds.append(int(kind[v, at]))
        at, v = int(came[v, at]), before[v, int(kind[v, at])]
    return float(value[best, -1]), ends[::-1], kinds[::-1]


@compiled
def _least_worst(
    positions: IntArray, least: FloatArray, memory: FloatArray, seconds: FloatArray, cannot: FloatArray, start: IntArray,
    places: IntArray, weight: FloatArray, pays: BoolArray, room: FloatArray, after: IntArray, low: IntArray, high: IntArray,
    absorbs: FloatArray, upper: float, overlap: bool,
) -> tuple[FloatArray, Int32Array, Int8Array]:  # fmt: skip
    """(value, position before, device type), [vectors, positions] each."""
    n = len(positions)
    count, types = after.shape
    value = np.full((count, n), np.inf)
    came = np.full((count, n), -1, np.int32)
    kind = np.full((count, n), -1, np.int8)
    value[0, 0] = 0.0
    spans = len(weight)
    first = np.empty(spans, np.int64)  # the first position (index) behind its first place ...
    last = np.empty(spans, np.int64)  # ... and behind its last place: it is torn from the one up to before the other
    index = np.empty(positions[-1] + 1, np.int64)  # place -> first position (index) behind it
    k = 0
    for p in range(positions[-1] + 1):
        while k < n and positions[k] <= p:
            k += 1
        index[p] = k
    for s in range(spans):
        first[s] = index[places[start[s]]]
        last[s] = index[places[start[s + 1] - 1]]
    by_first = np.argsort(first)
    cut = np.zeros(n + 1)
    for s in range(spans):
        if first[s] < last[s]:
            cut[first[s]] += weight[s]
            cut[last[s]] -= weight[s]
    for p in range(1, n + 1):
        cut[p] += cut[p - 1]
    active = np.empty(spans, np.int64)  # spans open at position i, each with its next place
    pointer = start[:-1].copy()
    actives = 0
    fresh = 0
    comes = np.zeros(n + 1)
    goes = np.zeros(n + 1)
    inward, outward = np.zeros(n), np.zeros(n)
    for i in range(n - 1):
        while fresh < spans and first[by_first[fresh]] <= i:
            s = by_first[fresh]
            fresh += 1
            if last[s] > i:
                active[actives] = s
                actives += 1
        kept = 0
        for a in range(actives):
            s = active[a]
            if last[s] > i:
                active[kept] = s
                kept += 1
        actives = kept
        alive = False
        for v in range(count):
            if value[v, i] < upper and low[v] <= i and i <= high[v]:
                alive = True
        if not alive:
            continue
        comes[i:] = 0.0
        goes[i:] = 0.0
        passing = 0.0
        for a in range(actives):
            s = active[a]
            while places[pointer[s]] < positions[i]:
                pointer[s] += 1
            comes[index[places[pointer[s]]]] += weight[s]
            goes[last[s]] += weight[s]
            passing += weight[s]
        total = 0.0
        for j in range(i + 1, n):
            total += comes[j]
            passing -= goes[j]
            inward[j], outward[j] = total, cut[j] - passing
        for v in range(count):
            here = value[v, i]
            if here >= upper or i < low[v] or i > high[v]:
                continue
            for t in range(types):
                nv = after[v, t]
                if nv < 0:
                    continue
                for j in range(max(i + 1, low[nv]), high[nv] + 1):
                    if least[j] - least[i] > absorbs[t]:
                        break
                    load = seconds[j, t] - seconds[i, t]
                    if pays[t]:
                        load = max(load, inward[j], outward[j]) if overlap else load + inward[j] + outward[j]
                    worst = max(load, here)
                    if worst >= value[nv, j] or worst >= upper:
                        continue
                    if cannot[j, t] > cannot[i, t] or memory[j] - memory[i] > room[t]:
                        continue
                    value[nv, j] = worst
                    came[nv, j] = i
                    kind[nv, j] = t
    return value, came, kind


def orders(units: Units) -> list[IntArray]:
    """Topological orders to cut along: by first task, depth first, and by what closes most that is open."""
    return [np.arange(len(units), dtype=np.int64), depth_first(units), last_in_first_out(units)]


def depth_first(units: Units) -> IntArray:
    """The order that follows each branch to its end."""
    waiting = np.diff(units.before.start).tolist()
    start, items = units.after.start.tolist(), units.after.items.tolist()
    stack = [u for u in range(len(units) - 1, -1, -1) if waiting[u] == 0]
    order: list[int] = []
    while stack:
        u = stack.pop()
        order.append(u)
        for v in reversed(items[start[u] : start[u + 1]]):
            waiting[v] -= 1
            if waiting[v] == 0:
                stack.append(v)
    return np.array(order, np.int64)


def last_in_first_out(units: Units) -> IntArray:
    """The order in which, among the free units, the one whose last predecessor is freshest goes first, fewest readers first."""
    waiting = np.diff(units.before.start).tolist()
    start, items = units.after.start.tolist(), units.after.items.tolist()
    free = [(0, start[u + 1] - start[u], u) for u in range(len(units)) if waiting[u] == 0]
    heapq.heapify(free)
    order: list[int] = []
    while free:
        _, _, u = heapq.heappop(free)
        order.append(u)
        for v in items[start[u] : start[u + 1]]:
            waiting[v] -= 1
            if waiting[v] == 0:
                heapq.heappush(free, (-len(order), start[v + 1] - start[v], v))
    return np.array(order, np.int64)
