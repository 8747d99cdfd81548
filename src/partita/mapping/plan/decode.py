"""Mappings as numbers that can be mixed: a device for every atom and a priority for every task.

The order of a mapping is the topological order that takes, of all tasks that are ready, the one of highest priority: every
order has priorities that give it (later tasks lower ones), and every priorities give one.
"""

from __future__ import annotations

import numpy as np

from partita.mapping.plan.question import Question
from partita.nouns.graph import FloatArray, IntArray
from partita.simulate.makespan import Facts, Scratch, makespan, scratch
from partita.solve.compiled import compiled


def priorities_of(order: IntArray) -> FloatArray:
    """[tasks] priorities that give an order: minus the place of a task.

    >>> priorities_of(np.array([2, 0, 1]))
    array([-1., -2., -0.])
    """
    priority = np.empty(len(order))
    priority[order] = -np.arange(len(order), dtype=np.float64)
    return priority


def values_of(question: Question, where: IntArray, priority: FloatArray) -> tuple[FloatArray, IntArray]:
    """([mappings] values in seconds, infinite where one does not fit; [mappings, tasks] orders) of [mappings, atoms] devices
    and [mappings, tasks] priorities. O(mappings x (tasks log ready tasks + readers))."""
    orders = np.empty(priority.shape, np.int64)
    return _values(question.facts, where, priority, orders, scratch(question.facts)), orders


@compiled
def prioritised(f: Facts, priority: FloatArray) -> IntArray:
    """[tasks] the topological order of priorities; of equals the lower number first. O(tasks log ready tasks + readers): what is
    ready is a heap, since in a wide graph that may be most of it."""
    incoming_start, made_start, made, reader_start, reader = (
        f.incoming_start,
        f.made_start,
        f.made,
        f.reader_start,
        f.reader,
    )
    n = len(priority)
    waiting = np.zeros(n, np.int64)
    ready, order = np.empty(n, np.int64), np.empty(n, np.int64)
    count = 0
    for i in range(n):
        waiting[i] = incoming_start[i + 1] - incoming_start[i]
        if waiting[i] == 0:
            _push(ready, count, priority, i)
            count += 1
    for x in range(n):
        i = ready[0]
        count -= 1
        _sink(ready, count, priority, ready[count])
        order[x] = i
        for m in range(made_start[i], made_start[i + 1]):
            k = made[m]
            for e in range(reader_start[k], reader_start[k + 1]):
                v = reader[e]
                waiting[v] -= 1
                if waiting[v] == 0:
                    _push(ready, count, priority, v)
                    count += 1
    return order


@compiled
def _push(heap: IntArray, count: int, priority: FloatArray, i: int) -> None:
    """Task i to a heap of so many, the first of which has the highest priority."""
    at = count
    while at > 0:
        above = (at - 1) // 2
        j = heap[above]
        if priority[j] > priority[i] or (priority[j] == priority[i] and j < i):
            break
        heap[at] = j
        at = above
    heap[at] = i


@compiled
def _sink(heap: IntArray, count: int, priority: FloatArray, i: int) -> None:
    """Task i in place of the first of a heap of so many."""
    at = 0
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        j = heap[below]
        if below + 1 < count:
            k = heap[below + 1]
            if priority[k] > priority[j] or (priority[k] == priority[j] and k < j):
                below, j = below + 1, k
        if priority[i] > priority[j] or (priority[i] == priority[j] and i < j):
            break
        heap[at] = j
        at = below
    heap[at] = i


@compiled
def _values(f: Facts, where: IntArray, priority: FloatArray, orders: IntArray, s: Scratch) -> FloatArray:
    found = np.empty(len(where))
    left = np.empty(len(f.room))
    for x in range(len(where)):
        orders[x] = prioritised(f, priority[x])
        left[:] = f.room
        for a in range(len(f.held)):
            left[where[x, a]] -= f.held[a]
        fits = left.min() >= 0.0
        for i in range(len(f.topological)):
            fits = fits and np.isfinite(f.seconds[i, f.class_of[where[x, f.atom_of[i]]]])
        found[x] = makespan(f, where[x], orders[x], s) if fits else np.inf
    return found
