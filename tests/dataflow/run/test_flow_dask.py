"""Flows on Dask: the answers are those of one process; a killed worker, little memory and a scheduler that is away."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dataflow.run.flow_samples import begin, mix, plainly, score, some_flow

pytest.importorskip("distributed")

import dask
from distributed import Client
from distributed.comm import CommClosedError
from distributed.security import Security

from partita.dataflow import FlowError, choose, explore, gather, largest, run_flow, step, unfold
from partita.dataflow.graph import Slot
from partita.dataflow.load import load_flow
from partita.dataflow.run.engine import Settings, _Run
from partita.dataflow.run.on_dask import OnDask, Place, cluster
from partita.dataflow.run.task import Report, Told
from partita.dataflow.run.worker import Functions, Member, Missing, packed, run_clump
from partita.dataflow.store import Store
from partita.errors import BadInput, PartitaError

HERE = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with cluster(2) as found:
        yield found


def there(place: Place, flow: Any, **settings: Any) -> Any:
    return run_flow(flow, scheduler=place, paths=[HERE], **settings)


def test_answers_are_those_of_one_process(place: Place) -> None:
    for seed in range(8):
        flow = some_flow(seed)
        assert there(place, flow).value == plainly(flow, {})


def test_a_flow_runs_within_a_running_loop_as_a_notebook_s(place: Place) -> None:
    async def cell() -> Any:
        return there(place, some_flow(1)).value

    assert asyncio.run(cell()) == plainly(some_flow(1), {})


@step
def block(seed: int, size: int) -> Any:
    time.sleep(0.02)
    return np.full(size, float(seed))


@step
def shift(x: Any, by: int) -> Any:
    time.sleep(0.01)
    return x + by


@step
def mean(x: Any) -> float:
    return float(x.mean())


def wide() -> Any:
    data = block(explore("seed", [1, 2, 3, 4]), 50_000)
    moved = shift(data, explore("by", [1, 2, 3, 4, 5, 6]))
    return choose(moved, by=mean(moved))


def test_little_memory_gives_the_same_answer(place: Place) -> None:
    plenty = there(place, wide())
    little = there(place, wide(), memory_bytes=4 * 400_000.0)
    assert float(plenty.value[0]) == float(little.value[0]) == 10.0
    assert little.record.peak_bytes <= 4 * 400_000.0 * 1.3
    assert little.record.chosen[0].options == plenty.record.chosen[0].options


@pytest.mark.parametrize("after_s", [0.05, 0.15, 0.3])
def test_a_killed_worker_changes_no_answer(after_s: float) -> None:
    with cluster(2) as place:
        graph = unfold(wide())
        engine = OnDask.connect(place, [s.function for s in graph.steps], paths=[HERE])
        pids = list(engine.client.run(os.getpid).values())
        timer = threading.Timer(after_s, os.kill, (pids[0], signal.SIGKILL))
        timer.start()
        try:
            found = _Run(graph, engine, Settings(check=False), None, None, None).to_the_end()
        finally:
            timer.join()
            engine.close()
    assert float(found.value[0]) == 10.0
    assert found.record.tasks_run == graph.tasks


def test_who_has_not_the_keys_is_not_let_in(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.dataflow.run.on_dask.CONNECT_S", 1.0)
    for security in (None, Security.temporary()):
        with pytest.raises(BadInput, match="no Dask scheduler answers"):
            Place(place.address, security).client()
    assert "PRIVATE" not in repr(place)


def test_a_worker_that_dies_while_a_run_connects(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = Client.register_plugin, [2]

    def shaky(client: Client, *args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise CommClosedError("in <TCP (closed)>: Stream is closed")
        return real(client, *args, **kwargs)

    monkeypatch.setattr(Client, "register_plugin", shaky)
    assert there(place, some_flow(1)).value == plainly(some_flow(1), {})


def test_a_worker_that_died_once_is_never_given_up() -> None:
    """Dask closes one that is away when it looks, so long after a first death; with 0.1 s it looks while it starts again."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "100ms"}),
        cluster(1) as found,
        found.client() as client,
    ):
        victims = set()
        for _ in range(2):
            victims.update(pids := client.run(os.getpid).values())
            os.kill(*pids, signal.SIGKILL)
            deadline = time.monotonic() + 20
            while not set(client.run(os.getpid, on_error="ignore").values()) - victims:
                assert time.monotonic() < deadline, "the worker did not come back"
                time.sleep(0.05)


