"""Who gets the free executors: the rules that are used today.

fifo           the job that came first, as many as it can use; an executor stays with its job while that wants it
sjf-cp         the job with the least work, its stages by the longest way to the end
fair           every job an equal share of the executors, what nobody wants to whoever can use it
weighted-fair  shares in proportion to (a job's work) ^ exponent
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.spark.plan.executors.world import State, Work, advance, send

POLICIES = ("fifo", "sjf-cp", "fair", "weighted-fair")
FIFO, SJF, SHARES = 0, 1, 2


def weights(work: Work, exponent: float) -> FloatArray:
    """[jobs] what a job's share is in proportion to."""
    total = np.bincount(work.job, work.tasks * work.mean_s, len(work.arrival_s))
    mean = max(float(total.mean()), 1e-300)
    return np.asarray(np.maximum(total / mean, 1e-9) ** exponent, np.float64)


@compiled
def episode(work: Work, state: State, rule: int, weight: FloatArray) -> None:
    """All jobs from the first arrival to the last end, with one rule. weight: [jobs] shares; for SJF a job's size."""
    while advance(work, state):
        if rule == SHARES:
            _share(work, state, weight)
        else:
            _in_turn(work, state, rule, weight)


@compiled
def stage_of(
    first: IntArray,
    tasks: IntArray,
    missing: IntArray,
    begun: IntArray,
    coming: IntArray,
    way_s: FloatArray,
    job: int,
    longest: bool,
) -> int:
    """A stage of the job that wants executors, the one with the longest way or the first; -1 for none. O(its stages).

    It takes arrays, not `Work` and `State`: it is called so often that handing over forty arrays would take most of the time.
    """
    best = -1
    for s in range(first[job], first[job + 1]):
        if missing[s] == 0 and begun[s] + coming[s] < tasks[s] and (best < 0 or way_s[s] > way_s[best]):
            best = s
            if not longest:
                return best
    return best


@compiled
def _in_turn(work: Work, state: State, rule: int, size: FloatArray) -> None:
    """Jobs one after the other."""
    size_, active, held, running = state.size, state.active, state.held, state.running
    first, tasks, missing, begun, coming = work.first, work.tasks, state.missing, state.begun, state.coming
    way_s = work.way_s
    if rule == FIFO:
        for k in range(size_[2]):
            j = active[k]
            while held[j] > running[j]:
                s = stage_of(first, tasks, missing, begun, coming, way_s, j, False)
                if s < 0:
                    break
                send(work, state, s, held[j] - running[j])
    passed = -1.0  # jobs up to this size have had their turn
    while size_[1] > 0:
        best = -1
        for k in range(size_[2]):
            j = active[k]
            key = float(j) if rule == FIFO else size[j]
            if key > passed and (best < 0 or key < (float(best) if rule == FIFO else size[best])):
                best = j
        if best < 0:
            return
        passed = float(best) if rule == FIFO else size[best]
        for k in range(size_[2]):
            j = active[k]
            if (float(j) if rule == FIFO else size[j]) != passed:
                continue
            while size_[1] > 0:
                s = stage_of(first, tasks, missing, begun, coming, way_s, j, rule == SJF)
                if s < 0:
                    break
                send(work, state, s, size_[1])


@compiled
def _share(work: Work, state: State, weight: FloatArray) -> None:
    """To each job its share, its own executors first; then what is left to the job that has least for its weight."""
    size, active, held, running, moving = state.size, state.active, state.held, state.running, state.moving
    first, tasks, missing, begun, coming = work.first, work.tasks, state.missing, state.begun, state.coming
    way_s, executors, total = work.way_s, len(state.home), 0.0
    for k in range(size[2]):
        total += weight[active[k]]
    for own in (True, False):
        for k in range(size[2]):
            j = active[k]
            cap = int(np.ceil(executors * weight[j] / total - 1e-9))
            while size[1] > 0:
                most = cap - running[j] - moving[j]
                if own:
                    most = min(most, held[j] - running[j])
                s = stage_of(first, tasks, missing, begun, coming, way_s, j, True) if most > 0 else -1
                if s < 0:
                    break
                send(work, state, s, most)
    while size[1] > 0:
        best, to, least = -1, -1, np.inf
        for k in range(size[2]):
            j = active[k]
            load = (running[j] + moving[j] + 1) / weight[j]
            if best >= 0 and load >= least:
                continue
            s = stage_of(first, tasks, missing, begun, coming, way_s, j, True)
            if s >= 0:
                best, to, least = j, s, load
        if best < 0:
            return
        send(work, state, to, 1)
