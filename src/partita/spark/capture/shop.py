"""A problem of the DAG shop from an event log: the phases of each stage, with the range in which they lie.

A log of `partita spark run` says phase by phase what was run when; of several rounds the median counts and the range is that
of the rounds. Of any other log the tasks tell. On each executor a stage was busy for U, the union of its tasks; their time
divides it into

    network    Remote Requests Duration / task time x U     at least: Fetch Wait Time, which hides what ran beside computing
    cpu        (run time - fetch wait) / task time x U      at least: that, had the tasks of other stages beside not been there

and the slowest executor counts. With the rate of the links, the network's phase is bytes / rate instead.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.errors import CaptureError, refuse
from partita.files import damaged
from partita.nouns.graph import FloatArray
from partita.spark.capture.event_log import (  # fmt: skip
    ADAPTIVE,
    EXECUTION,
    FINISH,
    LAUNCH,
    REMOTE,
    REQUESTS,
    RUN,
    WAIT,
    EventLog,
    LoggedJob,
    LoggedStage,
)
from partita.spark.problem import ShopJob, ShopProblem, ShopStage
from partita.spark.run.told import BEGAN, JOB, PARENTS, PHASE, POLICY, ROUND

Range = tuple[float, float, float]  #: low, likely, high


@dataclass(frozen=True)
class Captured:
    """The problem, how it was read, and what is to be known about it, a sentence each."""

    problem: ShopProblem
    source: str  #: "phases" or "tasks"
    notes: tuple[str, ...]


def capture(log: EventLog, *, rate_bytes_per_s: float | None = None, together: bool = False) -> Captured:
    """The problem of a log; `together`: all jobs are released at 0. Raises CaptureError where the log lacks what is needed."""
    phased = [j for j in log.jobs if PHASE in j.properties]
    found = _from_phases(log, phased) if phased else _from_tasks(log, rate_bytes_per_s)
    refuse(CaptureError, found.problem.check(), log.path, hint="give the log as Spark wrote it")
    if together:
        jobs = tuple(replace(j, release_s=0.0) for j in found.problem.jobs)
        found = replace(found, problem=ShopProblem(jobs))
    return replace(found, notes=(*_about(log), *found.notes))


def _about(log: EventLog) -> list[str]:
    """What is to be said of the log as a whole."""
    notes = []
    if not log.ended:
        how = "is cut off" if log.cut else "ends without the application's end"
        notes.append(
            f"the log {how}: the application was running or had crashed, and what it had not finished is missing"
        )
    if log.compacted:
        notes.append("older events were thrown away when the log was compacted; set spark.history.fs.eventLog.rolling.maxFilesToRetain higher to keep them")  # fmt: skip
    if log.failed_tasks:
        notes.append(f"{log.failed_tasks} tasks failed or were killed; their time is left out")
    return notes


# ------------------------------------------------------------------------------------------------------------ phases


@dataclass(frozen=True)
class Span:
    """One phase of one round as the log tells it; seconds since the log's first job."""

    job: str
    stage: int
    network: bool
    began_s: float
    ended_s: float
    parents: tuple[int, ...]
    name: str

    @property
    def length_s(self) -> float:
        return self.ended_s - self.began_s


def spans_of(log: EventLog, number: str) -> list[Span]:
    """The phases of a round, by their begin. A phase that took several Spark jobs is one span. O(jobs log jobs)."""
    rows: dict[tuple[str, int, bool], list[LoggedJob]] = defaultdict(list)
    found = []
    with damaged(CaptureError, log.path, hint="capture a log that partita spark run wrote"):
        for job in log.jobs:
            if job.whole and job.properties.get(ROUND) == number and PHASE in job.properties:
                stage, machine = job.properties[PHASE].split()
                rows[job.properties[JOB], int(stage), machine == "network"].append(job)
        for (name, of_stage, network), jobs in rows.items():
            began = min(began_s(log, j) for j in jobs)
            ended = max(j.ended_s for j in jobs if j.ended_s is not None)
            parents = tuple(int(p) for p in json.loads(jobs[0].properties[PARENTS]))
            title = jobs[0].properties.get("spark.job.description", "").partition(": ")[2]
            found.append(Span(name, of_stage, network, began, max(began, ended), parents, title))
    return sorted(found, key=lambda s: (s.began_s, s.ended_s))


def began_s(log: EventLog, job: LoggedJob) -> float:
    """When a job of ours was begun, a little before Spark had it; seconds since the log's first job."""
    return min(job.submitted_s, float(job.properties[BEGAN]) / 1e3 - log.zero_s) if BEGAN in job.properties else job.submitted_s  # fmt: skip


