"""Plans for tests, cut by hand: what runs does not depend on how it was planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.pipeline_plan import PipelinePlan, Schedule, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile, Verdict
from partita.training.capture.model import Captured, capture
from partita.training.job import batch_size, load_job, micro_batches

MODELS = Path(__file__).parents[2] / "jobs" / "small_models.py"


def source_of(name: str) -> str:
    """The job "resnet" of tests/jobs/small_models.py, or "failing:good" of tests/jobs/failing.py."""
    file, colon, function = name.rpartition(":")
    return f"{MODELS.with_stem(file) if colon else MODELS}:{function}"


def captured_job(name: str, size: int) -> Captured:
    """A test job's model captured at one micro-batch size."""
    job = load_job(source_of(name))
    return capture(job.build(), job.loss, next(micro_batches(job.example(), size)))


def plan_file(
    name: str,
    *,
    stages: int,
    size: int = 2,
    replicas: Sequence[int] = (),
    schedule: Schedule = "1f1b",
    recompute: Sequence[int] = (),
    in_flight: int | None = None,
    shift: int = 0,
) -> PlanFile:
    """The job's tasks in equal consecutive parts on CPU workers that share this machine's cores.

    `shift` moves every cut by so many tasks.
    """
    job = load_job(source_of(name))
    total = batch_size(job.example())
    captured = captured_job(name, size)
    graph = captured.graph
    tasks = [t.id for t in graph.tasks if t.phase == "forward"]
    counts = list(replicas) or [1] * stages
    cuts = [0, *(round(k * len(tasks) / stages) + shift for k in range(1, stages)), len(tasks)]
    names = iter(f"cpu{i}" for i in range(sum(counts)))
    parts = tuple(
        Stage(tuple(tasks[a:b]), tuple(next(names) for _ in range(n)), recompute=k in recompute)
        for k, (a, b, n) in enumerate(zip(cuts, cuts[1:], counts, strict=False))
    )
    devices = tuple(Device(f"cpu{i}") for i in range(sum(counts)))
    cluster = Cluster(devices, (), Link("", "", 1e9, 1e-4))
    costs = CostTable.given(("cpu",), np.full((len(graph), 1), 1e-3), np.full(len(graph.producer), np.nan))
    verdict = Verdict(1.0, 1.0, "none", "by hand", 0.0)
    plan = PipelinePlan(graph.fingerprint, parts, -(-total // size), in_flight or stages + 1, schedule)
    return PlanFile(plan, verdict, PipelineProblem(graph, cluster, costs, name, total, size))
