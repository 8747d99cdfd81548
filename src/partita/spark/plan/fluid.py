"""What Spark does without a plan: phases share. All stages that may fetch share the network equally, all that may compute
the CPU, at every moment (processor sharing). `fair` begins every stage as soon as it may; DelayStage (Shao et al., ICPP 2019)
delays stages beside the longest way, one after the other, by what helps most; here all but the stage with the longest way, which
is no worse.

These are values to compare with, no schedules: two stages at once on a machine are just what a schedule here has not.
"""

from __future__ import annotations

import heapq

import numpy as np

from partita.nouns.graph import FloatArray
from partita.solve.compiled import compiled
from partita.spark.plan.shop import Shop, tails

MOST_WORK = 3_000_000  #: stages and edges simulated to find the delays: about a quarter of a second
SHARES = (0.25, 0.5, 0.75, 1.0)  #: delays tried, as shares of the longest end of a stage that runs beside


@compiled
def shared(shop: Shop, delay: FloatArray) -> FloatArray:
    """[n] the end of each stage when machines are shared equally and stage s begins delay[s] after it might.

    Each machine has a clock of the service that each of its phases has had; a phase is over when the clock has gone on by its
    length. O((n + edges) log n).
    """
    n = len(shop.net)
    missing = shop.parent_first[1:] - shop.parent_first[:-1]
    waiting = [(0.0, 0)]  # heap of (time, stage that begins)
    fetching, computing = [(0.0, 0)], [(0.0, 0)]  # heaps of (the clock at the end, stage)
    for heap in (waiting, fetching, computing):
        heap.pop()
    for s in range(n):
        if missing[s] == 0:
            heapq.heappush(waiting, (shop.ready[s] + delay[s], s))
    end = np.zeros(n)
    now, network, processor, over = 0.0, 0.0, 0.0, 0
    while over < n:
        begins = waiting[0][0] if len(waiting) else np.inf
        beside = max(1.0, len(fetching) / shop.width[0]), max(1.0, len(computing) / shop.width[1])  # phases a lane
        fetched = now + (fetching[0][0] - network) * beside[0] if len(fetching) else np.inf
        computed = now + (computing[0][0] - processor) * beside[1] if len(computing) else np.inf
        then = max(now, min(begins, fetched, computed))
        network += (then - now) / beside[0]
        processor += (then - now) / beside[1]
        now = then
        if computed <= now:
            processor, s = heapq.heappop(computing)
            end[s] = now
            over += 1
            for e in range(shop.child_first[s], shop.child_first[s + 1]):
                c = shop.child[e]
                missing[c] -= 1
                if missing[c] == 0:
                    heapq.heappush(waiting, (now + delay[c], c))
        elif fetched <= now:
            network, s = heapq.heappop(fetching)
            heapq.heappush(computing, (processor + shop.cpu[s], s))
        else:
            s = heapq.heappop(waiting)[1]
            heapq.heappush(fetching, (network + shop.net[s], s))
    return end


def fluid_value(shop: Shop, end: FloatArray, mean: bool) -> float:
    """The makespan, or the mean over jobs of completion minus release. O(n)."""
    done = np.zeros(len(shop.release))
    np.maximum.at(done, shop.job, end)
    return float((done - shop.release).mean() if mean else done.max())


def fair(shop: Shop, mean: bool) -> float:
    """The value when machines are shared equally."""
    return fluid_value(shop, shared(shop, np.zeros(len(shop.net))), mean)


def delay_stage(shop: Shop, mean: bool) -> float:
    """The value with DelayStage's delays: stages from the longest way to the shortest, each with the delay that is best for
    it among a few; as many of them as MOST_WORK allows."""
    n = len(shop.net)
    delay, tail = np.zeros(n), tails(shop)
    end = shared(shop, delay)
    best = fluid_value(shop, end, mean)
    tries = MOST_WORK // (n + len(shop.child))
    alone = end - shop.net - shop.cpu
    for s in np.argsort(-tail, kind="stable")[1 : 1 + tries // len(SHARES)].tolist():
        beside = end[(alone < end[s]) & (end > alone[s])]
        for share in SHARES:
            trial = delay.copy()
            trial[s] = share * max(0.0, float(beside.max()) - alone[s]) if len(beside) else 0.0
            value = fluid_value(shop, shared(shop, trial), mean)
            if value < best:
                best, delay = value, trial
    return best
