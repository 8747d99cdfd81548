"""What Spark does without a plan: phases share. All stages that may fetch share the network equally, all that may compute
the CPU, at every moment (processor sharing). `fair` begins every stage as soon as it may; DelayStage (Shao et al., ICPP 2019)
delays stages off the longest way, one after the other, by what helps most.

These are values to compare with, no schedules: two stages at once on a machine are just what a schedule here has not.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray
from partita.solve.compiled import compiled
from partita.spark.plan.shop import Shop, tails

MOST_WORK = 40_000_000  #: pairs of stages looked at for the delays: about a quarter of a second
SHARES = (0.25, 0.5, 0.75, 1.0)  #: delays tried, as shares of the longest end of a stage that runs beside


@compiled
def shared(shop: Shop, delay: FloatArray) -> FloatArray:
    """[n] the end of each stage when machines are shared equally and stage s begins delay[s] after it might.

    O(n (n + edges)).
    """
    n = len(shop.net)
    missing = shop.parent_first[1:] - shop.parent_first[:-1]
    phase = np.zeros(n, np.int64)  # 0 waits, 1 fetches, 2 computes, 3 is done
    may = np.where(missing == 0, shop.ready + delay, np.inf)
    left, end = shop.net.copy(), np.zeros(n)
    active = np.empty(n, np.int64)
    size, over = 0, 0
    next_source = np.argsort(may)
    for s in next_source:
        if missing[s] == 0:
            active[size] = s
            size += 1
    now = 0.0
    while over < n:
        counts = np.zeros(3)
        for k in range(size):
            counts[phase[active[k]]] += 1.0
        step = np.inf
        for k in range(size):
            s = active[k]
            step = min(step, may[s] - now if phase[s] == 0 else left[s] * counts[phase[s]])
        step = max(step, 0.0)
        k = 0
        before = size
        while k < before:
            s = active[k]
            if phase[s] == 0:
                if may[s] - now <= step:
                    phase[s] = 1
            else:
                need = left[s] * counts[phase[s]]
                left[s] = 0.0 if need <= step else left[s] - step / counts[phase[s]]
            k += 1
        now += step
        k = 0
        while k < size:
            s = active[k]
            if phase[s] == 1 and left[s] <= 0.0:
                phase[s] = 2
                left[s] = shop.cpu[s]
            if phase[s] == 2 and left[s] <= 0.0:
                phase[s] = 3
                end[s] = now
                over += 1
                size -= 1
                active[k] = active[size]
                for e in range(shop.child_first[s], shop.child_first[s + 1]):
                    c = shop.child[e]
                    missing[c] -= 1
                    if missing[c] == 0:
                        may[c] = now + delay[c]
                        active[size] = c
                        size += 1
                        if delay[c] <= 0.0:
                            phase[c] = 1
                continue
            k += 1
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
    tries = MOST_WORK // (n * n + len(shop.child))
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
