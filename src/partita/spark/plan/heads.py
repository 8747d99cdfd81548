"""Earliest starts that the machines allow: for each stage, what all its ancestors need of the network and of the CPU.

For a stage v all ancestors u have to be fetched and computed before. With a *head* (no sooner can its phase begin) and a
*way* (no shorter is the time from the phase's end to v) for each of them, v cannot begin before

    one machine    the phases of all ancestors on one machine, if interruption were allowed: always the one with the
                   longest way of those that could run (Jackson 1955, Carlier 1982)
    flow shop      the ancestors whose head is at least h and whose way is at least w: h + Johnson's makespan + w

(of a machine with several lanes: one lane that is as many times as fast, and with interruption does all that they do),
and so on from wave to wave: heads of ancestors make better heads. The same of the mirrored shop gives tails.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.spark.plan.dispatch import pop, push
from partita.spark.plan.shop import Shop


@compiled
def plain_heads(shop: Shop) -> tuple[FloatArray, FloatArray]:
    """([n], [n]) earliest starts of fetching and of computing by the longest way from the release. O(n + edges)."""
    n = len(shop.net)
    fetch, compute = np.zeros(n), np.zeros(n)
    for v in range(n):
        fetch[v] = shop.ready[v]
        for e in range(shop.parent_first[v], shop.parent_first[v + 1]):
            p = shop.parent[e]
            fetch[v] = max(fetch[v], compute[p] + shop.cpu[p])
        compute[v] = fetch[v] + shop.net[v]
    return fetch, compute


@compiled
def heads(shop: Shop) -> tuple[FloatArray, FloatArray]:
    """The same with the machines in mind. O(n (ancestors log ancestors + edges of the job))."""
    n = len(shop.net)
    fetch, compute = plain_heads(shop)
    way = np.full(n, -1.0)
    for v in range(n):
        for e in range(shop.parent_first[v], shop.parent_first[v + 1]):
            p = shop.parent[e]
            fetch[v] = max(fetch[v], compute[p] + shop.cpu[p])
        compute[v] = max(compute[v], fetch[v] + shop.net[v])
        if shop.parent_first[v] == shop.parent_first[v + 1]:
            continue
        ancestors = _ancestors(shop, v, way)
        if len(ancestors) > 1:
            after = way[ancestors]
            bounds = through(shop, ancestors, fetch[ancestors], compute[ancestors], shop.cpu[ancestors] + after, after)
            fetch[v] = max(fetch[v], bounds.max())
            compute[v] = max(compute[v], fetch[v] + shop.net[v])
        way[ancestors] = -1.0
    return fetch, compute


@compiled
def _ancestors(shop: Shop, v: int, way: FloatArray) -> IntArray:
    """The ancestors of v; way [n], -1 elsewhere, gets the longest way from the end of each to the start of v."""
    top = v
    for e in range(shop.parent_first[v], shop.parent_first[v + 1]):
        way[shop.parent[e]] = 0.0
    count, least = 0, v
    while top > 0 and shop.job[top - 1] == shop.job[v]:
        top -= 1
    for u in range(v - 1, top - 1, -1):
        if way[u] < 0:
            continue
        count += 1
        least = u
        here = way[u] + shop.net[u] + shop.cpu[u]
        for e in range(shop.parent_first[u], shop.parent_first[u + 1]):
            way[shop.parent[e]] = max(way[shop.parent[e]], here)
    found = np.empty(count, np.int64)
    k = 0
    for u in range(least, v):
        if way[u] >= 0:
            found[k] = u
            k += 1
    return found


@compiled
def through(
    shop: Shop, stages: IntArray, fetch: FloatArray, compute: FloatArray, fetched: FloatArray, computed: FloatArray
) -> FloatArray:
    """[3] when all of `stages` [k] are through and have gone their way, at the earliest: by the network, the CPU, both.

    fetch, compute: [k] heads; fetched, computed: [k] ways from the end of either phase. O(k log k).
    """
    net, cpu = shop.net[stages] / shop.width[0], shop.cpu[stages] / shop.width[1]
    both = max(
        nested(np.argsort(-fetch), fetch, computed, net, cpu), nested(np.argsort(-computed), fetch, computed, net, cpu)
    )
    return np.array([preemptive(fetch, net, fetched), preemptive(compute, cpu, computed), both])


@compiled
def preemptive(head: FloatArray, work: FloatArray, tail: FloatArray) -> float:
    """The least maximum of end + tail on one machine if phases may be interrupted, those without work aside. O(k log k)."""
    k = len(head)
    by_head = np.argsort(head)
    by_tail = np.argsort(-tail)
    rank = np.empty(k, np.int64)
    for i in range(k):
        rank[by_tail[i]] = i
    left = work.copy()
    heap, size = np.empty(k, np.int64), 0
    now, i, worst = 0.0, 0, 0.0
    while i < k or size > 0:
        if size == 0:
            now = max(now, head[by_head[i]])
        while i < k and head[by_head[i]] <= now:
            if work[by_head[i]] > 0:
                push(heap, size, rank[by_head[i]])
                size += 1
            i += 1
        if size == 0:
            continue
        j = by_tail[heap[0]]
        if i < k and now + left[j] > head[by_head[i]]:
            left[j] -= head[by_head[i]] - now
            now = head[by_head[i]]
        else:
            now += left[j]
            worst = max(worst, now + tail[j])
            pop(heap, size)
            size -= 1
    return worst


@compiled
def nested(by: IntArray, head: FloatArray, way: FloatArray, net: FloatArray, cpu: FloatArray) -> float:
    """The largest h + Johnson's makespan + w over the sets of the first 1, 2 .. of `by` [k], with h and w the least head and
    way in the set. A tree over all stages in Johnson's order holds sums and makespans of the set. O(k log k)."""
    k = len(by)
    early = net < cpu
    first = np.flatnonzero(early)
    last = np.flatnonzero(~early)
    first = first[np.argsort(net[first], kind="mergesort")]
    last = last[np.argsort(-cpu[last], kind="mergesort")]
    place = np.empty(k, np.int64)
    place[first] = np.arange(len(first))
    place[last] = len(first) + np.arange(len(last))
    size = 1
    while size < k:
        size *= 2
    fetched, computed, ended = np.zeros(2 * size), np.zeros(2 * size), np.zeros(2 * size)
    least_head, least_way, worst = np.inf, np.inf, 0.0
    for s in by:
        at = size + place[s]
        fetched[at], computed[at], ended[at] = net[s], cpu[s], net[s] + cpu[s]
        at //= 2
        while at > 0:
            a, b = 2 * at, 2 * at + 1
            fetched[at], computed[at] = fetched[a] + fetched[b], computed[a] + computed[b]
            ended[at] = max(ended[a] + computed[b], fetched[a] + ended[b])
            at //= 2
        least_head, least_way = min(least_head, head[s]), min(least_way, way[s])
        worst = max(worst, least_head + ended[1] + least_way)
    return worst
