"""Bad input of `partita run` and `partita measure` that is told before any worker starts: a sentence, a hint, exit code 2."""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training.runtime.helpers import plan_file

from partita.cli import main
from partita.cli import run as cli_run
from partita.cli.talk import Talk
from partita.nouns.probe import Probe, ProbePiece
from partita.simulate.run_speed import DeviceSpeed
from partita.training.measure import again

FAILING = Path(__file__).parents[1] / "jobs" / "failing.py"
GOOD = f"{FAILING}:good"


def refused(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The one sentence that a command ends with; stdout stays empty."""
    assert main(words) == code
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if line.startswith("partita:")]
    assert out == ""
    assert len(said) == 1, err
    assert " hint: " in said[0]
    return said[0]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["run", GOOD, "--steps", "0"], "--steps 0"),
        (["run", GOOD, "--epochs", "-1"], "--epochs -1"),
        (["run", GOOD, "--threads", "0"], "--threads 0"),
        (["run", GOOD, "--timeout-s", "0"], "--timeout-s 0"),
        (["run", GOOD, "--timeout-s", "nan"], "--timeout-s nan"),
        (["run", GOOD, "--checkpoint-every", "-2"], "--checkpoint-every -2"),
        (["run", GOOD, "--copy-every", "2"], "--redundancy and --copy-every are for runs that go on"),
        (["run", GOOD, "--on-failure", "replan", "--copy-every", "0"], "--copy-every 0"),
        (
            ["run", GOOD, "--on-failure", "replan", "--copy-every", "2", "--redundancy", "checkpoint"],
            "--copy-every 2 --redundancy checkpoint",
        ),
        (
            ["run", GOOD, "--on-failure", "replace", "--engine", "torch"],
            "--on-failure replace goes with Partita's own engine",
        ),
        (["run", GOOD, "--adapt", "--engine", "torch"], "--adapt goes with Partita's own engine"),
        (["run", GOOD, "--live", "--search", "hybrid"], "--live and --tensorboard do not go with --search"),
        (["run", GOOD, "--set", "garbage"], "--set 'garbage' is not NAME=VALUE"),
        (["run", GOOD, "--set", "1x=2"], "--set '1x' is not NAME=VALUE"),
        (["run", GOOD, "--plan", "no-such-plan.json"], "no-such-plan.json cannot be read: No such file"),
        (["run", GOOD, "--resume", "no-such-folder"], "no-such-folder holds no checkpoint"),
        (["run", GOOD, "--devices", "0"], "0 devices asked for"),
        (["run", "no-such-file.py:job"], "no-such-file.py does not exist"),
        (["run", f"{FAILING}:missing"], "has no function 'missing'"),
        (["run", "nonsense"], "'nonsense' names no job"),
        (["measure", "nonsense"], "'nonsense' names no job"),
        (["measure", f"{FAILING}:raises"], "FileNotFoundError: data/train.parquet"),
        (["measure", GOOD, "--budget-s", "0"], "a budget of 0 seconds"),
        (["measure", GOOD, "--budget-s", "inf"], "a budget of inf seconds"),
        (["measure", GOOD, "--micro-batch-sizes", "4,x"], "'4,x' is no list of sizes"),
        (["measure", GOOD, "--micro-batch-sizes", "4,99"], "micro-batch size 99 for batches of 8"),
        (["measure", GOOD, "--devices", "-3"], "-3 devices asked for"),
        (["measure", GOOD, "-o", "/no/such/folder/profile.json"], "no folder /no/such/folder to write into"),
        (["measure", GOOD, "-o", "."], ". is a folder"),
    ],
)
def test_options(
    words: list[str], fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fact in refused(words, capsys)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    "words", [["run"], ["run", GOOD, "--plan", "p", "--devices", "2"], ["run", GOOD, "--steps", "many"]]
)
def test_what_the_parser_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.fixture(scope="module")
def sound_plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = plan_file("failing:good", stages=2).write(tmp_path_factory.mktemp("plan") / "plan.json")
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda p: p.update(stages=p["stages"][:1]), "is in no stage"),
        (lambda p: p["stages"].reverse(), "runs from stage"),
        (lambda p: p["stages"][0].update(devices=["cpu7"]), "unknown device 'cpu7'"),
        (lambda p: p["stages"][0].update(devices=["cpu1", "cpu1"]), "stage 0 names a device twice"),
        (lambda p: p.update(micro_batches=0), "0 micro-batches"),
        (lambda p: p.update(in_flight=-1), "-1 in flight"),
        (lambda p: p.update(schedule="2f2b"), "schedule is '2f2b', not one of"),
        (lambda p: p.update(graph="feedbeef"), "made for graph feedbeef"),
        (lambda p: p.pop("problem"), "is damaged: KeyError: 'problem'"),
        (lambda p: p.update(stages=3), "stages is 3, not a list"),
        (lambda p: p.update(kind="mesh"), "unknown kind of plan 'mesh'"),
        (lambda p: p.update(format="partita-profile"), "is 'partita-profile', not 'partita-plan'"),
        (lambda p: p.update(value_s=float("nan")), "value_s is nan"),
    ],
)
def test_damaged_plans(
    change: Callable[[dict[str, Any]], object],
    fact: str,
    sound_plan: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = json.loads(json.dumps(sound_plan))
    change(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    error = refused(["run", GOOD, "--plan", str(tmp_path / "plan.json"), "-o", str(tmp_path / "run")], capsys)
    assert fact in error
    assert str(tmp_path / "plan.json") in error
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("options", [[], ["--replan"]])
def test_a_plan_for_devices_that_are_gone(
    options: list[str], sound_plan: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told before anything is probed."""
    plan = json.loads(json.dumps(sound_plan))
    plan["problem"]["cluster"]["device"][1]["cores"] = [4000]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    words = ["run", GOOD, "--plan", str(tmp_path / "plan.json"), "-o", str(tmp_path / "run"), *options]
    error = refused(words, capsys)
    assert "the plan is for devices that are gone: cpu1 is core 4000, and this machine lets a run use core" in error


def test_a_plan_is_not_made_again_for_half_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could not be probed would stand with its speed of another day beside the others' of today."""
    file = plan_file("failing:good", stages=2)
    probe = Probe((ProbePiece((file.graph.tasks[0].id,), 1e-3),), file.problem.micro_batch_size)
    file = replace(file, problem=replace(file.problem, probe=probe))
    monkeypatch.setattr(again, "speeds_now", lambda *_: (DeviceSpeed("cpu0", 1.0, 0.5),))
    said = io.StringIO()
    options = argparse.Namespace(job=GOOD)
    assert cli_run._replanned(file, options, {}, Talk(said, False, False)) is file
    assert "cpu1 could not be probed" in said.getvalue()


def test_cut_off_and_garbled_plans(
    sound_plan: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(sound_plan)
    for raw in (text[: len(text) // 2].encode(), b"", b"\x00\xff\xfe" * 40, b"[]"):
        (tmp_path / "plan.json").write_bytes(raw)
        error = refused(["run", GOOD, "--plan", str(tmp_path / "plan.json"), "-o", str(tmp_path / "run")], capsys)
        assert re.search(r"is not JSON|is not text|holds a JSON list", error), error


def test_a_placement_is_no_training_plan(
    sound_plan: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {k: v for k, v in sound_plan.items() if k not in ("stages", "micro_batches", "in_flight", "schedule")}
    ids = [t["id"] for t in plan["problem"]["graph"]["tasks"]]
    plan |= {"kind": "placement", "placement": dict.fromkeys(ids, "cpu0")}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    error = refused(["run", GOOD, "--plan", str(tmp_path / "plan.json"), "-o", str(tmp_path / "run")], capsys)
    assert "does not say how to train" in error


@pytest.mark.parametrize(
    ("raw", "fact"),
    [
        (b'{"format": "partita-profile", "version": 1, "sam', "is not JSON: line 1"),
        (b'{"format": "partita-profile", "version": 1}', "profile.json"),
        (b'{"format": "partita-profile", "version": 9}', "version 9"),
    ],
)
def test_damaged_profiles(raw: bytes, fact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "profile.json").write_bytes(raw)
    error = refused(["plan", str(tmp_path / "profile.json"), "-o", str(tmp_path / "plan.json")], capsys)
    assert fact in error
    assert not (tmp_path / "plan.json").exists()
