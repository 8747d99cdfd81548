"""Every method against every placement and order of small graphs, and against a simulator that shares nothing with the house.

A planner refuses a bound above its value by an InternalError, so a bound that reaches these tests is raw.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from mapping.plan.events import iteration_s
from mapping.plan.worlds import random_mapping
from pipeline.plan.brute_force import problem as a_job
from placement.plan.every_placement import every_order, link, makespan, placements, random_problem, task_s, transfer_s

from partita.errors import Infeasible
from partita.mapping.plan.jobs import plan_job
from partita.mapping.plan.planner import METHODS, plan_mapping
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile
from partita.nouns.profile import Profile

CLOSE = 1e-9
QUICK = tuple(m for m in METHODS if m != "bayes")  # a Gaussian process takes its time


def optimum(problem: PlacementProblem) -> float:
    return min(
        (makespan(problem, w, o) for w in placements(problem) for o in every_order(problem, w)), default=math.inf
    )


def by_events(problem: PlacementProblem, file: PlanFile) -> float:
    """The plan's value by the independent simulator, for one tensor a task."""
    graph, names = problem.graph, [d.name for d in problem.cluster.devices]
    tensors = [
        (graph.tasks[u].id, float(graph.size_bytes[k]), [graph.tasks[v].id for v in graph.readers.row(k).tolist()])
        for k, u in enumerate(graph.producer.tolist())
    ]
    return iteration_s(
        lambda t, d: task_s(problem, graph.index[t], names.index(d)),
        tensors,
        lambda k, p, d: transfer_s(problem, k, names.index(p), names.index(d)),
        lambda p, d: link(problem, names.index(p), names.index(d)).latency_s,
        file.plan.to_json(),
    )


def faults(problem: PlacementProblem, best: float, file: PlanFile) -> list[str]:
    said, found = file.verdict, []
    value = by_events(problem, file)
    if not math.isclose(said.value_s, value, rel_tol=CLOSE, abs_tol=1e-12):
        found.append(f"{said.method}: value {said.value_s}, by events {value}")
    if said.lower_bound_s > best * (1 + CLOSE) + 1e-12:
        found.append(f"{said.method}: bound {said.lower_bound_s} ({said.bound}) above {best}")
    if value < best * (1 - CLOSE) - 1e-12:
        found.append(f"{said.method}: {value} is below the optimum {best}")
    return found


@pytest.mark.parametrize("method", QUICK)
def test_values_are_those_of_the_independent_simulator_and_bounds_hold(method: str) -> None:
    found: list[str] = []
    for seed in range(24):
        problem = random_mapping(seed)
        file = plan_mapping(problem, method=method, budget_s=0.02)
        found += [f"seed {seed}: {f}" for f in faults(problem, optimum(problem), file)]
        seeds = [v for k, v in file.verdict.compared_s.items() if k in ("single", "intuitive", "heft", "heft-links")]
        if method not in ("single", "intuitive", "heft", "heft-links") and file.verdict.value_s > min(seeds) * (
            1 + CLOSE
        ):
            found.append(f"seed {seed}: {method} is worse than a seed")
    assert found == []


@pytest.mark.parametrize(
    ("method", "share"), [("cp-sat", 0.9), ("auto", 0.9), ("hybrid", 0.85), ("polish", 0.8), ("genetic", 0.7)]
)
def test_searches_find_most_optima(method: str, share: float) -> None:
    hits = [
        plan_mapping(p, method=method, budget_s=0.2).verdict.value_s <= optimum(p) * (1 + CLOSE) + 1e-12
        for p in map(random_mapping, range(30))
    ]
    assert sum(hits) >= share * len(hits)


def test_a_program_that_ends_is_optimal() -> None:
    for seed in range(40):
        problem = random_mapping(seed)
        said = plan_mapping(problem, method="cp-sat", budget_s=2.0).verdict
        best = optimum(problem)
        if said.gap < 1e-6:
            assert said.value_s <= best * (1 + 1e-6) + 1e-12, seed


def answer(problem: PlacementProblem, plan: Callable[[], PlanFile]) -> str:
    best = optimum(problem)
    try:
        file = plan()
    except Infeasible:
        return "" if math.isinf(best) else "called infeasible"
    return "; ".join(faults(problem, best, file))


@pytest.mark.parametrize("method", ["heft", "cp-sat", "bayes-tpe", "hybrid", "auto"])
def test_groups_memory_and_forbidden_devices(method: str) -> None:
    """Problems with tight memory, colocation, links and times of their own; heft alone may not fit."""
    wrong = {}
    for seed in range(40):
        problem = random_problem(seed, 4, 2)
        if any(k.message_s for k in (*problem.cluster.links, problem.cluster.default_link)):
            continue
        said = answer(problem, lambda p=problem: plan_mapping(p, method=method, budget_s=0.02))  # type: ignore[misc]
        if said and not (method == "heft" and said == "called infeasible"):
            wrong[seed] = said
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["heft", "heft-links", "cp-sat", "bayes-tpe", "genetic", "hybrid", "auto"])
def test_nothing_claimed_is_wrong_in_400_problems(method: str) -> None:
    found = []
    for seed in range(1000, 1400):
        problem = random_mapping(seed)
        file = plan_mapping(problem, method=method, budget_s=0.02)
        found += [f"seed {seed}: {f}" for f in faults(problem, optimum(problem), file)]
    assert found == []


def forbids_some(profile: Profile) -> bool:
    """Whether a task has no time on the first device's kind."""
    costs = profile.samples[0].costs
    return bool(np.isinf(costs.seconds[:, costs.column(profile.cluster.devices[0].kind)]).any())


@pytest.mark.parametrize("method", ["heft", "auto", "genetic", "intuitive"])
def test_a_job_is_mapped_where_the_first_device_cannot_run_all_of_it(method: str) -> None:
    """Four jobs on devices of two kinds."""
    jobs = [
        p for p, _ in map(a_job, range(7000, 7250)) if forbids_some(p) and len({d.kind for d in p.cluster.devices}) > 1
    ]
    assert len(jobs) >= 4
    for profile in jobs[:4]:
        sample = profile.samples[0]
        job = replace(profile, batch_size=sample.micro_batch_size, samples=(sample,))
        file = plan_job(job, method=method, budget_s=0.05)
        assert file.verdict.lower_bound_s <= file.verdict.value_s < math.inf
