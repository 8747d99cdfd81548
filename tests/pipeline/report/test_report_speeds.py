"""The report's part on how fast the devices were."""

from dataclasses import replace

import numpy as np
from pipeline.plan.planning_worlds import chain_profile

from partita.nouns.probe import Probe, ProbePiece, Readings
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.report import speeds
from partita.pipeline.report.page import page
from partita.pipeline.report.story import Engine, Story
from partita.simulate.predicted import predicted


def story(*ran: list[float]) -> Story:
    """A run of two devices at these speeds, a row a device, measured as long as it should have taken."""
    file = plan_pipeline(chain_profile(), stages=2, allow_replicas=False)
    file = replace(file, problem=replace(file.problem, probe=Probe((ProbePiece(("t0",), 1e-3),), 1)))
    table = np.array(ran)
    readings = Readings(("cpu0", "cpu1"), 1e-3 / table[:, :, None], np.ones(table.shape), 1 / table)
    told = Story("a run", file, predicted(file.problem, file.plan), engines=(Engine("pipeline"),), readings=readings)
    assert told.run_speed is not None
    return replace(told, engines=(Engine("pipeline", measured_s=told.run_speed.step_s),))


def test_a_slow_device_is_named_and_drawn() -> None:
    told = story([1.0] * 20, [0.5] * 20)
    assert "cpu1 ran at 0.50 of the speed that the plan was made for" in speeds.note(told)
    assert "0 % off" in speeds.note(told)
    drawn = speeds.chart(told)
    assert drawn.count('class="loss') == 2
    assert "cpu1: 50 %" in drawn
    assert "How fast each device was" in page(told)


def test_a_run_without_readings_has_no_such_part(tmp_path) -> None:
    told = replace(story([1.0] * 3, [1.0] * 3), readings=None)
    assert speeds.note(told) == speeds.chart(told) == ""
    assert "How fast each device was" not in page(told)


def test_a_story_is_read_back_with_its_readings(tmp_path) -> None:
    told = story([1.0] * 20, [0.5] * 20)
    told.write(tmp_path)
    again = Story.read(tmp_path)
    assert again.run_speed == told.run_speed


def test_readings_that_scatter_by_more_than_half_are_not_trusted() -> None:
    told = story([1.0, 0.2] * 20, [1.0, 0.2] * 20)
    assert "no number here can be trusted to better than that" in speeds.note(told)
