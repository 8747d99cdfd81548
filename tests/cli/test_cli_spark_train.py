"""partita spark train: weights that simulate takes, and a training that is killed and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partita.cli import main
from partita.cli.compile_kernels import tiny_traces
from partita.spark.plan.learned.policy import Policy


def test_both_modes_are_trained_into_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "1g.json").write_text(json.dumps(tiny_traces()))
    out = str(tmp_path / "p.safetensors")
    assert main(["spark", "train", "--budget-s", "0.001", "-o", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["generations"] == 1
    words = ["--traces", str(tmp_path), "--executors", "4"]
    assert main(["spark", "train", *words, "--budget-s", "0.001", "-o", out]) == 0
    policy = Policy.read(out)
    assert policy.shop is not None
    assert policy.executors is not None
    assert main(["spark", "simulate", *words, "--policy", "learned", "--weights", out]) == 0
    capsys.readouterr()
    assert main(["spark", "train", *words, "--budget-s", "0.001", "-o", out, "--executors", "5"]) == 2
    assert "on other jobs, or executors" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--budget-s", "0"], ["--threads", "0"], ["--seed", "-1"], ["--executors", "5"], ["p", "--traces", "x"]])  # fmt: skip
def test_flags_are_checked(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "train", "-o", str(tmp_path / "p"), *flags]) == 2
    assert "hint:" in capsys.readouterr().err


def test_a_killed_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed after the first checkpoint; the next call says where it goes on from."""
    out = tmp_path / "p.safetensors"
    assert main(["spark", "train", "--budget-s", "0.001", "-o", str(out)]) == 0
    capsys.readouterr()
    before = out.read_bytes()
    words = [sys.executable, "-m", "partita", "spark", "train", "--budget-s", "600", "-o", str(out)]
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "going on" in line:
            break
    time.sleep(1.0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert out.read_bytes() == before
    assert main(["spark", "train", "--budget-s", "0.002", "-o", str(out)]) == 0
    assert "going on from generation 1" in capsys.readouterr().err
