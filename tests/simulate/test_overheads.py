"""What instructions cost beside their tasks: on one device the beginning of a step, and what was measured where a model is cut."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pipeline.plan.planning_worlds import chain_profile

from partita.nouns.cluster import Device, Link
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.probe import Probe, ProbePiece
from partita.nouns.program import Op
from partita.pipeline.plan.planner import plan_pipeline
from partita.simulate.lower import program_of
from partita.simulate.overheads import COOLS_S, overheads
from partita.simulate.predicted import computing_s, durations_of, predicted

CALL_S, STEP_S, UPDATE_S, SEND_S, SEND_BYTE_S, MESSAGE_BYTE_S = 0.1, 0.3, 0.2, 0.05, 0.002, 0.003


def priced(devices: int):
    """The chain on devices where calls, the beginning of a step and posting a message take their time."""
    profile = chain_profile(devices=devices)
    there = tuple(Device(f"cpu{i}", instruction_s=CALL_S, step_s=STEP_S, update_s=UPDATE_S) for i in range(devices))
    link = replace(Link("", "", 1e6), send_s=SEND_S, send_s_per_byte=SEND_BYTE_S, message_s_per_byte=MESSAGE_BYTE_S)
    return replace(profile, cluster=replace(profile.cluster, devices=there, default_link=link))


def test_one_stage_costs_what_was_measured() -> None:
    file = plan_pipeline(priced(2), stages=1, allow_replicas=False)
    problem = file.problem
    program = program_of(problem, file.plan)
    found = overheads(program, problem.graph, problem.costs, file.cluster)
    assert found[np.flatnonzero(program.op == Op.COMPUTE)[0]] == STEP_S
    assert found[program.op == Op.UPDATE] == UPDATE_S
    assert found.sum() == STEP_S + UPDATE_S


def test_two_stages_pay_half_a_call_each_and_post_their_messages() -> None:
    file = plan_pipeline(priced(2), stages=2, allow_replicas=False)
    program = program_of(file.problem, file.plan)
    found = overheads(program, file.problem.graph, file.problem.costs, file.cluster)
    sends = np.flatnonzero(program.op == Op.SEND)
    posted = np.zeros(len(program))
    for i in sends.tolist():
        posted[[k for k in program.needs.row(i).tolist() if program.op[k] == Op.COMPUTE][-1]] += (
            SEND_S + SEND_BYTE_S * program.size_bytes[i]
        )
        received = [k for k in range(len(program)) if program.op[k] == Op.RECV and i in program.needs.row(k).tolist()]
        np.testing.assert_allclose(found[received], MESSAGE_BYTE_S * program.size_bytes[i])
    computes = program.op == Op.COMPUTE
    begun = np.zeros(len(program))
    begun[np.flatnonzero(computes & (program.queue == 0))[0]] = STEP_S  # the second begins while it waits
    np.testing.assert_allclose(found[computes], (CALL_S / 2 + posted + begun)[computes])
    assert found[program.op == Op.UPDATE].tolist() == [UPDATE_S, UPDATE_S]
    assert posted.sum() == pytest.approx(SEND_S * len(sends) + SEND_BYTE_S * program.size_bytes[sends].sum())
    assert predicted(file.problem, file.plan).duration_s == pytest.approx(file.verdict.value_s)


def test_what_begins_a_step_is_not_computing() -> None:
    file = plan_pipeline(priced(2), stages=2, allow_replicas=False)
    at_once = tuple(replace(d, step_s=0.0) for d in file.cluster.devices)
    free = replace(file.problem, cluster=replace(file.problem.cluster, devices=at_once))
    assert computing_s(file.problem, file.plan) == pytest.approx(computing_s(free, file.plan))
    assert predicted(file.problem, file.plan).duration_s > predicted(free, file.plan).duration_s


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


def test_splitting_does_not_pay_where_calls_cost_more_than_the_work() -> None:
    dear = priced(2)
    devices = tuple(replace(d, instruction_s=50.0) for d in dear.cluster.devices)
    file = plan_pipeline(replace(dear, cluster=replace(dear.cluster, devices=devices)), allow_replicas=False)
    assert len(file.plan.devices) == 1


def test_a_device_that_is_fast_alone_is_taken_alone() -> None:
    profile = chain_profile(devices=2)
    company = replace(Probe((ProbePiece(("t0",), 1e-3),), 1), alone=4.0)
    sample = replace(profile.samples[0], probe=company)
    measured = replace(profile, samples=(sample,), cluster=replace(profile.cluster, source="measured"))
    assert len(plan_pipeline(replace(profile, samples=(sample,))).plan.devices) == 2  # a cluster that somebody wrote
    file = plan_pipeline(measured)
    assert len(file.plan.devices) == 1
    assert file.verdict.value_s == pytest.approx(8 * 6 * 3.0 / 4.0)
    assert file.verdict.lower_bound_s == pytest.approx(file.verdict.value_s)