def test_all_workers_may_die_when_results_are_fetched() -> None:
    flow = unfold(some_flow(3))
    with cluster(2) as found, found.client() as client:
        engine = OnDask.connect(found, [s.function for s in flow.steps], paths=[HERE])
        real, times = engine.fetch, itertools.count()

        def deadly(nodes: Any) -> Any:
            if next(times) == 0:
                for pid in client.run(os.getpid).values():
                    os.kill(pid, signal.SIGKILL)
            return real(nodes)

        engine.fetch = deadly  # type: ignore[method-assign]
        try:
            assert _Run(flow, engine, Settings(), None, None, None).to_the_end().value == plainly(some_flow(3), {})
        finally:
            engine.close()


def test_what_reads_a_spoiled_input_meanwhile_is_not_kept(place: Place, tmp_path: Path) -> None:
    @step
    def data() -> Any:
        return np.ones(3)

    @step
    def spoil(x: Any) -> float:
        x += 1
        return float(x.sum())

    @step
    def reader(x: Any, b: int) -> Any:
        time.sleep(0.02)
        return x * b

    store = Store.open(tmp_path / "store")
    readers = gather(reader(data(), explore("b", [1, 2, 3, 4])), over="b")
    with pytest.raises(FlowError, match="changes what it is given"):
        there(place, [spoil(data()), readers], store=store)
    assert [float(x[0]) for x in there(place, readers, store=store).value] == [1.0, 2.0, 3.0, 4.0]


def test_a_task_that_raises_loses_its_branch(place: Place) -> None:
    @step
    def shaky(row: list[int], a: int) -> list[int]:
        if a == 2:
            raise MemoryError("no room")
        return [row[0] + a, 0]

    value = shaky(begin(1), explore("a", [1, 2, 3]))
    found = there(place, choose(mix(value, 1), by=score(mix(value, 1)), select=largest()))
    assert "no room" in found.record.choices[0].scores[1].reason
    assert found.record.tasks_failed >= 1


def test_a_result_that_cannot_be_sent_loses_its_branch(place: Place) -> None:
    @step
    def made(a: int) -> Any:
        return threading.Lock() if a == 2 else [a]

    @step
    def read(value: Any, b: int) -> float:
        return 1.0 if value else b

    value = read(made(explore("a", [1, 2, 3])), explore("b", [4, 5, 6]))
    found = there(place, choose(value, by=value))
    assert sum("cannot pickle" in s.reason for s in found.record.choices[0].scores) == 3


@pytest.mark.slow
def test_a_task_that_kills_its_workers_loses_its_branch_only() -> None:
    """Dask blames all that lies with a worker that dies."""

    @step
    def deadly(row: list[int], a: int) -> list[int]:
        if a == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return [row[0] + a, 0]

    value = deadly(begin(1), explore("a", list(range(8))))
    flow = choose(mix(value, 1), by=score(mix(value, 1)), select=largest())
    for workers in (1, 2):
        with cluster(workers) as found_at:
            found = there(found_at, flow)
        reasons = [s.reason for s in found.record.choices[0].scores]
        assert "worker died" in reasons[3]
        assert [k for k, r in enumerate(reasons) if r.startswith("failed")] == [3]
        assert found.record.tasks_failed >= 1


