"""Idle units: units that compute and hold nothing are joined to others, where that costs no plan anything.

Published graphs are full of them: a tuple's second entry that nobody reads, a constant that every layer reads, a
reshape. Each may double the number of downsets, and none matters: an idle unit u may move to the stage of a unit r,
whatever the plan, if

    order     every unit before u is r or before r, every unit behind u is r or behind r
    sending   every span of u holds r too, or those that do not weigh no more than what u and r alone share

The first keeps the plan a chain. With the second no device pays more than before: what u shares with r alone is no longer
sent from one to the other, which outweighs what u's other spans may now send; every other device pays for the same spans.
So the least largest load, with replicas or without, is the same after joining; the order among the others stays too.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import BoolArray, Csr, IntArray
from partita.placement.plan.throughput import Work
from partita.solve.units import regrouped

MOST_UNITS = 10_000  #: in larger graphs nothing is joined


def without_idle(work: Work) -> Work:
    """The same problem with its idle units joined to others; its optimum is the same, and its plans are plans.

    A unit with weights is not idle where stages have replicas, which exchange them; one that holds memory is, where every
    device has room for everything. O(units^2 / 64 + readers) for each pass over the units, of which there are a few.
    """
    if len(work.units) > MOST_UNITS:
        return work
    weights = np.array([t.parameter_bytes for t in work.problem.graph.tasks], np.float64)
    weight_bytes = work.units.total(weights if work.problem.rule == "overlap" else np.zeros_like(weights))
    roomy = float(work.memory_bytes.sum()) <= float(work.room.min())
    idle = (work.seconds == 0).all(axis=1) & (work.cannot == 0).all(axis=1) & (weight_bytes == 0)
    group = _homes(work, idle & (roomy | (work.memory_bytes == 0)))
    if (group == np.arange(len(group))).all():
        return work
    return Work.of(work.problem, regrouped(work.units, group))


def _homes(work: Work, idle: BoolArray) -> IntArray:
    """[units] the unit that each is joined to; its own number where it stays."""
    n = len(work.units)
    before, after = work.units.before, work.units.after
    ahead, behind = _closure(before, range(n)), _closure(after, range(n - 1, -1, -1))
    spans_of = [set(work.spans.of_unit.row(u).tolist()) for u in range(n)]
    members = [set(work.spans.units.row(e).tolist()) for e in range(len(work.spans.weight))]
    weight, home = work.spans.weight.tolist(), list(range(n))
    waiting, alive, joined = np.flatnonzero(idle).tolist(), (1 << n) - 1, True
    while joined:
        joined = False
        for u in waiting:
            between = alive & ~(1 << u)
            for p in before.row(u).tolist():
                between &= behind[_root(home, p)]
            for s in after.row(u).tolist():
                between &= ahead[_root(home, s)]
            r = _mate(u, between, [(members[e], weight[e]) for e in spans_of[u] if len(members[e]) > 1])
            if r is None:
                continue
            home[u], alive, joined = r, alive & ~(1 << u), True
            for e in spans_of[u]:
                members[e] = members[e] - {u} | {r}
            spans_of[r] |= spans_of[u]
        waiting = [u for u in waiting if home[u] == u]
    return np.array([_root(home, u) for u in range(n)], np.int64)


def _mate(u: int, between: int, spans: list[tuple[set[int], float]]) -> int | None:
    """A unit out of the bits `between` that u may join, for all its spans' sake."""
    if not spans:
        return (between & -between).bit_length() - 1 if between else None
    for r in sorted(set().union(*(m for m, _ in spans))):
        if between >> r & 1:
            shared = sum(w for m, w in spans if m == {u, r})
            if shared >= sum(w for m, w in spans if r not in m):
                return r
    return None


def _closure(edges: Csr, order: range) -> list[int]:
    """[units] itself and all that can be reached along the edges, as bits; each unit comes behind its neighbours."""
    reached: dict[int, int] = {}
    for u in order:
        bits = 1 << u
        for v in edges.row(u).tolist():
            bits |= reached[v]
        reached[u] = bits
    return [reached[u] for u in range(len(order))]


def _root(home: list[int], u: int) -> int:
    while home[u] != u:
        u = home[u]
    return u
