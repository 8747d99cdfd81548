"""Lower bounds of the makespan and of the mean completion time: below every schedule, those that idle on purpose included.

makespan          all stages with their heads and tails: the longest way; either machine with interruption; the flow shop
mean-completion   every job for itself, as for the makespan; and what the jobs take of each machine together: with weights
                  v0 + v1 + v2 = 1 for each job, the sum over jobs of its completions is at least
                  sum v0 alone + (the least sum of v1 x completion on the network) + (likewise v2, the CPU),
                  each sum at least that of the mean busy times plus half of the work (Goemans 1997). The weights are found
                  by multiplicative supergradient steps. With equal weights on one machine: the shortest remaining work
                  first with interruption (Schrage 1968).
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.spark.plan.dispatch import pop, push
from partita.spark.plan.heads import heads, plain_heads, through
from partita.spark.plan.shop import Shop, backwards

SAFE = 1 - 1e-12  #: what sums of rounded numbers may have gained
MOST_PAIRS = 3_000_000  #: of stages of one job; beyond, heads are the longest ways only
STEPS = 400  #: of the supergradient


@dataclass(frozen=True, slots=True)
class Bound:
    """No schedule has a smaller value."""

    value_s: float
    name: str


@dataclass(frozen=True, eq=False)
class Ends:
    """For each stage the time before and after its phases that no schedule can undercut."""

    fetch: FloatArray  #: [n] earliest start of fetching,
    compute: FloatArray  #: [n] of computing
    fetched: FloatArray  #: [n] least time from the end of fetching to the end of the job,
    computed: FloatArray  #: [n] from the end of computing


def ends(shop: Shop) -> Ends:
    """Heads and tails."""
    pairs = float((np.bincount(shop.job).astype(np.float64) ** 2).sum())
    made = heads if pairs <= MOST_PAIRS else plain_heads
    fetch, compute = made(shop)
    before, later = made(backwards(shop))
    return Ends(fetch, compute, np.ascontiguousarray(later[::-1]), np.ascontiguousarray(before[::-1]))


def bound_of(shop: Shop, mean: bool) -> Bound:
    """The better of all bounds, raw."""
    around = ends(shop)
    return _mean(shop, around) if mean else _makespan(shop, around, np.arange(len(shop.net)))


def _makespan(shop: Shop, around: Ends, stages: IntArray) -> Bound:
    """When the last of these stages is done, at the earliest."""
    rows = [a[stages] for a in (around.fetch, around.compute, around.fetched, around.computed)]
    fetch, compute, fetched, computed = rows
    longest = float((compute + shop.cpu[stages] + computed).max())
    longest = max(longest, float((fetch + shop.net[stages] + fetched).max()))
    loads = through(shop, stages, *rows).tolist()
    names = ("critical path", "load of the network", "load of the CPU", "two-machine flow shop")
    value, name = max(zip([longest, *loads], names, strict=True), key=lambda b: b[0])
    return Bound(value * SAFE, name)


def _mean(shop: Shop, around: Ends) -> Bound:
    jobs = len(shop.release)
    first = np.searchsorted(shop.job, np.arange(jobs + 1))
    alone = np.array([_makespan(shop, around, np.arange(a, b)).value_s for a, b in itertools.pairwise(first)])
    candidates = [Bound(float(alone.mean()), "every job alone")]
    machines = []
    for name, work, head, tail in (
        ("the network", shop.net / shop.width[0], around.fetch, around.fetched),
        ("the CPU", shop.cpu / shop.width[1], around.compute, around.computed),
    ):
        load = np.asarray(np.bincount(shop.job, work, jobs), np.float64)
        busy = work > 0
        least_head, least_tail = np.full(jobs, np.inf), np.full(jobs, np.inf)
        np.minimum.at(least_head, shop.job[busy], head[busy])
        np.minimum.at(least_tail, shop.job[busy], tail[busy])
        idle = load == 0
        least_head[idle], least_tail[idle] = alone[idle], 0.0
        machines.append((least_head, load, least_tail))
        shortest = shortest_first(least_head, load) + least_tail.sum()
        candidates.append(Bound(shortest / jobs, f"shortest work first on {name}"))
    if jobs > 1:
        value = weighted(alone, *machines[0], *machines[1], STEPS)
        candidates.append(Bound(value / jobs, "weighted loads of both machines"))
    best = max(candidates, key=lambda b: b.value_s)
    return Bound(max(0.0, best.value_s * SAFE - float(shop.release.mean())), best.name)


@compiled
def shortest_first(release: FloatArray, work: FloatArray) -> float:
    """The least sum of completions on one machine with interruption (Schrage 1968). O(jobs log jobs)."""
    jobs = len(work)
    by_release = np.argsort(release)
    now, i, total = 0.0, 0, 0.0
    waiting = [(0.0, 0)]  # heap of (work left, job)
    waiting.pop()
    while i < jobs or len(waiting) > 0:
        if len(waiting) == 0:
            now = max(now, release[by_release[i]])
        while i < jobs and release[by_release[i]] <= now:
            heapq.heappush(waiting, (work[by_release[i]], by_release[i]))
            i += 1
        left, j = heapq.heappop(waiting)
        if i < jobs and now + left > release[by_release[i]]:
            heapq.heappush(waiting, (left - (release[by_release[i]] - now), j))
            now = release[by_release[i]]
        else:
            now += left
            total += now
    return total


@compiled
def busy_times(release: FloatArray, work: FloatArray, weight: FloatArray, by_release: IntArray) -> FloatArray:
    """[jobs] the mean of the times at which each job is worked on, plus half of its work, when the machine always works on
    the one of largest weight / work: the least weighted sum of all (Goemans 1997). O(jobs log jobs)."""
    jobs = len(work)
    ratio = np.where(work > 0, -weight / np.maximum(work, 1e-300), -np.inf)
    by_ratio = np.argsort(ratio)
    rank = np.empty(jobs, np.int64)
    for k in range(jobs):
        rank[by_ratio[k]] = k
    left, moment = work.copy(), np.zeros(jobs)
    heap, size = np.empty(jobs, np.int64), 0
    now, i = 0.0, 0
    while i < jobs or size > 0:
        if size == 0:
            now = max(now, release[by_release[i]])
        while i < jobs and release[by_release[i]] <= now:
            push(heap, size, rank[by_release[i]])
            size += 1
            i += 1
        j = by_ratio[heap[0]]
        slice_ = left[j]
        if i < jobs:
            slice_ = min(slice_, release[by_release[i]] - now)
        if work[j] > 0:
            moment[j] += slice_ * (now + slice_ / 2) / work[j]
        else:
            moment[j] = now
        now += slice_
        left[j] -= slice_
        if i == jobs or left[j] <= 0.0:
            pop(heap, size)
            size -= 1
    return moment + work / 2


@compiled
def weighted(
    alone: FloatArray,
    head1: FloatArray,
    work1: FloatArray,
    tail1: FloatArray,
    head2: FloatArray,
    work2: FloatArray,
    tail2: FloatArray,
    steps: int,
) -> float:
    """The largest sum over jobs found by moving the weights; each of them gives a bound. O(steps jobs log jobs)."""
    jobs = len(alone)
    logs = np.zeros((3, jobs))
    by1, by2 = np.argsort(head1), np.argsort(head2)
    best, gains = 0.0, np.zeros((3, jobs))
    for step in range(steps):
        share = np.exp(logs)
        share /= share[0] + share[1] + share[2]
        gains[0] = alone
        gains[1] = busy_times(head1, work1, share[1], by1) + tail1
        gains[2] = busy_times(head2, work2, share[2], by2) + tail2
        best = max(best, (share * gains).sum())
        spread = np.abs(gains - (share * gains).sum(axis=0)).max()
        if spread <= 0:
            break
        logs += 4.0 / np.sqrt(step + 1.0) * (gains - (share * gains).sum(axis=0)) / spread
        for j in range(jobs):
            logs[:, j] -= logs[:, j].max()
    return best
