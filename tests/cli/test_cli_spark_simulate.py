"""partita spark simulate, from traces on disk to what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partita.cli import main
from partita.cli.compile_kernels import tiny_spark, tiny_traces
from partita.spark.schedule import ShopFile


def test_an_episode_is_run_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "1g.json").write_text(json.dumps(tiny_traces()))
    words = ["spark", "simulate", "--traces", str(tmp_path), "--jobs", "5", "--executors", "4", "--policy"]
    assert main([*words, "fair", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["mean_job_s"] <= found["makespan_s"]
    assert main([*words, "weighted-fair", "--load", "0.5"]) == 0
    assert "weighted-fair, exponent" in capsys.readouterr().out
    assert main([*words, "learned"]) == 0
    assert "learned" in capsys.readouterr().out


def test_jobs_come_to_the_shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(json.dumps(tiny_spark()))
    assert main(["spark", "simulate", str(problem), "--policy", "srpt", "-o", str(plan), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bound_s"] <= found["mean_job_s"] == pytest.approx(ShopFile.read(plan).verdict.value_s)
    for words in ([], [str(problem)]):
        assert main(["spark", "simulate", *words, "--load", "0.8", "--jobs", "9", "--policy", "learned"]) == 0
        assert "load 0.8" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [[], ["--executors", "3", "--load", "0.5"], ["--load", "0.5", "--policy", "fair"], ["PROBLEM", "--jobs", "3"], ["PROBLEM", "--traces", "."]])  # fmt: skip
def test_flags_of_the_shop_are_checked(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.json").write_text(json.dumps(tiny_spark()))
    words = [str(tmp_path / "p.json") if f == "PROBLEM" else f for f in flags]
    assert main(["spark", "simulate", *words]) == 2
    assert "hint:" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--jobs", "0"], ["--executors", "100000"], ["--load", "nan"], ["--load", "1", "--interarrival-s", "1"], ["--policy", "x"], ["--seed", "-1"], ["--exponent", "99"]])  # fmt: skip
def test_flags_are_checked(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "1g.json").write_text(json.dumps(tiny_traces()))
    assert main(["spark", "simulate", "--traces", str(tmp_path), *flags]) == 2
    assert "hint:" in capsys.readouterr().err
