"""Any operator on any device, for real: losses and weights are those of one process, whatever the mapping."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from mapping.worlds import BRANCHY, JOBS, forward_tasks, problem_of, random_placement
from training.runtime.ranks import on_ranks
from training.runtime.test_deploy import Run, check, deployed, together

from partita.mapping.plan.runnable import runnable, segments
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem

WORLD = ("cpu0", "cpu1", "cpu2")
MAPPINGS = {"inception": 10, "resnet": 10, "towers": 12, "softmax": 3, "alexnet": 6}  #: of each job on two devices


def mappings(problem: PipelineProblem, chance: random.Random, n: int) -> list[PipelinePlan]:
    """Plans of mappings drawn by lot; every second one as finely cut as messages ask for, the others with neighbours joined."""
    graph, names, found = problem.graph, [d.name for d in problem.cluster.devices], []
    for k in range(n):
        where, order = random_placement(graph, names, chance), forward_tasks(graph)
        found.append(segments(graph, where, order).plan(graph) if k % 2 else runnable(problem, where, order))
    return found


def is_cyclic(plan: PipelinePlan) -> bool:
    """Some device serves several segments: it waits for one that waits for it."""
    return len(plan.stages) > len(plan.devices)


def trained(ranks: int, counts: Mapping[str, int]) -> None:
    """One training run of each job, another mapping for every step, checked against one process."""
    chance, runs, sizes = random.Random(12), list[Run](), list[int]()
    for name, n in counts.items():
        problem = problem_of(name, WORLD[:ranks])
        runs.append((f"{BRANCHY}:{name}", mappings(problem, chance, n), [1] * n))
        sizes.append(int(problem.batch_size))
    assert sum(is_cyclic(p) for _, plans, _ in runs for p in plans) > len(runs)
    calls = [(deployed, *run, size) for run, size in zip(runs, sizes, strict=True)]
    for run, size, found in zip(runs, sizes, on_ranks(together, ranks, calls), strict=True):
        check(run, found, size)


def test_losses_and_weights_are_those_of_one_process() -> None:
    trained(2, {"inception": 4, "resnet": 3, "towers": 4})


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "counts"), [(2, MAPPINGS), (3, dict.fromkeys(JOBS[:3], 3))])
def test_of_many_mappings_too(ranks: int, counts: dict[str, int]) -> None:
    trained(ranks, counts)
