"""Lower a placement: every device runs its tasks in the plan's order, and never waits where it could compute.

Three tasks, a on cpu0, b and c on cpu1, c reads what a makes, cpu1's order is b, c (`>` is a message):

    cpu0        a
    cpu0->cpu1    >
    cpu1        b  c

A device's next task runs as soon as what it reads is there: a RECV stands just before the first task of the device's
order that reads what it brings. A tensor is sent once to each device that reads it, when it is made: a link carries its
messages in the order in which they are made, those of one task by who reads them first.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import Phase, TaskGraph
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.program import Builder, Op, Piece, PieceKind

_KINDS: dict[Phase, PieceKind] = {
    "forward": "forward",
    "backward": "backward",
    "update": "update",
    "transfer": "forward",
    "stage": "forward",
}


def lower_placement(graph: TaskGraph, cluster: Cluster, plan: PlacementPlan) -> Builder:
    """The instructions of a placement. Raises PlanError where its devices' orders wait for each other in a circle.

    O((tasks + readers) log tasks).
    """
    build = Builder([d.name for d in cluster.devices])
    where = [plan.placement[t.id] for t in graph.tasks]
    order = task_order(graph, plan)
    reads, sends = messages(graph, where, order)
    done: dict[int, int] = {}
    sent: dict[tuple[int, str], tuple[int, Piece]] = {}
    arrived: dict[tuple[int, str], int] = {}
    for i in order:
        device, needs = where[i], []
        for k in reads[i]:
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
        for k, other in sends[i]:
            piece = Piece(f"{task.id}>", "values", tensors=(k,), route=(device, other))
            queue = cluster.link(device, other).queue
            sent[k, other] = build.add(Op.SEND, queue, piece, -1, [done[i]], float(graph.size_bytes[k])), piece
    return build


def messages(
    graph: TaskGraph, where: list[str], order: list[int]
) -> tuple[dict[int, list[int]], dict[int, list[tuple[int, str]]]]:
    """({task: tensors it reads}, {task: (tensor, device) it sends, first read first})."""
    reads: dict[int, list[int]] = defaultdict(list)
    sends: dict[int, list[tuple[int, str]]] = defaultdict(list)
    start, items = graph.readers.start.tolist(), graph.readers.items.tolist()
    for k in range(len(graph.producer)):
        for v in items[start[k] : start[k + 1]]:
            reads[v].append(k)
    met: set[tuple[int, str]] = set()
    for i in order:
        for k in reads[i]:
            u = int(graph.producer[k])
            if where[u] != where[i] and (k, where[i]) not in met:
                met.add((k, where[i]))
                sends[u].append((k, where[i]))
    return reads, sends


def task_order(graph: TaskGraph, plan: PlacementPlan) -> list[int]:
    """All tasks in one order that keeps the graph's and every device's; among several, the earliest of the graph's order.

    Raises PlanError where there is none.
    """
    topological: list[int] = graph.order.tolist()
    if not plan.order:
        return topological
    place = {i: k for k, i in enumerate(topological)}
    queues = [[graph.index[t] for t in tasks] for tasks in plan.order.values()]
    after = {a: b for tasks in queues for a, b in itertools.pairwise(tasks)}
    waiting = [len(graph.predecessors.row(i)) for i in range(len(graph))]
    for b in after.values():
        waiting[b] += 1
    ready = [(place[i], i) for i in range(len(graph)) if waiting[i] == 0]
    heapq.heapify(ready)
    order: list[int] = []
    start, items = graph.successors.start.tolist(), graph.successors.items.tolist()
    while ready:
        i = heapq.heappop(ready)[1]
        order.append(i)
        for j in [*items[start[i] : start[i + 1]], *([after[i]] if i in after else [])]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, (place[j], j))
    if len(order) < len(graph):
        stuck = [graph.tasks[i].id for i in topological if waiting[i] > 0]
        raise PlanError(
            f"the devices' orders wait for each other in a circle: {len(stuck)} tasks can never run, {stuck[0]!r} among them",
            hint="change the order of one device, or leave it out",
        )
    return order
