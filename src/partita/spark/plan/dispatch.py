"""List scheduling: whenever a machine is free, the ready phase of least rank goes next; a machine never idles on purpose."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.spark.plan.shop import Shop

Bools = npt.NDArray[np.bool_]


def ranks(*keys: FloatArray | IntArray | Bools) -> IntArray:
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
    fetched_rank = np.empty(n, np.int64)  # with first_fetched: when a stage was fetched, as a count
    fetched_by = np.empty(n, np.int64)
    fetched = 0
    begun = np.empty(n, np.int64)  # stack of stages that may fetch
    order = np.empty(2 * n, np.int64)
    made, released = 0, 0
    now = 0.0
    fetching, computing = -1, -1
    fetch_end, compute_end = np.inf, np.inf
    while made < 2 * n:
        waiting = 0  # stages that may fetch now
        over, through = -1, -1  # a stage that has just fetched, computed
        if fetching >= 0 and fetch_end <= now:
            over, fetching, fetch_end = fetching, -1, np.inf
        if computing >= 0 and compute_end <= now:
            through, computing, compute_end = computing, -1, np.inf
        while released < len(sources) and shop.ready[sources[released]] <= now:
            begun[waiting] = sources[released]
            waiting += 1
            released += 1
        while over >= 0 or through >= 0 or waiting > 0:
            if through >= 0:
                for e in range(shop.child_first[through], shop.child_first[through + 1]):
                    c = shop.child[e]
                    missing[c] -= 1
                    if missing[c] == 0:
                        begun[waiting] = c
                        waiting += 1
                through = -1
            elif over >= 0:
                if shop.cpu[over] > 0:
                    rank = cpu_rank[over]
                    if first_fetched:
                        fetched_rank[over], fetched_by[fetched] = fetched, over
                        rank = fetched
                        fetched += 1
                    push(cpu_heap, cpu_size, rank)
                    cpu_size += 1
                else:
                    order[made] = n + over
                    made += 1
                    through = over
                over = -1
            else:
                waiting -= 1
                s = begun[waiting]
                if shop.net[s] > 0:
                    push(net_heap, net_size, net_rank[s])
                    net_size += 1
                else:
                    order[made] = s
                    made += 1
                    over = s
        if fetching < 0 and net_size > 0:
            fetching = by_net[pop(net_heap, net_size)]
            net_size -= 1
            order[made] = fetching
            made += 1
            fetch_end = now + shop.net[fetching]
        if computing < 0 and cpu_size > 0:
            least = pop(cpu_heap, cpu_size)
            computing = fetched_by[least] if first_fetched else by_cpu[least]
            cpu_size -= 1
            order[made] = n + computing
            made += 1
            compute_end = now + shop.cpu[computing]
        then = min(fetch_end, compute_end)
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
