"""The planner of the DAG shop against every order, by the contract alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from spark.plan.shop_brute import Json, instance, layered, least, widened

from partita.errors import BadInput
from partita.nouns.plan import Verdict
from partita.spark.plan.bounds import bound_of
from partita.spark.plan.planner import BASELINES, METHODS, OBJECTIVES, plan_spark
from partita.spark.plan.rules import RULES
from partita.spark.plan.shop import backwards, numbered, order_of, timed, value_of
from partita.spark.problem import ShopProblem
from partita.spark.schedule import Objective, Start, faults, value

NEAR = 1e-9


def judged(problem: Json, method: str = "auto", objective: Objective = "makespan", budget_s: float = 0.2) -> Verdict:
    """The verdict on a schedule that is one, by rules written here, and whose value is what the schedule says."""
    file = plan_spark(ShopProblem.from_json(problem), method, objective, budget_s=budget_s)
    assert_sound(problem, file.schedule)
    assert file.verdict.value_s == pytest.approx(value(file.problem, file.schedule, objective), rel=NEAR, abs=1e-12)
    assert file.verdict.lower_bound_s <= file.verdict.value_s
    return file.verdict


def assert_sound(problem: Json, schedule: tuple[Start, ...]) -> None:
    rows = {(r.job, r.stage): r for r in schedule}
    busy: dict[Any, list[tuple[float, float]]] = {}
    ends = {
        at: r.cpu_start_s + stage["cpu_s"] if r.write_start_s is None else r.write_start_s + stage["write_s"]
        for at, r in rows.items()
        for stage in [problem["jobs"][r.job]["stages"][r.stage]]
    }
    for j, job in enumerate(problem["jobs"]):
        for s, stage in enumerate(job["stages"]):
            r = rows.pop((j, s))
            slack = 1e-9 * max(1.0, r.cpu_start_s)
            assert r.network_start_s >= max([job["release_s"], *(ends[j, p] for p in stage["parents"])]) - slack
            assert r.cpu_start_s >= r.network_start_s + stage["network_s"] - slack
            assert (r.write_start_s is not None) == (stage.get("write_s", 0.0) > 0)
            assert 0 <= r.executor < problem.get("executors", 1)
            busy.setdefault("network", []).append((r.network_start_s, stage["network_s"]))
            busy.setdefault(r.executor, []).append((r.cpu_start_s, stage["cpu_s"]))
            if r.write_start_s is not None:
                assert r.write_start_s >= r.cpu_start_s + stage["cpu_s"] - slack
                busy["network"].append((r.write_start_s, stage["write_s"]))
    assert not rows
    for spans in busy.values():
        taken = sorted((at, at + length) for at, length in spans if length > 0)
        assert all(b[0] >= a[1] - 1e-9 * max(1.0, a[1]) for a, b in itertools.pairwise(taken))


def assert_planned_best(problem: Json) -> None:
    """Every method but the rules finds the optimum, and no bound is above it."""
    for objective, best in zip(OBJECTIVES, least(problem), strict=True):
        near = 1e-8 * max(1.0, best)
        for method in METHODS:
            verdict = judged(problem, method, objective, 0.1)
            assert verdict.lower_bound_s <= best + near, method
            if method not in RULES:
                assert verdict.value_s == pytest.approx(best, abs=near), method


@pytest.mark.parametrize("seed", range(24))
def test_few_stages_are_planned_best_and_no_bound_is_above(seed: int) -> None:
    assert_planned_best(instance(seed, 3 + seed % 8 // 7))  # four stages take the brute force seconds


@pytest.mark.parametrize("seed", range(24))
def test_writes_and_executors_are_planned_best_and_no_bound_is_above(seed: int) -> None:
    assert_planned_best(widened(instance(1000 + seed, 3), seed))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(6))
def test_many_stages_on_executors_are_planned_close_to_what_is_proven(seed: int, objective: Objective) -> None:
    problem = widened(instance(seed + 200, 10), seed)
    best, found = judged(problem, "exact", objective, 5.0), judged(problem, "search", objective, 0.2)
    assert found.lower_bound_s <= best.value_s * (1 + NEAR)
    assert found.value_s <= best.value_s * 1.05 + NEAR


def test_more_executors_than_stages_compute_all_at_once() -> None:
    stages = [{"network_s": 0.0, "cpu_s": 3.0, "parents": []}] * 5
    found = judged({"jobs": [{"release_s": 0.0, "stages": stages}], "executors": 1000}, "search")
    assert (found.value_s, found.lower_bound_s) == pytest.approx((3.0, 3.0))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_search_finds_what_is_proven_best(objective: Objective) -> None:
    gaps = []
    for seed in range(100, 120):
        problem = instance(seed, 12)
        best = judged(problem, "exact", objective, 10.0)
        assert best.gap < 1e-6
        found = judged(problem, "search", objective, 0.2)
        assert found.lower_bound_s <= best.value_s * (1 + NEAR)
        gaps.append(found.value_s / best.value_s - 1 if best.value_s > 0 else 0.0)
    assert np.mean(gaps) <= 0.01
    assert max(gaps) <= 0.05


@pytest.mark.parametrize(("n", "jobs", "dense"), [(50, 1, False), (50, 1, True), (200, 1, False), (1000, 1, False), (1000, 20, True)])  # fmt: skip
def test_layers_are_planned_close_to_the_bound(n: int, jobs: int, dense: bool) -> None:
    assert judged(layered(n, 7, jobs, dense), budget_s=0.5).gap <= 0.05


def test_idling_on_purpose_is_found() -> None:
    """The short job comes a moment after the long one: the machines wait for it. List scheduling never does."""
    jobs = [(0.0, 10.0, 10.0), (1.0, 1.0, 1.0)]
    problem = {"jobs": [{"release_s": r, "stages": [{"network_s": a, "cpu_s": b, "parents": []}]} for r, a, b in jobs]}
    assert judged(problem, "search", "mean-completion").value_s == pytest.approx((2 + 22) / 2)
    assert judged(problem, "exact", "mean-completion").value_s == pytest.approx((2 + 22) / 2)
    assert all(judged(problem, name, "mean-completion").value_s > 15 for name in RULES)


@pytest.mark.parametrize("method", ["search", "auto"])
def test_the_same_seed_gives_the_same_plan(method: str) -> None:
    problem = ShopProblem.from_json(instance(5, 12))
    one, other = (plan_spark(problem, method, "mean-completion", budget_s=1.0, seed=3) for _ in range(2))
    assert one.schedule == other.schedule


def test_what_is_done_without_a_plan_stands_beside() -> None:
    found = judged(instance(3, 12))
    assert tuple(found.compared_s) == BASELINES
    assert found.compared_s["delaystage"] <= found.compared_s["fair"]
    assert found.compared_s["fifo"] == judged(instance(3, 12), "fifo").value_s


def test_two_equal_stages_share_as_they_should() -> None:
    """Both fetch 2 s at half the rate, then compute 1 s at half the rate: 4 + 2 s; in turn it is 2 + 2 + 1."""
    stage = {"network_s": 2.0, "cpu_s": 1.0, "parents": []}
    found = judged({"jobs": [{"release_s": 0.0, "stages": [stage, stage]}]})
    assert found.compared_s["fair"] == pytest.approx(6.0)
    assert found.compared_s["delaystage"] == pytest.approx(5.0)
    assert found.value_s == pytest.approx(5.0)


@pytest.mark.parametrize("seed", range(30))
def test_a_schedule_backwards_is_one_and_orders_come_from_starts(seed: int) -> None:
    shop = numbered(ShopProblem.from_json(instance(seed, 12))).shop
    again = backwards(backwards(shop))
    assert all(np.array_equal(a, b) for a, b in zip(shop[:2] + shop[3:8], again[:2] + again[3:8], strict=True))
    for rule in RULES.values():
        start = timed(shop, rule(numbered(ShopProblem.from_json(instance(seed, 12)))))
        assert np.allclose(timed(shop, order_of(shop, start)), start)
        for mean in (False, True):
            assert bound_of(shop, mean).value_s <= value_of(shop, start, mean) * (1 + NEAR)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("early", [0.0, 3.25, float(1 << 30)])
def test_releases_may_be_on_any_clock(objective: Objective, early: float) -> None:
    jobs = [
        {"release_s": early + k, "stages": [{"network_s": 0.1, "cpu_s": 0.1, "parents": []}]} for k in (0.0, 0.0, 0.125)
    ]
    problem = ShopProblem.from_json({"jobs": jobs})
    found = plan_spark(problem, objective=objective, budget_s=0.2)
    assert found.verdict.lower_bound_s <= found.verdict.value_s
    assert not faults(problem, found.schedule)
    assert value(problem, found.schedule, objective) == pytest.approx(found.verdict.value_s, abs=1e-6)
    plain = plan_spark(
        ShopProblem.from_json({"jobs": [{**j, "release_s": j["release_s"] - early} for j in jobs]}),
        objective=objective,
        budget_s=0.2,
    )
    added = early if objective == "makespan" else 0.0
    assert found.verdict.value_s == pytest.approx(plain.verdict.value_s + added, abs=1e-6)


def test_unknown_names_are_refused() -> None:
    problem = ShopProblem.from_json(instance(1))
    with pytest.raises(BadInput, match="fair shares the machines"):
        plan_spark(problem, "fair")
    other: Any = "latency"
    with pytest.raises(BadInput, match="unknown objective"):
        plan_spark(problem, "auto", other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: (), "has 0 stages"),
        (lambda s: (s[0], *s[:-1]), "each wanted once"),
        (lambda s: (Start(0, s[0].stage, -5.0, s[0].cpu_start_s), *s[1:]), "fetches at -5 s"),
        (lambda s: tuple(Start(r.job, r.stage, 0.0, r.cpu_start_s) for r in s), "at once"),
        (lambda s: tuple(Start(r.job, r.stage, r.network_start_s, 0.0) for r in s), "computes at 0 s"),
        (lambda s: (Start(0, s[0].stage, float("nan"), 0.0), *s[1:]), "not a finite number"),
        (lambda s: (replace(s[0], executor=1), *s[1:]), "unknown executor 1; the problem has 0 to 0"),
        (lambda s: (replace(s[0], write_start_s=9.0), *s[1:]), "writes for 0 s, from 9.0 on"),
    ],
)
def test_what_is_no_schedule_is_seen(change: Any, words: str) -> None:
    file = plan_spark(ShopProblem.from_json(layered(8, 1)), "johnson")
    assert faults(file.problem, file.schedule) == []
    assert words in "; ".join(faults(file.problem, change(file.schedule)))
