"""The learned policy of the executors: which stage gets the next executor, from whom, and whether it had better stay free.

Every stage that wants an executor has features; the network scores them, the best one gets one executor, and its job is looked
at again. So it says by and by how many executors each job gets. Nobody gets any where the best score is below zero.
An executor of the stage's job is sent first, then one of no job, then one of the job that has most work left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.nouns.graph import FloatArray
from partita.solve.compiled import compiled
from partita.spark.plan.executors.world import MOVE_S, REST, State, Work, advance, send_one
from partita.spark.plan.learned.network import EMBEDDED, embed, score, weights_of_graph

PLAIN = 24
FEATURES = PLAIN + 2 * EMBEDDED
STATIC = 5  #: features of a stage that the graph network sees
GRAPH = weights_of_graph(STATIC)
WEIGHTS = GRAPH + FEATURES
SCALE_S = 1000.0  #: executor seconds of a job of middle size
SOON_S = MOVE_S + 1.2  #: what a move costs, with the slower first task


class Facts(NamedTuple):
    """What a policy may know of stages beforehand."""

    gain: FloatArray  #: [stages, executors + 2] what the e-th executor adds to the stage's rate, in executors; and
    slower: FloatArray  #: [stages, executors + 2] log of how much longer a task takes with e: between measured numbers of them
    #: interpolated, while the simulator draws, as Decima's, from the nearer one with the smaller chance
    log_task: FloatArray  #: [stages] log of a task's rough duration
    log_way: FloatArray  #: [stages]
    static: FloatArray  #: [stages, STATIC]
    log: FloatArray  #: [..] log of whole numbers


def facts(work: Work, executors: int) -> Facts:
    """O(durations + stages executors)."""
    sums = np.concatenate([[0.0], np.cumsum(work.durations)])
    start, count = work.draws[:, :, REST, 0], work.draws[:, :, REST, 1]
    measured = (sums[start + count] - sums[start]) / count + 1e-3
    e = np.arange(executors + 2)
    high = np.clip(np.searchsorted(work.points, e), 0, len(work.points) - 1)
    low = np.maximum(high - 1, 0)
    width = np.maximum(work.points[high] - work.points[low], 1)
    part = np.clip((e - work.points[low]) / width, 0.0, 1.0)
    mean = measured[:, low] * (1 - part) + measured[:, high] * part
    gain = np.zeros_like(mean)
    gain[:, 1:] = np.diff(e / mean, axis=1) * mean[:, :1]
    slower = np.log(mean / mean[:, :1])
    log_task, log_way = np.log(work.mean_s + 1e-2), np.log(work.way_s + 1.0) - np.log(SCALE_S)
    deep = slower[:, min(executors, 40)]
    static = np.stack([np.ones(len(mean)), np.log(work.tasks), log_task, log_way, deep], axis=1)
    most = (
        int(max(work.tasks.max(), executors, len(work.arrival_s), np.diff(work.first).max())) + 2
    )  # all that has a logarithm
    return Facts(
        gain, slower, log_task, log_way, np.ascontiguousarray(static), np.log(np.maximum(np.arange(most), 0.5))
    )


@compiled
def learned_episode(work: Work, state: State, known: Facts, weights: FloatArray) -> None:
    """All jobs from the first arrival to the last end. weights: [WEIGHTS] of the graph network, then of the score."""
    jobs, executors = len(work.arrival_s), len(state.home)
    first, tasks, job_of, arrival_s, mean_s = work.first, work.tasks, work.job, work.arrival_s, work.mean_s
    missing, begun, coming, over = state.missing, state.begun, state.coming, state.over
    running, moving, held, active = state.running, state.moving, state.held, state.active
    left_s, stages_left, size, now = state.left_s, state.stages_left, state.size, state.now
    home, doing = state.home, state.doing
    gain, slower, log_task, log_way, log = known.gain, known.slower, known.log_task, known.log_way, known.log
    inner = np.zeros((len(tasks), EMBEDDED))
    embed(known.static, work.child_first, work.child, weights[:GRAPH], inner, 0, len(tasks))
    outer = weights[GRAPH:]
    x = np.zeros(FEATURES)
    wants, scores = np.empty(len(tasks), np.int64), np.empty(len(tasks))
    log_left, shorter, log_shorter = np.empty(jobs), np.empty(jobs), np.empty(jobs)
    rest = np.zeros((jobs, EMBEDDED))
    while advance(work, state):
        n, count, total = size[2], 0, 1e-9
        before = np.sort(left_s[active[:n]])
        until = np.cumsum(before)
        for k in range(n):
            j = active[k]
            total += left_s[j]
            less = np.searchsorted(before, left_s[j])
            shorter[j] = less
            log_shorter[j] = left_s[j] + (until[less - 1] if less > 0 else 0.0)
            log_left[j] = np.log(max(left_s[j], 0.0) / SCALE_S + 1e-3)
            log_shorter[j] = np.log(max(log_shorter[j], 0.0) / SCALE_S + 1e-2)
            rest[j] = 0.0
            for s in range(first[j], first[j + 1]):
                if over[s] < tasks[s]:
                    for i in range(EMBEDDED):
                        rest[j, i] += inner[s, i]
                if missing[s] == 0 and begun[s] + coming[s] < tasks[s]:
                    wants[count], scores[count] = s, np.nan
                    count += 1
        log_total = np.log(total / SCALE_S)
        while size[1] > 0 and count > 0:
            free_of_none, donor, most_left = -1, -1, -1.0
            for y in range(executors):
                if doing[y] == 0:
                    if home[y] < 0:
                        free_of_none = y
                    elif left_s[home[y]] > most_left:
                        donor, most_left = y, left_s[home[y]]
            best = 0
            for c in range(count):
                s = wants[c]
                j = job_of[s]
                if np.isnan(scores[c]):
                    e, w = running[j] + moving[j], tasks[s] - begun[s] - coming[s]
                    own = held[j] > running[j]
                    crowd = log[e + 1] + log[n] - log[executors]
                    x[0] = 1.0
                    x[1] = 1.0 if own else 0.0
                    x[2] = 1.0 if not own and free_of_none < 0 else 0.0
                    x[3] = log_left[j]
                    x[4] = log[e + 1]
                    x[5] = log[n]
                    x[6] = log[w]
                    x[7] = log_task[s]
                    x[8] = log_way[s] - log_left[j]
                    x[9] = shorter[j] / n
                    x[10] = log_total - log_left[j]
                    x[11] = log[size[1]]
                    x[12] = gain[s, e + 1]
                    x[13] = crowd if crowd > 0 else 0.0
                    x[14] = log[stages_left[j]]
                    x[15] = slower[s, e + 1]
                    x[16] = log_shorter[j]
                    x[17] = log_left[j] * log_left[j]
                    x[18] = log_left[j] * log[e + 1]
                    x[19] = log[e + 1] * log[e + 1]
                    x[20] = 0.0 if own else np.log1p(w * mean_s[s] / ((e + 1) * SOON_S))
                    x[21] = 0.0 if x[2] == 0.0 else np.log(most_left / SCALE_S + 1e-3)
                    x[22] = np.log1p((now[0] - arrival_s[j]) / 100.0)
                    x[23] = log_task[s] * x[1]
                    for i in range(EMBEDDED):
                        x[PLAIN + i] = inner[s, i]
                        x[PLAIN + EMBEDDED + i] = rest[j, i]
                    scores[c] = score(x, outer)
                if scores[c] > scores[best]:
                    best = c
            if scores[best] < 0.0 and size[0] > 0:
                break
            s = wants[best]
            job = job_of[s]
            y = free_of_none if free_of_none >= 0 else donor
            if held[job] > running[job]:
                y = 0
                while doing[y] != 0 or home[y] != job:
                    y += 1
            robbed = home[y] if home[y] != job else -1
            send_one(work, state, s, y)
            c = 0
            while c < count:
                s = wants[c]
                j = job_of[s]
                if begun[s] + coming[s] >= tasks[s]:
                    count -= 1
                    wants[c], scores[c] = wants[count], scores[count]
                    continue
                if j in (job, robbed):
                    scores[c] = np.nan
                c += 1
