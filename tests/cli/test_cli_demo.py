"""partita demo, small: everything once for real, and the keys that scripts rely on."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from partita.cli import main
from partita.cli.demo import text
from partita.nouns.timeline import Timeline
from partita.training.measure import job

pytest.importorskip("sklearn")

CONTRACT = (
    "single_step_s",
    "pipeline_step_s",
    "torch_step_s",
    "predicted_step_s",
    "speedup",
    "max_relative_gradient_error",
    "report",
)


def demonstrated(folder: Path, capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["demo", "-o", str(folder), *words, "--json"]) == 0
    out = capfd.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)  # type: ignore[no-any-return]


def test_the_main_job_end_to_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "measure_job", partial(job.measure_job, budget_s=3.0))
    told = demonstrated(tmp_path / "demo", capfd, "--rounds", "4", "--epochs", "1", "--devices", "2")
    assert set(CONTRACT) <= told.keys()
    assert all(told[k] > 0 for k in CONTRACT if k.endswith("_s"))
    assert told["speedup"] == pytest.approx(told["single_step_s"] / told["pipeline_step_s"])
    assert told["max_relative_gradient_error"] <= 1e-5
    assert told["max_relative_loss_error"] <= 1e-5
    assert 0 < told["lower_bound_s"] <= told["predicted_step_s"] * (1 + 1e-9)
    folder = tmp_path / "demo"
    assert told["report"] == str(folder / "report.html")
    page = (folder / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "torch's own pipeline" in page.replace("&#x27;", "'")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == list(range(1, 30))  # 1797 digits in batches of 64
    assert sum(r["loss"] for r in rows[-5:]) < sum(r["loss"] for r in rows[:5])
    predicted, measured = (Timeline.read(folder / f"{n}.json") for n in ("predicted", "measured"))
    assert predicted.label == measured.label
    assert "bit for bit" in text(told) or "agree within" in text(told)


@pytest.mark.slow
def test_the_demo_as_it_comes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = demonstrated(tmp_path, capfd)
    assert told["losses"]["last"] < told["losses"]["first"]
    assert told["max_relative_gradient_error"] <= 1e-5


@pytest.mark.slow
def test_too_few_rounds_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-o", str(tmp_path), "--rounds", "2", "--epochs", "1"]) == 2
    err = capfd.readouterr().err
    assert "2 rounds" in err
    assert "hint:" in err
