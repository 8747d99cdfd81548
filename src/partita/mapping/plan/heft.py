"""HEFT: tasks by descending upward rank, each where it ends first, also in a gap before what is planned already.

    rank(i) = w(i) + max over readers j of (c(i, j) + rank(j))      w, c: means over devices and links

Of equal ranks the graph's topological order decides: a task of no time ties with its reader. `heft` takes every transfer to
find its link free while devices are chosen; `heft_over_links` lets it wait for those before it. The value of either counts
how links serve one transfer at a time.
Sources: Topcuoglu, Hariri, Wu, "Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous Computing", IEEE
TPDS 13(3), 2002; Sinnen and Sousa, "Communication Contention in Task Scheduling", IEEE TPDS 16(6), 2005.
"""

from __future__ import annotations

import numpy as np

from partita.mapping.plan.question import Mapped, Question
from partita.nouns.graph import FloatArray, IntArray
from partita.placement.plan.upward_rank import by_rank, ready_freely, upward_ranks
from partita.simulate.makespan import Facts, transfer_s
from partita.solve.compiled import compiled


def heft(question: Question) -> Mapped:
    """The mapping; the tasks of an atom follow the first of them. O(tasks^2 + readers x devices)."""
    return _mapped(question, False, "heft")


def heft_over_links(question: Question) -> Mapped:
    """The same, with transfers that wait for their link. O(tasks^2 + readers x devices)."""
    return _mapped(question, True, "heft-links")


def _mapped(question: Question, links: bool, name: str) -> Mapped:
    rank = upward_ranks(question.facts, question.mean_s, question.mean_transfer_s)
    order = by_rank(question.facts, rank)
    where, starts, ends = _planned(question.facts, order, links)
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    by_time = np.lexsort((place, ends, starts)).astype(np.int64)
    return question.mapped(where, by_time, name)


@compiled
def _planned(f: Facts, order: IntArray, links: bool) -> tuple[IntArray, FloatArray, FloatArray]:
    """([atoms] devices, [tasks] starts, [tasks] ends) of the insertion policy; `links`: transfers wait for each other."""
    n, devices = len(order), len(f.class_of)
    where = np.full(len(f.held), -1, np.int64)
    left = f.room.copy()
    start, end = np.zeros(n), np.zeros(n)
    line = np.empty((devices, n), np.int64)  # tasks of a device by start
    length = np.zeros(devices, np.int64)
    arrives, link_free = np.full((len(f.producer), devices), -1.0), np.zeros(f.queues)
    for i in order:
        a = f.atom_of[i]
        best, best_start, best_end, best_at = -1, 0.0, np.inf, 0
        for d in range(devices):
            if where[a] >= 0 and where[a] != d:
                continue
            took = f.seconds[i, f.class_of[d]]
            if where[a] < 0 and not (np.isfinite(took) and f.held[a] <= left[d]):
                continue
            ready = (
                _ready(f, where, end, i, d, arrives, link_free.copy(), False)
                if links
                else ready_freely(f, where, end, i, d)
            )
            at, before = length[d], ready  # the first gap from its inputs on that takes it
            for x in range(length[d]):
                j = line[d, x]
                if before + took <= start[j]:
                    at = x
                    break
                before = max(before, end[j])
            if best < 0 or before + took < best_end:
                best, best_start, best_end, best_at = d, before, before + took, at
        if best < 0:  # nothing has room: where most is left, and the mapping does not fit
            best = int(np.argmax(left))
            best_at = length[best]
        if where[a] < 0:
            where[a] = best
            left[best] -= f.held[a]
        if links:
            _ready(f, where, end, i, best, arrives, link_free, True)
        for x in range(length[best], best_at, -1):
            line[best, x] = line[best, x - 1]
        line[best, best_at] = i
        length[best] += 1
        start[i], end[i] = best_start, best_end
    return where, start, end


@compiled
def _ready(
    f: Facts, where: IntArray, end: FloatArray, i: int, d: int, arrives: FloatArray, link_free: FloatArray, keep: bool
) -> float:
    """Like `ready_freely`, but transfers that are not there yet queue behind those planned before; `keep`: they are planned now."""
    ready = 0.0
    for e in range(f.incoming_start[i], f.incoming_start[i + 1]):
        k = f.incoming[e]
        u = f.producer[k]
        p = where[f.atom_of[u]]
        came = end[u]
        if p != d:
            came = arrives[k, d]
            if came < 0.0:
                link_free[f.queue[p, d]] = max(link_free[f.queue[p, d]], end[u]) + transfer_s(f, k, p, d)
                came = link_free[f.queue[p, d]] + f.latency[p, d] + f.message[p, d]
                if keep:
                    arrives[k, d] = came
        ready = max(ready, came)
    return ready
