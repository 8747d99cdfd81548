"""Real Spark on shaped hosts: measured, captured, planned, run by the plan; and ended in the middle."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from partita.cli import main
from partita.errors import MissingDependency
from partita.spark.run.java import java_home, spark_home
from partita.testbed import state as beds
from partita.testbed.hosts import unavailable


def missing() -> str:
    """Why Spark cannot be run here; "" where it can."""
    try:
        spark_home(), java_home()
    except MissingDependency as error:
        return error.message
    return "" if importlib.util.find_spec("py4j") else "py4j is not installed"


pytestmark = pytest.mark.skipif(bool(missing() or unavailable()), reason=missing() or unavailable())

APP = Path(__file__).parents[3] / "examples" / "spark_jobs.py"
SMALL = [w for c in ("megabytes=1", "effort=0.05", "partitions=2", "rounds=2") for w in ("--conf", f"spark.app.{c}")]
RUN = ["spark", "run", str(APP), "--rate", "100mbit", "--slots", "4", "--memory-mb", "512", *SMALL]


def test_measured_captured_planned_and_run_by_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, planned = tmp_path / "first", tmp_path / "planned"
    assert main([*RUN, "-o", str(first), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    (log,) = (first / "events").iterdir()
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    assert main(["spark", "capture", str(log), "-o", str(problem)]) == 0
    assert main(["spark", "plan", str(problem), "-o", str(plan)]) == 0
    capsys.readouterr()
    assert main([*RUN, "--order", str(plan), "-o", str(planned), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [j["result"] for j in said["jobs"]] == [j["result"] for j in alone["jobs"]]
    assert [j["name"] for j in said["jobs"]] == ["join", "aggregate", "iterative"]
    assert said["policy"] == "plan"
    assert main(["compare", str(planned), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["only_one"] == 0
    assert main(["spark", "report", str(planned)]) == 0
    assert not any(s.owner and s.owner.pid == os.getpid() for s in beds.every())


@contextlib.contextmanager
def a_long_run(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Rounds without end, once the first has begun."""
    command = [sys.executable, "-m", "partita", *RUN, "--rounds", "50"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=folder) as process:
        try:
            assert process.stderr is not None
            while b"running" not in process.stderr.readline():
                assert process.poll() is None
            time.sleep(1.0)
            yield process
        finally:
            process.kill()


def nothing_is_left(owner: int) -> bool:
    deadline = time.monotonic() + 20
    while any(s.owner and s.owner.pid == owner for s in beds.every()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing(tmp_path: Path, number: int) -> None:
    with a_long_run(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(30) == (130 if number == signal.SIGTERM else -number)
    assert nothing_is_left(process.pid)


def javas(part: str) -> set[int]:
    """Processes of Spark's class `part` on this machine."""
    found = subprocess.run(["pgrep", "-f", f"org.apache.spark.deploy.{part}"], capture_output=True, text=True)
    return {int(p) for p in found.stdout.split() if Path(f"/proc/{p}/exe").resolve().name == "java"}


@pytest.mark.parametrize("part", ["worker.Worker", "master.Master"])
def test_a_part_of_the_cluster_that_is_killed_ends_the_run_with_a_word(tmp_path: Path, part: str) -> None:
    others = javas(part)
    with a_long_run(tmp_path) as process:
        os.kill(min(javas(part) - others), signal.SIGKILL)
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert process.wait(60) == 1
    assert f"the {part.partition('.')[0]} on h" in said
    assert nothing_is_left(process.pid)
