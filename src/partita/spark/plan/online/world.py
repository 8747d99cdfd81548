"""The DAG shop while jobs arrive, in machine code: a job is seen when it is released, nothing that comes later is known.

`advance` runs to the next event; then somebody decides for each machine that is free: `begin` starts a phase, or the machine
stands idle until the next event. Phases of no length need no machine and pass at once.

All that changes is in `Line`, all that does not in `Shop`, so that many worlds are rows of the same arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.spark.plan.shop import Shop

HIDDEN, FETCHABLE, FETCHING, FETCHED, COMPUTING, DONE = 0, 1, 2, 3, 4, 5
NEVER = np.inf


class Line(NamedTuple):
    """What changes."""

    now: FloatArray  #: [1]
    status: IntArray  #: [n] of a stage
    missing: IntArray  #: [n] parents that have not computed
    left: FloatArray  #: [2, jobs] seconds that a job still needs of the network, of the CPU; phases under way included
    stages_left: IntArray  #: [jobs]
    at_work: IntArray  #: [2] the stage on the network, on the CPU; -1 none
    until_s: FloatArray  #: [2]
    active: IntArray  #: [jobs] those that have been released and are not done, by release
    counts: IntArray  #: [4] jobs released, done, active; events
    start_s: FloatArray  #: [2n] when each phase began
    fetched_s: FloatArray  #: [n] when a stage was fetched
    done_s: FloatArray  #: [jobs]


def fresh_line(shop: Shop) -> Line:
    """Nothing has been released. Jobs are released in the order of their numbers (`numbered` by release)."""
    n, jobs = len(shop.net), len(shop.release)
    left = np.stack([np.bincount(shop.job, w, jobs) for w in (shop.net, shop.cpu)])
    return Line(
        np.zeros(1), np.zeros(n, np.int64), np.diff(shop.parent_first).astype(np.int64), left.astype(np.float64),
        np.bincount(shop.job, minlength=jobs).astype(np.int64), np.full(2, -1, np.int64), np.full(2, NEVER),
        np.zeros(jobs, np.int64), np.zeros(4, np.int64), np.zeros(2 * n), np.zeros(n),
        np.zeros(jobs),
    )  # fmt: skip


@compiled
def copied(line: Line) -> Line:
    """A line of its own that stands where this one stands."""
    return Line(
        line.now.copy(), line.status.copy(), line.missing.copy(), line.left.copy(), line.stages_left.copy(),
        line.at_work.copy(), line.until_s.copy(), line.active.copy(), line.counts.copy(), line.start_s.copy(),
        line.fetched_s.copy(), line.done_s.copy(),
    )  # fmt: skip


@compiled
def stages_there(line: Line) -> int:
    """Stages that are not done, of the jobs that are there."""
    stages = 0
    for k in range(line.counts[2]):
        stages += line.stages_left[line.active[k]]
    return stages


@compiled
def advance(shop: Shop, first: IntArray, line: Line, blind: bool) -> bool:
    """Run to the next event, all that happens at the same time included; False when all jobs are done.

    first: [jobs + 1] the stages of each job. With `blind` no more jobs come. O(active jobs + what changes).
    """
    release, counts, until = shop.release, line.counts, line.until_s
    jobs = counts[0] if blind else len(release)
    if counts[1] == jobs:
        return False
    then = min(until[0], until[1])
    if counts[0] < jobs:
        then = min(then, release[counts[0]])
    now = max(then, line.now[0])
    line.now[0] = now
    counts[3] += 1
    if until[0] <= now:
        s = line.at_work[0]
        line.at_work[0], until[0] = -1, NEVER
        line.left[0, shop.job[s]] = max(0.0, line.left[0, shop.job[s]] - shop.net[s])  # what rounding leaves is no work
        line.status[s], line.fetched_s[s] = FETCHED, now
        _next_phase(shop, line, s)
    if until[1] <= now:
        s = line.at_work[1]
        line.at_work[1], until[1] = -1, NEVER
        line.left[1, shop.job[s]] = max(0.0, line.left[1, shop.job[s]] - shop.cpu[s])
        line.status[s] = DONE
        _next_phase(shop, line, s)
    while counts[0] < jobs and release[counts[0]] <= now:
        j = counts[0]
        line.active[counts[2]] = j
        counts[0] += 1
        counts[2] += 1
        for s in range(first[j], first[j + 1]):
            if line.missing[s] == 0 and line.status[s] == HIDDEN:
                line.status[s] = FETCHABLE
                _next_phase(shop, line, s)
    return True


@compiled
def begin(shop: Shop, line: Line, machine: int, s: int) -> None:
    """Start the phase of stage s on the machine (0 network, 1 CPU), which is free."""
    n = len(shop.net)
    line.at_work[machine] = s
    line.status[s] = FETCHING if machine == 0 else COMPUTING
    line.start_s[machine * n + s] = line.now[0]
    line.until_s[machine] = line.now[0] + (shop.net[s] if machine == 0 else shop.cpu[s])


@compiled
def _next_phase(shop: Shop, line: Line, stage: int) -> None:
    """The stage has just got its status, FETCHABLE or FETCHED or DONE; what needs no machine passes at once, and so do the
    stages that waited for it. O(stages that change + their children)."""
    n, stack, size = len(shop.net), np.empty(len(shop.net), np.int64), 1
    status, missing, now = line.status, line.missing, line.now[0]
    stack[0] = stage
    while size > 0:
        size -= 1
        s = stack[size]
        if status[s] == FETCHABLE and shop.net[s] <= 0:
            status[s] = FETCHED
            line.start_s[s] = line.fetched_s[s] = now
        if status[s] == FETCHED and shop.cpu[s] <= 0:
            status[s] = DONE
            line.start_s[n + s] = now
        if status[s] == DONE:
            for e in range(shop.child_first[s], shop.child_first[s + 1]):
                c = shop.child[e]
                missing[c] -= 1
                if missing[c] == 0:
                    status[c] = FETCHABLE
                    stack[size] = c
                    size += 1
            _through(shop, line, shop.job[s])


@compiled
def _through(shop: Shop, line: Line, job: int) -> None:
    """One more stage of the job is done."""
    line.stages_left[job] -= 1
    if line.stages_left[job] > 0:
        return
    active, counts = line.active, line.counts
    counts[1] += 1
    counts[2] -= 1
    line.done_s[job] = line.now[0]
    k = 0
    while active[k] != job:
        k += 1
    for i in range(k, counts[2]):
        active[i] = active[i + 1]
