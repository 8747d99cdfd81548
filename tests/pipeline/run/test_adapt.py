"""A pipeline that is planned again while it runs: what is decided from what the board says of the steps."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pipeline.plan.planning_worlds import chain_profile

from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run import adapt
from partita.pipeline.run.adapt import DRIFT, FIRST_PLAN, Adapts, Change
from partita.pipeline.run.watching import Watching
from partita.simulate.predicted import computing_s, predicted
from partita.training.runtime.prepare import prepared
from partita.training.runtime.step_log import StepSeen
from partita.training.runtime.worker_status import Board, Ran

DEVICES = ("cpu0", "cpu1")
LATER = 2  #: steps between asking for a plan and the one after which it holds


class Shown:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.plans: list[PlanFile] = []
        self.steps: list[StepSeen] = []

    def plan(self, file: PlanFile) -> None:
        self.plans.append(file)

    def step(self, seen: StepSeen) -> None:
        self.steps.append(seen)


class Life:
    """A run whose steps take what the simulator says, with noise."""

    def __init__(self, out: Path, steps: int | None = None) -> None:
        self.file = plan_pipeline(chain_profile(), stages=2, allow_replicas=False)
        assert isinstance(self.file.problem, PipelineProblem)
        assert isinstance(self.file.plan, PipelinePlan)
        self.problem, self.plan, self.out, self.now = self.file.problem, self.file.plan, prepared(out, self.file), 0
        self.changes: list[Change] = []
        self.known: dict[str, tuple[dict[str, float], float]] = {}
        self.shown, self.noise = Shown(), np.random.default_rng(1)
        self.board = Board.create(out / "board", 2)
        self.adapts = Adapts(self.file, self.out, self.changes.append, steps, self.shown.plan)
        self.watching = Watching(DEVICES, [self.shown], self.adapts)

    def slow(self, **speeds: float) -> None:
        devices = tuple(replace(d, speed=speeds.get(d.name, d.speed)) for d in self.problem.cluster.devices)
        self.problem = self.problem.on(replace(self.problem.cluster, devices=devices))

    def _takes(self) -> tuple[dict[str, float], float]:
        key = repr((self.plan.stages, self.problem.cluster.devices))
        if key not in self.known:
            self.known[key] = computing_s(self.problem, self.plan), predicted(self.problem, self.plan).duration_s
        return self.known[key]

    def live(self, steps: int, spread: float = 0.02) -> None:
        coming: tuple[int, PipelinePlan] | None = None
        for _ in range(steps):
            self.now += 1
            took, step_s = self._takes()
            for rank, device in enumerate(DEVICES):
                shaken = np.exp(self.noise.normal(0, spread, 2))
                self.board.begin_step(rank, self.now)
                loss = float("nan") if rank else 1.0
                self.board.note(rank, Ran(self.now, loss, step_s * shaken[0], took.get(device, float("nan")) * shaken[1], self.problem.batch_size))  # fmt: skip
            plan = self.watching.look(self.board)
            while plan is None and self.adapts.thinking:
                time.sleep(0.002)
                plan = self.watching.look(self.board)
            if plan is not None:
                coming = self.now + LATER, plan
                self.watching.told(coming[0])
            if coming and coming[0] == self.now:
                self.plan, coming = coming[1], None


def test_a_device_slowed_to_half_gets_less_work_within_forty_steps(tmp_path: Path) -> None:
    life = Life(tmp_path)
    with closing(life.adapts):
        life.live(40)
        assert life.changes == []
        before = life.plan
        life.slow(cpu1=0.5)
        life.live(40)
    assert [c.event for c in life.changes] == ["noticed", "switched", "kept"]
    assert "cpu1 computes 2.0" in life.changes[1].sentence
    best = plan_pipeline(life.problem.profile, life.problem.cluster, stages=2, allow_replicas=False)
    now_s = predicted(life.problem, life.plan).duration_s
    assert now_s <= 1.05 * best.verdict.value_s
    assert now_s < 0.85 * predicted(life.problem, before).duration_s
    assert PlanFile.read(tmp_path / "plan.json").plan == life.plan
    assert PlanFile.read(tmp_path / FIRST_PLAN).plan == before
    rows = [json.loads(line) for line in (tmp_path / DRIFT).read_text().splitlines()]
    assert [r["event"] for r in rows] == ["noticed", "switched", "kept"]
    assert [p.plan for p in life.shown.plans] == [life.plan]
    assert [s.step for s in life.shown.steps] == list(range(1, 81))


def test_a_quiet_run_keeps_its_plan(tmp_path: Path) -> None:
    life = Life(tmp_path)
    with closing(life.adapts):
        life.live(600, spread=0.1)
    assert life.changes == []
    assert not (tmp_path / FIRST_PLAN).exists()


def test_what_does_not_pay_until_the_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is over before a change of plan, which costs something, could pay."""
    life = Life(tmp_path, steps=60)
    life.slow(cpu1=0.5)
    monkeypatch.setattr(adapt, "SWITCH_S", 20 * predicted(life.problem, life.plan).duration_s)
    life.slow(cpu1=1.0)
    with closing(life.adapts):
        life.live(40)
        life.slow(cpu1=0.5)
        life.live(20)
    assert [c.event for c in life.changes] == ["noticed", "stayed"]


def test_all_devices_slower_alike_is_no_reason(tmp_path: Path) -> None:
    life = Life(tmp_path)
    with closing(life.adapts):
        life.live(40)
        life.slow(cpu0=0.5, cpu1=0.5)
        life.live(40)
    assert [c.event for c in life.changes] == ["noticed", "stayed"]


def test_a_planner_that_fails_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path)

    def fails(*_: object) -> None:
        raise MemoryError("no room for a table")

    with closing(life.adapts):
        life.live(40)
        monkeypatch.setattr(life.adapts, "_adapts", SimpleNamespace(send=fails))
        life.live(40)
    assert [c.event for c in life.changes] == ["gave up"]
    assert "no room for a table" in life.changes[0].sentence
    assert len(life.shown.steps) == 80
