"""A device slows down: it is noticed, and the mapping changes; noise changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from mapping.worlds import problem_of

from partita.mapping.plan.adaptive import adapting
from partita.mapping.plan.jobs import candidates
from partita.mapping.plan.runnable import runnable
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.program import Op
from partita.simulate.adapting import Said, Search, Seen, _steady
from partita.simulate.adapting import adapting as adapting_by
from partita.simulate.lower import program_of
from partita.simulate.predicted import durations_of, predicted
from partita.solve.change_points import Drift


def step_by(problem: PipelineProblem, plan: PipelinePlan, noise: np.random.Generator, spread: float) -> Seen:
    """A step by a plan on devices as the problem says, with noise."""
    program = program_of(problem, plan)
    busy = durations_of(problem, plan, program).busy_s
    computes = program.op == Op.COMPUTE
    took = {
        d: float(busy[computes & (program.queue == q)].sum() * np.exp(noise.normal(0, spread)))
        for q, d in enumerate(program.queues[: program.devices])
    }
    return Seen(predicted(problem, plan).duration_s * float(np.exp(noise.normal(0, spread))), took)


def lived(
    slowed: dict[int, dict[str, float]], steps: int, spread: float = 0.03, search: Search | None = None
) -> list[tuple[int, Said, PipelinePlan]]:
    """(step, what was said before it, plan) of a run; `slowed`: from which step on a device computes at which speed."""
    problem, noise = problem_of("inception", ("cpu0", "cpu1")), np.random.default_rng(3)
    plan = min(candidates(problem, "polish", 0.3, 0), key=lambda c: c.step_s).plan
    adapts, found, memo = adapting_by(problem, plan, search) if search else adapting(problem, plan), [], {}
    said = next(adapts)
    for k in range(steps):
        plan = said.plan or plan
        found.append((k, said, plan))
        if k in slowed:
            devices = tuple(replace(d, speed=slowed[k].get(d.name, d.speed)) for d in problem.cluster.devices)
            problem = problem.on(replace(problem.cluster, devices=devices))
        at = plan.stages, tuple(d.speed for d in problem.cluster.devices)
        if at not in memo:
            memo[at] = step_by(problem, plan, noise, 0.0)
        quiet = memo[at]
        shake = np.exp(noise.normal(0, spread, 3))
        seen = Seen(
            quiet.step_s * shake[0], {d: s * x for (d, s), x in zip(quiet.compute_s.items(), shake[1:], strict=False)}
        )
        said = adapts.send(seen)
    return found


def events(rows: list[tuple[int, Said, PipelinePlan]]) -> list[tuple[int, str]]:
    return [(k, s.event) for k, s, _ in rows if s.event]


class Counted:
    """A search that finds nothing better, and how often it was asked, for which devices."""

    def __init__(self) -> None:
        self.speeds: list[dict[str, float]] = []

    def __call__(self, problem: PipelineProblem) -> tuple[PipelinePlan, float]:
        self.speeds.append({d.name: d.speed for d in problem.cluster.devices})
        tasks = [problem.graph.tasks[i].id for i in problem.graph.order if problem.graph.tasks[i].phase == "forward"]
        return runnable(problem, dict.fromkeys(tasks, "cpu0"), tasks), math.inf


@pytest.mark.parametrize("step", [*(pytest.param(s, marks=pytest.mark.slow) for s in (4, 10)), 14])
def test_a_device_slowed_while_the_usual_is_learned_is_noticed(step: int) -> None:
    """Steps 1 to 20 are looked at: what happens among them is in one half, or in most of both."""
    search = Counted()
    rows = lived({step: {"cpu1": 0.4}}, 60, search=search)
    assert [e for _, e in events(rows)][:2] == ["noticed", "stayed"]
    assert events(rows)[0][0] <= step + 20
    assert search.speeds[0]["cpu1"] / search.speeds[0]["cpu0"] == pytest.approx(0.4, rel=0.1)


def test_searches_begin_with_what_devices_really_compute() -> None:
    """All are half as fast as the plan foresaw from the first step on, which alarms nobody; then one becomes slower still."""
    search = Counted()
    rows = lived({0: {"cpu0": 0.5, "cpu1": 0.5}, 60: {"cpu1": 0.25}}, 100, search=search)
    assert [e for _, e in events(rows)] == ["noticed", "stayed"]
    assert 60 < events(rows)[0][0] <= 70
    assert search.speeds == [pytest.approx({"cpu0": 0.5, "cpu1": 0.25}, rel=0.1)]


@pytest.mark.parametrize("nothing", [0.0, math.inf, math.nan])
def test_a_device_whose_clock_says_nothing_is_left_out(nothing: float) -> None:
    problem = problem_of("inception", ("cpu0", "cpu1"))
    plan = next(candidates(problem, "heft", 0.3, 0)).plan
    took = step_by(problem, plan, np.random.default_rng(0), 0.0).compute_s
    adapts = adapting_by(problem, plan, Counted())
    next(adapts)
    said = [adapts.send(Seen(1.0, took | {"cpu1": nothing if k % 3 else took["cpu1"]})) for k in range(80)]
    assert not any(s.event for s in said)


def test_nothing_is_searched_where_all_change_alike() -> None:
    search = Counted()
    rows = lived({60: {"cpu0": 0.5, "cpu1": 0.5}}, 110, search=search)
    assert [e for _, e in events(rows)] == ["noticed", "stayed"]
    assert search.speeds == []


def test_searches_that_change_nothing_become_rare() -> None:
    """A neighbour comes and goes every 60 steps."""
    search = Counted()
    lived({k: {"cpu1": 0.5 if k % 120 else 1.0} for k in range(60, 3000, 60)}, 3000, search=search)
    assert 2 <= len(search.speeds) <= 8


@pytest.mark.parametrize("neighbour", [0.7, 0.5, 0.4])
def test_a_slow_down_behind_a_false_alarm_does_not_wait_for_the_end_of_a_rest(neighbour: float) -> None:
    """A neighbour comes for some steps, and nothing is found to do about it; that it leaves is no news; then a device is slowed for good."""
    search = Counted()
    rows = lived({60: {"cpu1": neighbour}, 74: {"cpu1": 1.0}, 90: {"cpu1": 0.3}}, 125, search=search)
    told = [k for k, event in events(rows) if event == "noticed"]
    assert told[0] < 74
    assert 90 < told[1] <= 100
    assert len(search.speeds) == 2
    assert search.speeds[1]["cpu1"] / search.speeds[1]["cpu0"] == pytest.approx(0.3, rel=0.1)


def test_a_quiet_run_gives_no_alarm_while_it_learns() -> None:
    for spread in (0.01, 0.05, 0.1, 0.2):
        chance = np.random.default_rng(int(100 * spread))
        false = 0
        for _ in range(2000):
            took = np.exp(chance.normal(0, spread, (20, 2)))
            took[chance.random((20, 2)) < 0.03] *= 2.0  # a step now and then is twice as slow
            false += not _steady([Seen(1.0, {"cpu0": a, "cpu1": b}) for a, b in took.tolist()])
        assert false <= 4, spread


@pytest.mark.slow
def test_a_slowed_device_is_noticed_and_its_work_moves() -> None:
    rows = lived({100: {"cpu1": 0.4}}, 160)
    events = [(k, s.event) for k, s, _ in rows if s.event]
    assert [e for _, e in events][:3] == ["noticed", "switched", "kept"]
    assert 100 < events[0][0] <= 110
    assert events[2][0] <= 160
    problem = problem_of("inception", ("cpu0", "cpu1"))
    slow = problem.on(
        replace(problem.cluster, devices=(problem.cluster.devices[0], replace(problem.cluster.devices[1], speed=0.4)))
    )
    before, after = (predicted(slow, rows[k][2]).duration_s for k in (99, -1))
    best = min(c.step_s for c in candidates(slow, "polish", 1.0, 5))
    assert after < 0.9 * before
    assert after < 1.05 * best
    assert rows[events[1][0]][1].slower["cpu1"] == pytest.approx(2.5, rel=0.1)


def test_all_devices_slower_alike_is_no_reason_to_move() -> None:
    rows = lived({60: {"cpu0": 0.5, "cpu1": 0.5}}, 110)
    assert [s.event for _, s, _ in rows if s.event] == ["noticed", "stayed"]
    assert len({p.stages for _, _, p in rows}) == 1


def test_noise_alone_gives_no_alarm() -> None:
    chance = np.random.default_rng(0)
    for spread in (0.01, 0.05, 0.1, 0.2):
        quiet = np.exp(chance.normal(0, spread, 20)).tolist()
        drift = Drift.of(quiet)
        for k in range(2000):
            slow = 2.0 if k % 150 == 0 else 1.0  # a step now and then is twice as slow
            drift = drift.after(slow * float(np.exp(chance.normal(0, spread))))
            assert not drift.alarmed, (spread, k)


def test_a_return_to_speed_is_noticed_too() -> None:
    drift = Drift.of([1.0] * 20)
    for _ in range(10):
        drift = drift.after(0.5)
    assert drift.alarmed
