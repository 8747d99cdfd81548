"""What others do: the plans that a joint one has to beat.

device-only      every job stays on the device
server-only      every job goes to the server whole
single-cut       the cut that answers a lone job soonest, jobs in the given order (Neurosurgeon, Kang et al. 2017)
min-cut          DADS (Hu et al. 2019): the cut of each job by minimum cut, alone where the link is light, else of
                 least largest machine, jobs in the given order
partition-only   the best cuts that are the same for all jobs of a model, jobs in the given order
schedule-only    the cuts of single-cut, in the best order found
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.offload.plan.kernel import Shop
from partita.offload.plan.local import improve, whole_pool
from partita.offload.plan.shop import Found, alone_s, best_of, found
from partita.solve.johnson import johnson_order

MOST_LOOKS = 30_000_000  #: jobs looked at in a baseline's search: about a second


def least(shop: Shop, cost: FloatArray, kinds: IntArray | None = None) -> IntArray:
    """[jobs] the option of least cost [options] of each job's kind, the first of equals."""
    best = np.array([a + int(cost[a:b].argmin()) for a, b in zip(shop.first[:-1], shop.first[1:], strict=True)])
    return best[shop.kind].astype(np.int64)


def given(shop: Shop) -> IntArray:
    """The jobs as they stand."""
    return np.arange(len(shop.kind), dtype=np.int64)


def device_only(shop: Shop) -> Found:
    return found(shop, given(shop), shop.first[:-1][shop.kind], "device-only")


def server_only(shop: Shop) -> Found:
    """The option with the least on the device; where all tasks cost nothing there, the one of them that leaves soonest."""
    sent = np.where(shop.local, np.inf, shop.d)
    choice = least(shop, sent)
    return found(shop, given(shop), choice, "server-only")


def single_cut(shop: Shop) -> Found:
    return found(shop, given(shop), least(shop, alone_s(shop)), "single-cut")


def min_cut(shop: Shop) -> Found:
    """DADS: under light load the least time alone, under heavy load the least of the largest machine; the better of both."""
    largest = np.maximum(np.maximum(shop.d, shop.u), np.maximum(shop.s / shop.threads, shop.w))
    light, heavy = least(shop, alone_s(shop)), least(shop, largest)
    return best_of([found(shop, given(shop), c, "min-cut") for c in (light, heavy)])


def schedule_only(shop: Shop, seed: int = 0) -> Found:
    """The cuts of single-cut in the best of Johnson's orders, improved by exchanging and moving jobs."""
    choice = least(shop, alone_s(shop))
    starts = [found(shop, o, choice, "schedule-only") for o in (given(shop), *orders(shop, choice))]
    return improve(shop, best_of(starts), steps=_steps(200, len(choice)), seed=seed)


def partition_only(shop: Shop, seed: int = 0) -> Found:
    """The best cuts found for the given order."""
    starts = [min_cut(shop), device_only(shop), server_only(shop)]
    start = found(shop, given(shop), best_of(starts).choice, "partition-only")
    steps = _steps(500, len(start.choice))
    return improve(shop, start, steps=steps, seed=seed, orders=False, pool=whole_pool(shop))


def _steps(each: int, jobs: int) -> int:
    """So many moves a job; fewer where many jobs make a move dear."""
    return min(each * jobs, MOST_LOOKS // jobs)


def orders(shop: Shop, choice: IntArray) -> list[IntArray]:
    """Johnson's orders for every way to split the four machines into two (Campbell, Dudek & Smith 1970)."""
    d, u, s, w = shop.d[choice], shop.u[choice], shop.s[choice] / shop.threads, shop.w[choice]
    return [
        johnson_order(d, u, s + w),
        johnson_order(d, u + s + w),
        johnson_order(d + u, s + w),
        johnson_order(d + u + s, w),
        johnson_order(d + u, u + s),
        johnson_order(u, s, d),
        np.argsort(d, kind="stable").astype(np.int64),
        np.argsort(shop.release[shop.kind], kind="stable").astype(np.int64),
        np.argsort(shop.deadline[shop.kind], kind="stable").astype(np.int64),
    ]


BASELINES: Mapping[str, Callable[[Shop], Found]] = MappingProxyType(
    {
        "device-only": device_only,
        "server-only": server_only,
        "single-cut": single_cut,
        "min-cut": min_cut,
        "partition-only": partition_only,
        "schedule-only": schedule_only,
    }
)
