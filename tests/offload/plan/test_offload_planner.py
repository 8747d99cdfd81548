"""The offload planner against every cut and every order, by the contract alone."""

from __future__ import annotations

import numpy as np
import pytest
from offload.plan.offload_brute import (
    Json,
    best_values,
    instance,
    least_makespan,
    of_plan,
    timed,
    value_of_plan,
)

from partita.errors import BadInput
from partita.nouns.offload import OffloadProblem
from partita.nouns.plan import Verdict
from partita.offload.plan.baselines import BASELINES
from partita.offload.plan.lower import simulate_offload
from partita.offload.plan.online import POLICIES, poisson, stream
from partita.offload.plan.planner import METHODS, plan_offload

NEAR = 1e-9
FAST, ALL = 40, 500


def judged(problem: Json, method: str = "auto") -> tuple[Verdict, float]:
    """A plan's verdict and its makespan by the independent evaluator; both must agree, and with the generic simulator."""
    read = OffloadProblem.from_json(problem)
    file = plan_offload(read, method, budget_s=0.5)
    value = of_plan(problem, file.plan.order, file.plan.to_json()["cuts"])
    assert file.verdict.value_s == pytest.approx(value, rel=NEAR, abs=1e-12)
    assert simulate_offload(read, file.plan).duration_s == pytest.approx(value, rel=NEAR, abs=1e-12)
    return file.verdict, value


def gaps(shape: str, seeds: range, *, equal: bool = False) -> list[float]:
    found = []
    for seed in seeds:
        problem = instance(shape, seed, equal=equal)
        plan, value = judged(problem)
        best = least_makespan(problem)
        assert plan.lower_bound_s <= best * (1 + NEAR) <= value * (1 + 2 * NEAR), (shape, seed)
        found.append(value / best - 1 if best > 0 else 0.0)
    return found


@pytest.mark.parametrize("shape", ["chain", "tree", "dag"])
def test_what_messages_take_of_both_sides_is_planned_for(shape: str) -> None:
    for seed in range(FAST // 2):
        problem = instance(shape, seed)
        problem["link"] |= {"send_s": 0.3 * (seed % 3), "send_s_per_byte": 0.2 * (seed % 2)}
        problem["link"] |= {"receive_s": 0.2 * (seed % 2), "receive_s_per_byte": 0.1 * (seed % 3)}
        plan, value = judged(problem)
        best = least_makespan(problem)
        assert plan.lower_bound_s <= best * (1 + NEAR)
        assert value <= best * (1 + NEAR)


@pytest.mark.parametrize("shape", ["chain", "tree", "dag"])
def test_small_problems_are_planned_best(shape: str) -> None:
    assert max(gaps(shape, range(FAST))) < NEAR


def test_equal_chains_are_planned_best() -> None:
    assert max(gaps("chain", range(12), equal=True)) < NEAR


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["chain", "tree", "dag"])
def test_many_small_problems_are_planned_best(shape: str) -> None:
    found = gaps(shape, range(ALL))
    assert np.mean(found) < 0.01
    assert max(found) < 0.03


def assert_late_plans_are_honest(shape: str, seeds: range, budget_s: float = 0.5) -> None:
    """With deadlines and release times: the value is right, least lateness first where it says "exact", and the bound is
    below every plan, be it late or not."""
    for seed in seeds:
        problem = timed(shape, seed)
        read = OffloadProblem.from_json(problem)
        file = plan_offload(read, budget_s=budget_s)
        plan, claimed = file.plan, file.verdict
        late, end = value_of_plan(problem, plan.order, plan.to_json()["cuts"])
        (least_late, then_least), least = best_values(problem)
        where = (shape, seed)
        assert claimed.value_s == pytest.approx(end, rel=NEAR, abs=1e-12), where
        assert claimed.lower_bound_s <= least * (1 + NEAR), where
        if claimed.bound == "exact":
            assert end == pytest.approx(least, rel=NEAR), where
        if claimed.method == "exact" or budget_s >= 0.5:
            assert late == pytest.approx(least_late, rel=NEAR, abs=1e-9), where
            assert end == pytest.approx(then_least, rel=NEAR), where


@pytest.mark.parametrize("shape", ["chain", "tree", "dag"])
def test_with_deadlines_the_bound_is_below_late_plans_too(shape: str) -> None:
    assert_late_plans_are_honest(shape, range(20))
    assert_late_plans_are_honest(shape, range(20, 40), budget_s=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["chain", "tree", "dag"])
def test_many_problems_with_deadlines(shape: str) -> None:
    assert_late_plans_are_honest(shape, range(167))
    assert_late_plans_are_honest(shape, range(167, 334), budget_s=1e-5)


@pytest.mark.parametrize("shape", ["chain", "tree", "dag"])
def test_no_method_is_above_a_baseline_or_below_the_bound(shape: str) -> None:
    for seed in range(8):
        problem = instance(shape, 1000 + seed)
        best, value = judged(problem)
        for name in BASELINES:
            assert value <= judged(problem, name)[1] * (1 + NEAR), (seed, name)
        assert best.lower_bound_s <= value


def test_every_method_answers_equal_chains() -> None:
    problem = instance("chain", 7, equal=True)
    least = least_makespan(problem)
    for name in METHODS:
        plan, value = judged(problem, name)
        assert plan.lower_bound_s <= least * (1 + NEAR) <= value * (1 + 2 * NEAR), name


