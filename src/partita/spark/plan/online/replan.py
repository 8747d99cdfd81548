"""Planned anew whenever a job comes: a search for the order in which the jobs that are there end soonest on average.

A plan is a key for every stage on either machine; a free machine takes the ready stage of least key. It is tried by running the
shop on a copy, as if no more jobs came. The search begins with the plan that stands and with rules, moves one job beside another one, on
one machine or both, or one stage, and keeps what is not worse.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.solve.random import Words, between, uniform
from partita.spark.plan.online.policies import way_of
from partita.spark.plan.online.world import FETCHABLE, FETCHED, Line, advance, begin, copied, stages_there
from partita.spark.plan.shop import Shop

TRIES = 200  #: at each arrival, where few stages are there:
MOST_STEPS = 8e9  #: a try takes the square of the stages that are there, all of them so much: ten or twenty seconds
RULES_TRIED = 4


@compiled
def replanned(shop: Shop, first: IntArray, tail: FloatArray, line: Line, random: Words, tries: int) -> None:
    """All jobs from the first release to the last end."""
    key = np.zeros((2, len(shop.net)))
    released = 0
    while advance(shop, first, line, False):
        if line.counts[0] > released:
            share = (line.counts[0] - released) / len(shop.release)
            _plan(shop, first, tail, line, key, released, random, min(tries, _affordable(line, share * MOST_STEPS)))
            released = line.counts[0]
        _serve(shop, first, line, key)


@compiled
def _affordable(line: Line, steps: float) -> int:
    """So many tries take so many steps; -1: not even those of the rules."""
    return int(min(steps / (stages_there(line) ** 2 + 1.0), 1e9)) - RULES_TRIED


@compiled
def _serve(shop: Shop, first: IntArray, line: Line, key: FloatArray) -> None:
    """Each free machine takes the ready stage of least key."""
    status, active = line.status, line.active
    for machine in range(2):
        if line.at_work[machine] >= 0:
            continue
        ready, best = FETCHABLE if machine == 0 else FETCHED, -1
        for k in range(line.counts[2]):
            j = active[k]
            for s in range(first[j], first[j + 1]):
                if status[s] == ready and (best < 0 or key[machine, s] < key[machine, best]):
                    best = s
        if best >= 0:
            begin(shop, line, machine, best)


@compiled
def _value(shop: Shop, first: IntArray, line: Line, key: FloatArray) -> float:
    """The sum of the ends of the jobs that are there, if no more came."""
    trial = copied(line)
    _serve(shop, first, trial, key)
    while advance(shop, first, trial, True):
        _serve(shop, first, trial, key)
    total = 0.0
    for k in range(line.counts[2]):
        total += trial.done_s[line.active[k]]
    return total


@compiled
def _plan(
    shop: Shop, first: IntArray, tail: FloatArray, line: Line, key: FloatArray, old: int, random: Words, tries: int
) -> None:
    """Write better keys. Jobs from number `old` on are new."""
    active, count = line.active, line.counts[2]
    best, trial = np.inf, key.copy()
    for start in range(RULES_TRIED if tries >= 0 else 1):  # the old plan with the new jobs by their work, then rules
        for k in range(count):
            j = active[k]
            a, b = first[j], first[j + 1]
            for machine in range(2):
                if start == 0 and j < old:
                    continue
                size = line.left[machine, j]
                if start == 2:
                    size = line.left[0, j] + line.left[1, j]
                elif start == 3:
                    size = way_of(shop.net, tail, line.status, a, b)
                for s in range(a, b):
                    trial[machine, s] = size - 1e-6 * tail[s]
        value = _value(shop, first, line, trial) if tries >= 0 else 0.0
        if value < best:
            best = value
            key[:] = trial
    for _ in range(tries if count > 1 else 0):
        one, two = active[between(random, 0, count)], active[between(random, 0, count)]
        low, high = between(random, 0, 2), 2
        if uniform(random) < 0.5:
            low = 0
        else:
            high = low + 1
        a, b = first[one], first[one + 1]
        if uniform(random) < 0.3:
            a = between(random, a, b)
            b = a + 1
        factor = np.exp(2.0 * uniform(random) - 1.0)
        trial[:] = key
        for machine in range(low, high):
            if one != two:
                shift = key[machine, first[two]] * (1.0 + 0.02 * (uniform(random) - 0.5)) - key[machine, first[one]]
                for s in range(a, b):
                    trial[machine, s] += shift
            else:
                for s in range(a, b):
                    trial[machine, s] *= factor
        value = _value(shop, first, line, trial)
        if value <= best:
            best = value
            key[:] = trial