def rounds_of(log: EventLog, policy: str | None = None) -> list[str]:
    """The rounds of a log in order, or those under a policy."""
    return list(dict.fromkeys(j.properties[ROUND] for j in log.jobs if ROUND in j.properties and policy in (None, j.properties.get(POLICY))))  # fmt: skip


def _from_phases(log: EventLog, phased: Sequence[LoggedJob]) -> Captured:
    """The problem from rounds that ran phase by phase: those under a plan where there are any, for a fetch beside a
    computation takes longer than either alone."""
    planned = rounds_of(log, "plan")
    numbers = planned or list(dict.fromkeys(j.properties.get(ROUND, "") for j in phased))
    rounds = [spans_of(log, n) for n in numbers]
    most = max(map(len, rounds))
    whole = [r for r in rounds if len(r) == most]
    notes = (
        [f"{len(rounds) - len(whole)} rounds that were not finished are left out"] if len(whole) < len(rounds) else []
    )
    if len(whole) > 2 and not planned:
        whole = whole[1:]
        notes.append("the first round is left out: Java warms up")
    seen: dict[str, dict[int, dict[bool, list[Span]]]] = {}
    for row in whole:
        for span in row:
            seen.setdefault(span.job, {}).setdefault(span.stage, {}).setdefault(span.network, []).append(span)
    jobs = tuple(ShopJob(tuple(_phased(log, name, stages, k) for k in range(max(stages) + 1)), 0.0, name) for name, stages in seen.items())  # fmt: skip
    return Captured(
        ShopProblem(jobs),
        "phases",
        (*notes, f"from {len(whole)} rounds of phases that ran {'by a plan' if planned else 'one by one'}"),
    )


def _phased(log: EventLog, job: str, stages: dict[int, dict[bool, list[Span]]], k: int) -> ShopStage:
    spans = stages.get(k, {})
    if not spans.get(False):
        raise CaptureError(
            f"{log.path}: job {job!r} has no computation of stage {k}", hint="run the program again, to its end"
        )
    (net_low, net, net_high), (cpu_low, cpu, cpu_high) = (
        _range([s.length_s for s in spans.get(m, [])]) for m in (True, False)
    )
    one = spans[False][0]
    return ShopStage(net, cpu, one.parents, one.name, (net_low, net_high), (cpu_low, cpu_high))


def _range(seconds: Sequence[float]) -> Range:
    return (min(seconds), statistics.median(seconds), max(seconds)) if seconds else (0.0, 0.0, 0.0)


# ------------------------------------------------------------------------------------------------------------- tasks


def _from_tasks(log: EventLog, rate_bytes_per_s: float | None) -> Captured:
    """The problem from what the tasks of any application tell."""
    owner: dict[int, int] = {}
    jobs: list[ShopJob] = []
    kept: list[LoggedStage] = []
    skipped, open_ = 0, 0
    busy = _busy(log)
    chosen, began, notes = _chosen(log)
    for job in chosen:
        ran = [log.stages[s] for s in job.stages if s in log.stages and owner.setdefault(s, job.number) == job.number]
        skipped += len(job.stages) - len(ran)
        whole = [s for s in ran if len(s.tasks) and (s.done or job.whole)]
        open_ += len(ran) - len(whole)
        if not whole:
            continue
        whole.sort(key=lambda s: (s.last_rdd, s.number))
        at = {s.number: k for k, s in enumerate(whole)}
        stages = tuple(_tasked(busy, s, at, rate_bytes_per_s) for s in whole)
        jobs.append(ShopJob(stages, job.submitted_s - began, job.properties.get(JOB) or f"job {job.number}"))
        kept += whole
    if not jobs:
        raise CaptureError(
            f"{log.path} has no stage that was finished, or no tasks",
            hint="let the application run to its end with spark.eventLog.enabled=true; a filtered log lacks its tasks",
        )
    failed = sum(j.failed for j in chosen)
    retried = sum(s.attempts > 1 for s in kept)
    if failed:
        notes.append(f"{failed} jobs failed: what of them was finished is here")
    if skipped:
        notes.append(f"{skipped} stages were skipped, because their output was there already: they are left out")
    if open_:
        notes.append(f"{open_} stages were not finished: they are left out")
    if retried:
        notes.append(f"{retried} stages were tried more than once: the attempts that counted are here")
    return Captured(
        ShopProblem(tuple(jobs)), "tasks", (*notes, *_adaptive(log), *_network(log, kept, rate_bytes_per_s))
    )


def _chosen(log: EventLog) -> tuple[Sequence[LoggedJob], float, list[str]]:
    """(jobs that count, when the first of them was released, what to say of it): of several rounds of ours one."""
    rounds = [[j for j in log.jobs if j.properties.get(ROUND) == n] for n in rounds_of(log)]
    if not rounds:
        return log.jobs, 0.0, []
    whole = [jobs for jobs in rounds if all(j.whole for j in jobs)]
    chosen = (whole or rounds)[-1]
    said = f"of {len(rounds)} rounds the last {'whole one ' * bool(whole)}is here: Java was warm"
    return chosen, min(j.submitted_s for j in chosen), [said] * (len(rounds) > 1)


