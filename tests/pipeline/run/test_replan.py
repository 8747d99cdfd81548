"""Planning again for devices that are not as fast as they were."""

from dataclasses import replace

import pytest
from pipeline.plan.planning_worlds import chain_profile

from partita.nouns.probe import Probe, ProbePiece
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run.replan import planned_without, replanned
from partita.simulate.run_speed import DeviceSpeed


def planned():
    file = plan_pipeline(chain_profile(), stages=2, allow_replicas=False)
    return replace(file, problem=replace(file.problem, probe=Probe((ProbePiece(("t0",), 1e-3),), 1)))


def test_a_slow_device_gets_less_work() -> None:
    file = planned()
    found = replanned(file, (DeviceSpeed("cpu0", 1.0, 1.0), DeviceSpeed("cpu1", 1.0, 0.5)))
    assert found.worth_it
    tasks = {s.devices[0]: len(s.tasks) for s in found.file.plan.stages}
    assert tasks["cpu1"] < tasks["cpu0"]
    assert found.new_s == pytest.approx(found.file.verdict.value_s)
    assert found.new_s < 0.8 * found.old_s
    assert found.file.problem.probe == file.problem.probe


def test_equal_devices_keep_their_plan() -> None:
    file = planned()
    found = replanned(file, (DeviceSpeed("cpu0", 1.0, 1.0), DeviceSpeed("cpu1", 1.0, 1.0)))
    assert not found.worth_it
    assert found.file.plan == file.plan
    assert found.old_s == pytest.approx(file.verdict.value_s)


def test_wishes_hold() -> None:
    file = planned()
    found = replanned(file, (DeviceSpeed("cpu0", 1.0, 1.0), DeviceSpeed("cpu1", 1.0, 0.05)))
    assert len(found.file.plan.stages) == 2


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "interleaved", "searched", "auto", None])
def test_one_device_that_is_left_is_enough(schedule) -> None:
    file = plan_pipeline(chain_profile(), schedule=schedule, allow_replicas=False, budget_s=0.3)
    left = planned_without(file, {"cpu1"})
    assert left.plan.devices == ("cpu0",)
    assert [d.name for d in left.cluster.devices] == ["cpu0"]
