"""Move single units between the stages of a chain, for graphs whose downsets cannot be enumerated.

A unit may go to any stage between the last one of those it waits for and the first one of those that wait for it; the
stages stay downsets. Annealing on the sum of the loads' POWER-th powers, which the largest load dominates; a move costs
as many steps as the unit has spans.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.placement.plan.throughput import Part, Work, load_of
from partita.solve.compiled import compiled
from partita.solve.random import between, seeded, uniform

POWER = 24.0
HOT, COLD = 0.1, 1e-3  #: temperature, first and last, in changes of the sum by moving a mean unit to a full stage
MOVES_A_UNIT = 1_000
MOST_MOVES = 4_000_000
MOST_COUNTS = 50_000_000  #: spans x stages; more is left as it is


def refined(work: Work, parts: Sequence[Part], seed: int = 0) -> list[Part]:
    """Parts with a largest load at most that of the given ones; the same where the rule is "overlap". Deterministic for
    a seed."""
    if work.overlap or len(parts) < 2 or len(work.spans.weight) * len(parts) > MOST_COUNTS:
        return list(parts)
    if not max(load_of(work, p) for p in parts) > 0:
        return list(parts)
    stage = np.zeros(len(work.units), np.int64)
    for k, p in enumerate(parts):
        stage[p.units] = k
    kinds = np.array([p.type for p in parts], np.int64)
    units, spans = work.units, work.spans
    better = _annealed(
        stage, np.ascontiguousarray(work.seconds[:, kinds]), work.cannot[:, kinds] > 0, work.pays[kinds],
        work.memory_bytes, work.room[kinds], units.before.start, units.before.items, units.after.start, units.after.items,
        spans.of_unit.start, spans.of_unit.items, spans.units.start, spans.units.items, spans.weight, moves(work), seed,
    )  # fmt: skip
    found = [Part(p.type, np.flatnonzero(better == k).astype(np.int64)) for k, p in enumerate(parts)]
    found = [p for p in found if len(p.units)]
    return found if max(load_of(work, p) for p in found) < max(load_of(work, p) for p in parts) else list(parts)


def moves(work: Work) -> int:
    """How many moves are tried."""
    return min(MOST_MOVES, MOVES_A_UNIT * len(work.units))


@compiled
def _annealed(
    stage: IntArray, seconds: FloatArray, cannot: BoolArray, pays: BoolArray, memory: FloatArray, room: FloatArray,
    before: IntArray, before_items: IntArray, after: IntArray, after_items: IntArray,
    of_unit: IntArray, of_items: IntArray, span: IntArray, span_items: IntArray, weight: FloatArray, moves: int, seed: int,
) -> IntArray:  # fmt: skip
    """[units] the stage of each in the best chain met."""
    random = seeded(seed)
    n, parts = seconds.shape
    count = np.zeros((len(weight), parts), np.int32)
    load, held = np.zeros(parts), np.zeros(parts)
    for u in range(n):
        load[stage[u]] += seconds[u, stage[u]]
        held[stage[u]] += memory[u]
    for s in range(len(weight)):
        for e in range(span[s], span[s + 1]):
            count[s, stage[span_items[e]]] += 1
        for k in range(parts):
            if pays[k] and 0 < count[s, k] < span[s + 1] - span[s]:
                load[k] += weight[s]
    scale = load.max()
    least = scale
    best = stage.copy()
    unit = POWER * (seconds.sum() / parts + weight.sum()) / n / scale
    ratio = (COLD / HOT) ** (1.0 / max(1, moves))
    heat = HOT * unit
    for _ in range(moves):
        heat *= ratio
        u = between(random, 0, n)
        a = stage[u]
        low, high = 0, parts - 1
        for e in range(before[u], before[u + 1]):
            low = max(low, stage[before_items[e]])
        for e in range(after[u], after[u + 1]):
            high = min(high, stage[after_items[e]])
        if low == high:
            continue
        b = a - 1 if (uniform(random) < 0.5 and a > low) or a == high else a + 1
        if b < low or b > high or cannot[u, b] or held[b] + memory[u] > room[b]:
            continue
        here, there = load[a] - seconds[u, a], load[b] + seconds[u, b]
        for e in range(of_unit[u], of_unit[u + 1]):
            s = of_items[e]
            size = span[s + 1] - span[s]
            if pays[a]:
                if count[s, a] == size:
                    here += weight[s]
                elif count[s, a] == 1:
                    here -= weight[s]
            if pays[b]:
                if count[s, b] == 0:
                    there += weight[s]
                elif count[s, b] == size - 1:
                    there -= weight[s]
        change = (
            (here / scale) ** POWER + (there / scale) ** POWER - (load[a] / scale) ** POWER - (load[b] / scale) ** POWER
        )
        if change > 0 and uniform(random) >= np.exp(-change / heat):
            continue
        for e in range(of_unit[u], of_unit[u + 1]):
            count[of_items[e], a] -= 1
            count[of_items[e], b] += 1
        load[a], load[b] = here, there
        held[a] -= memory[u]
        held[b] += memory[u]
        stage[u] = b
        if change < 0 and here < least and there < least:
            top = load.max()
            if top < least:
                least = top
                best[:] = stage
                scale = top
    return best
