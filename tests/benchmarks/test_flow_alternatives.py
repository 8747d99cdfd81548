"""What benchmarks/flow.py measures with: memory of processes as it grows, CPU time of all workers; and that its parts run."""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed")
pytest.importorskip("joblib")

import cloudpickle
from benchmark_scripts import loaded

from partita.cli.talk import Talk

flow, intervals = loaded("flow"), loaded("intervals")
GIVEN = Namespace(
    set="digits", data=None, rows=60, components=10, rounds=1, skip=[flow.ALONE, flow.MEMORY, flow.SHORT_KEYS]
)
DRIFT = {"spread": 0.0, "least_share": 1.0, "together": 2.0}
RECORD = {
    "facts": {"machine": "one", "cores": 2, "load": [0.0]},
    "drift": DRIFT,
    "probes": [],
    "cpu_s": 0.0,
    "wall_s": 0.0,
}

WORKER = """
import sys, time
held = []
for line in sys.stdin:
    if line.strip() == "hold":
        held.append(b"1" * 50_000_000)
    else:
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
    print("done", flush=True)
"""


@contextmanager
def worker() -> Iterator[tuple[int, Callable[[str], str]]]:
    """(its process, a way to tell it what to do and wait for it)."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as p:
        assert p.stdin is not None
        assert p.stdout is not None
        stdin, stdout = p.stdin, p.stdout

        def tell(word: str) -> str:
            stdin.write(f"{word}\n")
            stdin.flush()
            return stdout.readline()

        yield p.pid, tell
        stdin.close()


def test_memory_is_that_of_all_processes_together() -> None:
    with worker() as (one, tell_one), worker() as (two, tell_two):
        tell_one("work"), tell_two("work")
        with flow.resident([one, two], every_s=0.005) as seen:
            tell_one("hold"), tell_two("hold")
            time.sleep(0.05)
    assert 95e6 <= max(seen) - seen[0] <= 130e6


def test_cpu_time_of_workers_counts_while_they_live_and_after() -> None:
    before = flow.cpu_seconds_of_all()
    with worker() as (_, tell):
        tell("work")
        living = flow.cpu_seconds_of_all() - before
    ended = flow.cpu_seconds_of_all() - before
    assert living >= 0.28
    assert ended >= living - 0.03


def test_one_option_is_changed_the_second_time() -> None:
    """What the part `again` replaces is one option of one step."""
    source = flow.jobs.Source("digits", rows=60, components=10)
    graph = flow.unfold(flow.jobs.flow(source))
    changed = flow.unfold(flow.jobs.flow(source, flow.changed_strengths()))
    lost = {n.key for n in graph.nodes} - {n.key for n in changed.nodes}
    gone = [n for n in graph.nodes if n.key in lost and n.kind == "call" and "strength of ridge" in n.options]
    assert {n.options["strength of ridge"] for n in gone} == {str(flow.jobs.STRENGTHS["ridge"][-1])}


def still() -> Any:
    """A machine that nobody probes."""
    return SimpleNamespace(
        look_again=lambda every_s=0.0: None,
        finished=lambda: RECORD,
        verdicts=lambda claims: {name: intervals.verdict(*claim, 0.0) for name, claim in claims.items()},
    )


@pytest.fixture
def by_value() -> Iterator[None]:
    """As a script's own functions, its functions travel whole."""
    cloudpickle.register_pickle_by_value(flow)
    yield
    cloudpickle.unregister_pickle_by_value(flow)


def test_a_prediction_says_how_much_was_done_and_none_counts_as_wholly_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [SimpleNamespace(predicted_s=9.0, seconds=10.0, predictions=((1.0, 9.0, 0.11), (5.0, 9.9, 0.5))), SimpleNamespace(predicted_s=None, seconds=10.0, predictions=((3.0, 9.0, 0.3),)), SimpleNamespace(predicted_s=None, seconds=1.0, predictions=())]  # fmt: skip
    coming = iter([records[0], *records])  # the first is not counted
    monkeypatch.setattr(flow, "ours", lambda *_: SimpleNamespace(record=next(coming)))
    monkeypatch.setattr(flow, "workers", lambda: nullcontext(("", None)))
    found = flow.predicted(Namespace(**{**vars(GIVEN), "rounds": 3}), still(), Talk.to_stderr())
    assert [r["part_done"] for r in found["runs"]] == [0.11, 0.3, None]
    assert found["errors"] == [pytest.approx(0.1), 1.0, 1.0]
    told = flow.predicted_text(found)
    assert "10% (at 11% of the work), nothing early enough (counts as 100 %)" in told


@pytest.mark.slow
@pytest.mark.usefixtures("by_value")
@pytest.mark.parametrize("part", ["explore", "memory", "again"])
def test_a_part_runs(part: str) -> None:
    work, text = flow.PARTS[part]
    found = work(GIVEN, still(), Talk.to_stderr())
    assert text(found)
    if part == "explore":
        assert all(found["same"].values())
    if part == "memory":
        assert all(grown > 0 for rows in found["resident_growth_bytes"].values() for grown in rows)
    if part == "again":
        assert found["tasks_run"]["one option changed"] < found["tasks_run"]["without a store"]
