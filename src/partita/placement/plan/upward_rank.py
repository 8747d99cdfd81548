"""Upward ranks: how long the longest way is from the start of a task to the end, and what a device waits for.

    rank(i) = w(i) + max over readers j of (c(i, j) + rank(j))      w, c: means over devices and links

Source: Topcuoglu, Hariri, Wu, "Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous Computing", IEEE
TPDS 13(3), 2002.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.simulate.makespan import Facts, transfer_s
from partita.solve.compiled import compiled


@compiled
def upward_ranks(f: Facts, task_s: FloatArray, sent_s: FloatArray) -> FloatArray:
    """[tasks] seconds from a task's start to the end of the longest way from it; `task_s` [tasks], `sent_s` [tensors].
    O(readers)."""
    rank = np.zeros(len(f.topological))
    for i in f.topological[::-1]:
        way = 0.0
        for m in range(f.made_start[i], f.made_start[i + 1]):
            k = f.made[m]
            for e in range(f.reader_start[k], f.reader_start[k + 1]):
                way = max(way, sent_s[k] + rank[f.reader[e]])
        rank[i] = task_s[i] + way
    return rank


def by_rank(facts: Facts, rank: FloatArray) -> IntArray:
    """[tasks] a topological order by descending rank; of equals the graph's order."""
    place = np.empty(len(rank))
    place[facts.topological] = np.arange(len(rank))
    return np.lexsort((place, -rank)).astype(np.int64)


@compiled
def ready_freely(f: Facts, where: IntArray, end: FloatArray, i: int, d: int) -> float:
    """When what task i reads is on device d, every transfer by itself; `where` [atoms], `end` [tasks] of those before it."""
    ready = 0.0
    for e in range(f.incoming_start[i], f.incoming_start[i + 1]):
        k = f.incoming[e]
        u = f.producer[k]
        p = where[f.atom_of[u]]
        came = end[u]
        if p != d:
            came += transfer_s(f, k, p, d) + f.latency[p, d] + f.message[p, d]
        ready = max(ready, came)
    return ready
