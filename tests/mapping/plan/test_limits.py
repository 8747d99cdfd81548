"""A job of hundreds of segments: thinking about it ends when it is told to, and the same inputs give the same plan."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from mapping.large import large_problem
from mapping.worlds import forward_tasks, random_placement

from partita.mapping.plan import deferred as deferring
from partita.mapping.plan import runnable as running
from partita.mapping.plan.deferred import deferred
from partita.mapping.plan.jobs import candidates
from partita.mapping.plan.limit import Limit, simulation_s
from partita.mapping.plan.live import Measured, live
from partita.mapping.plan.runnable import runnable, segments
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.timeline import Timeline
from partita.simulate.predicted import predicted

DEVICES = ("cpu0", "cpu1")


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Segments of the plans that were simulated."""
    found: list[int] = []

    def counted(problem: PipelineProblem, plan: PipelinePlan) -> Timeline:
        found.append(len(plan.stages))
        return predicted(problem, plan)

    for module in (running, deferring):
        monkeypatch.setattr(module, "predicted", counted)
    return found


def torn(problem: PipelineProblem) -> dict[str, str]:
    chance = random.Random(3)
    return {t: chance.choice(DEVICES) for t in forward_tasks(problem.graph)}


def test_what_is_simulated_is_worth_no_more_than_the_limit(simulated: list[int]) -> None:
    problem = large_problem(300)
    where, order, tasks = torn(problem), forward_tasks(problem.graph), len(problem.graph)
    fine = segments(problem.graph, where, order)
    assert len(fine) > 150
    plan = runnable(problem, where, order, Limit(0.2))
    assert 1 < len(simulated) < 20
    assert sum(simulation_s(tasks, n) for n in simulated[1:]) <= 0.2
    assert len(plan.stages) < len(fine)
    simulated.clear()
    found, step_s = deferred(problem, plan, Limit(0.2))
    assert sum(simulation_s(tasks, n) for n in simulated[1:]) <= 0.2
    assert step_s == predicted(problem, found).duration_s


def test_a_clock_ends_it_between_two_trials(simulated: list[int]) -> None:
    problem = large_problem(100)
    where, order = torn(problem), forward_tasks(problem.graph)
    asked = itertools.count()
    plan = runnable(problem, where, order, Limit(goes_on=lambda: next(asked) < 3))
    assert len(simulated) <= 4
    simulated.clear()
    asked = itertools.count()
    deferred(problem, plan, Limit(goes_on=lambda: next(asked) < 3))
    assert len(simulated) <= 4


def test_without_a_limit_neighbours_are_joined_as_before() -> None:
    """The segments of 20 mappings by lot do not depend on the limit where it is not reached."""
    problem, chance = large_problem(40), random.Random(1)
    order = forward_tasks(problem.graph)
    for _ in range(20):
        where = random_placement(problem.graph, DEVICES, chance)
        assert runnable(problem, where, order) == runnable(problem, where, order, Limit(60.0))


def test_a_search_offline_keeps_its_budget_and_gives_the_same_plan() -> None:
    problem, budget_s = large_problem(300), 2.0
    [*candidates(large_problem(10), "polish", 0.1, 0)]  # compiles
    found = []
    for _ in range(2):
        began = time.process_time()
        found.append([(c.name, c.plan) for c in candidates(problem, "polish", budget_s, 1)])
        assert time.process_time() - began < 2.5 * budget_s  # of all threads
    assert found[0] == found[1]


@pytest.mark.slow
def test_no_thought_of_a_live_search_takes_long() -> None:
    """Rank 0 thinks while the others wait, and they wait for a message no longer than their timeout."""
    problem, clock = large_problem(300), 0.0
    [*candidates(large_problem(10), "polish", 0.1, 0)]
    search = live(problem, 30.0, 1, lambda: clock + time.perf_counter() - began, thought_s=0.5)
    longest, phases, began = 0.0, [], time.perf_counter()
    trial = next(search)
    while True:
        clock += 1.0  # a trial
        phases.append(trial.phase)
        before = time.perf_counter()
        try:
            trial = search.send(Measured(trial.predicted_s))
        except StopIteration:
            break
        longest = max(longest, time.perf_counter() - before)
    assert longest < 15.0, "comparing surrogates takes a few seconds the first time"
    assert phases[-1] == "finals"
    assert clock + time.perf_counter() - began < 60.0
