"""Arithmetic on the times of tasks, by made-up ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.nouns.cluster import Cluster, Device
from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.probe import middle_mean
from partita.nouns.program import Op
from partita.simulate.cold_caches import COOLS_S
from partita.simulate.lower import program_of
from partita.simulate.predicted import warm_durations_of
from partita.training.capture.model import capture
from partita.training.measure.job import _sample
from partita.training.measure.steps import StepTimes
from partita.training.measure.times import (
    BETWEEN,
    SECONDS,
    TaskTimes,
    at_one_speed,
    beginning_s,
    cold_s,
    cutting_of,
    cutting_s,
    estimates,
    idle_update_s,
    mean_error,
    parts_of,
    work_around,
)


def made_up(tasks: FloatArray, whole: FloatArray, marks: FloatArray) -> TaskTimes:
    """Times whose forward and backward are the same numbers."""
    by_task, by_pass = {"forward": tasks, "backward": tasks, "weights": tasks / 2}, dict.fromkeys(SECONDS, whole)
    return TaskTimes(
        **{**by_pass, **by_task},
        calls=marks,
        marks=marks,
        company=whole,
        update_call=0.0,
        updates=np.ones(tasks.shape[1]) / tasks.shape[1],
        waits=2,
        wait_s=math.inf,
        optimizer_bytes_per_parameter_byte=0.0,
        core_share=1.0,
    )


amounts = st.floats(1e-6, 1e-1)


@st.composite
def passes(draw: st.DrawFn) -> tuple[FloatArray, FloatArray, FloatArray]:
    """([passes, tasks] seconds, [passes] seconds of the whole, [tasks] marks)."""
    n, k = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(amounts, min_size=k, max_size=k), min_size=n, max_size=n))
    whole = draw(st.lists(amounts, min_size=n, max_size=n))
    return np.array(rows), np.array(whole), np.array(draw(st.lists(st.integers(1, 9), min_size=k, max_size=k)), float)


@given(passes())
def test_estimates_add_up_to_the_whole(found: tuple[FloatArray, FloatArray, FloatArray]) -> None:
    tasks, whole, marks = found
    for rows in estimates(made_up(tasks, whole, marks)):
        assert sum(e.seconds for e in rows) == pytest.approx(float(np.median(whole)), rel=1e-9)


@given(passes())
def test_an_estimate_lies_in_its_interval(found: tuple[FloatArray, FloatArray, FloatArray]) -> None:
    for e in estimates(made_up(*found))[0]:
        assert 0 <= e.low <= e.seconds * (1 + 1e-9)
        assert e.seconds <= e.high * (1 + 1e-9)
        assert e.source == "measured"


@given(
    st.lists(st.tuples(st.floats(1e-4, 1e-1), st.integers(1, 9)), min_size=1, max_size=8), st.floats(0, 9e-6)
)  # below 20 us a mark, and every task far above what its marks cost
def test_what_the_marks_cost_is_taken_off_by_their_number(tasks: list[tuple[float, int]], cost: float) -> None:
    true, marks = np.array([t for t, _ in tasks]), np.array([float(m) for _, m in tasks])
    seen = (true + cost * marks)[None, :]
    found = [e.seconds for e in estimates(made_up(seen, np.array([true.sum()]), marks))[0]]
    assert found == pytest.approx(true.tolist(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_passes_at_one_speed_are_as_long_as_the_mean_pass(seed: int) -> None:
    """The machine is of two kinds, and most passes are of one; each task keeps its share."""
    draw = np.random.default_rng(seed)
    state = np.where(draw.random(15) < 0.3, 1.7, 1.0)
    times = made_up(np.outer(state, [1e-3, 3e-3]), 4e-3 * state, np.ones(2))
    found = at_one_speed(times, np.repeat(state, BETWEEN) * np.exp(0.1 * draw.standard_normal(15 * BETWEEN)))
    mean_s = float(np.median(found.whole_forward))
    assert mean_s == pytest.approx(4e-3 * middle_mean(state), rel=1e-9)
    assert [e.seconds for e in estimates(found)[0]] == pytest.approx([mean_s / 4, 3 * mean_s / 4])
    around = work_around(times)
    assert len(around) == 15 * BETWEEN
    assert around[::BETWEEN] == pytest.approx(state / middle_mean(state))


def test_the_error_of_the_mean_pass_is_that_of_means_beside_the_machine() -> None:
    """A machine of two kinds does not count; what passes scatter by beside it does, as the scatter of many such means shows."""
    draw = np.random.default_rng(0)
    state = np.where(draw.random(16) < 0.3, 1.7, 1.0)
    assert mean_error(4e-3 * state, np.repeat(state, BETWEEN)) == pytest.approx(0.0, abs=1e-12)
    whole = 4e-3 * state * (1 + 0.1 * draw.standard_normal((500, 16)))
    told = [mean_error(row, np.repeat(state, BETWEEN)) for row in whole]
    assert np.median(told) == pytest.approx((whole / state).mean(axis=1).std() / 4e-3, rel=0.1)


def test_tasks_below_the_whole_are_stretched_in_proportion() -> None:
    tasks, marks = np.array([[1e-3, 3e-3]]), np.ones(2)
    found = [e.seconds for e in estimates(made_up(tasks, np.array([8e-3]), marks))[0]]
    assert found == pytest.approx([2e-3, 6e-3])


def test_a_task_without_a_backward_costs_nothing() -> None:
    found = estimates(made_up(np.array([[0.0, 1e-3]]), np.array([1e-3]), np.array([0.0, 1.0])))[1]
    assert found[0].seconds == 0.0


def test_the_beginning_of_a_step_is_what_its_first_forward_takes_longer() -> None:
    whole = np.array([1e-3, 2e-3, 3e-3])
    times = replace(made_up(np.ones((3, 1)), whole, np.ones(1)), rest=np.full(3, 1e-5))
    assert beginning_s(times) == pytest.approx(1e-5)
    later = replace(times, first=times.whole_forward + np.array([3e-4, 1e-4, 2e-4]))
    assert beginning_s(later) == pytest.approx(2.1e-4)
    assert beginning_s(replace(times, first=times.whole_forward / 2)) == pytest.approx(1e-5)


@pytest.mark.parametrize("size", [8, 4])
def test_the_parts_of_a_step_add_up_to_it(size: int) -> None:
    """One micro-batch or two: what is charged once, and what each of them is charged."""
    found = parts_of(
        StepTimes([5.0, 3.0][: 8 // size], [7.0, 8.0][: 8 // size], 2.0, 1.5), StepTimes([3.0], [7.5], 0, 1.0)
    )
    count = 8 // size
    once = found["rest"] + found["first"] - found["whole_forward"] + found["update"] - found["adding"]
    whole = sum([5.0, 3.0][:count]) + sum([7.0, 8.0][:count]) + 2.0 + 1.5
    assert once + count * (found["whole_forward"] + found["whole_backward"]) == pytest.approx(whole)
    if count == 1:
        assert once + found["one_in_flight"] == pytest.approx(whole)


def test_halves_with_a_frozen_first_cost_what_the_simulator_charges() -> None:
    """Six calls of stages, each of which is charged half."""
    cutting = cutting_of(StepTimes([4.0] * 2, [8.0] * 2, 0, 0), StepTimes([2.5] * 4, [8.5] * 2, 0, 0))
    assert 6 * cutting / 2 == pytest.approx(3.0)


@given(st.lists(st.floats(0, 1e-3), min_size=8, max_size=8), st.integers(1, 2))
def test_no_part_of_a_step_that_is_charged_alone_is_negative(s: list[float], count: int) -> None:
    """Whatever a single micro-batch seems to take: of steps of 20 us its rest may be the longer."""
    step, lone = StepTimes(s[:count], s[2 : 2 + count], s[4], s[5]), StepTimes(s[6:7], s[6:7], 0.0, s[7])
    found = parts_of(step, lone)
    assert min(v for name, v in found.items() if name != "adding") >= -1e-18


@pytest.mark.parametrize("part", [0.0, 0.5])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("wait_s", "due"), [(100 * COOLS_S, 1.0), (COOLS_S, 1 - math.exp(-1))])
def test_what_a_wait_costs_is_what_halves_behind_waits_take_beyond_what_a_plan_is_told(
    wait_s: float, due: float, frozen: bool, part: float
) -> None:
    """Of both halves: where the first trains nothing, nothing comes back to it, and there is but one wait."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    model[0].requires_grad_(not frozen)
    captured = capture(model, torch.nn.functional.cross_entropy, (torch.randn(4, 6), torch.randint(0, 3, (4,))))
    names = [*captured.task_nodes]
    waits, few = 1 if frozen else 2, np.linspace(1.0, 1.2, 5)
    times = replace(
        made_up(np.ones((5, len(names))), few, np.ones(len(names))), update_call=part, waits=waits, wait_s=wait_s,
        update=3 * few, idle_update=0.5 * few, adding=0.25 * few, first=1.5 * few, rest=0.0 * few, cutting=0.125 * few,
        backward=np.ones((5, 4)) * ([0, 0, 1, 1] if frozen else 1),
        updates=np.array([0, 0, 1, 0] if frozen else [0.5, 0, 0.5, 0]),
    )  # fmt: skip
    device = Device("a", instruction_s=cutting_s(times), step_s=beginning_s(times), update_s=idle_update_s(times))
    cluster = Cluster((device, replace(device, name="b")))
    sample = _sample(captured.graph, times, 4, 4, "cpu")
    plan = PipelinePlan(
        sample.graph.fingerprint, (Stage(tuple(names[:2]), ("a",)), Stage(tuple(names[2:]), ("b",))), 1, 1, "1f1b"
    )
    problem = PipelineProblem(sample.graph, cluster, sample.costs, "job", 4, 4)
    program = program_of(problem, plan)
    works = (program.op == Op.COMPUTE) | (program.op == Op.UPDATE)
    told_s = float(warm_durations_of(problem, plan, program).busy_s[works].sum())
    drift, cold = 4.75 * (few - np.median(few)), np.array([2.0, 2.0, 2.0, -7.0, 9.0]) * waits * due
    assert cold_s(replace(times, behind_waits=told_s + drift + cold)) == pytest.approx(2.0)
    assert cold_s(replace(times, behind_waits=np.full(5, 0.9 * told_s))) == 0.0
    assert cold_s(replace(times, behind_waits=0.0 * few, waits=0)) == 0.0
    assert math.isnan(cold_s(replace(times, behind_waits=np.full(5, math.nan), waits=0)))
