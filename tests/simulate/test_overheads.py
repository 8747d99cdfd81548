"""What instructions cost beside their tasks: on one device the beginning of a step, and what was measured where a model is cut."""

from dataclasses import replace

import numpy as np
import pytest
from pipeline.plan.planning_worlds import chain_profile

from partita.nouns.cluster import Device, Link
from partita.nouns.probe import Probe, ProbePiece
from partita.nouns.program import Op
from partita.pipeline.plan.planner import plan_pipeline
from partita.simulate.lower import program_of
from partita.simulate.overheads import overheads
from partita.simulate.predicted import computing_s, predicted

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
