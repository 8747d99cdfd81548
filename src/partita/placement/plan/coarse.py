"""Coarser units, for graphs with too many downsets to enumerate.

A unit that waits for one other unit only, or is waited for by one only, can be joined with it without making a circle.
Small units are joined first, so that the cuts that are lost are those that would move least work. What is planned with
the coarser units is a plan for the finer ones; only the bound has to come from elsewhere.
"""

from __future__ import annotations

import heapq

import numpy as np

from partita.nouns.graph import FloatArray
from partita.solve.downsets import StateSequence, every_downset
from partita.solve.units import Units, regrouped

SHRINK = 0.8  #: of the units are left after each attempt


def coarser_states(units: Units, weight: FloatArray, most: int, fewest: int) -> tuple[Units, StateSequence] | None:
    """The finest units found that have at most `most` downsets, and these; None where that takes fewer than `fewest` units.

    `weight` [units]: what a unit costs. O(attempts x most + units log units).
    """
    wanted = len(units)
    while wanted > fewest:
        wanted = max(fewest, int(wanted * SHRINK))
        coarse = joined(units, weight, wanted)
        states = every_downset(coarse, most)
        if states is not None:
            return coarse, states
        if len(coarse) > wanted:
            return None
    return None


def joined(units: Units, weight: FloatArray, wanted: int) -> Units:
    """Units joined in pairs, lightest pair first, until so many are left or no pair can be joined."""
    n = len(units)
    before = [set(units.before.row(u).tolist()) for u in range(n)]
    after = [set(units.after.row(u).tolist()) for u in range(n)]
    home, size = list(range(n)), weight.tolist()
    alive, version = [True] * n, [0] * n
    heap: list[tuple[float, int, int, int, int]] = []

    def offer(u: int) -> None:
        for a, b in [(p, u) for p in before[u]] + [(u, s) for s in after[u]]:
            if len(after[a]) == 1 or len(before[b]) == 1:
                heapq.heappush(heap, (size[a] + size[b], a, b, version[a], version[b]))

    for u in range(n):
        offer(u)
    left = n
    while left > wanted and heap:
        _, a, b, va, vb = heapq.heappop(heap)
        if not (alive[a] and alive[b] and version[a] == va and version[b] == vb and b in after[a]):
            continue
        alive[b] = False
        home[b] = a
        size[a] += size[b]
        before[a] |= before[b] - {a}
        after[a] = (after[a] | after[b]) - {b}
        for p in before[b] - {a}:
            after[p].discard(b)
            after[p].add(a)
        for s in after[b]:
            before[s].discard(b)
            before[s].add(a)
        version[a] += 1
        left -= 1
        offer(a)
        for v in (*before[a], *after[a]):
            offer(v)
    return regrouped(units, np.array([_root(home, u) for u in range(n)], np.int64))


def _root(home: list[int], u: int) -> int:
    while home[u] != u:
        u = home[u]
    return u
