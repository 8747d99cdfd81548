"""Copies of a job side by side, probes, and a whole script: all that starts processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import loaded

from partita.errors import PartitaError

harness, intervals, probe = loaded("harness"), loaded("intervals"), loaded("machine_probe")
side_by_side = loaded("side_by_side")

JOB = """
import torch
from torch import nn
from partita.training.job import TrainingJob

def job():
    return TrainingJob(
        model=lambda: nn.Linear(4, 2), loss=nn.functional.cross_entropy,
        batches=lambda epoch: [(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))] * 4,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
"""


def test_two_copies_of_a_job_run_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "tiny.py"
    path.write_text(JOB)
    cores = probe.cores_to_probe()[:2]
    with side_by_side.copies(f"{path}:job", {}, 2, cores) as found:
        for _ in range(2):
            steps = side_by_side.turn(found, 5)
            assert len(steps) == len(cores)
            assert all(len(s.wall_s) == len(s.cpu_s) == 5 and min(s.wall_s) > 0 for s in steps)


def test_a_copy_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(PartitaError, match="does not exist"),
        side_by_side.copies(f"{tmp_path}/none.py:job", {}, 2, [0]),
    ):
        pass


def test_a_script_prints_one_document_with_machine_and_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    options = harness.parser("a script").parse_args(["--json"])

    def benchmark(machine: Any, talk: Any) -> dict[str, Any]:
        record = machine.finished()
        claims = {"one": (intervals.Claim("is 1", 1, 1, most_drift=float("inf")), intervals.Interval.exact(1.0))}
        return {"verdicts": machine.verdicts(claims), "machine_record": record}

    assert harness.run_script(options, benchmark, harness.said, failed=lambda d: False) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdicts"]["one"]["verdict"] == "met"
    record = found["machine_record"]
    assert [p["when"] for p in record["probes"]] == ["before", "after"]
    assert {"facts", "load", "drift", "wall_s", "cpu_s"} <= set(record)
    assert 0 < record["drift"]["least_share"] <= 1
    assert "probes" in harness.said(found)
