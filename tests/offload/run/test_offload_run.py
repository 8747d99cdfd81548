"""The engine over real servers: answers equal the whole model's, whatever becomes of the server."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from offload.run.small_nets import address, image, net, plan_of, problem_of, served, start

from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.onnx_session import Session
from partita.offload.plan.lower import simulate_offload
from partita.offload.run.client import Client
from partita.offload.run.execute import RunSettings, execute
from partita.offload.run.record import OffloadRun

SMALL, TWO = net(), net("two", 1, outputs=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("server")) as (where, _):
        yield where


def at(where: str) -> Callable[[], Client]:
    return lambda: Client(where)


def assert_right(run: OffloadRun, models: Sequence[OnnxModel], inputs: Sequence[dict[str, np.ndarray]]) -> None:
    """Every job's answers are those of its whole model."""
    whole = {m.hash: Session(m.data, m.name) for m in models}
    assert len(run.outputs) == len(models)
    for model, given, found in zip(models, inputs, run.outputs, strict=True):
        wanted = whole[model.hash].run(given)
        assert set(found) == set(wanted)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, atol=1e-5)


def jobs(n: int) -> tuple[list[OnnxModel], list[dict[str, np.ndarray]], OffloadProblem]:
    models = [(SMALL, TWO)[k % 2] for k in range(n)]
    return models, [image(k) for k in range(n)], problem_of(models)


def test_every_cut_gives_the_whole_models_answers(server: str) -> None:
    n = len(TWO.tasks_topological) + 1
    models, inputs = [TWO] * n, [image(k) for k in range(n)]
    problem = problem_of(models)
    run = execute(problem, plan_of(problem, range(n), order=list(range(n))[::-1]), models, inputs, at(server))
    assert_right(run, models, inputs)
    assert run.plan.order == tuple(range(n))[::-1]
    assert [t.where for t in run.times] == ["server", *["both"] * (n - 2), "device"]
    assert run.facts["lost"] == run.facts["refused"] == run.facts["late"] == 0


def test_the_timeline_is_in_order_and_holds_every_step(server: str) -> None:
    models, inputs, problem = jobs(8)
    plan = plan_of(problem, [2, 3, 0, -1, 4, 5, 1, 2])
    run = execute(problem, plan, models, inputs, at(server))
    assert run.timeline.check() == []
    predicted = simulate_offload(problem, plan)
    assert run.timeline.queues == predicted.queues
    assert [r[1:3] for r in run.timeline.compare(predicted)] == [
        (run.timeline.label[k], int(run.timeline.micro_batch[k])) for k in range(len(predicted))
    ]  # instruction by instruction with the same ids
    assert run.timeline.end_s.max() == pytest.approx(run.makespan_s)
    for t in run.times:
        steps = [i for i in (t.device, t.uplink, t.server, t.downlink) if i is not None]
        slack = run.facts["round_trip_s"] + 1e-3  # two clocks, compared over a round trip
        assert all(a[1] <= b[0] + slack for a, b in itertools.pairwise(steps))
        assert t.answered_s <= run.makespan_s
    for machine in ("device", "uplink", "server", "downlink"):
        spans = sorted(i for t in run.times if (i := getattr(t, machine)) is not None)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))
    assert all(t.sent_bytes > 0 for t in run.times if t.where != "device")


def test_lossless_is_exact_and_int8_is_near(server: str) -> None:
    models, inputs, problem = jobs(4)
    plan = plan_of(problem, [2, 6, 5, 7])
    raw = execute(problem, plan, models, inputs, at(server))
    exact = execute(problem, plan, models, inputs, at(server), RunSettings(codec="lossless"))
    near = execute(problem, plan, models, inputs, at(server), RunSettings(codec="int8"))
    assert_right(exact, models, inputs)
    for a, b in zip(raw.outputs, near.outputs, strict=True):
        assert all(0 < np.abs(a[name] - b[name]).max() < 0.05 for name in ("y",))
    sent = [sum(t.sent_bytes for t in run.times) for run in (raw, exact, near)]
    assert sent[1] < sent[0]
    assert sent[2] < sent[0] / 2.5


