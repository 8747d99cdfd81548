"""What is to be done: models with their inputs, and the problem that they make on this device, this link, this server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from partita.errors import CostError, refuse
from partita.nouns.offload import OffloadLink, OffloadPlan, OffloadProblem
from partita.offload.capture.jobs import JobSpec
from partita.offload.measure.inference import InferenceTimes, measure_model
from partita.offload.onnx_session import Session, model_inputs
from partita.offload.plan.lower import simulate_offload
from partita.offload.plan.online import Waiting, stream
from partita.offload.run.client import Client
from partita.offload.run.wire import Array


def problem_of(
    work: Sequence[JobSpec],
    device: Mapping[str, InferenceTimes],
    server: Mapping[str, InferenceTimes],
    link: OffloadLink,
    threads: int,
) -> OffloadProblem:
    """The planner's problem; times by the models' hashes."""
    jobs = []
    for w in work:
        job = w.model.offload_job(device[w.model.hash].seconds, server[w.model.hash].seconds)
        jobs.append(replace(job, name=w.name, release_s=w.release_s, deadline_s=w.deadline_s))
    return OffloadProblem(link, tuple(jobs), threads)


def measured_problem(work: Sequence[JobSpec], client: Client, budget_s: float = 4.0) -> OffloadProblem:
    """Measure each model here and on the server, then the link; one after the other, so that nothing disturbs it.

    Takes at most about 2 x `budget_s` a model, and some seconds for the link. Raises CaptureError, Unreachable."""
    threads = client.hello().threads
    models = {w.model.hash: w.model for w in work}
    device = {h: measure_model(m, budget_s) for h, m in models.items()}
    server = {h: client.measure(m, budget_s) for h, m in models.items()}
    return problem_of(work, device, server, client.link(), threads)


def device_problem(work: Sequence[JobSpec]) -> OffloadProblem:
    """A problem that says nothing of times: for a device that is alone and has nothing to decide."""
    jobs = []
    for w in work:
        nothing = dict.fromkeys(w.model.tasks_topological, 0.0)
        job = w.model.offload_job(nothing, nothing)
        jobs.append(replace(job, name=w.name, release_s=w.release_s, deadline_s=w.deadline_s))
    return OffloadProblem(OffloadLink(1.0, 1.0), tuple(jobs))


def come_at_random(work: Sequence[JobSpec], rate_per_s: float, seed: int) -> list[JobSpec]:
    """The same jobs, in the same order, at the moments of a Poisson process."""
    moments = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, len(work))).tolist()
    return [replace(w, release_s=at) for w, at in zip(work, moments, strict=True)]


def stream_plan(problem: OffloadProblem) -> OffloadPlan:
    """What an online policy would do if all went as foreseen: where sessions are wanted before the clock starts."""
    arrivals = [Waiting(j, job.release_s) for j, job in enumerate(problem.jobs)]
    begun = time.monotonic()
    decisions = stream(problem, arrivals, "ahead", len(arrivals)).decisions
    cuts = {j: d.cut for j, d in decisions}
    order, ordered = tuple(j for j, _ in decisions), tuple(cuts[j] for j in range(len(arrivals)))
    plan = OffloadPlan(order, ordered, 0.0, 0.0, "none: jobs come one by one", "online", time.monotonic() - begun)
    return replace(plan, makespan_s=simulate_offload(problem, plan).duration_s)


def check_fits(problem: OffloadProblem, work: Sequence[JobSpec], what: str) -> None:
    """Raises CostError where costs are not those of these jobs."""
    faults = []
    if len(problem.jobs) != len(work):
        faults.append(f"it has {len(problem.jobs)} jobs, there are {len(work)}")
    for job, w in zip(problem.jobs, work, strict=False):
        if set(job.index) != set(w.model.tasks_topological):
            faults.append(f"job {job.name!r} has {len(job.tasks)} tasks that are not those of {w.model.name}")
    refuse(CostError, faults, what, hint="measure and plan again for these jobs")


def sample_of(work: JobSpec) -> dict[str, Array]:
    """What crosses when half of a job's tasks are on the device, for measuring a codec."""
    tasks = work.model.tasks_topological
    halves = work.model.halves(frozenset(tasks[: len(tasks) // 2]))
    made = Session(halves.device, work.model.name).run(work.input) if halves.device else {}
    there = {**work.input, **made}
    return {name: there[name] for name in model_inputs(halves.server)} if halves.server else dict(work.input)


def largest_difference(work: Sequence[JobSpec], outputs: Sequence[Mapping[str, Array]]) -> float:
    """Between the answers and those of the whole model on this device; infinite where one is not a number."""
    whole: dict[str, Session] = {}
    worst = 0.0
    for w, found in zip(work, outputs, strict=True):
        if w.model.hash not in whole:
            whole[w.model.hash] = Session(w.model.data, w.model.name)
        for name, wanted in whole[w.model.hash].run(w.input).items():
            difference = np.abs(np.asarray(found[name], np.float64) - np.asarray(wanted, np.float64))
            worst = max(worst, float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0)))
    return worst