def _adaptive(log: EventLog) -> list[str]:
    """What adaptive execution did to the jobs."""
    queries: dict[str, int] = defaultdict(int)
    for job in log.jobs:
        if EXECUTION in job.properties:
            queries[job.properties[EXECUTION]] += 1
    split = sum(n > 1 for n in queries.values())
    on = log.conf.get(ADAPTIVE, "true").lower() == "true"
    if not (split and on):
        return []
    return [f"adaptive execution is on and ran {split} queries as several jobs each: run with {ADAPTIVE}=false to have each query as one"]  # fmt: skip


def _network(log: EventLog, stages: Sequence[LoggedStage], rate: float | None) -> list[str]:
    """What to say of how the network's phases were found."""
    remote = sum(float(s.tasks[:, REMOTE].sum()) for s in stages)
    if remote == 0:
        where = log.conf.get("spark.master", "")
        why = (
            f"it ran on {where}" if where.startswith("local") else "all shuffles were read on the host that wrote them"
        )
        return [f"no byte crossed the network ({why}), so no stage fetches: run it on a standalone master and workers on several hosts"]  # fmt: skip
    if rate is None and not log.says_requests:
        return ["this Spark's log has no Remote Requests Duration (3.5 has): what was fetched beside computing is hidden; give --rate"]  # fmt: skip
    return []


def _tasked(busy: Mapping[str, Busy], stage: LoggedStage, at: dict[int, int], rate: float | None) -> ShopStage:
    rows = [_executor(busy[e], stage, e, rate) for e in dict.fromkeys(stage.executors)]
    net, cpu = (max((r[m] for r in rows), key=lambda r: r[1]) for m in (0, 1))
    parents = tuple(sorted(at[p] for p in stage.parents if p in at))
    return ShopStage(net[1], cpu[1], parents, stage.name, (net[0], net[2]), (cpu[0], cpu[2]))


def _executor(busy: Busy, stage: LoggedStage, executor: str, rate: float | None) -> tuple[Range, Range]:
    """The phases of a stage on one executor."""
    mine = stage.tasks[[e == executor for e in stage.executors]]
    spent = float((mine[:, FINISH] - mine[:, LAUNCH]).sum()) or 1.0
    union = union_s(mine[:, LAUNCH], mine[:, FINISH])
    wait, requests = (union * min(1.0, float(mine[:, c].sum()) / spent) for c in (WAIT, REQUESTS))
    cpu = max(0.0, union * min(1.0, float((mine[:, RUN] - mine[:, WAIT]).sum()) / spent))
    if rate is not None:
        sent = float(mine[:, REMOTE].sum()) / rate
        network = (sent, sent, max(sent, requests))
    else:
        network = (min(wait, requests), requests, max(requests, wait))
    beside = max(1.0, busy.between_s(float(mine[:, LAUNCH].min()), float(mine[:, FINISH].max())) / spent)
    return network, (cpu / beside, cpu, max(cpu, union))


class Busy:
    """What all tasks on one executor have spent up to any moment."""

    def __init__(self, launch: FloatArray, finish: FloatArray) -> None:
        """[tasks] seconds each."""
        self._ends = tuple((np.sort(t), np.concatenate([[0.0], np.cumsum(np.sort(t))])) for t in (launch, finish))

    def until_s(self, at: float) -> float:
        """Seconds of all tasks before a moment. O(log tasks)."""
        began, ended = ((k := int(np.searchsorted(t, at))) * at - float(sums[k]) for t, sums in self._ends)
        return began - ended

    def between_s(self, begin: float, end: float) -> float:
        """Seconds of all tasks between two moments, those of tasks that ran at once counted each."""
        return self.until_s(end) - self.until_s(begin)


def _busy(log: EventLog) -> dict[str, Busy]:
    """Executor -> what it was busy with. O(tasks log tasks)."""
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for stage in (s for s in log.stages.values() if len(s.tasks)):
        for executor, launch, finish in zip(stage.executors, stage.tasks[:, LAUNCH], stage.tasks[:, FINISH], strict=True):  # fmt: skip
            rows[executor].append((float(launch), float(finish)))
    return {e: Busy(*np.array(r).T) for e, r in rows.items()}


def union_s(start: FloatArray, end: FloatArray) -> float:
    """Seconds in which at least one of the spans ran. O(n log n).

    >>> union_s(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    4.0
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate([[-np.inf], end[:-1]])
    return float(np.clip(end - np.maximum(start, before), 0.0, None).sum())
