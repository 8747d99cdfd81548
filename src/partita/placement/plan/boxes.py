"""A lower bound on the bottleneck of stages with replicas, for graphs with too many downsets to enumerate: boxes of them.

A box is all downsets between two, inside <= S <= everything but outside. A few boxes cover all downsets. Of a box is known
how much work C, gradient exchange W' = 4 W / B and sending its downsets have at least and at most; `reachable` is the
program of `replicated` over boxes instead of downsets, with what is best in each box for each of these numbers:

    a stage of q replicas may end in box b, after d devices, where    f_q(least of b) <= F(d - q, q) + q tau
    F(d, m) = the most f_m = C + (m - 1) / m W' that a chain with d devices has reached, over the boxes that may come before

So where even this finds no chain of stages with n devices, there is none that stays below tau. Where it finds one, the
boxes that it leads through are looked at more closely (counterexample-guided refinement, Clarke et al., CAV 2000):

- tightened: what may be sent at that place bounds the work there. The most work of a downset S of the box that sends at
  most theta is at most min over prices p of (max over S of C(S) - p sent(S)) + p theta, and the maximum is a minimum cut;
- or split in two by a unit: the downsets with it and those without.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.placement.plan.cut_pool import CutPool
from partita.placement.plan.replicated import ReplicatedStage, Replication
from partita.placement.plan.throughput import Work
from partita.solve.compiled import compiled
from partita.solve.max_flow import ENDLESS, GRAIN, max_flow

STEP = 0.25  #: how far between the bound and the value the next tau lies; less where that takes too long
PATIENCE = 60  #: looks without a proof until the step is made smaller
CLOSE = 1e-3  #: a gap at which nothing more is tried
MORE = 0.2  #: of the cuts are new when chains through them are looked for again
CUT_CELLS = 5e4  #: of setting up a minimum cut
CELLS_PER_S = 2e8  #: cells of the program and arcs of minimum cuts: 3.5e8 on one of 2 Xeon cores, 2026-11-21
SLACK_S = 4.0  #: processor seconds a second of budget after which it ends whose cells are not spent
PRICES = 4  #: tried for each tightening
SLACK = 1e-9  #: share of all work by which sums may be off
MOST_UNITS = 4_000  #: a larger graph's boxes are too dear


@dataclass(frozen=True, eq=False)
class Box:
    """All downsets that hold `inside` and lack `outside`."""

    inside: BoolArray  #: [units]
    outside: BoolArray  #: [units]
    low: FloatArray  #: [levels + 1] work at least, of those that send at most level x value; level 0: of all
    high: FloatArray  #: [levels + 1]
    sync: tuple[float, float]  #: gradient exchange at least and at most
    sent_s: float  #: at least
    cheapest: BoolArray  #: [units] the downset that sends least
    apart: BoolArray  #: [units] by which to split it
    tight: frozenset[int] = frozenset()  #: levels looked at

    @property
    def free(self) -> BoolArray:
        return ~(self.inside | self.outside)


def closed_in(
    work: Work, replication: Replication, stages: Sequence[ReplicatedStage], value_s: float, budget_s: float
) -> tuple[float, list[ReplicatedStage], float]:
    """(value, stages, bound): no chain of stages on these equal devices has a bottleneck below the bound, whatever its
    downsets and replicas, and these stages are as good as the given ones or better.

    The downsets that the minimum cuts turn up send little for the work that is done before them: the best chain through
    them is looked for now and then. What is done is counted in cells and arcs, not in seconds, so that the same inputs and
    budget give the same plan; only where that takes SLACK_S times as much processor time as foreseen, that ends it. Memory counts for the plan and not for
    the bound. Each look costs O(boxes x devices^3) and some minimum cuts.
    """
    _compile_kernels()
    bound, end_s = float(work.seconds[:, 0].sum()) / replication.devices, time.process_time() + SLACK_S * budget_s
    if len(work.units) > MOST_UNITS or not value_s > 0:
        return value_s, list(stages), bound
    pool = CutPool.of(work, replication, stages)
    cover, best = Cover.of(work, replication, value_s, pool), list(stages)
    step, looks = STEP, 0
    while bound < value_s * (1 - CLOSE) and cover.spent < budget_s * CELLS_PER_S and time.process_time() < end_s:
        path, looks = cover.path(tau := bound + step * (value_s - bound)), looks + 1
        if path is None:
            bound, looks = tau, 0
        elif not cover.refine(path):
            step /= 2  # a chain of single downsets
        if len(pool) >= pool.seen * (1 + MORE):
            better = pool.best(value_s)
            cover.spent += float(len(pool)) ** 2
            if better:
                value_s, best = better
                cover.value_s, step = value_s, STEP
        if looks > PATIENCE:
            step, looks = step * 0.7, 0
        if step < CLOSE:
            break
    return value_s, best, bound


@cache
def _compile_kernels() -> None:
    """Compile them for a box without units, so that it does not count."""
    none, index = np.zeros(0), np.zeros(1, np.int64)
    _least_cut(none > 0, none > 0, index, index[:0], none, index, index[:0], none, none, 1.0)
    table, two = np.zeros((2, 2)), np.zeros(2)
    reachable(table, table, two, two, two, np.arange(2), np.array([2, 2]), 1, 1, 1.0, 0.0)


_Path = list[tuple[int, int]]  # (box, level at which its downset may send)


@dataclass(eq=False)
class Cover:
    """Boxes that cover all downsets that some chain below the value may pass; the first is the empty one, the second all."""

    work: Work
    compute: FloatArray  #: [units]
    sync: FloatArray  #: [units]
    value_s: float
    devices: int
    most: int  #: replicas
    down: BoolArray  #: [units, units] row u: u and what is before it
    up: BoolArray
    boxes: list[Box]
    pool: CutPool
    spent: float = 0.0  #: cells and arcs

    @staticmethod
    def of(work: Work, replication: Replication, value_s: float, pool: CutPool) -> Cover:
        n = len(work.units)
        down = np.eye(n, dtype=np.bool_)
        for u in range(n):
            down[u] |= down[work.units.before.row(u)].any(axis=0)
        sync = 4.0 * replication.weight_bytes / replication.rate_bytes_per_s
        compute = np.ascontiguousarray(work.seconds[:, 0])
        cover = Cover(
            work, compute, sync, value_s, replication.devices, replication.most, down, down.T.copy(), [], pool
        )
        nothing, everything = np.zeros(n, np.bool_), np.ones(n, np.bool_)
        cover.boxes = [cover.box(i, o) for i, o in ((nothing, everything), (everything, nothing), (nothing, nothing))]
        return cover

    def box(self, inside: BoolArray, outside: BoolArray, within: Box | None = None) -> Box:
        """The box, its numbers at least as narrow as those of a box that holds it."""
        low, high = float(self.compute[inside].sum()), float(self.compute[~outside].sum())
        sent, cheapest = self.least_sent(inside, outside)
        levels = np.full(self.most + 1, 1.0)
        sync = float(self.sync[inside].sum()), float(self.sync[~outside].sum())
        least, most = (within.low, within.high) if within else (low * levels, high * levels)
        free = ~(inside | outside)
        return Box(inside, outside, np.maximum(least, low), np.minimum(most, high), sync, sent, cheapest, free)

    def least_sent(
        self,
        inside: BoolArray,
        outside: BoolArray,
        of_inside: FloatArray | None = None,
        of_outside: FloatArray | None = None,
    ) -> tuple[float, BoolArray]:
        """(value, downset): the least of what a downset of the box sends, and of the seconds given for the units it has
        and for those it has not. Rounded down."""
        spans, before, none = self.work.spans, self.work.units.before, np.zeros(len(self.compute))
        more, less = (none if x is None else x for x in (of_inside, of_outside))
        total = float(spans.weight.sum() + more.sum() + less.sum()) or 1.0
        flow, chosen, certain, arcs = _least_cut(
            inside, outside, spans.units.start, spans.units.items, spans.weight, before.start, before.items, more, less,
            GRAIN / total,
        )  # fmt: skip
        self.pool.add(chosen)
        self.spent += arcs + CUT_CELLS
        return flow * total / GRAIN + certain, chosen

    def path(self, tau: float) -> _Path | None:
        """The boxes in which stages end, of a chain that may stay below tau; None: there is no such chain."""
        low, high = (np.stack(rows, axis=1) for rows in zip(*((b.low, b.high) for b in self.boxes), strict=True))
        sync = np.array([b.sync for b in self.boxes])
        slack = SLACK * float(self.compute.sum() + self.sync.sum())
        order = np.argsort(low[0], kind="stable")
        before = np.searchsorted(low[0][order], high[0] + slack, side="right")
        self.spent += len(self.boxes) * (self.devices + 1) * (self.most + 1) ** 2
        links = reachable(
            low, high, sync[:, 0].copy(), sync[:, 1].copy(), np.array([b.sent_s for b in self.boxes]), order, before,
            self.devices, self.most, tau, slack,
        )  # fmt: skip
        return None if links[0, 0] == 0 else [(int(b), int(level)) for b, level in links[1:] if b > 1]

    def refine(self, path: _Path) -> bool:
        """Narrow the boxes of a path, or split them; False where each is a single downset, which cannot be."""
        narrowed = [self._tighten(b, level) for b, level in path]
        if any(narrowed):
            return True
        wide = {b for b, _ in path if self.boxes[b].free.any()}
        for b in sorted(wide):
            self._split(b)
        return bool(wide)

    def _split(self, b: int) -> None:
        """Box b without some unit behind the others, with it in its place."""
        box = self.boxes[b]
        free = np.flatnonzero(box.free & box.apart if (box.free & box.apart).any() else box.free)
        weight = self.compute[free] + SLACK
        u = int(free[np.minimum(self.down[np.ix_(free, free)] @ weight, self.up[np.ix_(free, free)] @ weight).argmax()])
        self.boxes[b] = self.box(box.inside | self.down[u], box.outside, box)
        without = self.box(box.inside, box.outside | self.up[u], box)
        if without.sent_s <= self.most * self.value_s:
            self.boxes.append(without)

    def _tighten(self, b: int, level: int) -> bool:
        """Narrow the work of those downsets that send at most level x value; whether that changed anything."""
        box = self.boxes[b]
        if level in box.tight:
            return False
        theta, base = level * self.value_s, float(self.compute[box.inside].sum())
        total = float(self.compute[box.free].sum())
        most, apart = self._most_work(box, theta, True)
        least = total - self._most_work(box, theta, False)[0]
        low, high = box.low.copy(), box.high.copy()
        low[1 : level + 1] = np.maximum(low[1 : level + 1], base + least)
        high[1 : level + 1] = np.minimum(high[1 : level + 1], base + most)
        self.boxes[b] = replace(box, low=low, high=high, tight=box.tight | {level}, apart=apart)
        return bool(total > 0 and (most < total * (1 - 1e-6) or least > total * 1e-6))

    def _most_work(self, box: Box, theta: float, taken: bool) -> tuple[float, BoolArray]:
        """(at least the most free work that a downset of the box that sends at most theta has (`taken`) or lacks, units).

        The bound mixes two downsets, one that sends more than theta and one that sends less; these units tell them apart.
        """
        gain = np.where(box.free, self.compute, 0.0)
        total = float(gain.sum())
        dear, cheap = ~box.outside if taken else box.inside, box.cheapest
        dear_x, dear_s, cheap_s = total, self.pool.sent_s(dear), box.sent_s
        if dear_s <= theta or not total > 0:
            return total, box.free
        best, cheap_x = total, float(gain[cheap if taken else ~cheap].sum())
        for _ in range(PRICES):
            if dear_x - cheap_x <= SLACK * total or dear_s <= cheap_s:
                break
            price = (dear_s - cheap_s) / (dear_x - cheap_x)  # of a second of work, in seconds of sending
            lost = price * gain
            least, chosen = self.least_sent(box.inside, box.outside, *((None, lost) if taken else (lost, None)))
            best = min(best, total + (theta - least) / price)
            x = float(gain[chosen if taken else ~chosen].sum())
            sent = least - price * (total - x)
            if min(abs(sent - cheap_s), abs(sent - dear_s)) <= SLACK * dear_s:
                break
            if sent <= theta:
                cheap, cheap_x, cheap_s = chosen, x, sent
            else:
                dear, dear_x, dear_s = chosen, x, sent
        self.pool.add_between(*((cheap, dear) if taken else (dear, cheap)))
        return best, dear ^ cheap


@compiled
def reachable(
    low: FloatArray, high: FloatArray, sync_low: FloatArray, sync_high: FloatArray, sent: FloatArray, order: IntArray,
    before: IntArray, devices: int, most: int, tau: float, slack: float,
) -> IntArray:  # fmt: skip
    """[1 + ends, 2] boxes in which the stages end, backwards, each with its level; the first row is (1, 0), or (0, 0)
    where box 1 is not reached from box 0.

    `order`: boxes by their least work; of these, the first before[b] may hold a downset that is inside one of box b."""
    n, boxes = devices, low.shape[1]
    far = np.full((n + 1, most + 1, boxes), -np.inf)  # F of each box ...
    came = np.full((n + 1, most + 1, boxes), -1, np.int64)
    by = np.zeros((n + 1, most + 1, boxes), np.int64)
    best = np.full((n + 1, most + 1, boxes), -np.inf)  # ... and the most of those that come first in the order
    which = np.full((n + 1, most + 1, boxes), -1, np.int64)
    far[0, :, 0] = 0.0
    for d in range(n + 1):
        for b in range(1, boxes if d > 0 else 0):
            for q in range(1, min(most, d) + 1):
                k = before[b] - 1
                limit = best[d - q, q, k] + q * tau + slack
                share = (q - 1.0) / q
                if sent[b] > q * tau + slack or low[q, b] + share * sync_low[b] > limit:
                    continue
                if b == 1:
                    links = np.zeros((n + 2, 2), np.int64)
                    links[0, 0] = 1
                    count, at, m, left = 1, which[d - q, q, k], q, d - q
                    while at > 0:
                        links[count, 0] = at
                        links[count, 1] = min(m, by[left, m, at])
                        count += 1
                        q2 = by[left, m, at]
                        at, left, m = came[left, m, at], left - q2, q2
                    return links[:count].copy()
                for m in range(1, min(most, n - d) + 1):
                    level = min(m, q)
                    if (
                        sent[b] > m * tau + slack
                        or low[level, b] > high[level, b] + slack
                        or low[level, b] + share * sync_low[b] > limit
                    ):
                        continue
                    more = (m - 1.0) / m - share
                    value = min(
                        high[level, b] + (m - 1.0) / m * sync_high[b],
                        limit + more * (sync_high[b] if more > 0 else sync_low[b]),
                    )
                    if value > far[d, m, b]:
                        far[d, m, b] = value
                        came[d, m, b] = which[d - q, q, k]
                        by[d, m, b] = q
        for m in range(1, most + 1):
            top, first = -np.inf, -1
            for k in range(boxes):
                b = order[k]
                if far[d, m, b] > top:
                    top, first = far[d, m, b], b
                best[d, m, k] = top
                which[d, m, k] = first
    return np.zeros((1, 2), np.int64)


@compiled
def _least_cut(
    inside: BoolArray, outside: BoolArray, span: IntArray, items: IntArray, weight: FloatArray, before: IntArray,
    before_items: IntArray, of_inside: FloatArray, of_outside: FloatArray, grain: float,
) -> tuple[int, BoolArray, float, int]:  # fmt: skip
    """(least cut in grains, the downset, what all of the box send, arcs looked at), by a network of the free units alone.

    source -> x  of_outside    x -> sink  of_inside    x -> y  endless where y is before x
    source -> x  endless for x in a span with a unit inside ... by its two nodes, as in `min_cut`."""
    n = len(inside)
    node = np.full(n, -1, np.int64)
    nodes = 0
    arcs = 0
    for u in range(n):
        if not inside[u] and not outside[u]:
            node[u] = nodes
            nodes += 1
            arcs += 2 + before[u + 1] - before[u]
    certain = 0.0
    ends = np.zeros(
        len(weight), np.int64
    )  # of a span that can still be kept whole: 1 + (1: has units inside, 2: outside)
    for s in range(len(weight)):
        held, lacked, free = False, False, 0
        for e in range(span[s], span[s + 1]):
            held |= inside[items[e]]
            lacked |= outside[items[e]]
            free += node[items[e]] >= 0
        if held and lacked:
            certain += weight[s]
        elif free > 0:
            ends[s] = 1 + held + 2 * lacked
            arcs += 2 + 2 * free
    tail, head = np.empty(2 * arcs, np.int64), np.empty(2 * arcs, np.int64)
    capacity = np.zeros(2 * arcs, np.int64)
    open_spans = 0
    for s in range(len(weight)):
        open_spans += ends[s] > 0
    source, sink = nodes + 2 * open_spans, nodes + 2 * open_spans + 1
    count = 0
    for u in range(n):
        if node[u] < 0:
            continue
        tail[count], head[count], capacity[count] = source, node[u], int(of_outside[u] * grain)
        tail[count + 2], head[count + 2], capacity[count + 2] = node[u], sink, int(of_inside[u] * grain)
        count += 4
        for e in range(before[u], before[u + 1]):
            if node[before_items[e]] >= 0:
                tail[count], head[count], capacity[count] = node[u], node[before_items[e]], ENDLESS
                count += 2
    first = nodes
    for s in range(len(weight)):
        if ends[s] == 0:
            continue
        tail[count], head[count], capacity[count] = first, first + 1, int(weight[s] * grain)
        count += 2
        if ends[s] == 2:
            tail[count], head[count], capacity[count] = source, first, ENDLESS
            count += 2
        elif ends[s] == 3:
            tail[count], head[count], capacity[count] = first + 1, sink, ENDLESS
            count += 2
        for e in range(span[s], span[s + 1]):
            x = node[items[e]]
            if x >= 0:
                tail[count], head[count], capacity[count] = x, first, ENDLESS
                tail[count + 2], head[count + 2], capacity[count + 2] = first + 1, x, ENDLESS
                count += 4
        first += 2
    for i in range(0, count, 2):
        tail[i + 1], head[i + 1] = head[i], tail[i]
    start = np.zeros(sink + 2, np.int64)
    for i in range(count):
        start[tail[i] + 1] += 1
    for x in range(sink + 1):
        start[x + 1] += start[x]
    place = start[:-1].copy()
    leaving = np.empty(count, np.int64)
    for i in range(count):
        leaving[place[tail[i]]] = i
        place[tail[i]] += 1
    spent = np.zeros(1, np.int64)
    flow, side = max_flow(start, leaving, head[:count], capacity[:count], source, sink, ENDLESS, spent)
    chosen = inside.copy()
    for u in range(n):
        if node[u] >= 0:
            chosen[u] = side[node[u]]
    return flow, chosen, certain, spent[0]
