"""The shop while jobs arrive against a plain simulator written here, and by laws."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from spark.plan.shop_brute import Json, instance

from partita.errors import BadInput
from partita.spark.plan.learned.policy import Policy
from partita.spark.plan.online.episodes import SHOP_POLICIES, Arrivals, run_shop, simulate_shop
from partita.spark.plan.online.learned import WEIGHTS
from partita.spark.plan.online.policies import RULES
from partita.spark.plan.online.streams import stream
from partita.spark.problem import ShopJob, ShopProblem, ShopStage
from partita.spark.schedule import faults, value


def plain(problem: Json, rule: str) -> float:
    """The mean job time of a rule: time goes from event to event, and all is looked up anew at each."""
    jobs = problem["jobs"]
    jobs = sorted(jobs, key=lambda j: j["release_s"])
    fetched: dict[tuple[int, int], float] = {}
    done: dict[tuple[int, int], float] = {}
    free = [0.0, 0.0]
    now = min(j["release_s"] for j in jobs)
    tails = [_tails(j["stages"]) for j in jobs]
    every = [(j, s) for j, job in enumerate(jobs) for s in range(len(job["stages"]))]
    while len(done) < len(every) or max(done.values()) > now:
        moved = True
        while moved:  # what needs no machine passes at once
            moved = False
            for j, s in every:
                stage = jobs[j]["stages"][s]
                open_ = jobs[j]["release_s"] <= now and all(done.get((j, p), np.inf) <= now for p in stage["parents"])
                if open_ and (j, s) not in fetched and stage["network_s"] <= 0:
                    fetched[j, s], moved = now, True
                if fetched.get((j, s), np.inf) <= now and (j, s) not in done and stage["cpu_s"] <= 0:
                    done[j, s], moved = now, True
        for machine in range(2):
            if free[machine] > now:
                continue
            ready = []
            for j, s in every:
                stage = jobs[j]["stages"][s]
                if machine == 0:
                    fits = (j, s) not in fetched and jobs[j]["release_s"] <= now and all(done.get((j, p), np.inf) <= now for p in stage["parents"])  # fmt: skip
                else:
                    fits = fetched.get((j, s), np.inf) <= now and (j, s) not in done
                if fits:
                    ready.append((_key(rule, machine, jobs, j, s, now, fetched, done, tails), -tails[j][s], j, s))  # fmt: skip
            if ready:
                *_, j, s = min(ready)
                length = jobs[j]["stages"][s]["cpu_s" if machine else "network_s"]
                free[machine] = now + length
                (done if machine else fetched)[j, s] = now + length
        later = [t for t in [*fetched.values(), *done.values(), *(j["release_s"] for j in jobs)] if t > now]
        if not later:
            break
        now = min(later)
    ends = [max(done[j, s] for s in range(len(job["stages"]))) for j, job in enumerate(jobs)]
    return float(np.mean([e - job["release_s"] for e, job in zip(ends, jobs, strict=True)]))


def _tails(stages: Json) -> list[float]:
    def tail(s: int) -> float:
        after = max((tail(c) for c in range(len(stages)) if s in stages[c]["parents"]), default=0.0)
        return float(stages[s]["network_s"] + stages[s]["cpu_s"] + after)

    return [tail(s) for s in range(len(stages))]


def _key(rule: str, machine: int, jobs: Any, j: int, s: int, now: float, fetched: Any, done: Any, tails: Any) -> Any:  # fmt: skip
    stages = jobs[j]["stages"]
    left = [
        sum(x["network_s"] for i, x in enumerate(stages) if fetched.get((j, i), np.inf) > now),
        sum(x["cpu_s"] for i, x in enumerate(stages) if done.get((j, i), np.inf) > now),
    ]
    ways = [tails[j][i] - (x["network_s"] if fetched.get((j, i), np.inf) <= now else 0.0) for i, x in enumerate(stages) if done.get((j, i), np.inf) > now]  # fmt: skip
    return {
        "fifo": j,
        "sjf": sum(x["network_s"] + x["cpu_s"] for x in stages),
        "srpt": sum(left),
        "srpt-machine": left[machine],
        "srpt-path": max(ways, default=0.0),
        "johnson": (stages[s]["network_s"] >= stages[s]["cpu_s"], -tails[j][s]) if machine == 0 else fetched.get((j, s), 0.0),
        "critical-path": -tails[j][s],
    }[rule]  # fmt: skip


def random_problem(seed: int) -> Json:
    """Jobs of random problems, released one by one; lengths are random numbers, so that keys are hardly ever equal."""
    dice = random.Random(seed)
    jobs = [j for k in range(dice.randint(1, 4)) for j in instance(1000 * seed + k, 8, dice.choice(("plain", "zeros", "stars", "one-sided")))["jobs"]]  # fmt: skip
    return {"jobs": [{"release_s": dice.choice((0.0, dice.uniform(0, 40))), "stages": j["stages"]} for j in jobs]}


@pytest.mark.parametrize("rule", RULES)
def test_rules_do_what_a_plain_simulator_does(rule: str) -> None:
    for seed in range(60):
        json = random_problem(seed)
        found = simulate_shop(ShopProblem.from_json(json), rule)[0]
        assert found.mean_job_s == pytest.approx(plain(json, rule), rel=1e-9, abs=1e-9), seed


@pytest.mark.parametrize("policy", SHOP_POLICIES)
def test_every_schedule_holds(policy: str) -> None:
    """No machine does two things, parents are first, the value is the schedule's, no bound is above it."""
    for seed in range(40):
        problem = ShopProblem.from_json(random_problem(seed))
        found, file = simulate_shop(problem, policy, seed=seed)
        assert faults(problem, file.schedule) == []
        assert found.mean_job_s == pytest.approx(value(problem, file.schedule, "mean-completion"))
        assert found.bound_s <= found.mean_job_s + 1e-9
        assert simulate_shop(problem, policy, seed=seed)[1].schedule == file.schedule


