"""Who gets the free executors: the rules that are used today.

fifo           the job that came first, as many as it can use; an executor stays with its job while that wants it
sjf-cp         the job with the least work, its stages by the longest way to the end
fair           every job an equal share of the executors, what nobody wants to whoever can use it
weighted-fair  shares in proportion to (a job's work) ^ exponent
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray
from partita.solve.compiled import compiled
from partita.spark.plan.executors.world import State, Work, advance, send, wanted

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
def stage_of(work: Work, state: State, job: int, longest: bool) -> int:
    """A stage of the job that wants executors, the one with the longest way or the first; -1 for none."""
    best = -1
    for s in range(work.first[job], work.first[job + 1]):
        if wanted(work, state, s) > 0 and (best < 0 or work.way_s[s] > work.way_s[best]):
            best = s
            if not longest:
                return best
    return best


@compiled
def _in_turn(work: Work, state: State, rule: int, size: FloatArray) -> None:
    """Jobs one after the other."""
    size_ = state.size
    if rule == FIFO:
        for k in range(size_[2]):
            j = state.active[k]
            while state.held[j] > state.running[j]:
                s = stage_of(work, state, j, False)
                if s < 0:
                    break
                send(work, state, s, state.held[j] - state.running[j])
    passed = -1.0  # jobs up to this size have had their turn
    while size_[1] > 0:
        best = -1
        for k in range(size_[2]):
            j = state.active[k]
            key = float(j) if rule == FIFO else size[j]
            if key > passed and (best < 0 or key < (float(best) if rule == FIFO else size[best])):
                best = j
        if best < 0:
            return
        passed = float(best) if rule == FIFO else size[best]
        for k in range(size_[2]):
            j = state.active[k]
            if (float(j) if rule == FIFO else size[j]) != passed:
                continue
            while size_[1] > 0:
                s = stage_of(work, state, j, rule == SJF)
                if s < 0:
                    break
                send(work, state, s, size_[1])


@compiled
def _share(work: Work, state: State, weight: FloatArray) -> None:
    """To each job its share, its own executors first; then what is left to the job that has least for its weight."""
    size, total = state.size, 0.0
    for k in range(size[2]):
        total += weight[state.active[k]]
    for own in (True, False):
        for k in range(size[2]):
            j = state.active[k]
            cap = int(np.ceil(len(state.home) * weight[j] / total - 1e-9))
            while size[1] > 0:
                most = cap - state.running[j] - state.moving[j]
                if own:
                    most = min(most, state.held[j] - state.running[j])
                s = stage_of(work, state, j, True) if most > 0 else -1
                if s < 0:
                    break
                send(work, state, s, most)
    while size[1] > 0:
        best, to = -1, -1
        for k in range(size[2]):
            j = state.active[k]
            if best >= 0 and _load(state, weight, j) >= _load(state, weight, best):
                continue
            s = stage_of(work, state, j, True)
            if s >= 0:
                best, to = j, s
        if best < 0:
            return
        send(work, state, to, 1)


@compiled
def _load(state: State, weight: FloatArray, job: int) -> float:
    """Executors that the job has for each unit of its weight."""
    return (state.running[job] + state.moving[job] + 1) / weight[job]
