"""partita offload report, through the door that a script uses."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from partita.cli import main

SAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "offload" / "report" / "sample_offload.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(SAMPLE["write"](SAMPLE["make_offload_story"](), tmp_path_factory.mktemp("offload") / "run"))


def test_a_folder_gives_a_page_beside_its_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offload", "report", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(folder / "report.html")
    assert told["missing"] == []
    text = (folder / "report.html").read_text()
    assert told["headline"].split(".")[0] in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_a_plan_gives_a_prediction_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offload", "report", str(folder / "plan.json"), "-o", str(tmp_path / "p.html")]) == 0
    out, err = capsys.readouterr()
    assert "5 jobs in" in out
    assert "predicted" in out
    assert "Not measured" in err
    assert "Measured</b>" not in (tmp_path / "p.html").read_text()


def test_a_run_without_its_executed_plan_is_told_too(tmp_path: Path, folder: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for name in ("plan.json", "timeline.json"):
        (old / name).write_bytes((folder / name).read_bytes())
    assert main(["offload", "report", str(old)]) == 0
    assert "Measured</b>" in (old / "report.html").read_text()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: (d / "plan.json").unlink(), "plan.json does not exist"),
        (lambda d: (d / "plan.json").write_text("{"), "plan.json"),
        (lambda d: (d / "timeline.json").write_text("[]"), "timeline.json"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(damage, said, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]  # fmt: skip
    run = tmp_path / "run"
    run.mkdir()
    for file in folder.glob("*.json"):
        (run / file.name).write_bytes(file.read_bytes())
    damage(run)
    assert main(["offload", "report", str(run)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
