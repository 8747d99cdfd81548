"""The learned policy of the shop: which stage has a free machine next, or which one it had better wait for.

A machine may take a stage that is ready for it, or wait for one that will be as soon as the other machine has done what it does:
a stage that is being fetched, for the CPU; the children of one that computes, for the network. All of them have features; the
network scores them (with weights for each machine) and the best one has the machine, or the machine stands idle for it.
Lengths are measured by the mean work of the jobs that have come so far, so that units do not count.

The policy can look ahead: of the LOOKS candidates with the best scores it then takes the one with which the jobs that are there
end soonest if it goes on by its scores and no more jobs come (what does come, it does not know), TRUST given to the scores. While
more than MOST_AHEAD stages are there it does not: a look takes the square of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.spark.plan.learned.network import EMBEDDED, embed, score, weights_of_graph
from partita.spark.plan.online.policies import way_of
from partita.spark.plan.online.world import (
    DONE,
    FETCHABLE,
    FETCHED,
    FETCHING,
    HIDDEN,
    Line,
    advance,
    begin,
    copied,
    stages_there,
)
from partita.spark.plan.shop import Shop

PLAIN = 26
FEATURES = PLAIN + 2 * EMBEDDED
STATIC = 5  #: features of a stage that the graph network sees
GRAPH = weights_of_graph(STATIC)
WEIGHTS = GRAPH + 2 * FEATURES  #: of the graph network, of the score for the network, for the CPU
LOOKS = 4
MOST_AHEAD = 600
TRUST = 0.5  #: in the scores: so much mean work of a job is a difference of 1 worth
LEAST = 0.01  #: a length is at least this, in units of the mean work of a job


class Mind(NamedTuple):
    """What the policy makes of what it has seen, and room to think."""

    weights: FloatArray  #: [WEIGHTS]
    static: FloatArray  #: [n, STATIC]
    inner: FloatArray  #: [n, EMBEDDED]
    seen: FloatArray  #: [3] jobs seen, their work, the unit of lengths
    expected: IntArray  #: [n] 1: may fetch once the CPU has done what it does
    stage: IntArray  #: [n] candidates,
    score: FloatArray  #: [n] their scores
    waits: IntArray  #: [n] and whether they are not ready yet
    x: FloatArray  #: [FEATURES]


@compiled
def fresh_mind(n: int, weights: FloatArray) -> Mind:
    """Nothing has been seen."""
    return Mind(
        weights, np.zeros((n, STATIC)), np.zeros((n, EMBEDDED)), np.array([0.0, 0.0, 1.0]), np.zeros(n, np.int64),
        np.empty(n, np.int64), np.empty(n), np.empty(n, np.int64), np.zeros(FEATURES),
    )  # fmt: skip


@compiled
def learned_shop(shop: Shop, first: IntArray, tail: FloatArray, line: Line, weights: FloatArray, looks: int) -> None:
    """All jobs from the first release to the last end. weights: [WEIGHTS].

    looks: 1, or how many candidates are tried to the end.
    """
    mind = fresh_mind(len(shop.net), weights)
    top, waits, worth = np.empty(looks, np.int64), np.empty(looks, np.int64), np.empty(looks)
    while advance(shop, first, line, False):
        _see(shop, first, tail, line, mind)
        for machine in range(2):
            if line.at_work[machine] >= 0:
                continue
            count = _scored(shop, first, tail, line, mind, machine)
            if looks == 1 or count < 2 or stages_there(line) > MOST_AHEAD:
                _take(shop, line, mind, machine, count)
                continue
            tried = min(looks, count)
            for k in range(tried):
                best = 0
                for c in range(1, count):
                    if mind.score[c] > mind.score[best]:
                        best = c
                top[k], waits[k], worth[k] = mind.stage[best], mind.waits[best], mind.score[best]
                mind.score[best] = -np.inf
            chosen, least = 0, np.inf
            for k in range(tried):
                value = _tried(shop, first, tail, line, mind, machine, top[k], waits[k] == 1)
                value -= TRUST * mind.seen[2] * worth[k]
                if value < least:
                    chosen, least = k, value
            if waits[chosen] == 0:
                begin(shop, line, machine, top[chosen])


@compiled
def _tried(
    shop: Shop, first: IntArray, tail: FloatArray, line: Line, mind: Mind, machine: int, stage: int, waits: bool
) -> float:
    """The sum of the ends of the jobs that are there if the machine now takes the stage, or waits, and the scores decide
    what follows."""
    trial = copied(line)
    if not waits:
        begin(shop, trial, machine, stage)
    if machine == 0 and trial.at_work[1] < 0:
        _take(shop, trial, mind, 1, _scored(shop, first, tail, trial, mind, 1))
    while advance(shop, first, trial, True):
        for m in range(2):
            if trial.at_work[m] < 0:
                _take(shop, trial, mind, m, _scored(shop, first, tail, trial, mind, m))
    total = 0.0
    for k in range(line.counts[2]):
        total += trial.done_s[line.active[k]]
    return total


@compiled
def _take(shop: Shop, line: Line, mind: Mind, machine: int, count: int) -> None:
    """The machine takes the candidate of the best score, or stands idle for it."""
    best = 0
    for c in range(1, count):
        if mind.score[c] > mind.score[best]:
            best = c
    if count > 0 and mind.waits[best] == 0:
        begin(shop, line, machine, mind.stage[best])


@compiled
def _see(shop: Shop, first: IntArray, tail: FloatArray, line: Line, mind: Mind) -> None:
    """Take note of the jobs that have just come."""
    static, seen, net, cpu = mind.static, mind.seen, shop.net, shop.cpu
    while seen[0] < line.counts[0]:
        a, b = first[int(seen[0])], first[int(seen[0]) + 1]
        seen[0] += 1
        seen[1] += (net[a:b].sum() + cpu[a:b].sum()) / 2
        seen[2] = max(seen[1] / seen[0], 1e-300)
        for s in range(a, b):
            static[s, 0] = 1.0
            static[s, 1] = np.log(net[s] / seen[2] + LEAST)
            static[s, 2] = np.log(cpu[s] / seen[2] + LEAST)
            static[s, 3] = np.log(tail[s] / seen[2] + LEAST)
            static[s, 4] = 1.0 if net[s] < cpu[s] else 0.0
        embed(static, shop.child_first, shop.child, mind.weights[:GRAPH], mind.inner, a, b)


@compiled
def _scored(shop: Shop, first: IntArray, tail: FloatArray, line: Line, mind: Mind, machine: int) -> int:
    """Write the candidates for the machine, which is free, into the mind, with their scores; returns how many.

    None where no stage is ready: then there is nothing to decide. O(active jobs log active jobs + their stages x features).
    """
    net, cpu, status, missing, left, active = shop.net, shop.cpu, line.status, line.missing, line.left, line.active
    inner, x, unit, expected = mind.inner, mind.x, mind.seen[2], mind.expected
    weights = mind.weights[GRAPH + machine * FEATURES : GRAPH + (machine + 1) * FEATURES]
    ready = FETCHABLE if machine == 0 else FETCHED
    count, total, ready_work, waiting, waiting_other, some = line.counts[2], 0.0, 0.0, 0.0, 0.0, False
    for k in range(count):
        j = active[k]
        total += left[0, j] + left[1, j]
        waiting += left[machine, j]
        waiting_other += left[1 - machine, j]
        for s in range(first[j], first[j + 1]):
            if machine == 1 and status[s] == FETCHABLE:
                ready_work += net[s]
            elif machine == 0 and status[s] == FETCHED:
                ready_work += cpu[s]
            some = some or status[s] == ready
    if not some:
        return 0
    other = line.at_work[1 - machine]
    wait = line.until_s[1 - machine] - line.now[0] if other >= 0 else 0.0
    if other >= 0 and machine == 0:
        for e in range(shop.child_first[other], shop.child_first[other + 1]):
            c = shop.child[e]
            expected[c] = 1 if missing[c] == 1 else 0
    queue = ready_work + wait
    starving, log_queue, log_count = np.exp(-4.0 * queue / unit), np.log(queue / unit + LEAST), np.log(count)
    log_wait = np.log(wait / unit + LEAST)
    balance = np.log((waiting + LEAST * unit) / (waiting_other + LEAST * unit))
    sizes = np.empty(count)
    for k in range(count):
        sizes[k] = left[0, active[k]] + left[1, active[k]]
    sizes.sort()
    found = 0
    for k in range(count):
        j = active[k]
        looked_at = False
        for s in range(first[j], first[j + 1]):
            waits = (machine == 1 and status[s] == FETCHING) or (status[s] == HIDDEN and expected[s] == 1)
            if status[s] != ready and not waits:
                continue
            if not looked_at:
                looked_at = True
                mine = left[0, j] + left[1, j]
                shorter = np.searchsorted(sizes, mine)
                way = way_of(net, tail, status, first[j], first[j + 1])
                log_left, log_way = np.log(mine / unit + LEAST), np.log(way / unit + LEAST)
                x[PLAIN + EMBEDDED :] = 0.0
                for c in range(first[j], first[j + 1]):
                    if status[c] < DONE:
                        for i in range(EMBEDDED):
                            x[PLAIN + EMBEDDED + i] += inner[c, i]
                x[0] = 1.0
                x[1] = log_left
                x[2] = np.log(left[0, j] / unit + LEAST)
                x[3] = np.log(left[1, j] / unit + LEAST)
                x[4] = log_way
                x[13] = shorter / count
                x[14] = np.log(mine / max(total, 1e-300) + LEAST)
                x[15] = np.log((line.now[0] - shop.release[j]) / unit + LEAST)
                x[16] = np.log(line.stages_left[j])
                x[17] = log_left * log_left
            length = net[s] if machine == 0 else cpu[s]
            then = cpu[s] if machine == 0 else 0.0
            log_length, log_then = np.log(length / unit + LEAST), np.log(then / unit + LEAST)
            opens = 0
            for e in range(shop.child_first[s], shop.child_first[s + 1]):
                opens += missing[shop.child[e]] == 1
            x[5] = log_length
            x[6] = np.log((tail[s] - machine * net[s]) / unit + LEAST) - log_way
            x[7] = log_then
            x[8] = 1.0 if machine == 0 and net[s] < cpu[s] else 0.0
            x[9] = log_then * starving
            x[10] = log_length * starving
            x[11] = log_wait if waits else 0.0
            x[12] = wait / (length + 0.01 * unit) if waits else 0.0
            x[18] = log_length * log_left
            x[19] = opens
            x[20] = 1.0 if waits else 0.0
            x[21] = log_count
            x[22] = log_length * log_length
            x[23] = log_queue
            x[24] = balance
            x[25] = balance * (log_length - log_then)
            for i in range(EMBEDDED):
                x[PLAIN + i] = inner[s, i]
            mind.stage[found], mind.waits[found] = s, 1 if waits else 0
            mind.score[found] = score(x, weights)
            found += 1
    if other >= 0 and machine == 0:
        for e in range(shop.child_first[other], shop.child_first[other + 1]):
            expected[shop.child[e]] = 0
    return found