def test_workers_of_an_earlier_run_take_up_changed_modules(place: Place, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for k, (folder, said) in enumerate([(folders[0], 1), (folders[0], 22), (folders[1], 333)]):
        folder.mkdir(exist_ok=True)
        (folder / "beside_the_flow.py").write_text(f"def told() -> int:\n    return {said}\n")
        (folder / "told_flow.py").write_text(
            "from beside_the_flow import told\nfrom partita.dataflow import step\n\n@step\ndef tell(k: int) -> int:\n    return told()\n"
        )
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        for name in ("beside_the_flow", "told_flow"):
            sys.modules.pop(name, None)
        try:
            tell = importlib.import_module("told_flow").tell
            assert run_flow(tell(k), scheduler=place, paths=[folder]).value == said
        finally:
            sys.path.remove(str(folder))


def test_what_workers_compute_by_code_that_is_newer_than_the_key_is_not_kept(place: Place, tmp_path: Path) -> None:
    """A module beside the flow is imported by workers from its file, which may have been edited since the flow was read."""
    (tmp_path / "edited_beside.py").write_text("def told(k): return [k, 1]\n")
    (tmp_path / "edited_flow.py").write_text(
        "import time\nfrom edited_beside import told\nfrom partita.dataflow import explore, gather, step\n\n@step\ndef tell(k):\n"
        "    time.sleep(0.02)\n    return told(k)\n\ndef flow(): return gather(tell(explore('k', [1, 2, 3])), over='k')\n"
    )
    loaded, stores = load_flow(str(tmp_path / "edited_flow.py")), [Store.open(tmp_path / n) for n in ("a", "b")]
    for store, kept in zip(stores, (3, 0), strict=True):
        found = run_flow(
            loaded.value,
            scheduler=place,
            paths=[tmp_path],
            modules=[loaded.module],
            sources=loaded.sources,
            store=store,
        )
        assert len(store.entries()) == kept
        (tmp_path / "edited_beside.py").write_text("def told(k): return [k, 22]\n")
    assert found.value == [[1, 22], [2, 22], [3, 22]]
    assert any("edited_beside.py was changed since the flow was read" in note for note in found.record.notes)


def test_what_is_missing_deep_in_lists_does_not_reach_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Functions((), (), None, "run")
    plugin.functions, told = [len], Told(0, 1, 0, "compute", "key", "count", (("obj", Slot(0)),), False)
    reports: list[Report] = []
    monkeypatch.setattr(plugin, "report", reports.append)
    monkeypatch.setattr("partita.dataflow.run.worker.get_worker", lambda: SimpleNamespace(plugins={"run": plugin}))
    clump = packed((Member(told, ([[0, 1], [1]],)),))
    run_clump("run", clump, ((0, 0), (1, 0)), [Missing()], ["there"])
    run_clump("run", clump, ((0, 0), (1, 0)), ["here"], ["there"])
    assert [r.state for r in reports] == ["lost", "done"]


@pytest.mark.parametrize("told", [{"workers": {}}, {}])
def test_a_scheduler_whose_workers_stay_away_is_told(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> None:
    client: Any = SimpleNamespace(status="running", scheduler_info=lambda n_workers: told)
    engine = OnDask(client, "partita-0", 2, threads={"tcp://a": 1, "tcp://b": 1})
    monkeypatch.setattr("partita.dataflow.run.on_dask.LOOK_S", -1.0)
    assert engine.wait(0.0) == []
    monkeypatch.setattr("partita.dataflow.run.on_dask.NOBODY_S", -1.0)
    with pytest.raises(PartitaError, match="no workers"):
        engine.wait(0.0)


def kept(dask_scheduler: Any) -> tuple[list[str], int]:
    """(topics of runs, tasks and messages that a scheduler remembers)."""
    messages = sum(len(s.recent_message_log) for s in dask_scheduler.stream_comms.values())
    return [t for t in dask_scheduler._broker._topics if t.startswith("partita-")], messages + len(dask_scheduler.tasks)


def test_a_scheduler_keeps_nothing_of_a_run(place: Place) -> None:
    with place.client() as client:
        for seed in range(3):
            there(place, some_flow(seed))
        topics, objects = client.run_on_scheduler(kept)
    assert topics == []
    assert objects <= 2 * 20


def test_a_scheduler_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.dataflow.run.on_dask.CONNECT_S", 0.5)
    with pytest.raises(BadInput, match="no Dask scheduler answers"):
        run_flow(wide(), scheduler="tcp://127.0.0.1:9")


@step
def slow(seed: int, seconds: float) -> Any:
    time.sleep(seconds)
    return np.full(3, float(seed))


@step
def spoil(x: Any) -> float:
    x += 1
    return 1.0


def test_what_runs_on_after_a_step_was_seen_to_spoil_keeps_nothing(place: Place, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    with pytest.raises(FlowError, match="changes what it is given"):
        there(place, shift(slow(1, 1.0), spoil(slow(2, 0.0))), store=store)
    time.sleep(1.5)
    assert store.entries() == []
