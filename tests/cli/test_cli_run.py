"""partita run, through the door that a script uses: train, go on, resume; the folder it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from run.helpers import MODELS, plan_file
from safetensors.torch import load_file

from partita.cli import main
from partita.timeline import Timeline

JOB = f"{MODELS}:two_inputs"  # three batches of 8 an epoch; dropout, Adam, a scheduler


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(plan_file("two_inputs", stages=2).write(tmp_path_factory.mktemp("plan") / "plan.json"))


def trained(capfd: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["run", JOB, *map(str, words), "--json"]) == 0
    return json.loads(capfd.readouterr().out)  # type: ignore[no-any-return]


def losses(folder: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())}


@pytest.fixture(scope="module")
def whole(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three epochs without a break: 9 steps."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(["run", JOB, "--plan", str(plan), "--epochs", "3", "-o", str(folder)]) == 0
    return folder


def test_a_run_leaves_its_folder(plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = trained(capfd, "--plan", plan, "--epochs", 2, "-o", tmp_path)
    assert (told["steps"], told["engine"]) == (6, "pipeline")
    assert told["error"] == pytest.approx(told["predicted_step_s"] / told["measured_step_s"] - 1)
    assert sorted(losses(tmp_path)) == list(range(1, 7))
    assert told["loss"] == losses(tmp_path)[6]
    predicted, measured = (Timeline.read(tmp_path / f"{n}.json") for n in ("predicted", "measured"))
    assert predicted.instruction.tolist() == measured.instruction.tolist()
    assert predicted.label == measured.label
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000006"]
    assert main(["compare", str(tmp_path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["events"] > 0


def test_a_resumed_run_is_the_uninterrupted_one(
    plan: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Stopped in the middle of an epoch, with dropout, Adam and a scheduler under way."""
    first = trained(capfd, "--plan", plan, "--steps", 4, "-o", tmp_path)
    assert first["steps"] == 4
    again = trained(capfd, "--plan", plan, "--epochs", 3, "--resume", tmp_path / "checkpoints", "-o", tmp_path)
    assert again["steps"] == 9
    assert losses(tmp_path) == losses(whole)
    one, other = (load_file(f / "checkpoints" / "step-00000009" / "model.safetensors") for f in (tmp_path, whole))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[n], other[n]) for n in one)


def test_a_checkpoint_is_the_models_state_dict(whole: Path) -> None:
    from partita.job import load_job

    model = load_job(JOB).build()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    model.load_state_dict(load_file(whole / "checkpoints" / "step-00000009" / "model.safetensors"))
    assert any(not torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_the_newest_two_checkpoints_are_kept(plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained(capfd, "--plan", plan, "--steps", 5, "--checkpoint-every", 1, "-o", tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000004", "step-00000005"]


def test_a_plan_of_another_model_is_refused(plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{MODELS}:long_skip", "--plan", str(plan), "-o", str(tmp_path)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "plan was made for graph" in err
    assert "hint:" in err


def test_nothing_left_to_train_is_said(
    plan: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["run", JOB, "--plan", str(plan), "--steps", "9", "--resume", str(whole / "checkpoints")]
    assert main([*words, "-o", str(tmp_path)]) == 2
    assert "nothing to train" in capfd.readouterr().err


def test_ctrl_c_ends_soon_with_a_whole_checkpoint(plan: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "partita", "run", JOB, "--plan", str(plan), "--steps", "1000000", "-o", str(tmp_path)]
    with subprocess.Popen(
        [*line, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        metrics, deadline = tmp_path / "metrics.jsonl", time.monotonic() + 60
        while not (metrics.exists() and len(metrics.read_text().splitlines()) > 3):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert out == ""
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert folder.name == f"step-{max(losses(tmp_path)):08d}"
    assert f"stopped after step {max(losses(tmp_path))}, which is saved" in err
    assert f"--resume {tmp_path / 'checkpoints'}" in err
    assert load_file(folder / "model.safetensors")


def test_torchrun_trains_the_same(plan: Path, whole: Path, tmp_path: Path) -> None:
    """Every rank is a process that torchrun started; the losses are those of a run with workers of our own."""
    words = ["--standalone", "--nproc-per-node", "2", "-m", "partita", "run", JOB, "--plan", str(plan), "--epochs", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "-o", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"rank": 1} in told
    assert next(t for t in told if "out" in t)["steps"] == 9
    assert losses(tmp_path) == losses(whole)
