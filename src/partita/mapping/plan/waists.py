"""A graph in pieces that can be mapped one by one, where everything has to pass through one task.

A task c is a *waist* where every other task runs before it or after it, whatever the mapping, and no tensor passes it by:

    a  ->  b1  b2  b3  ->  c  ->  d1  d2  ->  e          waists: a, c, e

When c starts nothing runs and nothing is being sent. So where devices and links are all alike and any one device has room
for everything, the quickest mapping is made of the quickest ones of the pieces between waists, their devices renamed so
that each goes on where the last one ended; and bounds of the pieces add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.mapping.plan.question import Mapped, Question
from partita.nouns.costs import CostTable
from partita.nouns.graph import FloatArray, IntArray, TaskGraph
from partita.nouns.placement_problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class Piece:
    """A piece between two waists."""

    problem: PlacementProblem  #: its tasks; the waist before them takes no time here
    tasks: IntArray  #: [tasks of the piece] their numbers in the whole graph, the waist before them first
    begins: bool  #: whether there is no waist before it

    @property
    def shape(self) -> tuple[bytes, ...]:
        """Alike for pieces that differ in names only."""
        graph, costs = self.problem.graph, self.problem.costs
        parts = (
            costs.seconds,
            costs.transfer_s,
            graph.producer,
            graph.size_bytes,
            graph.readers.start,
            graph.readers.items,
        )
        return tuple(np.ascontiguousarray(a).tobytes() for a in parts)  # fmt: skip

    @property
    def trivial(self) -> bool:
        """Whether it is a chain: nothing is quicker than one device."""
        graph = self.problem.graph
        return (
            len(np.unique(graph.edges[:, 0])) == len(graph.edges) == len(graph) - 1 == len(np.unique(graph.edges[:, 1]))
        )


def pieces(problem: PlacementProblem) -> list[Piece]:
    """The pieces of a problem in order; one where it cannot be cut. O(tasks + readers + devices^2)."""
    graph, order = problem.graph, problem.graph.order
    ends = [*waists(graph), len(order) - 1] if _alike(problem) else [len(order) - 1]
    ends = sorted(set(ends))
    if len(ends) == 1:
        return [Piece(problem, np.arange(len(order)), True)]
    firsts = [0, *ends[:-1]]
    return [
        _piece(problem, order[a : b + 1], a == b or k == 0) for k, (a, b) in enumerate(zip(firsts, ends, strict=True))
    ]


def waists(graph: TaskGraph) -> list[int]:
    """Places in the topological order where a waist stands. O(tasks + readers)."""
    n, edges = len(graph), graph.edges
    if not len(edges):
        return [0] if n == 1 else []
    place = np.empty(n, np.int64)
    place[graph.order] = np.arange(n)
    u, v = place[edges[:, 0]], place[edges[:, 1]]
    last, first = np.full(n, n), np.full(n, -1)  # who reads nothing, or is not read, is in nobody's way only at an end
    reach, source = np.zeros(n, np.int64), np.full(n, n)
    np.maximum.at(reach, u, v)
    np.minimum.at(source, v, u)
    last[np.unique(u)] = reach[np.unique(u)]
    first[np.unique(v)] = source[np.unique(v)]
    furthest = np.concatenate([[-1], np.maximum.accumulate(last)[:-1]])  # of all tasks before
    nearest = np.concatenate([np.minimum.accumulate(first[::-1])[::-1][1:], [n]])  # of all tasks behind
    places = np.arange(n)
    return np.flatnonzero((furthest <= places) & (nearest >= places)).tolist()


def whole(question: Question, parts: Sequence[tuple[Piece, Mapped]], name: str) -> Mapped:
    """The mapping of the whole made of those of its pieces, in their order."""
    if len(parts) == 1:
        return replace(parts[0][1], name=name)
    where, order = np.zeros(question.tasks, np.int64), []
    at = 0
    for piece, found in parts:
        names = np.arange(question.devices)
        own = found.where  # every task is its own atom here
        if not piece.begins:
            names[[own[0], at]] = names[[at, own[0]]]
        where[piece.tasks] = names[own]
        skip = 0 if piece.begins else 1
        order.append(piece.tasks[found.order[found.order >= skip]])
        at = int(where[piece.tasks[-1]])
    return question.mapped(where, np.concatenate(order), name)


def _alike(problem: PlacementProblem) -> bool:
    """Whether devices can be renamed, and each holds everything."""
    cluster, graph = problem.cluster, problem.graph
    devices = cluster.devices
    if len({(d.kind, d.speed, d.memory_bytes) for d in devices}) > 1 or int(graph.atom.max()) + 1 < len(graph):
        return False
    links = {(k.rate_bytes_per_s, k.latency_s, k.message_s, k.medium, k.fair) for k in cluster.links_in_use()}
    return len(links) == 1 and float(problem.memory_bytes.sum()) <= devices[0].memory_bytes


def _piece(problem: PlacementProblem, tasks: IntArray, begins: bool) -> Piece:
    """The piece of these tasks, the first of which is the waist before it unless it begins."""
    graph, costs = problem.graph, problem.costs
    number = {int(i): k for k, i in enumerate(tasks)}
    kept = [k for k, u in enumerate(graph.producer.tolist()) if u in number]
    readers = [[v for v in graph.readers.row(k).tolist() if v in number] for k in kept]
    kept, readers = [k for k, r in zip(kept, readers, strict=True) if r], [r for r in readers if r]
    ids = [graph.tasks[i].id for i in tasks.tolist()]
    tensors = [
        (graph.tasks[graph.producer[k]].id, float(graph.size_bytes[k]), [graph.tasks[v].id for v in r])
        for k, r in zip(kept, readers, strict=True)
    ]
    seconds: FloatArray = costs.seconds[tasks].copy()
    if not begins:
        seconds[0] = 0.0
    part = TaskGraph.build(f"{graph.name} from {ids[0]}", [graph.tasks[i] for i in tasks.tolist()], tensors)
    table = CostTable.given(costs.kinds, seconds, costs.transfer_s[kept])
    return Piece(
        replace(problem, graph=part, costs=table, memory_bytes=np.zeros(len(tasks)), remarks=()), tasks, begins
    )
