"""Runs that go on when a worker dies: every step once, and the losses of a run that nothing happened to."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from training.runtime.helpers import plan_file, source_of
from training.runtime.runs import Run, alone, losses, metrics, train

from partita.nouns.plan import PlanFile
from partita.training.job import load_job
from partita.training.runtime.checkpoint import examine

pytestmark = pytest.mark.machine

STEPS = 40
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


@pytest.mark.parametrize("how", ["replan", pytest.param("replace", marks=pytest.mark.slow)])
def test_a_worker_that_dies_behind_the_last_step_is_not_the_end_of_a_run_that_is_done(
    how: str, tmp_path: Path, plan: Path, wanted: Mapping[int, float]
) -> None:
    run = started(tmp_path, plan, how)
    workers: dict[int, int] = {}

    def done() -> bool:
        workers.update(run.workers() if len(workers) < 2 else {})
        return STEPS in losses(run.out)

    run.wait_until(done, "the last step")
    os.kill(workers[1], signal.SIGKILL)
    expect_undisturbed(run, wanted)
    examine(run.out / "checkpoints")


@pytest.mark.slow
def test_checkpoints_are_enough_where_more_may_be_lost(tmp_path: Path, plan: Path, wanted: Mapping[int, float]) -> None:
    run = started(tmp_path, plan, "replace", "--redundancy", "checkpoint", "--checkpoint-every", "7")
    run.wait_for_step(17)
    kill(run, 1)
    expect_undisturbed(run, wanted)
    (lost,) = failures(run)
    assert (lost["source"], lost["on_from_step"]) == ("checkpoint", 14)


@pytest.mark.slow
def test_nothing_kept_begins_again(tmp_path: Path, plan: Path, wanted: Mapping[int, float]) -> None:
    """Killed while it starts, and without any copy."""
    run = started(tmp_path, plan, "replace", "--redundancy", "checkpoint")
    run.wait_until(lambda: len(run.workers()) == 2, "workers")
    kill(run, 1)
    run.wait_for_step(4)
    kill(run, 0)
    expect_undisturbed(run, wanted)
    assert [(f["source"], f["on_from_step"]) for f in failures(run)] == [("start", 0)] * 2


@pytest.mark.slow
def test_a_second_kill_while_it_recovers(tmp_path: Path, plan: Path, wanted: Mapping[int, float]) -> None:
    run = started(tmp_path, plan, "replace", "--copy-every", "3")
    run.wait_for_step(10)
    first = run.workers()
    os.kill(first[0], signal.SIGKILL)
    run.wait_until(lambda: len(w := run.workers()) == 2 and not set(w.values()) & set(first.values()), "new workers")
    time.sleep(random.Random(os.getpid()).uniform(0, 2))
    kill(run, 1)
    expect_undisturbed(run, wanted)
    one, other = failures(run)
    assert one["on_from_step"] % 3 == 0
    assert other["on_from_step"] >= one["on_from_step"]


@pytest.mark.slow
def test_a_stopped_worker_is_replaced_after_the_timeout(
    tmp_path: Path, plan: Path, wanted: Mapping[int, float]
) -> None:
    """SIGSTOP: the others wait for it in vain."""
    run = started(tmp_path, plan, "replace", "--timeout-s", "4")
    run.wait_for_step(5)
    kill(run, 1, signal.SIGSTOP)
    expect_undisturbed(run, wanted)
    (lost,) = failures(run)
    assert "is stopped (SIGSTOP)" in lost["error"]
    assert lost["ranks"] == [1]


@pytest.mark.slow
def test_a_worker_that_is_alone_and_stopped_is_found_too(tmp_path: Path, wanted: Mapping[int, float]) -> None:
    """Nobody waits for it but the launcher."""
    plan = plan_file("failing:good", stages=1).write(tmp_path / "plan.json")
    run = started(tmp_path, plan, "replace", "--timeout-s", "2")
    run.wait_for_step(5)
    kill(run, 0, signal.SIGSTOP)
    expect_undisturbed(run, wanted)


@pytest.mark.slow
def test_ctrl_c_between_two_generations_loses_nothing(tmp_path: Path, plan: Path, wanted: Mapping[int, float]) -> None:
    """All workers have ended, and the state is in memory only."""
    run = started(tmp_path, plan, "replace")
    run.wait_for_step(10)
    first = run.workers()
    os.kill(first[0], signal.SIGKILL)
    run.wait_until(lambda: not run.workers(), "the moment between")
    run.process.send_signal(signal.SIGINT)
    assert run.wait(60) in (1, 130), run.stderr  # whether it is still seen as the death of the worker
    expect_goes_on_from(run, tmp_path, plan, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("later_s", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0])
def test_ctrl_c_at_any_moment_after_a_death_loses_nothing(
    later_s: float, tmp_path: Path, plan: Path, wanted: Mapping[int, float]
) -> None:
    """Also while the launcher looks what the worker died of."""
    run = started(tmp_path, plan, "replace")
    run.wait_for_step(10)
    os.kill(run.workers()[0], signal.SIGKILL)
    time.sleep(later_s)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(60) in (0, 1, 130), run.stderr
    expect_goes_on_from(run, tmp_path, plan, wanted)


def expect_goes_on_from(run: Run, tmp_path: Path, plan: Path, wanted: Mapping[int, float]) -> None:
    """From its checkpoint, that is, which has all steps that were done."""
    again = train(
        tmp_path / "again", "failing:good", plan, "--steps", str(STEPS), "--resume", str(run.out / "checkpoints")
    )
    assert again.wait(60) == 0, again.stderr
    rest = losses(again.out)
    assert min(rest) >= 10
    assert rest == pytest.approx({k: wanted[k] for k in rest}, rel=1e-5)


@pytest.mark.slow
def test_the_last_device_is_not_replaced_by_none(tmp_path: Path, plan: Path) -> None:
    run = started(tmp_path, plan, "replan")
    run.wait_for_step(3)
    kill(run, 1)
    run.wait_until(lambda: list(run.workers()) == [0] and len(metrics(run.out)) > 8, "a run on one device")
    kill(run, 0)
    assert run.wait() == 1
    assert re.search(r"was killed by SIGKILL .*, and there is no plan without cpu0: no device is left", run.error())


def test_an_error_of_the_jobs_own_ends_the_run(tmp_path: Path) -> None:
    """It would come again."""
    plan = plan_file("failing:optimizer_fails", stages=2).write(tmp_path / "plan.json")
    run = train(tmp_path, "failing:optimizer_fails", plan, "--steps", "20", "--on-failure", "replace")
    assert run.wait() == 1
    assert "the moon is in the wrong phase" in run.error()
    assert not (run.out / "failures.jsonl").exists()


def test_a_killed_launcher_leaves_nothing(tmp_path: Path, plan: Path) -> None:
    """No worker, and no file in shared memory: copies have no name, and go with who holds them."""
    before = set(os.listdir("/dev/shm"))
    run = started(tmp_path, plan, "replace")
    run.wait_for_step(3)
    workers = list(run.workers().values())
    assert any("partita copy" in os.readlink(fd) for fd in Path(f"/proc/{workers[0]}/fd").iterdir())
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{p}").exists() for p in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert {n for n in set(os.listdir("/dev/shm")) - before if "partita" in n} == set()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_random_worker_at_a_random_moment(seed: int, tmp_path: Path, plan: Path, wanted: Mapping[int, float]) -> None:
    lots = random.Random(seed)
    run = started(tmp_path, plan, ("replan", "replace")[seed % 2], "--checkpoint-every", "5")
    run.wait_until(lambda: len(run.workers()) > 0, "workers")
    time.sleep(lots.uniform(0, 4))  # they take as long to begin, and to end
    kill(run, lots.choice(list(run.workers())))
    expect_undisturbed(run, wanted)
