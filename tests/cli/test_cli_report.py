"""partita simulate, compare and report, through the door that a script uses."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from partita.cli import main
from partita.nouns.timeline import Timeline
from partita.pipeline.report.story import Story

make_story = runpy.run_path(str(Path(__file__).parents[1] / "pipeline" / "report" / "sample_run.py"))["make_story"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(make_story(2, 6).write(tmp_path / "run"))


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(w) for w in words])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, _ = call(capsys, *words, "--json")
    assert code == 0
    return json.loads(out)  # type: ignore[no-any-return]


def test_simulate_writes_the_timeline_it_tells_of(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = document(capsys, "simulate", folder / "plan.json", "-o", tmp_path / "t.json")
    line, known = Timeline.read(tmp_path / "t.json"), Timeline.read(folder / "predicted.json")
    assert told["step_s"] == pytest.approx(line.duration_s) == pytest.approx(known.duration_s)
    assert told["planned_s"] == pytest.approx(told["step_s"])
    assert told["busy_share"][told["bottleneck"]] == max(told["busy_share"].values())
    assert told["instructions"] == len(line)


def test_simulate_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "simulate", folder / "plan.json")
    assert code == 0
    assert "bottleneck" in out
    assert "cpu0->cpu1 │" in out
    assert err == ""


def test_compare_a_folder_two_files_and_a_plan_give_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = [
        document(capsys, "compare", folder),
        document(capsys, "compare", folder / "predicted.json", folder / "measured.json"),
        document(capsys, "compare", folder / "plan.json", folder / "measured.json"),
    ]
    story = Story.read(folder)
    assert story.predicted is not None
    assert story.measured is not None
    for t in told:
        assert t["step_error"] == pytest.approx(story.predicted.duration_s / story.measured.duration_s - 1, abs=1e-6)
        assert t["median_error"] == pytest.approx(told[0]["median_error"], abs=1e-6)
        assert [g["label"] for g in t["groups"]] == [g["label"] for g in told[0]["groups"]]


def test_compare_prints_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "compare", folder)
    assert code == 0
    assert "busy, predicted" in out
    assert "F0>F1" in out
    code, out, _ = call(capsys, "compare", folder / "measured.json", folder / "measured.json")
    assert out.startswith("A ")
    assert "0 %" in out


def test_report_writes_one_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys, "report", folder)
    assert told["report"] == str(folder / "report.html")
    assert told["missing"] == []
    assert Path(told["report"]).read_text().startswith("<!doctype html>")
    (folder / "measured.json").unlink()
    code, out, err = call(capsys, "report", folder, "-o", tmp_path / "x.html")
    assert code == 0
    assert out.strip().endswith("x.html")
    assert "no measured.json" in err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("report", "nowhere"), "not a folder"),
        (("compare", "plan.json"), "nothing to be compared"),
        (("compare", "plan.json", "nowhere.json"), "cannot be read"),
        (("compare", "empty"), "empty holds no measured timeline"),
        (("compare", "plan.json", "summary.json"), "is damaged"),
        (("simulate", "measured.json"), "not 'partita-plan'"),
        (("simulate", "half.json"), "not JSON"),
        (("simulate", "plan.json", "-o", "no/such/folder/t.json"), "cannot be written"),
    ],
)
def test_bad_input_ends_with_2_and_a_hint(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    fault: str,
) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    (folder / "half.json").write_text((folder / "plan.json").read_text()[:2000])
    code, out, err = call(capsys, *words)
    assert code == 2
    assert out == ""
    assert fault in err
    assert "hint:" in err
