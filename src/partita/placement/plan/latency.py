"""Chains for the makespan of one sample: as few messages as memory allows, and a bound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.plan.bounds import work_bound_s
from partita.placement.plan.device_line import counts_of
from partita.placement.plan.linear_cut import Line, best_cut, orders, spread
from partita.placement.plan.load import LoadModel
from partita.placement.plan.throughput import Part, Work, fits
from partita.solve.device_types import device_types

MOST_POSITIONS = 600  #: cuts looked at along an order


def quickest_chains(work: Work) -> Iterator[tuple[str, list[Part]]]:
    """(name, parts) of chains worth a simulation: one device, the least compute and sending in sum, the least load."""
    everything = np.arange(len(work.units), dtype=np.int64)
    for t in range(len(work.types)):
        if fits(work, part := Part(t, everything)):
            yield "single", [part]
    for order in orders(work.units):
        parts = least_sum(work, order)
        if parts:
            yield "least sum", parts
        balanced = best_cut(work, order, counts=counts_of(work))
        if balanced:
            yield "linear orders", balanced[1]


def least_sum(work: Work, order: IntArray) -> list[Part] | None:
    """The chain along an order with the least sum of compute and of what its cuts send; None: none fits.

    A sample that visits one device after the other takes no longer than that. O(vectors x types x positions^2).
    """
    line = Line.of(work, order)
    positions = spread(line, MOST_POSITIONS) if len(order) >= MOST_POSITIONS else np.arange(len(order) + 1)
    sends = line.cut_weights()[positions]
    vs, n = counts_of(work), len(positions)
    memory, seconds, cannot = line.memory[positions], line.seconds[positions], line.cannot[positions]
    value = np.full((len(vs.used), n), np.inf)
    value[0, 0] = 0.0
    came = np.zeros((len(vs.used), n, 2), np.int64)
    later = np.triu(np.ones((n, n), np.bool_), 1)
    costs = []
    for t in range(len(work.types)):
        able = later & (memory[None, :] - memory[:, None] <= work.room[t]) & (cannot[None, :, t] == cannot[:, None, t])
        costs.append(np.where(able, seconds[None, :, t] - seconds[:, None, t] + sends[None, :], np.inf))
    for v in range(len(vs.used)):
        for t in range(len(work.types)):
            w = int(vs.after[v, t])
            if w < 0:
                continue
            cost = value[v][:, None] + costs[t]
            best = cost.argmin(axis=0)
            least = cost[best, np.arange(n)]
            better = least < value[w]
            value[w] = np.where(better, least, value[w])
            came[w][better] = np.column_stack([best, np.full(n, t)])[better]
    v = int(value[:, -1].argmin())
    if not np.isfinite(value[v, -1]):
        return None
    before = {(int(vs.after[u, t]), t): u for u in range(len(vs.used)) for t in range(len(work.types))}
    parts, at = [], n - 1
    while at > 0:
        i, t = int(came[v, at, 0]), int(came[v, at, 1])
        parts.append(Part(t, order[positions[i] : positions[at]]))
        at, v = i, before[v, t]
    return parts[::-1]


def latency_bound(problem: PlacementProblem, model: LoadModel) -> tuple[float, str]:
    """(bound, how it was obtained) of one sample's makespan, whatever the placement and the order.

    Critical path: every task where its path ends first; staying on a kind of device costs nothing, going to another kind
    costs the transfer over the best link. Linear relaxation: all the work shared out evenly. O(tasks types^2 + readers).
    """
    types, graph = device_types(problem.cluster), problem.graph
    kinds = list(dict.fromkeys((t.kind, t.speed) for t in types))
    seconds = np.stack([problem.costs.seconds[:, problem.costs.column(k)] / speed for k, speed in kinds], axis=1)
    ends = np.zeros(seconds.shape)
    arrives: FloatArray = np.zeros((len(graph), len(kinds)))
    start, items = graph.readers.start.tolist(), graph.readers.items
    for i in graph.order.tolist():
        ends[i] = arrives[i] + seconds[i]
        for k in graph.tensors_of.row(i).tolist():
            there = np.minimum(ends[i], ends[i].min() + problem.transfer_s[k])
            readers = items[start[k] : start[k + 1]]
            arrives[readers] = np.maximum(arrives[readers], there)
    path, share = float(ends.min(axis=1).max()), work_bound_s(model)
    return (path, "critical path") if path >= share else (share, "linear relaxation")
