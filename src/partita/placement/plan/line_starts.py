"""Where placement searches start: the atoms in a line, the line cut into one piece a device.

The line is a topological order of the tasks (an atom stands where its first task does). A piece from i to j on device d
is taken to load it with its work and all nets that pass i or j, which is never less than the truth. Dynamic programming
over the cuts finds the pieces of least largest load:

    best[d, j] = min over i <= j of max(best[d - 1, i], load(i, j, d))

On long lines only the cheapest cut of each of MOST_CUTS stretches of equal work is considered.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partita.nouns.graph import BoolArray, Csr, FloatArray, IntArray, TaskGraph
from partita.placement.plan.load import LoadModel, summed
from partita.solve.compiled import compiled

MOST_CUTS = 600


def starts(model: LoadModel, graph: TaskGraph) -> Iterator[IntArray]:
    """[atoms] placements by chunks of topological orders. Memory is respected, so there may be none.

    The orders: breadth first; depth first; depth first from the end, where every task stands as late as it can (weights
    beside their readers). O(MOST_CUTS^2 devices + pins).
    """
    late = depth_first(graph.predecessors, graph.successors)[::-1]
    for order in (graph.order, depth_first(graph.successors, graph.predecessors), late):
        found = chunks(model, line(model, order))
        if found is not None:
            yield found


def line(model: LoadModel, order: IntArray) -> IntArray:
    """[atoms] the atoms by the place of their first task in a topological order of the tasks."""
    place = np.full(model.atoms, len(order), np.int64)
    np.minimum.at(place, model.atom_of[order], np.arange(len(order)))
    return np.argsort(place, kind="stable").astype(np.int64)


def depth_first(successors: Csr, predecessors: Csr) -> IntArray:
    """[tasks] a topological order that follows a task with what it alone made ready: branches stay in one piece."""
    waiting = np.diff(predecessors.start).tolist()
    start, items = successors.start.tolist(), successors.items.tolist()
    stack = [i for i in range(len(waiting) - 1, -1, -1) if waiting[i] == 0]
    order: list[int] = []
    while stack:
        i = stack.pop()
        order.append(i)
        for j in reversed(items[start[i] : start[i + 1]]):
            waiting[j] -= 1
            if waiting[j] == 0:
                stack.append(j)
    return np.array(order, np.int64)


def chunks(model: LoadModel, order: IntArray) -> IntArray | None:
    """[atoms] the best placement by pieces of the line `order`, or None where none has room.

    Atoms that cannot run on the most common class go to the least loaded device that runs them, before the rest is cut.
    """
    main = int(model.class_size.argmax())
    odd = ~np.isfinite(model.work_s[:, main])
    where = _scattered(model, np.flatnonzero(odd))
    if where is None:
        return None
    base = summed(where[odd], model.work_s[odd, model.class_of[where[odd]]], model.devices)
    held = summed(where[odd], model.memory_bytes[odd], model.devices)
    order = order[~odd[order]]
    if not len(order):
        return where
    passing = _passing(model.nets, model.cost_s, order, model.atoms)
    cuts = _cuts(passing, model.work_s[order, main])
    work = np.where(np.isfinite(model.work_s[order]), model.work_s[order], 1e300)
    sums = np.zeros((len(cuts), model.work_s.shape[1]))
    for c in range(sums.shape[1]):
        sums[1:, c] = np.cumsum(np.add.reduceat(work[:, c], cuts[:-1]))
    bytes_before = np.concatenate([[0.0], np.cumsum(np.add.reduceat(model.memory_bytes[order], cuts[:-1]))])
    ends = _least_largest(
        sums, bytes_before, passing[cuts], model.class_of, model.pays, model.room_bytes - held, base,
        model.rule == "overlap",
    )  # fmt: skip
    if ends[-1] < 0:
        return None
    at = np.searchsorted(cuts[ends], np.arange(len(order)), side="right")
    where[order] = at
    return where


def _scattered(model: LoadModel, atoms: IntArray) -> IntArray | None:
    """[atoms] zeros, but each of `atoms` on the device that it loads least; None where one finds no room."""
    where = np.zeros(model.atoms, np.int64)
    load, held = np.zeros(model.devices), np.zeros(model.devices)
    for a in atoms.tolist():
        after = load + model.work_s[a, model.class_of]
        after[held + model.memory_bytes[a] > model.room_bytes] = np.inf
        d = int(after.argmin())
        if np.isinf(after[d]):
            return None
        where[a], load[d] = d, after[d]
        held[d] += model.memory_bytes[a]
    return where


def _passing(nets: Csr, cost_s: FloatArray, order: IntArray, atoms: int) -> FloatArray:
    """[line + 1] cost of the nets that have atoms on both sides of a cut before the i-th of the line."""
    place = np.full(atoms, -1, np.int64)
    place[order] = np.arange(len(order))
    change = np.zeros(len(order) + 1)
    if len(cost_s):
        on_line = np.where(place[nets.items] >= 0, place[nets.items], len(order))
        low = np.minimum.reduceat(on_line, nets.start[:-1])
        high = np.maximum.reduceat(place[nets.items], nets.start[:-1])
        real = (low < high) & (high >= 0)
        np.add.at(change, low[real] + 1, cost_s[real])
        np.add.at(change, high[real] + 1, -cost_s[real])
    return np.maximum(np.cumsum(change), 0.0)


def _cuts(passing: FloatArray, work: FloatArray) -> IntArray:
    """Ascending places to cut at: 0, the end, and the cheapest of each stretch of equal work."""
    n = len(work)
    if n < MOST_CUTS:
        return np.arange(n + 1)
    done = np.cumsum(work + work.mean() + 1e-300)
    stretch = np.minimum((done / done[-1] * MOST_CUTS).astype(np.int64), MOST_CUTS - 1)
    places = np.arange(1, n)
    by_cost = places[np.lexsort((passing[1:n], stretch[1:n]))]
    first = np.concatenate([[True], np.diff(stretch[by_cost]) > 0])
    return np.concatenate([[0], np.sort(by_cost[first]), [n]]).astype(np.int64)


@compiled
def _least_largest(
    work: FloatArray,
    held: FloatArray,
    passing: FloatArray,
    class_of: IntArray,
    pays: BoolArray,
    room: FloatArray,
    base: FloatArray,
    overlap: bool,
) -> IntArray:
    """[devices] the cut at which each device's piece ends; the last is -1 where there is no room for all."""
    cuts, devices = len(work), len(class_of)
    best = np.full((devices + 1, cuts), np.inf)
    back = np.zeros((devices + 1, cuts), np.int64)
    best[0, 0] = 0.0
    for d in range(devices):
        c = class_of[d]
        for j in range(cuts):
            for i in range(j + 1):
                if best[d, i] >= best[d + 1, j]:
                    continue
                load = base[d] + work[j, c] - work[i, c]
                if i < j and pays[d]:
                    if overlap:
                        load = max(load, passing[i], passing[j])
                    else:
                        load += passing[i] + passing[j]
                if held[j] - held[i] > room[d]:
                    continue
                load = max(load, best[d, i])
                if load < best[d + 1, j]:
                    best[d + 1, j] = load
                    back[d + 1, j] = i
    ends = np.full(devices, -1, np.int64)
    if best[devices, cuts - 1] < np.inf:
        j = cuts - 1
        for d in range(devices - 1, -1, -1):
            ends[d] = j
            j = back[d + 1, j]
    return ends
