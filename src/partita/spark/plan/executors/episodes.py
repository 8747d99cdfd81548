"""Episodes: jobs drawn from traces, at once or as a stream, run under a policy.

Queries are drawn alike; a stream's arrivals are a Poisson process. The same traces, numbers and seed give the same jobs for every
policy, and the same episode for each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from partita.errors import BadInput
from partita.nouns.graph import FloatArray, IntArray, csr
from partita.solve.compiled import heard
from partita.solve.random import seeded
from partita.spark.capture.traces import POINTS, Query
from partita.spark.plan.executors.learned import facts, learned_episode
from partita.spark.plan.executors.policies import FIFO, POLICIES, SHARES, SJF, episode, weights
from partita.spark.plan.executors.world import State, Work, fresh_state
from partita.spark.plan.learned.policy import Policy, shipped

CLUSTER_POLICIES = (*POLICIES, "learned")
EXPONENTS = tuple(round(-2.0 + 0.25 * k, 2) for k in range(17))  #: tried for weighted-fair, as by Decima's authors
TUNED_ON = 8  #: episodes, none of them the one that is asked for

TUNED_JOBS = 100  #: in each of them, at most


@dataclass(frozen=True, slots=True)
class Setting:
    """What an episode is drawn from, traces aside."""

    jobs: int
    executors: int
    interarrival_s: float = 0.0  #: mean; 0: all jobs come at once


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode went."""

    mean_job_s: float  #: from arrival to end
    makespan_s: float
    p95_job_s: float
    busy_share: float  #: of the executors, until the last end
    stages: int
    tasks: int
    moves: int
    events: int  #: ends of tasks, arrivals of executors and of jobs
    seconds_spent: float  #: running it, drawing aside
    exponent: float | None = None  #: of weighted-fair


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The queries as arrays; jobs are made of rows."""

    queries: tuple[Query, ...]
    draws: tuple[IntArray, ...]  #: [queries] [stages, points, 3, 2]
    durations: FloatArray
    mean_s: tuple[FloatArray, ...]  #: [queries] [stages] of a task
    way_s: tuple[FloatArray, ...]  #: [queries] [stages] of rough work

    @staticmethod
    def of(queries: Sequence[Query]) -> Catalogue:
        """O(durations)."""
        rows: list[FloatArray] = []
        draws, means, ways, at = [], [], [], 0
        for query in queries:
            table = np.zeros((len(query.tasks), len(POINTS), 3, 2), np.int64)
            mean = np.zeros(len(query.tasks))
            for s, points in enumerate(query.waves):
                for p, waves in enumerate(points):
                    for w, durations in enumerate(waves):
                        table[s, p, w] = at, len(durations)
                        rows.append(durations)
                        at += len(durations)
                mean[s] = np.mean([d.mean() for waves in points for d in waves[1:]])
            draws.append(table)
            means.append(mean)
            ways.append(_ways(query, mean))
        return Catalogue(tuple(queries), tuple(draws), np.concatenate(rows), tuple(means), tuple(ways))

    @property
    def work_s(self) -> float:
        """Rough executor seconds of a query, on average."""
        return float(np.mean([m @ np.array(q.tasks) for q, m in zip(self.queries, self.mean_s, strict=True)]))

    def drawn(self, setting: Setting, seed: int) -> Work:
        """Jobs by chance."""
        chance = np.random.default_rng(seed)
        kinds = chance.integers(len(self.queries), size=setting.jobs).tolist()
        gaps = chance.exponential(1.0, setting.jobs) * setting.interarrival_s
        return self.jobs(kinds, np.cumsum(gaps) - gaps[0])

    def jobs(self, kinds: Sequence[int], arrival_s: FloatArray) -> Work:
        """These queries at these times, which ascend. O(stages)."""
        sizes = [len(self.queries[k].tasks) for k in kinds]
        first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        children: list[list[int]] = [[] for _ in range(int(first[-1]))]
        for a, k in zip(first.tolist(), kinds, strict=False):
            for s, parents in enumerate(self.queries[k].parents):
                for p in parents:
                    children[a + p].append(a + s)
        down = csr(children)
        tasks = np.array([t for k in kinds for t in self.queries[k].tasks], np.int64)
        missing = np.array([len(p) for k in kinds for p in self.queries[k].parents], np.int64)
        return Work(
            np.asarray(arrival_s, np.float64), first, np.repeat(np.arange(len(kinds)), sizes), tasks, missing, down.start, down.items,
            np.concatenate([self.draws[k] for k in kinds]), self.durations, np.array(POINTS, np.int64),
            np.concatenate([self.mean_s[k] for k in kinds]), np.concatenate([self.way_s[k] for k in kinds]),
        )  # fmt: skip


def _ways(query: Query, mean_s: FloatArray) -> FloatArray:
    """[stages] the longest way to the end of the query, in rough work. O(stages + parents)."""
    way = np.zeros(len(query.tasks))
    for s in range(len(way) - 1, -1, -1):
        way[s] += mean_s[s] * query.tasks[s]
        for p in query.parents[s]:
            way[p] = max(way[p], way[s])
    return way


def simulate(
    catalogue: Catalogue,
    setting: Setting,
    policy: str,
    *,
    seed: int = 0,
    exponent: float | None = None,
    learned: Policy | None = None,
) -> Outcome:
    """One episode. weighted-fair without an exponent gets the one that is best in other episodes of the setting; `learned`
    runs the weights that are given, else those that come with the package.

    Raises BadInput for an unknown policy.
    """
    if policy not in CLUSTER_POLICIES:
        raise BadInput(f"unknown policy {policy!r}", hint=f"known: {', '.join(CLUSTER_POLICIES)}")
    _compiled(policy)
    if policy == "learned":
        return run_learned(catalogue.drawn(setting, seed), setting.executors, (learned or shipped()).weights("executors"), seed)  # fmt: skip
    if policy == "weighted-fair" and exponent is None:
        exponent = tuned(catalogue, setting, seed)
    work = catalogue.drawn(setting, seed)
    return run(work, setting.executors, policy, seed, exponent if policy == "weighted-fair" else None)


@cache
def _compiled(policy: str) -> None:
    """Compile what runs, so that it takes nothing of the time that is told."""
    one = np.ones(1)
    query = Query("", ((),), (1,), (((one, one, one),) * len(POINTS),))
    work = Catalogue.of([query]).jobs([0], np.zeros(1))
    if policy == "learned":
        run_learned(work, 1, shipped().weights("executors"), 0)
    else:
        run(work, 1, policy, 0)


def run(work: Work, executors: int, policy: str, seed: int, exponent: float | None = None) -> Outcome:
    """These jobs under a policy."""
    state = fresh_state(work, executors, seeded(seed))
    rule = {"fifo": FIFO, "sjf-cp": SJF}.get(policy, SHARES)
    weight = weights(work, 1.0 if rule == SJF else exponent or 0.0)
    began = time.perf_counter()
    heard(episode, work, state, rule, weight)
    return _outcome(work, state, time.perf_counter() - began, exponent)


def run_learned(work: Work, executors: int, learned: FloatArray, seed: int) -> Outcome:
    """These jobs under the learned policy with these weights."""
    state, known = fresh_state(work, executors, seeded(seed)), facts(work, executors)
    began = time.perf_counter()
    heard(learned_episode, work, state, known, learned)
    return _outcome(work, state, time.perf_counter() - began, None)


def tuned(catalogue: Catalogue, setting: Setting, seed: int) -> float:
    """The exponent of EXPONENTS with the least mean job time in TUNED_ON episodes of other seeds; of equals the first."""
    seeds = np.random.default_rng([seed, 1]).integers(1 << 30, 1 << 31, TUNED_ON).tolist()
    short = replace(setting, jobs=min(setting.jobs, TUNED_JOBS))
    works = [(catalogue.drawn(short, s), s) for s in seeds]

    def mean(exponent: float) -> float:
        return sum(run(w, setting.executors, "weighted-fair", s, exponent).mean_job_s for w, s in works)

    return min(EXPONENTS, key=mean)


def _outcome(work: Work, state: State, spent_s: float, exponent: float | None) -> Outcome:
    taken = state.done_s - work.arrival_s
    end = float(state.done_s.max())
    busy = float(state.now[1]) / (end * len(state.home)) if end > 0 else 0.0
    _, _, stages, tasks, moves, events = state.counts.tolist()
    return Outcome(
        float(taken.mean()), end - float(work.arrival_s[0]), float(np.quantile(taken, 0.95)), busy,
        stages, tasks, moves, events, spent_s, exponent,
    )  # fmt: skip
