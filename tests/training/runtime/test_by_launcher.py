"""The launcher changes the plan of a run between two steps: no step is lost, whatever ranks without work do meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from training.runtime.helpers import plan_file, source_of
from training.runtime.runs import alone, losses, metrics

from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.training.job import load_job
from partita.training.runtime.elastic import Elastic, keep_going
from partita.training.runtime.launch import launch
from partita.training.runtime.prepare import prepared, training_spec
from partita.training.runtime.step_log import StepLog
from partita.training.runtime.worker_status import Board

pytestmark = pytest.mark.machine
STEPS = 30


class Mind:
    """Asks for the plans one after the other, each when some steps by the one before have been seen."""

    def __init__(self, plans: list[PipelinePlan], devices: tuple[str, ...]) -> None:
        self.plans, self.log = plans, StepLog(devices)
        self.seen: list[int] = []
        self.since: list[int] = []

    def look(self, board: Board) -> PipelinePlan | None:
        self.seen += [s.step for s in self.log.new(board)]
        due = self.since[-1] if self.since else 0
        return self.plans.pop(0) if self.plans and self.seen and self.seen[-1] > due + 3 else None

    def told(self, step: int) -> None:
        self.since.append(step)


@pytest.mark.parametrize("elastic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_plans_change_and_no_step_is_lost(elastic: bool, tmp_path: Path) -> None:
    """Two stages on cpu0 and cpu1, cpu2 idle; then all on cpu2; then three stages."""
    three = plan_file("failing:good", stages=3)
    assert isinstance(three.plan, PipelinePlan)
    two = plan_file("failing:good", stages=2).plan
    assert isinstance(two, PipelinePlan)
    all_tasks = tuple(t for s in two.stages for t in s.tasks)
    one = replace(two, stages=(replace(two.stages[0], tasks=all_tasks, devices=("cpu2",)),))
    file = PlanFile(two, three.verdict, three.problem)
    mind, devices = Mind([one, three.plan], ("cpu0", "cpu1", "cpu2")), 3
    folder = prepared(tmp_path, file)
    spec = training_spec(folder, source_of("failing:good"), {"seconds": "0.05"}, engine="pipeline", steps=STEPS)
    spec = replace(spec, watched=True)
    if elastic:
        keep_going(spec, file, Elastic(), mind=lambda file: mind, all_devices=True)
    else:
        launch(spec, file, None, ranks=devices, mind=mind)
    assert len(mind.since) == 2
    assert mind.plans == []
    assert mind.seen == list(range(mind.seen[0], mind.seen[-1] + 1))
    assert [m["step"] for m in metrics(tmp_path)] == list(range(1, STEPS + 1))
    wanted, _ = alone(load_job(source_of("failing:good")), STEPS, 2)
    assert losses(tmp_path) == pytest.approx(wanted, rel=1e-5)
