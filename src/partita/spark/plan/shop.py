"""A DAG shop as the kernels see it: flat arrays, and how an order becomes times.

Stages are numbered job after job, parents before children. An *operation* is one phase: k < n fetches stage k, n + k
computes it. An *order* is a list of all 2n operations in which nothing comes before what it waits for; each machine serves
its phases in that order, each as soon as it can. For every schedule there is an order whose times are nowhere later (its
own operations by their start), so the best order is the best schedule, idling on purpose included:

    order   fetch 0, fetch 1, compute 1, compute 0      the CPU waits for stage 1 although stage 0 could compute

A machine that does several phases at once has as many *lanes*, all alike: the CPU one for each executor.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from partita.nouns.graph import Csr, FloatArray, IntArray, csr
from partita.solve.compiled import compiled
from partita.spark.problem import ShopProblem, in_order


class Shop(NamedTuple):
    """n stages of some jobs."""

    net: FloatArray  #: [n] seconds on the network
    cpu: FloatArray  #: [n] seconds on the CPU
    ready: FloatArray  #: [n] release of its job
    job: IntArray  #: [n]
    parent_first: IntArray  #: [n + 1] rows of `parent`
    parent: IntArray
    child_first: IntArray  #: [n + 1] rows of `child`
    child: IntArray
    release: FloatArray  #: [jobs]
    width: IntArray  #: [2] lanes of the network, of the CPU


@dataclass(frozen=True, eq=False)
class Numbered:
    """A shop, and which stage of the problem each of its stages is."""

    shop: Shop
    job: IntArray  #: [n]
    stage: IntArray  #: [n] index in its job


def numbered(problem: ShopProblem) -> Numbered:
    """The arrays of a sound problem without writes (see `writes`). O(stages + parents)."""
    job, stage, parents = list[int](), list[int](), list[list[int]]()
    for j, work in enumerate(problem.jobs):
        order = in_order(work.stages)[0]
        at = {s: len(stage) + k for k, s in enumerate(order)}
        parents += [sorted({at[p] for p in work.stages[s].parents}) for s in order]
        job += [j] * len(order)
        stage += order
    of, up = [problem.jobs[j].stages[s] for j, s in zip(job, stage, strict=True)], csr(parents)
    down = _turned(up)
    release = np.array([j.release_s for j in problem.jobs], np.float64)
    owner = np.array(job, np.int64)
    net, cpu = (np.array([getattr(s, what) for s in of], np.float64) for what in ("network_s", "cpu_s"))
    shop = Shop(
        net,
        cpu,
        release[owner],
        owner,
        up.start,
        up.items,
        down.start,
        down.items,
        release,
        np.array([1, min(problem.executors, len(of))]),
    )
    return Numbered(shop, owner, np.array(stage, np.int64))


def _turned(rows: Csr) -> Csr:
    """Who has k in its row, for every k."""
    n = len(rows.start) - 1
    owner = np.repeat(np.arange(n), np.diff(rows.start))
    start = np.concatenate([[0], np.cumsum(np.bincount(rows.items, minlength=n))]).astype(np.int64)
    return Csr(start, owner[np.argsort(rows.items, kind="stable")].astype(np.int64))


def backwards(shop: Shop) -> Shop:
    """The shop with time running backwards: stage n - 1 - k is k, it computes first, children are parents; no releases."""
    n, edges = len(shop.net), len(shop.parent)

    def mirrored(first: IntArray, items: IntArray) -> tuple[IntArray, IntArray]:
        return np.ascontiguousarray(edges - first[::-1]), np.ascontiguousarray(n - 1 - items[::-1])

    up, down = mirrored(shop.child_first, shop.child), mirrored(shop.parent_first, shop.parent)
    jobs = len(shop.release)
    cpu, net = (np.ascontiguousarray(a[::-1], np.float64) for a in (shop.cpu, shop.net))
    job = np.ascontiguousarray((jobs - 1 - shop.job)[::-1], np.int64)
    return Shop(cpu, net, np.zeros(n), job, *up, *down, np.zeros(jobs), shop.width[::-1].copy())


@compiled
def tails(shop: Shop) -> FloatArray:
    """[n] the longest way from the start of a stage to the end of its job, its own phases included. O(n + edges)."""
    n = len(shop.net)
    tail = np.zeros(n)
    for s in range(n - 1, -1, -1):
        for e in range(shop.child_first[s], shop.child_first[s + 1]):
            tail[s] = max(tail[s], tail[shop.child[e]])
        tail[s] += shop.net[s] + shop.cpu[s]
    return tail


@compiled
def timed(shop: Shop, order: IntArray) -> FloatArray:
    """[2n] when each operation starts. O(n + edges)."""
    n = len(shop.net)
    start = np.zeros(2 * n)
    network, processor = np.zeros(shop.width[0]), np.zeros(shop.width[1])  # when each lane is free
    for op in order:
        if op < n:
            at = shop.ready[op]
            for e in range(shop.parent_first[op], shop.parent_first[op + 1]):
                p = shop.parent[e]
                at = max(at, start[n + p] + shop.cpu[p])
            if shop.net[op] > 0:
                lane = np.argmin(network)
                at = max(at, network[lane])
                network[lane] = at + shop.net[op]
        else:
            s = op - n
            at = start[s] + shop.net[s]
            if shop.cpu[s] > 0:
                lane = np.argmin(processor)
                at = max(at, processor[lane])
                processor[lane] = at + shop.cpu[s]
        start[op] = at
    return start


def lanes_of(start: FloatArray, length: FloatArray) -> IntArray:
    """[k] a lane for each phase, so that none are on one at once: as few as may be, the one that is free since latest."""
    lane, free, lanes = np.zeros(len(start), np.int64), list[tuple[float, int]](), itertools.count()
    for k in np.lexsort((length, start)).tolist():
        if length[k] > 0:
            at = bisect.bisect_right(free, (float(start[k]), len(start)))
            lane[k] = free.pop(at - 1)[1] if at else next(lanes)
            bisect.insort(free, (float(start[k] + length[k]), int(lane[k])))
    return lane


def completions(shop: Shop, start: FloatArray) -> FloatArray:
    """[jobs] when each job is done. O(n)."""
    done = np.zeros(len(shop.release))
    np.maximum.at(done, shop.job, start[len(shop.net) :] + shop.cpu)
    return done


def value_of(shop: Shop, start: FloatArray, mean: bool) -> float:
    """The makespan, or the mean over jobs of completion minus release. O(n)."""
    done = completions(shop, start)
    return float((done - shop.release).mean() if mean else done.max())


def order_of(shop: Shop, start: FloatArray) -> IntArray:
    """[2n] the operations by their start; of those that start together, what is waited for comes first. O(n log n)."""
    n = len(shop.net)
    stage = np.concatenate([np.arange(n), np.arange(n)])
    phase = np.repeat([0, 1], n)
    return np.lexsort((phase, stage, start)).astype(np.int64)
