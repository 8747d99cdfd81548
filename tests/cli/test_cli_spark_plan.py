"""partita spark plan, from a problem on disk to what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from spark.plan.shop_brute import instance

from partita.cli import main
from partita.spark.schedule import ShopFile

Capture = pytest.CaptureFixture[str]


def test_a_plan_is_printed_drawn_and_written(tmp_path: Path, capsys: Capture) -> None:
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(json.dumps(instance(116)))
    words = ["spark", "plan", str(problem), "--objective", "mean-completion", "--budget-s", "0.3", "-o", str(plan)]
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["lower_bound_s"] <= found["value_s"]
    assert {"bound", "method", "seconds_spent", "schedule", "compared_s"} <= found.keys()
    assert found["schedule"][0].keys() == {"job", "stage", "network_start_s", "cpu_start_s"}
    file = ShopFile.read(plan)
    assert file.verdict.value_s == found["value_s"]
    assert len(file.schedule) == len(file.problem)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "network │" in said
    assert "FAIR, sharing" in said


STAGE = {"network_s": 1.0, "cpu_s": 1.0, "parents": []}


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([], "it has no jobs"),
        ([{"stages": []}], "job 0 has no stages"),
        ([{"stages": [STAGE], "release_s": float("nan")}], "release_s = nan"),
        ([{"stages": [STAGE], "release_s": -1}], "release_s = -1; 0 to 1e+12 are possible"),
        ([{"stages": [{**STAGE, "cpu_s": float("inf")}]}], "job 0 stage 0 has cpu_s = inf"),
        ([{"stages": [{**STAGE, "network_s": -2.0}]}], "network_s = -2"),
        ([{"stages": [{**STAGE, "network_s": "2"}]}], "not a number"),
        ([{"stages": [{**STAGE, "parents": [1]}]}], "has the parent 1; its job has the stages 0 to 0"),
        ([{"stages": [{**STAGE, "parents": [-1]}]}], "has the parent -1"),
        ([{"stages": [{**STAGE, "parents": [0]}]}], "job 0: stages 0 wait for each other: a circle"),
        ([{"stages": [STAGE, {**STAGE, "parents": [2]}, {**STAGE, "parents": [1]}]}], "stages 1, 2 wait"),
        ([{"stages": [STAGE] * 50_001}], "it has 50,001 stages; at most 50,000 are planned"),
    ],
)
def test_what_cannot_be_planned_is_said(jobs: Any, words: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "problem.json").write_text(json.dumps({"jobs": jobs}))
    assert main(["spark", "plan", str(tmp_path / "problem.json")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "hint:" in error


def test_flags_are_checked(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(instance(1)))
    for flag, value in (("--budget-s", "0"), ("--budget-s", "nan"), ("--seed", "-1"), ("--method", "best")):
        assert main(["spark", "plan", str(tmp_path / "problem.json"), flag, value]) == 2
        assert "hint:" in capsys.readouterr().err
