"""partita spark simulate, from traces on disk to what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partita.cli import main
from partita.cli.compile_kernels import tiny_traces


def test_an_episode_is_run_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "1g.json").write_text(json.dumps(tiny_traces()))
    words = ["spark", "simulate", "--traces", str(tmp_path), "--jobs", "5", "--executors", "4", "--policy"]
    assert main([*words, "fair", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["mean_job_s"] <= found["makespan_s"]
    assert main([*words, "weighted-fair", "--load", "0.5"]) == 0
    assert "weighted-fair, exponent" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--jobs", "0"], ["--executors", "100000"], ["--load", "nan"], ["--load", "1", "--interarrival-s", "1"], ["--policy", "x"], ["--seed", "-1"], ["--exponent", "99"]])  # fmt: skip
def test_flags_are_checked(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "1g.json").write_text(json.dumps(tiny_traces()))
    assert main(["spark", "simulate", "--traces", str(tmp_path), *flags]) == 2
    assert "hint:" in capsys.readouterr().err
