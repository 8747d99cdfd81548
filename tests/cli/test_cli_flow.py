"""partita flow plan, run, resume: the contract that scripts rely on, a second run, and bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from partita.cli import main

FLOW = """
import time
import numpy as np
from helper_of_flow import shifted
from partita.dataflow import choose, explore, step

@step
def load(n):
    time.sleep(0.02)
    return np.arange(float(n))

@step
def scale(x, by):
    time.sleep(0.02)
    return shifted(x, by)

@step
def quality(x, c):
    if c == 13:
        raise ValueError("unlucky")
    return -abs(float(x.sum()) - 60.0) - c

def flow():
    x = scale(load(10), explore("by", [0.0, 1.0, 2.0]))
    c = explore("c", [0, 1, 13])
    return choose(x, by=quality(x, c), over=["by", "c"])

def broken():
    return 3

def raising():
    raise OSError("no such data")
"""


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    (tmp_path / "helper_of_flow.py").write_text("def shifted(x, by):\n    return x + by\n")
    path = tmp_path / "small_flow.py"
    path.write_text(FLOW)
    return path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["flow", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_run_prints_what_scripts_rely_on(flow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "run", str(flow), "--workers", "0")
    wanted = {
        "seconds",
        "tasks_run",
        "tasks_shared",
        "branches",
        "branches_pruned",
        "chosen",
        "peak_bytes",
        "predicted_s",
    }
    assert found.keys() >= wanted
    assert found["chosen"][0]["options"] == {"by": "1.0", "c": "0"} or found["chosen"][0]["options"] == {
        "by": "2.0",
        "c": "0",
    }
    assert found["branches"] == 9
    assert found["configurations"] == 9
    assert any("unlucky" in note for note in found["notes"])
    record = json.loads((flow.parent / "flow-results" / "run.json").read_text())
    assert {t["state"] for t in record["tasks"]} >= {"run", "failed"}
    assert len(record["choices"][0]["scores"]) == 9


LOUD = """
import os
from partita.dataflow import explore, gather, step

print("imported")

@step
def loud(a):
    print("printed")
    os.write(1, b"written")
    return a

def flow():
    return gather(loud(explore("a", [1, 2])), over="a")
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_steps_print_does_not_reach_stdout(tmp_path: Path, workers: str) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    words = ["flow", "run", str(tmp_path / "loud.py"), "--workers", workers, "--json"]
    done = subprocess.run([sys.executable, "-m", "partita", *words], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["tasks_run"] == 2
    assert "imported" in done.stderr
    assert done.stderr.count("written") >= 2


OF_ITS_OWN = """
import multiprocessing, time
from dataclasses import dataclass
from partita.dataflow import choose, explore, step

@dataclass
class Model:
    weight: int

def squared(x):
    return x * x

@step
def fit(a):
    time.sleep(0.1)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return Model(sum(pool.map(squared, range(a))))

@step
def score(model):
    assert isinstance(model, Model)
    return float(model.weight)

def flow():
    model = fit(explore("a", [3, 4]))
    return choose(model, by=score(model))
"""


def test_classes_of_the_flow_s_file_are_kept_and_its_functions_go_to_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.py"
    path.write_text(OF_ITS_OWN)
    for changed, run in (("", 4), ("1 + ", 2)):
        path.write_text(OF_ITS_OWN.replace("return float", f"return {changed}float"))
        found = told(capsys, "run", str(path), "--workers", "2")
        assert (found["tasks_run"], found["tasks_failed"]) == (run, 0)


@pytest.mark.parametrize("after_s", [0.5, 4.0])
def test_ctrl_c_in_a_terminal_is_said_once(tmp_path: Path, after_s: float) -> None:
    """It reaches all processes: while workers begin, and while they run."""
    (tmp_path / "long.py").write_text(LOUD.replace("return a", "import time; time.sleep(20.0)"))
    words = [sys.executable, "-m", "partita", "flow", "run", str(tmp_path / "long.py"), "--workers", "2"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        assert "imported" in process.stderr.readline()
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "interrupted" in said


def test_resume_computes_nothing_that_was_finished(flow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(flow.parent / "out")
    first = told(capsys, "run", str(flow), "--workers", "0", "-o", out)
    again = told(capsys, "resume", out)
    assert again["tasks_run"] == 0
    assert again["chosen"][0]["options"] == first["chosen"][0]["options"]
    assert again["tasks_cached"] >= 6


def test_plan_tells_the_unfolded_graph_and_foretells_after_a_run(
    flow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = told(capsys, "plan", str(flow))
    assert {s["name"]: s["tasks"] for s in before["steps"]} == {"load": 1, "scale": 3, "quality": 9}
    assert "predicted_s" not in before
    assert before["kept"] == {"results": 0, "bytes": 0, "scores": 0}
    assert not (flow.parent / "flow-results").exists()  # planning leaves no trace
    told(capsys, "run", str(flow), "--workers", "0", "--store", "0")
    after = told(capsys, "plan", str(flow), "--workers", "1")
    assert 0.08 <= after["predicted_s"] <= 0.4
    assert after["kept"] == {"results": 0, "bytes": 0, "scores": 0}
    assert not (flow.parent / "flow-results" / "store").exists()
    assert main(["flow", "plan", str(flow)]) == 0
    assert "quality" in capsys.readouterr().out


def test_plan_foretells_what_another_run_over_the_folder_computes(
    flow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "run", str(flow), "--workers", "0")
    before = sorted((flow.parent / "flow-results").rglob("*"))
    same = told(capsys, "plan", str(flow), "--workers", "1")
    assert same["kept"]["results"] == 4  # load, and scale three times
    assert same["kept"]["scores"] == 6  # three raised
    assert same["kept"]["bytes"] > 0
    assert same["predicted_s"] < 0.08  # those that raised, and the chosen one from the store
    flow.write_text(flow.read_text().replace("[0.0, 1.0, 2.0]", "[0.0, 1.0, 2.0, 3.0]"))
    more = told(capsys, "plan", str(flow), "--workers", "1")
    assert more["kept"] == same["kept"]
    assert more["predicted_s"] >= same["predicted_s"] + 0.01  # one more is scaled
    assert more["predicted_tasks"] < more["tasks"]
    assert main(["flow", "plan", str(flow)]) == 0
    assert "4 results of these tasks" in capsys.readouterr().out
    assert sorted((flow.parent / "flow-results").rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nowhere.py"], "is no file"),
        (["run", "FLOW:nothing"], "no function 'nothing'"),
        (["run", "FLOW:broken"], "no value of a step"),
        (["run", "FLOW:raising"], "no such data"),
        (["run", "FLOW", "--workers", "-1"], "-1 workers"),
        (["run", "FLOW", "--workers", "0", "--memory", "lots"], "is no size"),
        (["run", "FLOW", "--workers", "0", "--stop-on-error"], "unlucky"),
        (["run", "FLOW", "--scheduler", "here"], "is no address"),
        (["resume", "nowhere"], "cannot be read"),
        (["plan", "FLOW", "--results", "nowhere"], "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(flow: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["flow", *(w.replace("FLOW", str(flow)) for w in words)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "hint:" in error
    assert "Traceback" not in error
