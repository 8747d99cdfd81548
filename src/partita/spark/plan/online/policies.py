"""Who is next on a free machine, when nobody knows what comes: rules that never wait on purpose.

fifo           the job that came first
sjf            the job with the least work of all
srpt           the job with the least work left
srpt-machine   the job with the least work left on this machine
srpt-path      the job with the shortest way to its end
johnson        stages that fetch for less long than they compute first, by their way; the CPU in the order of fetching
critical-path  the stage with the longest way to the end of its job

Of one job, the stage with the longest way comes first.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.spark.plan.online.world import DONE, FETCHABLE, FETCHED, Line, advance, begin
from partita.spark.plan.shop import Shop

RULES = ("fifo", "sjf", "srpt", "srpt-machine", "srpt-path", "johnson", "critical-path")
FIFO, SJF, SRPT, SRPT_MACHINE, SRPT_PATH, JOHNSON, CRITICAL_PATH = range(len(RULES))


@compiled
def ruled(shop: Shop, first: IntArray, tail: FloatArray, line: Line, rule: int) -> None:
    """All jobs from the first release to the last end. tail: [n] longest way from a stage to the end of its job."""
    key = np.empty(len(shop.net))
    while advance(shop, first, line, False):
        for machine in range(2):
            if line.at_work[machine] < 0:
                s = _least(shop, first, tail, line, rule, machine, key)
                if s >= 0:
                    begin(shop, line, machine, s)


@compiled
def _least(shop: Shop, first: IntArray, tail: FloatArray, line: Line, rule: int, machine: int, key: FloatArray) -> int:
    """The ready stage that the rule wants, -1 for none. O(stages of the active jobs)."""
    ready = FETCHABLE if machine == 0 else FETCHED
    best, status, net, cpu = -1, line.status, shop.net, shop.cpu
    for k in range(line.counts[2]):
        j = line.active[k]
        a, b = first[j], first[j + 1]
        size = float(j)
        if rule == SJF:
            size = net[a:b].sum() + cpu[a:b].sum()
        elif rule == SRPT:
            size = line.left[0, j] + line.left[1, j]
        elif rule == SRPT_MACHINE:
            size = line.left[machine, j]
        elif rule == SRPT_PATH:
            size = way_of(net, tail, status, a, b)
        for s in range(a, b):
            if status[s] != ready:
                continue
            key[s] = size
            if rule == CRITICAL_PATH or (rule == JOHNSON and machine == 0):
                key[s] = -tail[s]
                if rule == JOHNSON and net[s] >= cpu[s]:
                    key[s] = 1.0 / (1.0 + tail[s])  # behind all of the other class
            elif rule == JOHNSON:
                key[s] = line.fetched_s[s]
            if best < 0 or key[s] < key[best] or (key[s] == key[best] and tail[s] > tail[best]):
                best = s
    return best


@compiled
def way_of(net: FloatArray, tail: FloatArray, status: IntArray, a: int, b: int) -> float:
    """The longest way to the end of a job whose stages are a to b - 1; phases under way count whole."""
    way = 0.0
    for s in range(a, b):
        if status[s] < DONE:
            way = max(way, tail[s] - (net[s] if status[s] >= FETCHED else 0.0))
    return way
