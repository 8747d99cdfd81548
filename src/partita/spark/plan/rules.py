"""Orders by rules, without search: the planned one (Johnson's classes), its rivals, and starts for the search.

johnson        stages that fetch for less long than they compute first; of one class the longest way to the end first; the
               CPU in the order of fetching
critical-path  the longest way to the end first, on both machines
fifo           jobs as they are released, stages as they stand: Spark's default
sjf            the job with the least work first, its stages by critical path

All of them keep a machine busy whenever something could run on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.spark.plan.dispatch import dispatched, ranks
from partita.spark.plan.shop import Numbered, Shop, backwards, tails, timed


def johnson(work: Numbered) -> IntArray:
    shop = work.shop
    rank = ranks(shop.net >= shop.cpu, -tails(shop))
    return dispatched(shop, rank, rank, True)


def critical_path(work: Numbered) -> IntArray:
    rank = ranks(-tails(work.shop))
    return dispatched(work.shop, rank, rank, False)


def fifo(work: Numbered) -> IntArray:
    rank = ranks(work.shop.ready, work.job, work.stage)
    return dispatched(work.shop, rank, rank, False)


def sjf(work: Numbered) -> IntArray:
    shop = work.shop
    rank = ranks(job_work(shop).sum(axis=0)[shop.job], shop.job, -tails(shop))
    return dispatched(shop, rank, rank, False)


RULES: Mapping[str, Callable[[Numbered], IntArray]] = MappingProxyType(
    {"johnson": johnson, "critical-path": critical_path, "fifo": fifo, "sjf": sjf}
)


def job_work(shop: Shop) -> FloatArray:
    """[2, jobs] seconds that each job needs of the network and of the CPU."""
    jobs = len(shop.release)
    return np.stack([np.bincount(shop.job, w, jobs) for w in (shop.net, shop.cpu)])


def more_orders(shop: Shop) -> list[IntArray]:
    """Orders that the search may begin with: Johnson's rule and critical paths mixed in other ways, and short jobs first by
    other measures. O((n + edges) log n)."""
    tail, rule = tails(shop), np.where(shop.net < shop.cpu, shop.net, -shop.cpu)
    late = shop.net >= shop.cpu  # Johnson's second class
    after = tail - shop.net  # from the end of the fetch
    rows: list[tuple[FloatArray | IntArray | BoolArray, ...]] = [
        (late, rule),
        (-tail, late),
        (-after,),
        (late, -after),
        (-(tail - shop.net - shop.cpu), late, rule),
    ]
    network, processor = job_work(shop)
    longest = np.zeros(len(shop.release))
    np.maximum.at(longest, shop.job, tail)
    for size in (network, processor, np.maximum(network, processor), longest, longest + network + processor):
        rows += [(size[shop.job], shop.job, -tail), (size[shop.job], shop.job, late, -tail)]
    if len(shop.release) == 1:
        rows = rows[:5]
    found = []
    for row in rows:
        rank = ranks(*row)
        found += [dispatched(shop, rank, rank, fetched) for fetched in (False, True)]
    return found


def to_and_fro(shop: Shop, order: IntArray, rounds: int) -> list[IntArray]:
    """Orders by list scheduling from the end and from the beginning in turn, each ranked by the times of the one before."""
    found = []
    mirror, n = backwards(shop), len(shop.net)
    for _ in range(rounds):
        start = timed(shop, order)
        net, cpu = ranks(-(start[n:] + shop.cpu)[::-1]), ranks(-(start[:n] + shop.net)[::-1])
        start = timed(mirror, dispatched(mirror, net, cpu, False))
        net, cpu = ranks(-(start[n:] + mirror.cpu)[::-1]), ranks(-(start[:n] + mirror.net)[::-1])
        order = dispatched(shop, net, cpu, False)
        found.append(order)
    return found
