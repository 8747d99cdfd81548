"""Runs that go on when a worker dies: every step once, and the losses of a run that nothing happened to."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from training.runtime.helpers import plan_file, source_of
from training.runtime.runs import Run, alone, losses, metrics, train

from partita.nouns.plan import PlanFile
from partita.training.job import load_job

STEPS = 60
SLOW = ("--set", "seconds=0.03")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plan_file("failing:good", stages=2).write(tmp_path_factory.mktemp("plan") / "plan.json")


@pytest.fixture(scope="module")
def wanted() -> Mapping[int, float]:
    """The losses of one process."""
    return alone(load_job(source_of("failing:good")), STEPS, 2)[0]


def started(folder: Path, plan: Path, how: str, *options: str) -> Run:
    return train(folder, "failing:good", plan, "--steps", str(STEPS), *SLOW, "--on-failure", how, *options)


def kill(run: Run, rank: int, sent: signal.Signals = signal.SIGKILL) -> None:
    os.kill(run.workers()[rank], sent)


def failures(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.out / "failures.jsonl").read_text().splitlines()]


def expect_undisturbed(run: Run, wanted: Mapping[int, float]) -> None:
    """It has ended well, with each step once."""
    assert run.wait(100) == 0, run.stderr
    rows = metrics(run.out)
    assert [r["step"] for r in rows] == list(range(1, STEPS + 1))
    assert losses(run.out) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(("how", "devices"), [("replan", ["cpu1"]), ("replace", ["cpu0", "cpu1"])])
def test_it_goes_on_as_if_nothing_had_happened(
    how: str, devices: list[str], tmp_path: Path, plan: Path, wanted: Mapping[int, float]
) -> None:
    run = started(tmp_path, plan, how)
    run.wait_for_step(10)
    kill(run, 0)
    expect_undisturbed(run, wanted)
    (lost,) = failures(run)
    assert lost["source"] == "memory"
    assert lost["devices"] == ["cpu0"]
    assert lost["devices_left"] == devices
    assert (
        lost["step"] - 2 <= lost["on_from_step"] <= lost["step"]
    )  # one rank may have begun a step that another has not
    assert list(PlanFile.read(run.out / "plan.json").plan.devices) == devices  # type: ignore[union-attr]
    assert "was killed by SIGKILL" in run.stderr
