"""Jobs on a cluster of executors, in machine code: tasks in waves, executors that take time to move between jobs.

An executor runs one task at a time. While its stage has tasks that nobody has begun it goes on with them. Else it is free, and
somebody decides: `advance` runs until some executor is free and some stage wants one; `send` sends executors to a stage, at
once where they are of its job, else MOVE_S later; `rest` leaves the others as they are until the next event. A stage wants
executors when all its parents are done and it has more tasks to begin than executors on their way.

A task's duration is drawn from what was measured at a number of executors near the one its job has, as in Decima's
simulator (Mao et al. 2019): between two measured numbers a and b, with e executors, a with (e - a) / (b - a), else b.

All that changes is in `State`, all that does not in `Work`, so that many worlds are rows of the same arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled
from partita.solve.random import Words, between

MOVE_S = 2.0  #: until an executor of another job, or of none, can work for a job
FRESH, FIRST, REST = 0, 1, 2
NEVER = np.inf


class Work(NamedTuple):
    """The jobs, by arrival, and their stages, parents first."""

    arrival_s: FloatArray  #: [jobs]
    first: IntArray  #: [jobs + 1] stages of each
    job: IntArray  #: [stages]
    tasks: IntArray  #: [stages]
    parents: IntArray  #: [stages] how many
    child_first: IntArray  #: [stages + 1] rows of `child`
    child: IntArray
    draws: IntArray  #: [stages, points, 3, 2] where the durations of a wave begin in `durations`, and how many
    durations: FloatArray
    points: IntArray  #: [points] numbers of executors
    mean_s: FloatArray  #: [stages] of a task: a rough duration, for policies
    way_s: FloatArray  #: [stages] of rough work, the longest way from the stage to the end of its job, itself included


class State(NamedTuple):
    """What changes."""

    now: FloatArray  #: [2] the time; the sum of busy executor seconds
    counts: IntArray  #: [6] jobs arrived, jobs done, stages done, tasks begun, moves, events
    begun: IntArray  #: [stages] tasks begun
    over: IntArray  #: [stages] tasks over
    missing: IntArray  #: [stages] parents not done
    coming: IntArray  #: [stages] executors on their way
    held: IntArray  #: [jobs] executors of the job, those on their way aside
    running: IntArray  #: [jobs] executors at work for it
    moving: IntArray  #: [jobs] executors on their way to it
    active: IntArray  #: [jobs] those that have arrived and are not done, by arrival
    stages_left: IntArray  #: [jobs]
    done_s: FloatArray  #: [jobs]
    left_s: FloatArray  #: [jobs] rough work of the tasks not begun
    home: IntArray  #: [executors] its job, -1 none
    last_job: IntArray  #: [executors] the job of its last task, -1 none
    stage: IntArray  #: [executors] the stage it runs or moves to, or ran last; -1 none
    doing: IntArray  #: [executors] 0 free, 1 runs, 2 moves
    heap: IntArray  #: [executors] those that run or move, the one that is through first at 0
    until_s: FloatArray  #: [executors]
    size: IntArray  #: [3] of the heap; free executors; active jobs
    random: Words


def fresh_state(work: Work, executors: int, random: npt.NDArray[np.uint64]) -> State:
    """Nothing has begun."""
    stages, jobs = len(work.tasks), len(work.arrival_s)

    def zeros(n: int) -> IntArray:
        return np.zeros(n, np.int64)

    left = np.bincount(work.job, work.tasks * work.mean_s, jobs).astype(np.float64)
    nobody = np.full(executors, -1, np.int64)
    return State(
        np.zeros(2), zeros(6), zeros(stages), zeros(stages), work.parents.copy(), zeros(stages), zeros(jobs), zeros(jobs), zeros(jobs), zeros(jobs),
        np.diff(work.first).astype(np.int64), np.full(jobs, NEVER), left, nobody.copy(), nobody.copy(), nobody.copy(),
        zeros(executors), zeros(executors), np.zeros(executors), np.array([0, executors, 0], np.int64), random,
    )  # fmt: skip


@compiled
def wanted(work: Work, state: State, stage: int) -> int:
    """How many more executors a stage can use now; 0 while a parent is not done."""
    if state.missing[stage] > 0:
        return 0
    return int(max(0, work.tasks[stage] - state.begun[stage] - state.coming[stage]))


@compiled
def advance(work: Work, state: State) -> bool:
    """Run until an executor is free and something has changed for the free ones; False when all jobs are done.

    Where nothing is under way and nobody is to come it returns at once: somebody has to be sent. O(log executors) an event.
    """
    jobs = len(work.arrival_s)
    tasks, job_of, mean_s, arrival_s = work.tasks, work.job, work.mean_s, work.arrival_s  # read once: it is dear
    points, draws, durations, random = work.points, work.draws, work.durations, state.random
    begun, over, held, left_s = state.begun, state.over, state.held, state.left_s
    counts, size, now = state.counts, state.size, state.now
    heap, until, doing, stage_of = state.heap, state.until_s, state.doing, state.stage
    while counts[1] < jobs:
        arrival = arrival_s[counts[0]] if counts[0] < jobs else NEVER
        if size[0] > 0 and until[heap[0]] <= arrival:
            x = heap[0]
            counts[5] += 1
            now[0] = until[x]
            stage = stage_of[x]
            if doing[x] == 1 and begun[stage] < tasks[stage]:  # it goes on with its stage
                length = _drawn(points, draws, durations, random, held[job_of[stage]], stage, REST)
                over[stage] += 1
                begun[stage] += 1
                counts[3] += 1
                left_s[job_of[stage]] -= mean_s[stage]
                now[1] += length
                until[x] += length
                _sink(heap, until, size)
                continue
            if doing[x] == 1:
                _finish(work, state, x)
            else:
                _arrive(work, state, x)
        elif counts[0] < jobs:
            now[0] = max(now[0], arrival)
            state.active[size[2]] = counts[0]
            size[2] += 1
            counts[0] += 1
            counts[5] += 1
        more = counts[0] < jobs and arrival_s[counts[0]] <= now[0]  # jobs that come at once are seen at once
        if size[1] > 0 and size[2] > 0 and not more:
            return True
    return False


@compiled
def _drawn(
    points: IntArray, draws: IntArray, durations: FloatArray, random: Words, executors: int, stage: int, wave: int
) -> float:
    """How long a task takes whose job has so many executors."""
    k = 0
    while k < len(points) - 1 and points[k] < executors:
        k += 1
    if k > 0 and points[k] > executors:
        gap = points[k] - points[k - 1]
        if between(random, 1, gap + 1) <= executors - points[k - 1]:
            k -= 1
    start = draws[stage, k, wave, 0]
    return float(durations[between(random, start, start + draws[stage, k, wave, 1])])


@compiled
def _finish(work: Work, state: State, x: int) -> None:
    """Executor x has run a task, and no other of its stage is to begin."""
    stage = state.stage[x]
    state.over[stage] += 1
    job = work.job[stage]
    state.running[job] -= 1
    _release(state.heap, state.until_s, state.size, state.doing)
    if state.over[stage] < work.tasks[stage]:
        return
    state.counts[2] += 1
    state.stages_left[job] -= 1
    for e in range(work.child_first[stage], work.child_first[stage + 1]):
        state.missing[work.child[e]] -= 1
    if state.stages_left[job] == 0:
        state.done_s[job] = state.now[0]
        state.counts[1] += 1
        for y in range(len(state.home)):
            if state.home[y] == job:
                state.home[y] = -1
        state.held[job] = 0
        k = 0
        while state.active[k] != job:
            k += 1
        state.size[2] -= 1
        for i in range(k, state.size[2]):
            state.active[i] = state.active[i + 1]


@compiled
def _arrive(work: Work, state: State, x: int) -> None:
    """Executor x has come to its new job."""
    stage = state.stage[x]
    job = work.job[stage]
    state.coming[stage] -= 1
    state.moving[job] -= 1
    if state.stages_left[job] == 0:
        _release(state.heap, state.until_s, state.size, state.doing)
        return
    state.home[x] = job
    state.held[job] += 1
    if state.begun[stage] < work.tasks[stage]:
        _begin(work, state, x, stage)
        _sink(state.heap, state.until_s, state.size)
    else:
        _release(state.heap, state.until_s, state.size, state.doing)


@compiled
def _begin(work: Work, state: State, x: int, stage: int) -> None:
    """Executor x, of the stage's job, begins a task of a stage that it did not work on just before; its place in the heap is
    not changed."""
    job = work.job[stage]
    wave = FIRST if state.last_job[x] == job else FRESH
    length = _drawn(work.points, work.draws, work.durations, state.random, state.held[job], stage, wave)
    state.begun[stage] += 1
    state.left_s[job] -= work.mean_s[stage]
    state.counts[3] += 1
    state.running[job] += 1
    state.last_job[x], state.stage[x], state.doing[x] = job, stage, 1
    state.until_s[x] = state.now[0] + length
    state.now[1] += length


@compiled
def _release(heap: IntArray, until: FloatArray, size: IntArray, doing: IntArray) -> None:
    """The executor that is the first of the heap is free."""
    doing[heap[0]] = 0
    size[0] -= 1
    size[1] += 1
    heap[0] = heap[size[0]]
    _sink(heap, until, size)


@compiled
def _sink(heap: IntArray, until: FloatArray, size: IntArray) -> None:
    """Put the first of the heap where it belongs."""
    count = size[0]
    if count == 0:
        return
    x, k = heap[0], 0
    while 2 * k + 1 < count:
        c = 2 * k + 1
        if c + 1 < count and until[heap[c + 1]] < until[heap[c]]:
            c += 1
        if until[heap[c]] >= until[x]:
            break
        heap[k] = heap[c]
        k = c
    heap[k] = x


@compiled
def send(work: Work, state: State, stage: int, most: int) -> int:
    """Send up to `most` free executors to a stage, as many as it wants; those of its job first, then those of none.

    Returns how many were sent. O(executors).
    """
    job = work.job[stage]
    size, doing, home = state.size, state.doing, state.home
    left = min(most, wanted(work, state, stage), size[1])
    sent = 0
    for turn in range(3):
        for x in range(len(home)):
            if left == 0:
                return sent
            if doing[x] != 0 or (turn == 0 and home[x] != job) or (turn == 1 and home[x] != -1):
                continue
            send_one(work, state, stage, x)
            left -= 1
            sent += 1
    return sent


@compiled
def send_one(work: Work, state: State, stage: int, x: int) -> None:
    """Send executor x, which is free, to a stage that wants one. O(log executors)."""
    job, home, until = work.job[stage], state.home, state.until_s
    if home[x] == job:
        _begin(work, state, x, stage)
    else:
        if home[x] >= 0:
            state.held[home[x]] -= 1
        home[x], state.stage[x], state.doing[x] = -1, stage, 2
        until[x] = state.now[0] + MOVE_S
        state.coming[stage] += 1
        state.moving[job] += 1
        state.counts[4] += 1
    _rise(state.heap, until, state.size, x)


@compiled
def _rise(heap: IntArray, until: FloatArray, size: IntArray, x: int) -> None:
    """Add executor x, that was free, to the heap."""
    k = size[0]
    size[0] += 1
    size[1] -= 1
    while k > 0 and until[heap[(k - 1) // 2]] > until[x]:
        heap[k] = heap[(k - 1) // 2]
        k = (k - 1) // 2
    heap[k] = x
