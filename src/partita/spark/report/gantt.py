"""Phases of the network and the CPUs as a timeline: as a schedule plans them, or as an event log tells them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from partita.errors import CaptureError
from partita.nouns.timeline import Timeline
from partita.spark.capture.event_log import FINISH, LAUNCH, EventLog
from partita.spark.capture.shop import began_s, spans_of
from partita.spark.problem import ShopProblem
from partita.spark.run.told import JOB, ROUND
from partita.spark.schedule import ShopFile

MACHINES = ("network", "cpu")  #: with one executor
PHASES = (*MACHINES, "write")
BASELINE_NAMES = {"fifo": "FIFO, taking turns", "sjf": "shortest job first, taking turns", "fair": "FAIR, sharing", "delaystage": "DelayStage, sharing"}  # fmt: skip
OPTIMAL = 5e-9  #: a gap below is none
NETWORK, CPU, WRITE = range(3)  #: of PHASES
Row = tuple[int, int, int, int, float, float]  #: job, stage, phase, machine, start and end in seconds


def _machines(executors: int) -> tuple[str, ...]:
    """What has a row of its own in a drawing: of the executors those that are used."""
    return ("network", *(f"cpu {k}" for k in range(executors))) if executors > 1 else MACHINES


def timeline(file: ShopFile) -> Timeline:
    """The planned phases that have a length. O(n log n)."""
    jobs = file.problem.jobs
    rows = []
    for r in file.schedule:
        stage = jobs[r.job].stages[r.stage]
        rows.append((r.job, r.stage, NETWORK, 0, r.network_start_s, r.network_start_s + stage.network_s))
        rows.append((r.job, r.stage, CPU, 1 + r.executor, r.cpu_start_s, r.cpu_start_s + stage.cpu_s))
        if r.write_start_s is not None:
            rows.append((r.job, r.stage, WRITE, 0, r.write_start_s, r.end_s(stage)))
    return phases(file.problem, rows)


def phase_of(t: Timeline, k: int) -> str:
    """Which phase a span of `phases` is."""
    return PHASES[int(t.instruction[k]) % len(PHASES)]


def names_of(problem: ShopProblem) -> list[str]:
    """[jobs] what each is called: its name or its number, and both where several would be called alike."""
    names = [job.name or str(j) for j, job in enumerate(problem.jobs)]
    often = Counter(names)
    return [f"{name} #{j}" if often[name] > 1 else name for j, name in enumerate(names)]


def phases(problem: ShopProblem, rows: Iterable[Row], source: str = "simulated", facts: Mapping[str, Any] | None = None) -> Timeline:  # fmt: skip
    """The rows that have a length, in the order of the problem: of one problem all timelines bear the same numbers.

    Several jobs: a span bears its job's number, and odd jobs look different from even ones; one job: its stage's. O(n log n).
    """
    jobs, names = problem.jobs, names_of(problem)
    first = [0, *itertools.accumulate(len(j.stages) for j in jobs)]
    kept = sorted(
        (len(PHASES) * (first[j] + s) + p, j, s, m, start, end) for j, s, p, m, start, end in rows if end > start
    )
    number = [j if len(jobs) > 1 else s for _, j, s, *_ in kept]
    queues = _machines(max((m for _, _, _, m, *_ in kept), default=1))
    return Timeline(
        queues,
        len(queues),
        np.array([k for k, *_ in kept], np.int64),
        np.array([m for _, _, _, m, *_ in kept], np.int32),
        tuple(f"{names[j]}.{s}" for _, j, s, *_ in kept),
        tuple(("forward", "backward")[n % 2] for n in number),
        np.array(number, np.int32),
        np.array([row[4] for row in kept], np.float64),
        np.array([row[5] for row in kept], np.float64),
        source,
        facts or {},
    )


def measured(problem: ShopProblem, log: EventLog, number: str, facts: Mapping[str, Any] | None = None) -> Timeline:
    """The phases of a round, from 0 on. Raises CaptureError where the log has another program's. O(jobs log jobs)."""
    at = {job.name: j for j, job in enumerate(problem.jobs)}
    spans = spans_of(log, number)
    strange = [s for s in spans if s.job not in at or not 0 <= s.stage < len(problem.jobs[at[s.job]].stages)]
    if not spans or strange:
        raise CaptureError(
            f"{log.path} has no phases of these jobs in round {number}", hint="give the log of this plan's run"
        )
    zero = min(s.began_s for s in spans)
    rows = []
    for s in spans:
        phase = NETWORK if s.network else CPU
        rows.append((at[s.job], s.stage, phase, phase, s.began_s - zero, s.ended_s - zero))
    return phases(problem, rows, "measured", facts)


def stages_of_jobs(log: EventLog, number: str, facts: Mapping[str, Any] | None = None) -> Timeline:
    """A round whose stages ran as Spark let them: a row for each job, a span from a stage's first task to its last. O(tasks)."""
    mine = [j for j in log.jobs if j.properties.get(ROUND) == number]
    names = tuple(dict.fromkeys(j.properties.get(JOB, f"job {j.number}") for j in mine))
    zero = min((began_s(log, j) for j in mine), default=0.0)
    rows = []
    for job in mine:
        queue = names.index(job.properties.get(JOB, f"job {job.number}"))
        ran = [log.stages[s] for s in job.stages if s in log.stages and len(log.stages[s].tasks)]
        for k, stage in enumerate(sorted(ran, key=lambda s: s.last_rdd)):
            start, end = float(stage.tasks[:, LAUNCH].min()) - zero, float(stage.tasks[:, FINISH].max()) - zero
            rows.append((queue, k, start, max(start, end)))
    queues, numbers, starts, ends = (list(c) for c in zip(*rows, strict=True)) if rows else ([], [], [], [])
    return Timeline(
        names,
        len(names),
        np.arange(len(rows), dtype=np.int64),
        np.array(queues, np.int32),
        tuple(f"{names[q]}.{k}" for q, k in zip(queues, numbers, strict=True)),
        tuple(("forward", "backward")[k % 2] for k in numbers),
        np.array(numbers, np.int32),
        np.array(starts, np.float64),
        np.array(ends, np.float64),
        "measured",
        facts or {},
    )


def completions(log: EventLog, number: str) -> dict[str, float]:
    """Job -> seconds from the round's begin to its end. Raises CaptureError for a round that has none, or did not end."""
    mine = [j for j in log.jobs if j.properties.get(ROUND) == number]
    open_ = [j for j in mine if j.ended_s is None]
    if not mine or open_:
        raise CaptureError(
            f"{log.path}: round {number} {'did not end' if open_ else 'is not there'}",
            hint="run the program again, to its end",
        )
    zero = min(began_s(log, j) for j in mine)
    found: dict[str, float] = {}
    for job in mine:
        name = job.properties.get(JOB, f"job {job.number}")
        found[name] = max(found.get(name, 0.0), (job.ended_s or 0.0) - zero)
    return found
