"""How long a plan takes, as machine code: four machines that serve the jobs in one order.

A *shop* holds the options of every kind of job in flat arrays: option o of kind k, for first[k] <= o < first[k + 1],
occupies the device for d[o], the uplink for u[o], a thread of the server for s[o] and the downlink for w[o] seconds.

Jobs wholly on the device (`local`) touch nothing but the device. Without release times and deadlines they are served
last, which costs nothing: moving such a job to the end lets every other device part start no later, so that all of
their later steps end no later either, and the device is done when it was done before. In that order every reading of
"a job without a device part may start at once" gives the same times as the one used here, which lets such a job wait
for the device parts before it: its upload has to wait for the upload of the job before it anyway, and every job before
it has one. So printed plans have these jobs last; `last` says so.

With release times or deadlines (`last` is false) they stand in the order like all others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.solve.compiled import compiled


class Shop(NamedTuple):
    """A problem as the kernels see it."""

    d: FloatArray  #: [options] seconds on the device
    u: FloatArray  #: [options] ... the uplink
    s: FloatArray  #: [options] ... a thread of the server
    w: FloatArray  #: [options] ... the downlink
    local: BoolArray  #: [options] the whole job stays on the device
    first: IntArray  #: [kinds + 1] options of each kind; its first one is local
    kind: IntArray  #: [jobs]
    release: FloatArray  #: [kinds]
    deadline: FloatArray  #: [kinds]
    lag: float  #: from the end of a transfer to its arrival
    threads: int
    last: bool  #: jobs wholly on the device are served last


@compiled
def evaluate(shop: Shop, order: IntArray, choice: IntArray) -> tuple[float, float]:
    """(the largest lateness, the last end) of the jobs `order` [n] with the options `choice` [jobs]. O(n x threads)."""
    device, local, up, down = 0.0, 0.0, 0.0, 0.0
    free = np.zeros(shop.threads)
    late, last = 0.0, 0.0
    for j in order:
        o, k = choice[j], shop.kind[j]
        if shop.local[o] and shop.last:
            local += shop.d[o]
            continue
        device = max(device, shop.release[k]) + shop.d[o]
        end = device
        if not shop.local[o]:
            up = max(up, device) + shop.u[o]
            t = 0
            for i in range(1, shop.threads):
                if free[i] < free[t]:
                    t = i
            free[t] = max(free[t], up + shop.lag) + shop.s[o]
            down = max(down, free[t]) + shop.w[o]
            end = down + shop.lag
        last = max(last, end)
        late = max(late, end - shop.deadline[k])
    return late, max(last, device + local)


@compiled
def schedule(shop: Shop, order: IntArray, choice: IntArray) -> FloatArray:
    """[jobs, 9] start and end on device, uplink, server and downlink, and the thread; times of machines a job does not
    touch are nan, its thread -1. Jobs are served in the order as it stands."""
    times = np.full((len(order), 9), np.nan)
    times[:, 8] = -1.0
    device, up, down = 0.0, 0.0, 0.0
    free = np.zeros(shop.threads)
    for j in order:
        o = choice[j]
        times[j, 0] = max(device, shop.release[shop.kind[j]])
        device = times[j, 0] + shop.d[o]
        times[j, 1] = device
        if shop.local[o]:
            continue
        times[j, 2] = max(up, device)
        up = times[j, 2] + shop.u[o]
        times[j, 3] = up
        t = 0
        for i in range(1, shop.threads):
            if free[i] < free[t]:
                t = i
        times[j, 4] = max(free[t], up + shop.lag)
        free[t] = times[j, 4] + shop.s[o]
        times[j, 5] = free[t]
        times[j, 6] = max(down, free[t])
        down = times[j, 6] + shop.w[o]
        times[j, 7] = down
        times[j, 8] = t
    return times
