"""The page, the verbs that explain and report, and both timelines."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from spark.small_logs import gated, written

from partita.cli import main
from partita.errors import BadInput, CaptureError
from partita.page.agreement import agreement
from partita.spark.capture.event_log import read_event_log
from partita.spark.capture.shop import capture
from partita.spark.plan.planner import plan_spark
from partita.spark.problem import ShopJob, ShopProblem, ShopStage
from partita.spark.report.gantt import completions, measured, stages_of_jobs, timeline
from partita.spark.report.page import SparkStory, page
from partita.spark.schedule import ShopFile


class Checked(HTMLParser):
    """Counts elements, and refuses what closes out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "rect", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect",):
            assert self.open.pop() == tag


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder: planned from one log, measured from another whose fetch took longer."""
    (tmp_path / "log").write_bytes(written(gated()))
    file = plan_spark(capture(read_event_log(tmp_path / "log")).problem, budget_s=0.05)
    folder = tmp_path / "run"
    folder.mkdir()
    file.write(folder / "plan.json")
    (tmp_path / "log").write_bytes(written(gated(policy="plan", network_s=2.0)))
    log = read_event_log(tmp_path / "log")
    measured(file.problem, log, "0", {"spark": "3.5.8"}).write(folder / "measured.json")
    timeline(file).write(folder / "predicted.json")
    return folder


def test_predicted_and_measured_are_of_the_same_phases(run: Path, tmp_path: Path) -> None:
    file, log = ShopFile.read(run / "plan.json"), read_event_log(tmp_path / "log")
    there = measured(file.problem, log, "0")
    found = agreement(timeline(file), there)
    assert (found.predicted_step_s, found.measured_step_s, found.only_one) == (4.5, pytest.approx(5.0), 0)
    assert there.queues == ("network", "cpu")
    assert completions(log, "0") == {"a": pytest.approx(5.0)}
    with pytest.raises(CaptureError, match="round 7"):
        measured(file.problem, log, "7")
    with pytest.raises(CaptureError, match="not there"):
        completions(log, "7")


def test_a_round_without_phases_is_drawn_job_by_job(tmp_path: Path) -> None:
    from spark.small_logs import two_stages

    events = two_stages()
    for e in events:
        if e["Event"].endswith("JobStart"):
            e["Properties"] = {"partita.round": "0", "partita.job": "a", "partita.policy": "fair"}
    (tmp_path / "log").write_bytes(written(events))
    found = stages_of_jobs(read_event_log(tmp_path / "log"), "0")
    assert (found.queues, found.label, found.end_s.tolist()) == (("a",), ("a.0", "a.1"), [2.0, 6.0])


def test_the_page_is_whole_and_says_both(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "report", str(run), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    text = Path(said["report"]).read_text()
    Checked().feed(text)
    assert "4.50 s" in said["headline"]
    assert "1 job of 2 stages in 5.00 s." in text
    assert text.count('class="deep"') == 6
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_a_plan_alone_has_a_page(run: Path) -> None:
    assert main(["spark", "report", str(run / "plan.json")]) == 0
    assert "predicted." in (run / "plan.html").read_text()
    assert main(["spark", "report", str(run.parent)]) == 2


def test_names_are_text(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    problem = ShopProblem((ShopJob((ShopStage(1.0, 1.0, (), bad),), name=bad), ShopJob((ShopStage(1.0, 1.0),))))
    assert bad not in page(SparkStory(bad, plan_spark(problem, budget_s=0.05)))


def test_a_timeline_of_other_jobs_is_refused(run: Path) -> None:
    other = plan_spark(ShopProblem((ShopJob((ShopStage(1.0, 1.0),), name="b"),)), budget_s=0.05)
    with pytest.raises(BadInput, match="not of this plan"):
        page(SparkStory("x", ShopFile.read(run / "plan.json"), timeline(other)))


@pytest.mark.parametrize("words", [["explain"], ["spark", "explain", "--budget-s", "0.1"]])
def test_a_plan_is_explained(run: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["--budget-s", "0.1"] if len(words) == 1 else []
    assert main([*words, str(run / "plan.json"), *budget, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["bottleneck"], said["binding"]) == ("cpu", "CPU")
    assert said["ends"] == [{"job": "a", "end_s": 4.5, "alone_s": 4.5}]
    assert [round(r["value_s"], 3) for r in said["what_if"]] == [3.75, 3.0]
    assert main([*words, str(run / "plan.json"), *budget]) == 0
    assert "CPU twice as fast" in capsys.readouterr().out


@pytest.mark.parametrize(("release_s", "binding"), [(0.0, "both machines"), (100.0, "the jobs' releases")])
def test_what_binds_where_no_machine_does(tmp_path: Path, release_s: float, binding: str, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    problem = ShopProblem((ShopJob((ShopStage(10.0, 0.0),)), ShopJob((ShopStage(0.0, 10.0),), release_s)))
    plan_spark(problem, budget_s=0.05).write(tmp_path / "plan.json")
    assert main(["explain", str(tmp_path / "plan.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["binding"] == binding


def test_a_value_that_is_not_the_schedules_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**told, "value_s": 9.0}))
    assert main(["explain", str(run / "plan.json")]) == 2
    assert "its value is 9 s, and the schedule's 4.5 s" in capsys.readouterr().err
    (run / "plan.json").write_text(json.dumps({**told, "compared_s": {"somebody": 1.0}}))
    assert main(["explain", str(run / "plan.json"), "--budget-s", "0.1"]) == 0
    assert "somebody" in capsys.readouterr().out


@pytest.mark.parametrize("budget", ["0", "nan", "-1"])
def test_a_budget_that_is_none(run: Path, budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "explain", str(run / "plan.json"), "--budget-s", budget]) == 2
    assert "a budget of" in capsys.readouterr().err


def test_compare_takes_the_folder_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_step_s"] == pytest.approx(5.0)
