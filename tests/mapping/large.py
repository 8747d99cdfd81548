"""A large job that nobody captured: many operators, whose mapping by lot has hundreds of segments."""

from __future__ import annotations

import random

import numpy as np

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.pipeline_problem import PipelineProblem


def large_problem(operators: int, seed: int = 0, devices: int = 2) -> PipelineProblem:
    """Operators that read of one or two before them, with their backwards and updates, on devices that are alike."""
    chance = random.Random(seed)
    reads = [
        sorted({max(0, i - chance.randint(1, 4)) for _ in range(chance.choice([1, 1, 2]))}) if i else []
        for i in range(operators)
    ]
    numbers = range(operators)
    tasks = [Task(f"f{i}", parameter_bytes=1000.0) for i in numbers]
    tasks += [Task(f"b{i}", phase="backward", of=f"f{i}") for i in numbers]
    tasks += [Task(f"u{i}", phase="update", of=f"f{i}") for i in numbers]
    tensors: list[tuple[str, float, list[str]]] = []
    for i in numbers:
        size = chance.choice([1e4, 1e5, 1e6])
        tensors.append((f"f{i}", size, [f"f{j}" for j in numbers[i:] if i in reads[j]] + [f"b{i}"]))
        tensors.append((f"b{i}", 0.0, [f"u{i}"]))
        if reads[i]:
            tensors.append((f"b{i}", size, [f"b{j}" for j in reads[i]]))
    graph = TaskGraph.build("large", tasks, tensors)
    costs = CostTable.given(
        ("cpu",), [[chance.uniform(2e-4, 2e-3)] for _ in graph.tasks], np.full(len(graph.producer), np.nan)
    )
    cluster = Cluster(tuple(Device(f"cpu{d}", instruction_s=1e-4) for d in range(devices)), (), Link("", "", 1e9, 1e-4))
    return PipelineProblem(graph, cluster, costs, "large.py:job", 64, 64)
