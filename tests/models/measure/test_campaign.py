"""Small campaigns, really measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from test_campaign_file import MLP, written

from partita.cli import main
from partita.errors import MissingDependency
from partita.models.measure import campaign as campaign_module
from partita.models.measure.campaign import check_packages, run_campaign
from partita.models.measure.crew import Crew
from partita.models.measure.draw import draw
from partita.models.measure.file import Campaign
from partita.models.measure.networks import size_of

pytest.importorskip("keras")
pytest.importorskip("jax")
pq = pytest.importorskip("pyarrow.parquet")

HEAD = "[campaign]\nvisit_s = 0.02\npasses = 2\nextra = 0\n"


def visits_in(journal: Path) -> Counter[str]:
    lines = journal.read_bytes().splitlines()[1:] if journal.exists() else []
    return Counter(json.loads(line)["key"] for line in lines if line.endswith(b"}"))


def test_a_campaign_gives_a_row_a_configuration(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, HEAD + 'rows = 4\nframeworks = ["torch", "jax"]\n' + MLP)
    out = tmp_path / "rows.parquet"
    assert main(["measure", "--campaign", str(path), "-o", str(out), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    table = pq.read_table(out)
    rows = table.to_pylist()
    configurations = draw(Campaign.read(path))
    assert told["count"] == told["wanted"] == len(rows) == 4
    assert {(r["framework"], r["workers"]) for r in rows} == {("torch", 1), ("torch", 2), ("jax", 1), ("jax", 2)}
    for row, c in zip(rows, configurations, strict=True):
        assert {k: row[k] for k in c.to_json()} == c.to_json()
        assert row["parameters"] == size_of(c).parameters
        assert 0 < row["step_low_s"] <= row["step_s"] <= row["step_high_s"] < 10
        assert row["visits"] == 2
        assert row["cpu_s"] > 0
        assert row["reference_s"] > 0
    assert "step_s" in json.loads(table.schema.metadata[b"partita"])["targets"]


def test_killed_and_gone_on_with_no_visit_is_made_twice(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + 'rows = 4\nworkers = [1]\nframeworks = ["jax"]\n' + MLP)
    out = tmp_path / "rows.parquet"
    journal = tmp_path / "rows.parquet.journal"
    words = [sys.executable, "-m", "partita", "measure", "--campaign", str(path), "-o", str(out), "--json"]
    first = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while visits_in(journal).total() < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = visits_in(journal)
    assert 3 <= before.total() < 8
    assert not out.exists()
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    keys = {c.key() for c in draw(Campaign.read(path))}
    assert visits_in(journal) == dict.fromkeys(keys, 2)
    assert pq.read_table(out).num_rows == 4
    began = time.monotonic()
    assert subprocess.run(words, capture_output=True, timeout=100).returncode == 0
    assert time.monotonic() - began < 20
    assert visits_in(journal) == dict.fromkeys(keys, 2)


def test_a_worker_that_is_killed_costs_one_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, HEAD + 'rows = 3\nworkers = [1]\nframeworks = ["jax"]\n' + MLP)
    ask, asked, said = Crew.ask, [], list[str]()

    def killing(crew: Crew, question: dict[str, object]) -> list[dict[str, object]]:
        asked.append(question)
        if len(asked) == 2:
            os.kill(crew.workers[0].pid, signal.SIGKILL)
        return ask(crew, question)

    monkeypatch.setattr(Crew, "ask", killing)
    told = run_campaign(path, tmp_path / "rows.parquet", progress=lambda *_: None, say=said.append)
    assert told["count"] == 2
    (failed,) = told["failed"]
    assert failed["reason"] == "jax worker 0 was killed by SIGKILL"
    assert any("left out" in s for s in said)


def test_a_framework_that_is_missing_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = Campaign.read(written(tmp_path, "[campaign]\nrows = 3\n" + MLP))
    monkeypatch.setattr(campaign_module, "installed", lambda names: tuple(n for n in names if n != "tensorflow"))
    assert check_packages(campaign) == ["tensorflow is not installed: its configurations are skipped"]
    monkeypatch.setattr(campaign_module, "installed", lambda names: ())
    with pytest.raises(MissingDependency, match="torch and jax and tensorflow"):
        check_packages(campaign)


@pytest.mark.parametrize("words", [[], ["a.py:job", "--campaign", "c.toml"]])
def test_a_job_or_a_campaign(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", *words]) == 2
    assert "one JOB or one --campaign" in capfd.readouterr().err