@pytest.mark.parametrize("shape", ["chain", "tree", "dag"])
def test_jobs_that_take_no_time(shape: str) -> None:
    problem = instance(shape, 9, equal=shape == "chain")
    for job in problem["jobs"]:
        job.update(
            input_bytes=0.0, tasks=[t | {"device_s": 0.0, "server_s": 0.0, "output_bytes": 0.0} for t in job["tasks"]]
        )
        job.pop("release_s", None)
    problem["link"] = {"up_bytes_per_s": 1e6, "down_bytes_per_s": 1e6, "round_trip_s": 0.0}
    for name in METHODS if shape == "chain" else ("auto", "exact", "min-cut"):
        plan, value = judged(problem, name)
        assert plan.lower_bound_s <= value == 0.0, name


@pytest.mark.parametrize("seconds", [1e-3, 1e-5, 1.0])
def test_more_cuts_than_can_be_looked_at_and_none_of_the_cheapest_sends(seconds: float) -> None:
    """65,536 downsets of 16 branches; minimum cuts keep all on the device, and the linear program asks for what sends."""
    root = {"id": "a", "device_s": seconds, "server_s": seconds / 10, "output_bytes": 1e5, "inputs": []}
    branches = [root | {"id": f"b{k}", "inputs": ["a"]} for k in range(16)]
    tasks = [root, *branches, root | {"id": "z", "inputs": [b["id"] for b in branches]}]
    jobs = [{"name": f"j{k}", "input_bytes": 6e5, "tasks": tasks} for k in range(2)]
    link = {"up_bytes_per_s": 1e6, "down_bytes_per_s": 1e6, "round_trip_s": 0.01}
    plan, value = judged(
        {"format": "partita-offload-costs", "version": 1, "link": link, "server_threads": 1, "jobs": jobs}
    )
    assert plan.lower_bound_s <= value <= 2 * 18 * seconds * (1 + NEAR)


def test_the_same_seed_gives_the_same_plan() -> None:
    problem = OffloadProblem.from_json(instance("dag", 3))
    one, other = (plan_offload(problem, "local-search", seed=5) for _ in range(2))
    assert (one.plan, one.verdict.value_s) == (other.plan, other.verdict.value_s)


def test_release_times_are_kept_and_a_deadline_that_can_be_kept_is_kept() -> None:
    problem = instance("chain", 11)
    problem["jobs"] = [{**j, "release_s": 3.0 * k} for k, j in enumerate(problem["jobs"])]
    read = OffloadProblem.from_json(problem)
    timeline = simulate_offload(read, plan_offload(read).plan)
    for k, job in enumerate(read.jobs):
        spans = [
            timeline[i]
            for i in range(len(timeline))
            if timeline.micro_batch[i] == k and "arrives" not in timeline.label[i]
        ]
        assert min(s.start_s for s in spans) >= job.release_s - 1e-12
    last = len(read.jobs) - 1
    alone = OffloadProblem(read.link, (read.jobs[last],), read.server_threads)
    wanted = plan_offload(alone).verdict.value_s
    problem["jobs"][last]["deadline_s"] = wanted * (1 + 1e-9)
    hurried = OffloadProblem.from_json(problem)
    timeline = simulate_offload(hurried, plan_offload(hurried).plan)
    assert timeline.end_s[timeline.micro_batch == last].max() <= wanted * (1 + 1e-8)


def test_unknown_methods_and_unequal_chains_are_refused() -> None:
    problem = OffloadProblem.from_json(instance("dag", 1))
    with pytest.raises(BadInput, match="unknown method"):
        plan_offload(problem, "magic")
    two = instance("chain", 2, equal=True)
    two["jobs"][0] = {**two["jobs"][0], "input_bytes": 99.0}
    with pytest.raises(BadInput, match="equal chains"):
        plan_offload(OffloadProblem.from_json(two), "two-cuts")


def test_planning_ahead_beats_first_come_first_served_under_load() -> None:
    rng = np.random.default_rng(1)
    jobs = []
    for k in range(4):
        work = rng.uniform(0.5, 3, 6)
        tasks = [
            {
                "id": f"t{i}",
                "device_s": w,
                "server_s": w / 8,
                "output_bytes": 9 * 0.7**i,
                "inputs": [f"t{i - 1}"] * (i > 0),
            }
            for i, w in enumerate(work.tolist())
        ]
        jobs.append({"name": f"m{k}", "input_bytes": 12.0, "tasks": tasks})
    link = {"up_bytes_per_s": 3.0, "down_bytes_per_s": 9.0, "round_trip_s": 0.1}
    problem = OffloadProblem.from_json({"link": link, "jobs": jobs})
    arrivals = poisson(0.55, 400, 4, seed=2)
    ahead, fifo = (stream(problem, arrivals, name, 16) for name in POLICIES)
    assert len(ahead.response_s) + ahead.refused == len(fifo.response_s) + fifo.refused == 400
    assert ahead.summary()["mean_s"] < fifo.summary()["mean_s"]
    assert ahead.summary()["p95_s"] < fifo.summary()["p95_s"]
    full = stream(problem, poisson(50.0, 100, 4), "ahead", 5)
    assert full.refused > 50
