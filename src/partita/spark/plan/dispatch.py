"""List scheduling: whenever a machine is free, the ready phase of least rank goes next; a machine never idles on purpose."""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.spark.plan.shop import Shop


def ranks(*keys: FloatArray | IntArray | BoolArray) -> IntArray:
    """[n] the place of each stage, by the first key, then the second ..; equal ones by number.

    >>> ranks(np.array([2.0, 1.0, 2.0]), np.array([1, 1, 0])).tolist()
    [2, 0, 1]
    """
    place = np.empty(len(keys[0]), np.int64)
    place[np.lexsort((np.arange(len(keys[0])), *reversed(keys)))] = np.arange(len(keys[0]))
    return place


@compiled
def dispatched(shop: Shop, net_rank: IntArray, cpu_rank: IntArray, first_fetched: bool) -> IntArray:
    """[2n] the order that list scheduling with these ranks [n] makes; with `first_fetched` the CPU serves in the order of
    fetching instead. O((n + edges) log n)."""
    n = len(shop.net)
    by_net, by_cpu = np.argsort(net_rank), np.argsort(cpu_rank)
    missing = shop.parent_first[1:] - shop.parent_first[:-1]
    sources = np.flatnonzero(missing == 0)
    sources = sources[np.argsort(shop.ready[sources], kind="mergesort")]
    net_heap, cpu_heap = np.empty(n, np.int64), np.empty(n, np.int64)
    net_size, cpu_size = 0, 0
    fetched_by = np.empty(n, np.int64)  # with first_fetched: stages as they were fetched
    fetched = 0
    begun = np.empty(n, np.int64)  # stack of stages that may fetch
    order = np.empty(2 * n, np.int64)
    made, released = 0, 0
    now = 0.0
    fetching, fetch_end = np.full(shop.width[0], -1), np.full(shop.width[0], np.inf)
    computing, compute_end = np.full(shop.width[1], -1), np.full(shop.width[1], np.inf)
    over, through = np.empty(n, np.int64), np.empty(n, np.int64)  # stacks of stages that have just fetched, computed
    while made < 2 * n:
        waiting = 0  # stages that may fetch now
        some_over, some_through = 0, 0
        for lane in range(len(fetching)):
            if fetch_end[lane] <= now:
                over[some_over] = fetching[lane]
                some_over += 1
                fetching[lane], fetch_end[lane] = -1, np.inf
        for lane in range(len(computing)):
            if compute_end[lane] <= now:
                through[some_through] = computing[lane]
                some_through += 1
                computing[lane], compute_end[lane] = -1, np.inf
        while released < len(sources) and shop.ready[sources[released]] <= now:
            begun[waiting] = sources[released]
            waiting += 1
            released += 1
        while some_over > 0 or some_through > 0 or waiting > 0:
            if some_through > 0:
                some_through -= 1
                s = through[some_through]
                for e in range(shop.child_first[s], shop.child_first[s + 1]):
                    c = shop.child[e]
                    missing[c] -= 1
                    if missing[c] == 0:
                        begun[waiting] = c
                        waiting += 1
            elif some_over > 0:
                some_over -= 1
                s = over[some_over]
                if shop.cpu[s] > 0:
                    rank = cpu_rank[s]
                    if first_fetched:
                        fetched_by[fetched] = s
                        rank = fetched
                        fetched += 1
                    push(cpu_heap, cpu_size, rank)
                    cpu_size += 1
                else:
                    order[made] = n + s
                    made += 1
                    through[some_through] = s
                    some_through += 1
            else:
                waiting -= 1
                s = begun[waiting]
                if shop.net[s] > 0:
                    push(net_heap, net_size, net_rank[s])
                    net_size += 1
                else:
                    order[made] = s
                    made += 1
                    over[some_over] = s
                    some_over += 1
        for lane in range(len(fetching)):
            if fetching[lane] < 0 and net_size > 0:
                s = by_net[pop(net_heap, net_size)]
                net_size -= 1
                order[made] = s
                made += 1
                fetching[lane], fetch_end[lane] = s, now + shop.net[s]
        for lane in range(len(computing)):
            if computing[lane] < 0 and cpu_size > 0:
                least = pop(cpu_heap, cpu_size)
                s = fetched_by[least] if first_fetched else by_cpu[least]
                cpu_size -= 1
                order[made] = n + s
                made += 1
                computing[lane], compute_end[lane] = s, now + shop.cpu[s]
        then = min(fetch_end.min(), compute_end.min())
        if released < len(sources):
            then = min(then, shop.ready[sources[released]])
        now = then
    return order


@compiled
def push(heap: IntArray, size: int, item: int) -> None:
    """Add to a heap of `size` numbers, the least at 0."""
    k = size
    while k > 0 and heap[(k - 1) // 2] > item:
        heap[k] = heap[(k - 1) // 2]
        k = (k - 1) // 2
    heap[k] = item


@compiled
def pop(heap: IntArray, size: int) -> int:
    """Take the least of a heap of `size` numbers."""
    least, last = heap[0], heap[size - 1]
    k = 0
    while 2 * k + 1 < size - 1:
        c = 2 * k + 1
        if c + 1 < size - 1 and heap[c + 1] < heap[c]:
            c += 1
        if heap[c] >= last:
            break
        heap[k] = heap[c]
        k = c
    heap[k] = last
    return int(least)
