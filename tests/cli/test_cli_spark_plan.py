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


def test_writes_and_executors_go_through_all_verbs(tmp_path: Path, capsys: Capture) -> None:
    stages = [
        {"network_s": 1.0, "cpu_s": 4.0, "parents": [], "write_s": 2.0},
        {"network_s": 1.0, "cpu_s": 4.0, "parents": []},
        {"network_s": 0.5, "cpu_s": 1.0, "parents": [0, 1]},
    ]
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(json.dumps({"jobs": [{"release_s": 0.0, "stages": stages}], "executors": 2}))
    assert main(["spark", "plan", str(problem), "--budget-s", "0.2", "-o", str(plan), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["value_s"] == pytest.approx(1 + 4 + 2 + 1.5)
    rows = {r["stage"]: r for r in found["schedule"]}
    assert {rows[s].get("executor", 0) for s in (0, 1)} == {0, 1}
    assert [s for s, r in rows.items() if "write_start_s" in r] == [0]
    assert "cpu 1" in found["drawing"]
    assert main(["spark", "explain", str(plan), "--budget-s", "0.1"]) == 0
    assert main(["spark", "report", str(plan), "-o", str(tmp_path / "page.html")]) == 0
    assert '<th class="n">write</th>' in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    assert main(["spark", "simulate", str(problem)]) == 2
    assert "the problem has 2 executors" in capsys.readouterr().err
    one = {"jobs": [{"release_s": 0.0, "stages": stages}]}
    problem.write_text(json.dumps(one))
    assert main(["spark", "simulate", str(problem), "--policy", "srpt", "-o", str(plan)]) == 0
    assert ShopFile.read(plan).problem.writes
    app = tmp_path / "app.py"
    app.write_text("def jobs(spark): return {}")
    capsys.readouterr()
    assert main(["spark", "run", str(app), "--order", str(plan), "--master", "spark://127.0.0.1:7077"]) == 2
    assert "plans writes" in capsys.readouterr().err
    problem.write_text(json.dumps({**one, "executors": 0}))
    assert main(["spark", "plan", str(problem)]) == 2
    assert "it has 0 executors; 1 to 1,000 are possible" in capsys.readouterr().err
