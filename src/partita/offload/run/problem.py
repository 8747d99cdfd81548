"""From jobs, models with their inputs, to the planner's problem, and from answers back to what they should be."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita.errors import CostError, refuse
from partita.nouns.offload import OffloadLink, OffloadPlan, OffloadProblem
from partita.nouns.plan import OffloadFile, Verdict
from partita.offload.capture.jobs import JobSpec
from partita.offload.onnx_session import Session, model_inputs
from partita.offload.plan.lower import simulate_offload
from partita.offload.plan.online import Waiting, stream
from partita.offload.run.wire import Array


def problem_of(
    jobs: Sequence[JobSpec],
    device: Mapping[str, Mapping[str, float]],
    server: Mapping[str, Mapping[str, float]],
    link: OffloadLink,
    threads: int,
) -> OffloadProblem:
    """The planner's problem; seconds of tasks by the models' hashes. Raises CostError for what no planner can use."""
    rows = [
        replace(
            j.model.offload_job(device[j.model.hash], server[j.model.hash]),
            name=j.name,
            release_s=j.release_s,
            deadline_s=j.deadline_s,
        )
        for j in jobs
    ]
    problem = OffloadProblem(link, tuple(rows), threads)
    refuse(CostError, problem.check(), "what was measured", hint="measure again")
    return problem


def device_problem(jobs: Sequence[JobSpec]) -> OffloadProblem:
    """A problem that says nothing of times: for a device that is alone and has nothing to decide."""
    nothing = {j.model.hash: dict.fromkeys(j.model.tasks_topological, 0.0) for j in jobs}
    return problem_of(jobs, nothing, nothing, OffloadLink(1.0, 1.0), 1)


def come_at_random(jobs: Sequence[JobSpec], rate_per_s: float, seed: int) -> list[JobSpec]:
    """The same jobs, in the same order, at the moments of a Poisson process."""
    moments = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, len(jobs))).tolist()
    return [replace(w, release_s=at) for w, at in zip(jobs, moments, strict=True)]


def stream_plan(problem: OffloadProblem) -> OffloadFile:
    """What an online policy would do if all went as foreseen: where sessions are wanted before the clock starts."""
    arrivals = [Waiting(j, job.release_s) for j, job in enumerate(problem.jobs)]
    begun = time.monotonic()
    decisions = stream(problem, arrivals, "ahead", len(arrivals)).decisions
    cuts = {j: d.cut for j, d in decisions}
    order, ordered = tuple(j for j, _ in decisions), tuple(cuts[j] for j in range(len(arrivals)))
    plan, spent = OffloadPlan(order, ordered), time.monotonic() - begun
    value = simulate_offload(problem, plan).duration_s
    return OffloadFile(plan, Verdict(value, 0.0, "none: jobs come one by one", "online", spent, "makespan"), problem)


def check_fits(problem: OffloadProblem, jobs: Sequence[JobSpec], what: str) -> None:
    """Raises CostError where costs are not those of these jobs."""
    faults = []
    if len(problem.jobs) != len(jobs):
        faults.append(f"it has {len(problem.jobs)} jobs, there are {len(jobs)}")
    for job, w in zip(problem.jobs, jobs, strict=False):
        if set(job.index) != set(w.model.tasks_topological):
            faults.append(f"job {job.name!r} has {len(job.tasks)} tasks that are not those of {w.model.name}")
    refuse(CostError, faults, what, hint="measure and plan again for these jobs")


def sample_of(job: JobSpec) -> dict[str, Array]:
    """What crosses when half of a job's tasks are on the device, for measuring a codec."""
    tasks = job.model.tasks_topological
    halves = job.model.halves(frozenset(tasks[: len(tasks) // 2]))
    made = Session(halves.device, job.model.name).run(job.input) if halves.device else {}
    there = {**job.input, **made}
    return {name: there[name] for name in model_inputs(halves.server)} if halves.server else dict(job.input)


def largest_difference(jobs: Sequence[JobSpec], outputs: Sequence[Mapping[str, Array]]) -> float:
    """Between the answers and those of the whole model on this device; infinite where one is not a number."""
    whole: dict[str, Session] = {}
    worst = 0.0
    for w, found in zip(jobs, outputs, strict=True):
        if w.model.hash not in whole:
            whole[w.model.hash] = Session(w.model.data, w.model.name)
        for name, wanted in whole[w.model.hash].run(w.input).items():
            worst = max(worst, _difference(found[name], wanted))
    return worst


def _difference(found: Any, wanted: Any) -> float:
    """Between answers: arrays, or sequences and maps of them; infinite where text, shape or kind is another."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping) or found.keys() != wanted.keys():
            return np.inf
        return max((_difference(found[k], v) for k, v in wanted.items()), default=0.0)
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return np.inf
        return max((_difference(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)
    if isinstance(found, list | Mapping) or np.shape(found) != np.shape(wanted):
        return np.inf
    a, b = np.asarray(found), np.asarray(wanted)
    if a.dtype.kind != b.dtype.kind or b.dtype.kind not in "fiub":
        return 0.0 if a.dtype.kind == b.dtype.kind and np.array_equal(a, b) else np.inf
    with np.errstate(invalid="ignore", over="ignore"):  # of infinities
        difference = np.where(a == b, 0.0, np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)))
    return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))