@pytest.mark.parametrize("seed", range(8))
def test_any_weights_give_a_schedule(seed: int) -> None:
    """Also those that would wait for ever."""
    dice = np.random.default_rng(seed)
    weights = Policy(shop=dice.normal(size=WEIGHTS) * 3)
    problem = ShopProblem.from_json(random_problem(seed))
    for policy in ("learned", "learned-scores"):
        assert faults(problem, simulate_shop(problem, policy, weights=weights)[1].schedule) == []


@pytest.mark.parametrize("policy", list(SHOP_POLICIES))
def test_what_comes_later_is_not_known(policy: str) -> None:
    """Until a job comes, the schedule is the same whatever it is."""
    for seed in range(6):
        problem = stream(None, 12, 0.9, seed)
        at = problem.jobs[8].release_s
        other = ShopProblem((*problem.jobs[:8], ShopJob((ShopStage(0.1, 50.0),), at)))
        a, b = (simulate_shop(p, policy, seed=3)[1].schedule for p in (problem, other))
        before = [{(r.job, r.stage, r.network_start_s) for r in x if r.network_start_s < at} for x in (a, b)]
        assert before[0] == before[1]


def test_units_do_not_count() -> None:
    """A shop whose times are all a thousand times as long is served in the same order."""
    problem = stream(None, 20, 0.9, 1)
    long = ShopProblem(tuple(ShopJob(tuple(ShopStage(s.network_s * 1024, s.cpu_s * 1024, s.parents) for s in j.stages), j.release_s * 1024) for j in problem.jobs))  # fmt: skip
    for policy in SHOP_POLICIES:
        one, two = (simulate_shop(p, policy)[0].mean_job_s for p in (problem, long))
        assert two == pytest.approx(1024 * one)


def test_a_stream_has_its_load() -> None:
    problem = stream(None, 400, 0.8, 5)
    busier = max(sum(getattr(s, w) for j in problem.jobs for s in j.stages) for w in ("network_s", "cpu_s"))
    assert busier / problem.jobs[-1].release_s == pytest.approx(0.8, rel=0.2)
    assert stream(None, 400, 0.8, 5) == problem
    kinds = (ShopJob((ShopStage(1.0, 2.0),)),)
    assert {j.stages for j in stream(kinds, 9, 0.5, 1).jobs} == {kinds[0].stages}


def test_an_unknown_policy_is_told() -> None:
    with pytest.raises(BadInput, match="known for the shop"):
        run_shop(Arrivals.of(stream(None, 2, 0.5, 1)), "best")


@pytest.mark.parametrize("policy", SHOP_POLICIES)
def test_lengths_that_rounding_swallows_are_served(policy: str) -> None:
    stages = (ShopStage(1e9, 0.0), ShopStage(1e-9, 0.0), ShopStage(0.0, 1e-9, (0,)))
    outcome, file = simulate_shop(ShopProblem((ShopJob(stages), ShopJob(stages[:2]))), policy)
    assert outcome.mean_job_s >= outcome.bound_s
    assert faults(file.problem, file.schedule) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["replan", "learned"])
def test_a_crowd_does_not_take_for_ever(policy: str) -> None:
    """300 jobs in a queue that only grows."""
    dice = random.Random(0)
    jobs = [
        ShopJob(tuple(ShopStage(dice.random(), dice.random(), (k - 1,) if k else ()) for k in range(4)), 0.1 * j)
        for j in range(300)
    ]
    simulate_shop(ShopProblem(tuple(jobs[:2])), policy)  # compiled
    outcome, _ = simulate_shop(ShopProblem(tuple(jobs)), policy)
    assert outcome.seconds_spent < 60
