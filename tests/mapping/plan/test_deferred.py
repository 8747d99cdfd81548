"""Weights' gradients put off: never slower by the simulator, all that ran before runs, and the bound holds."""

from __future__ import annotations

import random

import pytest
from mapping.worlds import forward_tasks, problem_of, random_placement

from partita.mapping.plan.deferred import deferred
from partita.mapping.plan.jobs import step_bound
from partita.mapping.plan.runnable import runnable
from partita.nouns.pipeline_plan import Slot
from partita.simulate.predicted import predicted

DEVICES = ("cpu0", "cpu1")


@pytest.mark.parametrize("name", [pytest.param("inception", marks=pytest.mark.slow), "resnet", "towers"])
def test_weights_gradients_are_put_off_where_that_is_faster(name: str) -> None:
    problem, chance, gains = problem_of(name, DEVICES), random.Random(name), []
    bound, _ = step_bound(problem)
    for _ in range(6):
        where = random_placement(problem.graph, DEVICES, chance)
        plan = runnable(problem, where, forward_tasks(problem.graph))
        before_s = predicted(problem, plan).duration_s
        found, step_s = deferred(problem, plan)
        assert bound <= step_s <= before_s
        assert step_s == predicted(problem, found).duration_s
        gains.append(1 - step_s / before_s)
        for device, slots in found.orders.items():
            whole = [s for s in slots if s.part != "W"]
            assert whole == list(plan.orders[device])
            put_off = [s for s in slots if s.part == "W"]
            assert len(set(put_off)) == len(put_off)
            assert all(slots.index(Slot("B", s.stage, s.micro_batch)) < slots.index(s) for s in put_off)
    assert max(gains) > 0.005


def test_one_device_has_nothing_to_wait_for() -> None:
    problem = problem_of("towers", DEVICES)
    tasks = forward_tasks(problem.graph)
    plan = runnable(problem, dict.fromkeys(tasks, "cpu0"), tasks)
    assert deferred(problem, plan)[0] == plan
