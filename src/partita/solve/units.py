"""Units: a task graph contracted to what may be cut, numbered in topological order.

Tasks that must share a device (a colocation group, a backward or update task and its forward) become one unit. A
pipeline's stages follow one another in the order of the forward edges; a backward edge runs against it, because the
gradient travels the same way back. So the order of the units is given by the forward edges and the backward edges
turned round; an edge from forward to backward (what a task keeps for its backward) orders nothing. Units that these
edges tie into a circle cannot be separated by any cut and become one.

A tensor becomes a *span*: the set of units that make or read it. A device that holds some but not all units of a span
has to send or receive that tensor, whichever way it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from partita.nouns.graph import Csr, FloatArray, IntArray, TaskGraph

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Units:
    """The contracted graph. Units are 0 .. n-1, every order edge runs from a lower number to a higher one."""

    unit_of: IntArray  #: [tasks]
    before: Csr  #: [units] the units that must not be behind it
    after: Csr  #: [units] the units that must not be before it

    def __len__(self) -> int:
        return len(self.before.start) - 1

    @cached_property
    def tasks(self) -> Csr:
        """[units] its tasks, ascending."""
        order = np.argsort(self.unit_of, kind="stable").astype(np.int64)
        return _grouped(self.unit_of[order], order, len(self))

    def total(self, of_tasks: FloatArray) -> FloatArray:
        """[units] a quantity summed over the tasks of each unit."""
        return np.bincount(self.unit_of, of_tasks, len(self)).astype(np.float64)


def contract(graph: TaskGraph) -> Units:
    """The units of a graph. O((tasks + edges) log tasks).

    Some published training graphs keep the forward direction in their backward edges. Both directions are tried where
    there are backward edges, and the one that leaves more units, hence more places to cut, is taken; turned round first.
    """
    component = graph.atom
    forward, backward = _order_edges(graph)
    found = _united(component, np.concatenate([forward, backward[:, ::-1]]))
    if len(backward) and len(found) < int(component.max()) + 1:
        along = _united(component, np.concatenate([forward, backward]))
        found = along if len(along) > len(found) else found
    return found


def regrouped(units: Units, group: IntArray) -> Units:
    """Units of units: those with one number in `group` [units] become one. The groups must not wait for each other in
    a circle."""
    _, number = np.unique(group, return_inverse=True)
    number = number.reshape(-1).astype(np.int64)
    source = np.repeat(np.arange(len(units), dtype=np.int64), np.diff(units.after.start))
    edges = np.stack([number[source], number[units.after.items]], axis=1)
    return _numbered(number[units.unit_of], edges)


def _united(component: IntArray, ordered: IntArray) -> Units:
    """The units of tasks in components, with order edges between tasks."""
    edges = component[ordered]
    count = int(component.max()) + 1
    strong = np.asarray(connected_components(_matrix(edges, count), connection="strong")[1], np.int64)
    return _numbered(strong[component], strong[edges])


def _order_edges(graph: TaskGraph) -> tuple[IntArray, IntArray]:
    """Edges between forward tasks, and edges between backward tasks; [pairs, 2] each.

    What a forward task reads of a backward one can never be computed in that order: the two are tied together.
    """
    back = np.array([t.phase in ("backward", "update") for t in graph.tasks], np.bool_)
    edges = graph.edges.reshape(-1, 2)
    source, target = back[edges[:, 0]], back[edges[:, 1]]
    odd = edges[source & ~target]
    return np.concatenate([edges[~source & ~target], odd, odd[:, ::-1]]), edges[source & target]


def _matrix(pairs: IntArray, n: int) -> coo_matrix:
    return coo_matrix((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), shape=(n, n))


def _numbered(component: IntArray, edges: IntArray) -> Units:
    """Units numbered topologically; among several that are free, the one whose first task comes first."""
    n = int(component.max()) + 1
    edges = edges[edges[:, 0] != edges[:, 1]]
    edges = np.unique(edges, axis=0) if len(edges) else edges.reshape(-1, 2)
    first = np.full(n, len(component), np.int64)
    np.minimum.at(first, component, np.arange(len(component)))
    number = _topological(n, edges, first)
    edges = number[edges]
    forth = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
    back = edges[np.lexsort((edges[:, 0], edges[:, 1]))]
    return Units(number[component], _grouped(back[:, 1], back[:, 0], n), _grouped(forth[:, 0], forth[:, 1], n))


def _topological(n: int, edges: IntArray, rank: IntArray) -> IntArray:
    """[n] the place of each node in the topological order that always takes the free node of least rank."""
    import heapq

    waiting = np.bincount(edges[:, 1], minlength=n).tolist()
    order = np.argsort(edges[:, 0], kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=n))]).tolist()
    targets = edges[order, 1].tolist()
    ranks = rank.tolist()
    free = [(ranks[i], i) for i in range(n) if waiting[i] == 0]
    heapq.heapify(free)
    place = np.zeros(n, np.int64)
    for k in range(n):
        _, i = heapq.heappop(free)
        place[i] = k
        for j in targets[start[i] : start[i + 1]]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(free, (ranks[j], j))
    return place


def _grouped(keys: IntArray, values: IntArray, n: int) -> Csr:
    """Group `values` by sorted `keys` in 0 .. n-1."""
    start = np.zeros(n + 1, np.int64)
    start[1:] = np.cumsum(np.bincount(keys, minlength=n))
    return Csr(start, np.ascontiguousarray(values, np.int64))


def bitset(rows: Sequence[IntArray], n: int) -> Words:
    """[rows, words] sets of numbers below n as bits, 64 a word.

    >>> bitset([np.array([0, 65])], 70).tolist()
    [[1, 2]]
    """
    words = np.zeros((len(rows), max(1, -(-n // 64))), np.uint64)
    for k, row in enumerate(rows):
        np.bitwise_or.at(words[k], row >> 6, np.uint64(1) << (row & 63).astype(np.uint64))
    return words
