"""Mappings of captured jobs, drawn by lot."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.splits import Split
from partita.training.capture.model import Captured, capture
from partita.training.job import batch_size, load_job

BRANCHY = Path(__file__).parents[1] / "jobs" / "branchy.py"
JOBS = ("inception", "resnet", "towers", "softmax", "alexnet")


def captured(name: str) -> Captured:
    job = load_job(f"{BRANCHY}:{name}")
    return capture(job.build(), job.loss, job.example())


def problem_of(name: str, devices: Sequence[str]) -> PipelineProblem:
    """A job of branchy.py whose tasks all take a millisecond."""
    size = batch_size(load_job(f"{BRANCHY}:{name}").example())
    return mapped_problem(captured(name).graph, devices, f"{BRANCHY}:{name}", size)


def mapped_problem(
    graph: TaskGraph, devices: Sequence[str], source: str, size: int, splits: tuple[Split, ...] = ()
) -> PipelineProblem:
    """A job's whole batch; all tasks take a millisecond, the parts of one their share."""
    parts = {t: len(s.tasks) for s in splits for t in s.tasks}
    seconds = np.array([[1e-3 / parts.get(t.of or t.id, 1)] for t in graph.tasks])
    costs = CostTable.given(("cpu",), seconds, np.full(len(graph.producer), np.nan))
    cluster = Cluster(tuple(Device(d, instruction_s=1e-4) for d in devices), (), Link("", "", 1e9, 1e-4))
    return PipelineProblem(graph, cluster, costs, source, size, size, splits=splits)


def forward_tasks(graph: TaskGraph) -> list[str]:
    return [graph.tasks[i].id for i in graph.order if graph.tasks[i].phase == "forward"]


def random_placement(graph: TaskGraph, devices: Sequence[str], chance: random.Random) -> dict[str, str]:
    """Forward task -> device: torn to pieces, or in stretches; colocation groups stay together."""
    stay, at, home = chance.choice([0.0, 0.5, 0.9]), devices[0], dict[str, str]()
    found = {}
    for task in forward_tasks(graph):
        at = at if chance.random() < stay else chance.choice(list(devices))
        found[task] = home.setdefault(graph.tasks[graph.index[task]].group or task, at)
    return found
