"""Lower a placement: every task once, in its device's order; a tensor crosses once to each device that reads it.

A device hands a tensor to the link when it has made it, so that a link carries tensors in the order in which its device
makes them. It takes one in just before the first task that reads it.

    acc0        a b   d
    acc0->acc1    a b
    acc1              c
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict

import numpy as np

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import IntArray, Phase, TaskGraph
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.program import Builder, Op, Piece, PieceKind, Program

_KINDS: dict[Phase, PieceKind] = {
    "forward": "forward",
    "backward": "backward",
    "update": "update",
    "transfer": "forward",
    "stage": "forward",
}


def lower_placement(graph: TaskGraph, cluster: Cluster, plan: PlacementPlan, fair: frozenset[str]) -> Program:
    """The program of a placement. Raises PlanError where its devices' orders wait for each other in a circle.

    O(tasks log tasks + tensors).
    """
    build = Builder([d.name for d in cluster.devices])
    where = [plan.placement[t.id] for t in graph.tasks]
    sequence = merged_order(graph, plan)
    place = np.empty(len(sequence), np.int64)
    place[sequence] = np.arange(len(sequence))
    incoming: dict[int, list[int]] = defaultdict(list)
    for k in range(len(graph.producer)):
        for v in graph.readers.row(k).tolist():
            incoming[v].append(k)
    done: dict[int, int] = {}
    sent: dict[tuple[int, str], tuple[int, Piece]] = {}
    arrived: dict[tuple[int, str], int] = {}
    for i in sequence.tolist():
        device, needs = where[i], []
        for k in incoming[i]:
            u = int(graph.producer[k])
            if where[u] == device:
                needs.append(done[u])
                continue
            if (k, device) not in arrived:
                send, piece = sent[k, device]
                arrived[k, device] = build.add(Op.RECV, device, piece, -1, [send])
            needs.append(arrived[k, device])
        task = graph.tasks[i]
        op = Op.UPDATE if task.phase == "update" else Op.COMPUTE
        done[i] = build.add(op, device, Piece(task.id, _KINDS[task.phase], tasks=(i,)), -1, needs)
        for k, target in _leaving(graph, i, where, place):
            piece = Piece(f"{task.id}>", "values", tensors=(k,), route=(device, target))
            queue = cluster.link(device, target).queue
            sent[k, target] = (build.add(Op.SEND, queue, piece, -1, [done[i]], float(graph.size_bytes[k])), piece)
    return build.program(fair=fair)


def _leaving(graph: TaskGraph, i: int, where: list[str], place: IntArray) -> list[tuple[int, str]]:
    """(tensor, device) of all that a task sends, what is read first first."""
    first: dict[tuple[int, str], int] = {}
    for k in graph.tensors_of.row(i).tolist():
        for v in graph.readers.row(k).tolist():
            if where[v] != where[i]:
                key = (k, where[v])
                first[key] = min(first.get(key, len(place)), int(place[v]))
    return sorted(first, key=lambda key: (first[key], key))


def merged_order(graph: TaskGraph, plan: PlacementPlan) -> IntArray:
    """[tasks] one order of all tasks that keeps every edge and every device's order; ties by topological order.

    Raises PlanError where there is none: the devices wait for each other.
    """
    order = graph.order
    if not plan.order:
        return order
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    following: list[list[int]] = [graph.successors.row(i).tolist() for i in range(len(graph))]
    for tasks in plan.order.values():
        numbers = [graph.index[t] for t in tasks]
        for a, b in itertools.pairwise(numbers):
            following[a].append(b)
    waiting = np.zeros(len(graph), np.int64)
    for row in following:
        for v in row:
            waiting[v] += 1
    ready = [(int(rank[i]), int(i)) for i in np.flatnonzero(waiting == 0)]
    heapq.heapify(ready)
    merged: list[int] = []
    while ready:
        _, i = heapq.heappop(ready)
        merged.append(i)
        for v in following[i]:
            waiting[v] -= 1
            if waiting[v] == 0:
                heapq.heappush(ready, (int(rank[v]), v))
    if len(merged) < len(graph):
        stuck = [graph.tasks[i].id for i in np.flatnonzero(waiting > 0)[:4]]
        raise PlanError(
            f"the devices' orders wait for each other: {len(graph) - len(merged)} tasks never run, {', '.join(stuck)} among them",
            hint="plan again, or leave the order out",
        )
    return np.array(merged, np.int64)
