"""Predictions made again for the speeds of a run."""

import math
from dataclasses import replace

import numpy as np
import pytest
from pipeline.plan.planning_worlds import chain_profile

from partita.errors import BadInput
from partita.nouns.probe import Probe, ProbePiece, Readings
from partita.pipeline.plan.planner import plan_pipeline
from partita.simulate.predicted import predicted
from partita.simulate.run_speed import as_they_ran, run_speed

PROBE = Probe((ProbePiece(("t0",), 1e-3),), 1)


def planned(devices: int = 2):
    file = plan_pipeline(chain_profile(devices=devices), stages=devices, allow_replicas=False)
    return replace(file, problem=replace(file.problem, probe=PROBE))


def ran(*speeds: list[float]) -> Readings:
    """[devices][steps] speeds, told by the pieces and by what the steps computed."""
    table = np.array(speeds)
    return Readings(
        tuple(f"cpu{d}" for d in range(len(table))), 1e-3 / table[:, :, None], np.ones(table.shape), 0.1 / table
    )


def test_the_speed_of_the_plan_gives_the_plan_s_prediction() -> None:
    file = planned()
    found = run_speed(file, ran([1.0] * 3, [1.0] * 3))
    assert found is not None
    assert found.step_s == pytest.approx(predicted(file.problem, file.plan).duration_s)
    assert found.changed == ()


def test_devices_at_half_their_speed_take_twice_as_long() -> None:
    file = planned()
    found = run_speed(file, ran([0.5] * 3, [0.5] * 3))
    assert found is not None
    assert found.step_s == pytest.approx(2 * predicted(file.problem, file.plan).duration_s)
    assert [d.change for d in found.changed] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(("scale", "cold_s"), [(1.0, 0.0), (1e-4, 1.2e-3)])
def test_one_slow_device_is_simulated_as_what_it_is(scale: float, cold_s: float) -> None:
    """Waits, too: those at the speeds of the run, which milliseconds of computing leave."""
    file = planned()
    costs = {"send_s": 0.02, "send_s_per_byte": 1e-6, "message_s": 0.03, "message_s_per_byte": 2e-6}
    link = replace(file.problem.cluster.default_link, **{name: scale * s for name, s in costs.items()})
    devices = tuple(replace(d, cold_s=cold_s) for d in file.cluster.devices)
    cluster = replace(file.problem.cluster, default_link=link, devices=devices)
    told = file.problem.costs
    table = replace(told, seconds=scale * told.seconds, low=scale * told.low, high=scale * told.high)
    file = replace(file, problem=replace(file.problem, cluster=cluster, costs=table))
    found = run_speed(file, ran([1.0] * 3, [0.6] * 3))
    assert found is not None
    ran_on = as_they_ran(file.problem, found.devices)
    assert found.step_s == pytest.approx(predicted(file.problem.on(ran_on), file.plan).duration_s)


def test_the_median_is_over_the_steps() -> None:
    file = planned()
    slow = run_speed(file, ran([1.0] * 10 + [0.5] * 40, [1.0] * 10 + [0.5] * 40))
    assert slow is not None
    assert slow.step_s == pytest.approx(2 * predicted(file.problem, file.plan).duration_s)
    assert slow.low_s < slow.step_s < slow.high_s


def test_without_a_probe_or_readings_nothing_is_said() -> None:
    file = planned()
    assert run_speed(file, None) is None
    assert run_speed(replace(file, problem=replace(file.problem, probe=None)), ran([1.0], [1.0])) is None
    assert run_speed(file, ran([], [])) is None
    told = ran([1.0] * 3, [1.0] * 3)
    told.piece_s[1] = math.nan
    assert run_speed(file, told) is None, "one of two"
    assert run_speed(file, told.only(["cpu0"])) is None
    assert run_speed(file, replace(ran([1.0], [1.0]), devices=("a", "b"))) is None


def test_readings_of_another_plan_are_refused() -> None:
    told = Readings(("cpu0", "cpu1"), np.full((2, 3, 2), 1e-3), *2 * (np.ones((2, 3)),))
    with pytest.raises(BadInput, match="of 2 pieces, the plan's probe has 1"):
        run_speed(planned(), told)


@pytest.mark.parametrize("every", [1, 5, 7])
def test_steps_of_two_kinds_are_what_most_of_them_are(every: int) -> None:
    """A device is at half its speed every fifth time, and read in so many; the mean is of neither kind."""
    file, speeds = planned(), [1.0, 1.0, 1.0, 1.0, 0.5] * 14
    readings = ran(speeds, speeds)
    readings.piece_s[:, np.arange(70) % every != 0] = math.nan
    found = run_speed(file, readings)
    assert found is not None
    assert found.step_s == pytest.approx(predicted(file.problem, file.plan).duration_s)
    assert found.changed == ()
