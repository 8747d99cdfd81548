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
    and [mappings, tasks] priorities. O(mappings x (tasks x ready tasks + readers))."""
    orders = np.empty(priority.shape, np.int64)
    return _values(question.facts, where, priority, orders, scratch(question.facts)), orders


@compiled
def prioritised(f: Facts, priority: FloatArray) -> IntArray:
    """[tasks] the topological order of priorities; of equals the lower number first."""
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
            ready[count] = i
            count += 1
    for x in range(n):
        best = 0
        for y in range(1, count):
            a, b = priority[ready[y]], priority[ready[best]]
            if a > b or (a == b and ready[y] < ready[best]):
                best = y
        i = ready[best]
        count -= 1
        ready[best] = ready[count]
        order[x] = i
        for m in range(made_start[i], made_start[i + 1]):
            k = made[m]
            for e in range(reader_start[k], reader_start[k + 1]):
                v = reader[e]
                waiting[v] -= 1
                if waiting[v] == 0:
                    ready[count] = v
                    count += 1
    return order


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