def test_release_times_are_waited_for(server: str) -> None:
    models, inputs, problem = jobs(3)
    problem = spread(problem, 0.1)
    run = execute(problem, plan_of(problem, [2, 2, -1]), models, inputs, at(server))
    assert_right(run, models, inputs)
    starts = [t.device[0] for t in run.times if t.device]
    assert all(0.1 * k <= s for k, s in enumerate(starts))
    assert run.latency_s[2] < 0.1


def spread(problem: OffloadProblem, apart_s: float) -> OffloadProblem:
    """The jobs come one after another."""
    return replace(problem, jobs=tuple(replace(j, release_s=apart_s * k) for k, j in enumerate(problem.jobs)))


# ---- servers that are not there, or do not want to --------------------------------------------------------------------------


def alone(connect: Callable[[], Client] | None, said: list[str], n: int = 4, **more: object) -> OffloadRun:
    models, inputs, problem = jobs(n)
    plan = plan_of(problem, [2] * n)
    run = execute(problem, plan, models, inputs, connect, RunSettings(say=said.append, **more))  # type: ignore[arg-type]
    assert_right(run, models, inputs)
    return run


def test_without_a_server_the_device_answers() -> None:
    said: list[str] = []
    run = alone(at("127.0.0.1:9"), said)
    assert {t.where for t in run.times} == {"device"}
    assert len(said) == 1
    assert "127.0.0.1:9 cannot be reached" in said[0]
    assert {t.where for t in alone(None, []).times} == {"device"}


def test_a_wrong_token_is_a_sentence_and_the_device_answers(tmp_path: Path) -> None:
    from partita.offload.run.credentials import ClientCredentials

    (tmp_path / "token").write_text("right\n")
    with served(tmp_path, "--token-file", str(tmp_path / "token")) as (where, _):
        said: list[str] = []
        run = alone(lambda: Client(where, ClientCredentials("wrong")), said)
        assert {t.where for t in run.times} == {"device"}
        assert len(said) == 1
        assert "token" in said[0]
        assert {t.where for t in alone(lambda: Client(where, ClientCredentials("right")), []).times} == {"both"}


def test_a_model_the_server_has_no_memory_for_stays_on_the_device(tmp_path: Path) -> None:
    with served(tmp_path, "--memory-mb", "0.001") as (where, _):
        said: list[str] = []
        run = alone(at(where), said)
    assert {t.where for t in run.times} == {"device"}
    assert any("0.0 MB for models" in line for line in said)


def test_an_oversized_message_stays_on_the_device(tmp_path: Path) -> None:
    big = net("big", 2, channels=64, side=96)
    models, inputs = [big, SMALL], [image(0, 96), image(1)]
    problem = problem_of(models)
    said: list[str] = []
    with served(tmp_path, "--message-mb", "1") as (where, _):
        run = execute(problem, plan_of(problem, [2, 2]), models, inputs, at(where), RunSettings(say=said.append))
    assert_right(run, models, inputs)
    assert [t.where for t in run.times] == ["device", "both"]
    assert any("more than the server takes" in line for line in said)


def test_a_full_queue_sends_jobs_back_to_the_device(tmp_path: Path) -> None:
    big = net("big", 2, channels=64, side=64)
    models, inputs = [big] * 10, [image(k, 64) for k in range(10)]
    problem = problem_of(models)
    with served(tmp_path, "--queue", "1") as (where, _):
        run = execute(problem, plan_of(problem, [0] * 10), models, inputs, at(where))
    assert_right(run, models, inputs)
    assert run.facts["refused"] > 0
    assert {t.where for t in run.times} == {"device", "server"}


def test_a_drained_server_answers_what_it_has(tmp_path: Path) -> None:
    big = net("big", 2, channels=64, side=64)
    models, inputs = [big] * 12, [image(k, 64) for k in range(12)]
    problem = problem_of(models)
    with served(tmp_path) as (where, process):
        drain = threading.Timer(0.05, process.send_signal, (signal.SIGTERM,))
        settings = RunSettings(begin=drain.start)
        run = execute(problem, plan_of(problem, [0] * 12), models, inputs, at(where), settings)
        out, _ = process.communicate(timeout=20)
    assert_right(run, models, inputs)
    assert any(t.where == "server" for t in run.times)
    assert process.returncode == 0
    assert "resident_bytes" in out


