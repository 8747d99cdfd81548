"""What waits cost: due where a device works again, and the more the longer it has waited."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from simulate.test_overheads import priced

from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.probe import Probe, ProbePiece
from partita.nouns.program import Op
from partita.pipeline.plan.planner import plan_pipeline
from partita.simulate.cold_caches import COOLS_S
from partita.simulate.lower import program_of
from partita.simulate.predicted import durations_of, predicted


def cold(problem: PipelineProblem, *seconds: float) -> PipelineProblem:
    devices = tuple(replace(d, cold_s=s) for d, s in zip(problem.cluster.devices, seconds, strict=True))
    return problem.on(replace(problem.cluster, devices=devices))


def in_a_row(plan: PipelinePlan) -> PipelinePlan:
    return plan


def side_by_side(plan: PipelinePlan) -> PipelinePlan:
    """All of it on every device."""
    tasks = tuple(t for s in plan.stages for t in s.tasks)
    return replace(plan, stages=(Stage(tasks, plan.devices),), in_flight=1)


@pytest.mark.parametrize("arranged", [in_a_row, side_by_side])
@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_what_waits_cost_is_due_where_a_device_works_again(
    micro_batches: int, arranged: Callable[[PipelinePlan], PipelinePlan]
) -> None:
    file = plan_pipeline(priced(2), stages=2, allow_replicas=False)
    problem, plan = file.problem, arranged(file.plan.of_micro_batches(micro_batches))
    program, warm, ran = program_of(problem, plan), predicted(problem, plan), predicted(cold(problem, 0.5, 3.0), plan)
    dear = durations_of(cold(problem, 0.5, 3.0), plan, program).busy_s
    more = dear - durations_of(problem, plan, program).busy_s
    works = (program.op == Op.COMPUTE) | (program.op == Op.UPDATE)
    assert not more[~works].any()
    for queue, cold_s in enumerate((0.5, 3.0)):
        own = program.by_queue[queue].tolist()
        begins = program.op[own[0]] != Op.RECV
        idle_since = 0.0 if begins else ran.end_s[own[-1]] - ran.duration_s
        waited, expected = 0.0, []
        for i in own:
            waited += ran.start_s[i] - idle_since
            if works[i]:
                expected.append(cold_s * (1 - math.exp(-waited / COOLS_S)))
                waited = 0.0
            idle_since = ran.end_s[i]
        np.testing.assert_allclose([more[i] for i in own if works[i]], expected, rtol=1e-3)  # the fourth step in a row
        assert max(expected) > 0
        assert begins == (expected[0] == 0)
        assert (more[own[-1]] > 0) == (arranged is side_by_side)  # an update behind a sum of gradients
    assert predicted(cold(problem, 0.5, 3.0), plan).duration_s > warm.duration_s


def test_a_device_that_only_updates_has_waited_for_the_sum() -> None:
    file = plan_pipeline(priced(2), stages=2, allow_replicas=False)
    plan = side_by_side(file.plan.of_micro_batches(1))
    program, problem = program_of(file.problem, plan), cold(file.problem, 0.5, 3.0)
    more = durations_of(problem, plan, program).busy_s - durations_of(file.problem, plan, program).busy_s
    [update] = program.by_queue[1].tolist()
    assert program.op[update] == Op.UPDATE
    assert more[update] == pytest.approx(3.0)


def test_a_device_that_waits_for_nobody_stays_warm() -> None:
    file = plan_pipeline(priced(2), stages=1, allow_replicas=False)
    assert predicted(cold(file.problem, 9.0, 9.0), file.plan).duration_s == file.verdict.value_s


def test_one_device_is_taken_where_waits_cost_more_than_the_second_saves() -> None:
    profile = priced(2)
    measured = replace(profile.samples[0], probe=Probe((ProbePiece(("t0",), 1e-3),), 1))
    for cold_s, wanted in ((0.0, 2), (50.0, 1)):
        devices = tuple(replace(d, cold_s=cold_s) for d in profile.cluster.devices)
        there = replace(profile, samples=(measured,), cluster=replace(profile.cluster, devices=devices))
        assert len(plan_pipeline(there, allow_replicas=False).plan.devices) == wanted
