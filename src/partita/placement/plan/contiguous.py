"""Contiguous placement: the exact optimum over chains of downsets, for both rules of load.

    value(c, j) = min over i < j, device type t of max( value(c - t, i), load(i -> j, t) )

over all downsets (the augmented antichains' state sequence), where the load of a segment is its compute and the weight of
every span that it tears (see `Spans`): that covers what comes in and what goes out, forward and backward. Where sending
hides behind computing, what comes in and what goes out count apart.

A linearised bound comes first: the same program along a few topological orders costs little and is rarely more than 1 %
off. With its value U, the exact program looks only at states that some plan better than U could pass: after the devices
c, the work done is at most what c can do in time U, and the work left at most what the others can. On real models that
leaves a narrow band of states for each c, and the load of a pair is computed only where it could improve something.
Tarnawski et al. (NeurIPS 2020) solve the same problem over all pairs of downsets.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.placement.plan.throughput import Int8Array, Int32Array, Part, Work, vectors
from partita.solve.compiled import compiled
from partita.solve.downsets import StateSequence, contains
from partita.solve.units import Words


def exact_chain(work: Work, states: StateSequence, upper_s: float) -> tuple[float, list[Part]] | None:
    """The least largest load below `upper_s` over all chains of the states, and its parts; None: there is none below.

    O(band^2 x open spans) for the pairs of states in the bands; all of them in the worst case.
    """
    totals = states.totals(np.column_stack([work.least_s, work.memory_bytes, work.seconds, work.cannot]))
    types = len(work.types)
    order = np.argsort(totals[:, 0], kind="stable")
    cut = states.cuts(work.spans)[order]
    least, memory = totals[order, 0].copy(), totals[order, 1].copy()
    absorbs = work.absorbs(upper_s) * (1 + 1e-9)
    vs = vectors(work.counts)
    most = vs.used @ absorbs
    left = (np.array(work.counts) - vs.used) @ absorbs
    low = np.searchsorted(least, least[-1] - left - 1e-9 * least[-1], side="left")
    high = np.searchsorted(least, most + 1e-9 * least[-1], side="right") - 1
    members = np.ascontiguousarray(states.members[order])
    value, came, kind = _least_worst(
        members, least, memory, np.ascontiguousarray(totals[order, 2 : 2 + types]),
        np.ascontiguousarray(totals[order, 2 + types :]), cut, work.spans.masks, work.spans.weight, work.pays, work.room,
        vs.after, low, high, absorbs, upper_s, work.overlap,
    )  # fmt: skip
    best = int(value[:, -1].argmin())
    if not value[best, -1] < upper_s:
        return None
    before = {(int(vs.after[v, t]), t): v for v in range(len(vs.after)) for t in range(types)}
    parts: list[Part] = []
    at, v = len(states) - 1, best
    while at > 0:
        i, t = int(came[v, at]), int(kind[v, at])
        parts.append(Part(t, states.units_between(int(order[i]), int(order[at]))))
        at, v = i, before[v, t]
    return float(value[best, -1]), parts[::-1]


@compiled
def _least_worst(
    members: Words, least: FloatArray, memory: FloatArray, seconds: FloatArray, cannot: FloatArray, cut: FloatArray,
    masks: Words, weight: FloatArray, pays: BoolArray, room: FloatArray, after: IntArray, low: IntArray, high: IntArray,
    absorbs: FloatArray, upper: float, overlap: bool,
) -> tuple[FloatArray, Int32Array, Int8Array]:  # fmt: skip
    """(value, state before, device type), [vectors, states] each; states ascend in `least` work done."""
    states, words = members.shape
    count, types = after.shape
    value = np.full((count, states), np.inf)
    came = np.full((count, states), -1, np.int32)
    kind = np.full((count, states), -1, np.int8)
    value[0, 0] = 0.0
    zero = np.uint64(0)
    open_ = np.empty(len(weight), np.int64)  # spans that the state tears
    seen = np.full(states, -1, np.int64)  # the state i for which `holds` is known ...
    holds = np.zeros(states, np.bool_)  # ... whether j contains i
    known = np.full(states, -1, np.int64)
    came_in, goes_out = np.zeros(states), np.zeros(states)  # boundary of (i, j)
    for i in range(states - 1):
        opened = -1
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
                    have = min(value[nv, j], upper)
                    if here >= have:
                        continue
                    load = seconds[j, t] - seconds[i, t]
                    if load >= have or cannot[j, t] > cannot[i, t] or memory[j] - memory[i] > room[t]:
                        continue
                    if seen[j] != i:
                        seen[j] = i
                        holds[j] = contains(members, i, j)
                    if not holds[j]:
                        continue
                    if pays[t]:
                        if known[j] != i:
                            if opened < 0:
                                opened = 0
                                for s in range(len(weight)):
                                    within, beyond = False, False
                                    for w in range(words):
                                        within |= masks[s, w] & members[i, w] != zero
                                        beyond |= masks[s, w] & ~members[i, w] != zero
                                    if within and beyond:
                                        open_[opened] = s
                                        opened += 1
                            known[j] = i
                            inward, outward = 0.0, cut[j]
                            for q in range(opened):
                                s = open_[q]
                                touched, beyond = False, False
                                for w in range(words):
                                    touched |= masks[s, w] & members[j, w] & ~members[i, w] != zero
                                    beyond |= masks[s, w] & ~members[j, w] != zero
                                if touched:
                                    inward += weight[s]
                                if beyond:
                                    outward -= weight[s]
                            came_in[j], goes_out[j] = inward, outward
                        if overlap:
                            load = max(load, came_in[j], goes_out[j])
                        else:
                            load += came_in[j] + goes_out[j]
                    worst = max(load, here)
                    if worst < have:
                        value[nv, j] = worst
                        came[nv, j] = i
                        kind[nv, j] = t
    return value, came, kind