# ---- killed servers ---------------------------------------------------------------------------------------------------------


def with_kills(folder: Path, kills: int, seed: int) -> OffloadRun:
    """Jobs that come over a while, and a server killed at random moments and started again; the answers are checked."""
    chance = random.Random(seed)
    big = net("big", 2, channels=48, side=64)
    models = [big, TWO] * (20 + 20 * kills)
    inputs = [image(k, 64 if m is big else 24) for k, m in enumerate(models)]
    problem = spread(problem_of(models), 0.08)
    plan = plan_of(problem, [chance.choice([0, 1, 2, 5, 6, -1]) for _ in models])
    with Killed(folder, kills, chance) as server:
        run = execute(problem, plan, models, inputs, server.connect, RunSettings(patience_s=5))
    assert_right(run, models, inputs)
    assert 1 <= server.killed <= kills  # on a busy machine a server needs longer to start than the jobs take
    return run


class Killed:
    """A server that is killed some time after a client has come, and started again on the same port."""

    def __init__(self, folder: Path, kills: int, chance: random.Random) -> None:
        self.folder, self.kills, self.chance, self.killed = folder, kills, chance, 0
        self.process = start(folder)
        self.where = address(folder, self.process)
        self.called, self.done = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.trouble)

    def connect(self) -> Client:
        self.called.set()
        return Client(self.where)

    def trouble(self) -> None:
        self.called.wait(30)
        while self.killed < self.kills and not self.done.wait(self.chance.uniform(0.3, 1.2)):
            self.process.kill()
            self.process.communicate()
            self.killed += 1
            self.process = start(self.folder, port=int(self.where.rpartition(":")[2]))
            address(self.folder, self.process)

    def __enter__(self) -> Killed:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.called.set()
        self.thread.join()
        self.process.kill()
        self.process.communicate()


def test_a_server_killed_and_started_again_loses_no_job(tmp_path: Path) -> None:
    run = with_kills(tmp_path, 1, seed=1)
    assert run.facts["connections"] >= 2
    assert {t.where for t in run.times} == {"device", "both", "server"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_twenty_kills(tmp_path: Path, seed: int) -> None:
    with_kills(tmp_path, 1 + seed % 3, seed)


def test_a_silent_server_is_given_up(tmp_path: Path) -> None:
    """A stopped process keeps its connection: only its silence tells."""
    models, inputs, problem = jobs(6)
    said: list[str] = []
    with served(tmp_path) as (where, process):
        began = time.monotonic()

        class Stopping(Client):
            def work(self, messages: Iterator[bytes]) -> object:
                process.send_signal(signal.SIGSTOP)
                return super().work(messages)

        settings = RunSettings(say=said.append, patience_s=0.5, first_patience_s=3.0)
        run = execute(problem, plan_of(problem, [2] * 6), models, inputs, lambda: Stopping(where), settings)
        process.send_signal(signal.SIGCONT)
    assert_right(run, models, inputs)
    assert {t.where for t in run.times} == {"device"}
    assert time.monotonic() - began < 20  # not gRPC's minute
    assert any("silent" in line or "cannot be reached" in line for line in said), said  # whichever notices first


def test_nothing_is_left_running(server: str) -> None:
    before = {t.ident for t in threading.enumerate()}
    models, inputs, problem = jobs(3)
    began = time.monotonic()
    execute(problem, plan_of(problem, [2, 2, 2]), models, inputs, at(server))
    assert time.monotonic() - began < 10
    until = time.monotonic() + 5
    while {t.ident for t in threading.enumerate()} - before and time.monotonic() < until:
        time.sleep(0.05)
    assert {t.name for t in threading.enumerate() if t.ident not in before} == set()


def test_a_plan_for_other_jobs_is_refused() -> None:
    from partita.errors import PlanError

    models, inputs, problem = jobs(2)
    wrong = OffloadPlan((0,), (frozenset(),))
    with pytest.raises(PlanError, match="problem has 2"):
        execute(problem, wrong, models, inputs, None)
