"""The link: what transfers tell of its rate, and what a run does about it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from offload.run.slow_link import SlowLink
from offload.run.small_nets import image, net, plan_of, problem_of, served

from partita.errors import CaptureError
from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.offload.capture.onnx_inputs import random_inputs
from partita.offload.onnx_session import Session
from partita.offload.plan.online import Decision, Policy, State
from partita.offload.run import own_halves
from partita.offload.run.client import Client, Refused, Unreachable, Welcome, _checked_stamps, _rate
from partita.offload.run.connection import Connection
from partita.offload.run.execute import Decide, RunSettings, execute
from partita.offload.run.link_rate import RateEstimate
from partita.offload.run.message_cost import MOST_LAYERS, message_cost
from partita.offload.run.message_models import computing
from partita.offload.run.wire import pack

# ---- rates -----------------------------------------------------------------------------------------------------------------


def test_a_rate_follows_its_transfers_and_ignores_small_ones() -> None:
    rate = RateEstimate(1e6)
    rate.saw(100, 0.05)
    assert rate.now == 1e6
    rate.saw(1e5, 0.1)
    assert rate.now == pytest.approx(1e6)
    for _ in range(10):
        rate.saw(1e5, 0.4)
    assert rate.now == pytest.approx(2.5e5, rel=0.05)
    assert rate.drifted(0.25)


def test_a_transfer_that_takes_long_tells_before_it_ends() -> None:
    rate = RateEstimate(1e6)
    rate.still_waiting(1e5, 0.01)
    assert rate.now == 1e6
    rate.still_waiting(1e5, 1.0)
    assert rate.now == 1e5
    assert rate.seen == 1e6  # by which silence is judged: else the patience would grow with the waiting


# ---- runs ------------------------------------------------------------------------------------------------------------------

NET = net(channels=16, side=64)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("server")) as (where, _):
        yield where


def assert_right(outputs: tuple[dict[str, np.ndarray], ...], inputs: list[dict[str, np.ndarray]]) -> None:
    whole = Session(NET.data, "net")
    for found, given_ in zip(outputs, inputs, strict=True):
        np.testing.assert_allclose(found["y"], whole.run(given_)["y"], atol=1e-5)


def test_a_paced_link_is_measured_and_kept_in_the_spans(server: str) -> None:
    inputs = [image(k, 64) for k in range(6)]
    with SlowLink(server, 2e6) as link:
        where = f"127.0.0.1:{link.port}"
        with Client(where) as client:
            assert client.link(0.5).up_bytes_per_s == pytest.approx(2e6, rel=0.2)
        problem = problem_of([NET] * 6, rate=2e6)
        run = execute(problem, plan_of(problem, [0] * 6), [NET] * 6, inputs, lambda: Client(where))
    assert_right(run.outputs, inputs)  # type: ignore[arg-type]
    spans = [t.uplink[1] - t.uplink[0] for t in run.times if t.uplink]
    size = run.times[0].sent_bytes
    # never faster than the link; on a machine that others use too, later than it could be
    assert 0.7 * 6 * size / 2e6 <= sum(spans) <= 2.5 * 6 * size / 2e6
    assert run.makespan_s > 6 * size / 2e6 * 0.8


def test_a_link_that_slows_is_planned_for_anew(server: str) -> None:
    n = 60
    inputs = [image(k, 64) for k in range(n)]
    problems: list[OffloadProblem] = []

    def replan(rest: OffloadProblem) -> OffloadPlan:
        problems.append(rest)
        return plan_of(rest, [-1 if rest.link.up_bytes_per_s < 1e6 else 0] * len(rest.jobs))

    said: list[str] = []
    with SlowLink(server, 4e6) as link:
        where = f"127.0.0.1:{link.port}"
        problem = problem_of([NET] * n, rate=4e6)
        jobs = tuple(replace(j, release_s=0.03 * k) for k, j in enumerate(problem.jobs))
        problem = replace(problem, jobs=jobs)
        timer = threading.Timer(0.9, lambda: setattr(link, "bytes_per_s", 2e5))
        timer.start()
        run = execute(
            problem,
            plan_of(problem, [0] * n),
            [NET] * n,
            inputs,
            lambda: Client(where),
            RunSettings(replan=replan, say=said.append),
        )
        timer.join()
    assert_right(run.outputs, inputs)  # type: ignore[arg-type]
    assert run.facts["replans"] >= 1
    assert min(p.link.up_bytes_per_s for p in problems) < 1e6
    assert all(j.release_s >= 0 for p in problems for j in p.jobs)
    assert any("planning the rest anew" in line for line in said)
    assert run.times[-1].where == "device"


def slower_than_planned(n: int, **more: float) -> OffloadProblem:
    """Jobs that take a thousand times as long as the plan has it, so that it is made anew; `more` of every task."""
    problem = problem_of([NET] * n)
    cheap = tuple(replace(t, device_s=1e-7, **more) for t in problem.jobs[0].tasks)
    return replace(problem, jobs=tuple(replace(j, tasks=cheap) for j in problem.jobs))


def test_first_jobs_that_take_longer_than_planned_correct_the_rest() -> None:
    """What is left is planned with what the first jobs took."""
    problems: list[OffloadProblem] = []

    def replan(rest: OffloadProblem) -> OffloadPlan:
        problems.append(rest)
        return plan_of(rest, [-1] * len(rest.jobs))

    n, said = 12, list[str]()
    problem = slower_than_planned(n)
    inputs = [image(k, 64) for k in range(n)]
    settings = RunSettings(replan=replan, say=said.append)
    run = execute(problem, plan_of(problem, [-1] * n), [NET] * n, inputs, None, settings)
    assert run.facts["replans"] >= 1
    assert any("times as long as measured here" in line for line in said)
    (row,) = run.facts["corrections"]
    assert row["model"] == NET.name
    assert row["device"] > 10
    assert row["server"] is None
    took_s = sum(t.device_s for t in problems[-1].jobs[0].tasks)
    assert took_s == pytest.approx(sum(t.device_s for t in problem.jobs[0].tasks) * row["device"], rel=0.5)
    dear = replace(settings, replan_s=1.0)  # what is left takes less than a plan
    assert execute(problem, plan_of(problem, [-1] * n), [NET] * n, inputs, None, dear).facts["replans"] == 0


@pytest.mark.parametrize("with_policy", [False, True])
def test_a_replanner_that_fails_costs_no_answer(with_policy: bool, server: str) -> None:
    made = 0

    def fail(problem: OffloadProblem) -> OffloadPlan:
        raise ZeroDivisionError("a fault of ours")

    def policy(problem: OffloadProblem) -> Decide:
        nonlocal made
        made += 1
        if made > 1:
            fail(problem)
        return Policy.of(problem).decide

    n, said = 12, list[str]()
    problem = slower_than_planned(n, server_s=1.0)
    inputs = [image(k, 64) for k in range(n)]
    settings = RunSettings(replan=fail, policy=policy if with_policy else None, say=said.append)
    run = execute(problem, plan_of(problem, [-1] * n), [NET] * n, inputs, lambda: Client(server), settings)
    assert_right(run.outputs, inputs)  # type: ignore[arg-type]
    assert run.facts["replans"] == 0
    assert any("the one at hand stays" in line for line in said)


def test_a_new_plan_without_all_jobs_costs_no_answer(server: str) -> None:
    n, said = 12, list[str]()
    problem, inputs = slower_than_planned(n), [image(k, 64) for k in range(n)]

    def forgetful(rest: OffloadProblem) -> OffloadPlan:
        plan = plan_of(rest, [-1] * len(rest.jobs))
        return replace(plan, order=plan.order[1:])

    settings = RunSettings(replan=forgetful, say=said.append)
    run = execute(problem, plan_of(problem, [-1] * n), [NET] * n, inputs, lambda: Client(server), settings)
    assert_right(run.outputs, inputs)  # type: ignore[arg-type]
    assert any("the one at hand stays" in line for line in said)


def test_a_new_plans_half_that_is_refused_costs_no_answer(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, said = 12, list[str]()
    problem, inputs = slower_than_planned(n), [image(k, 64) for k in range(n)]

    def refused(data: bytes, name: str) -> Session:
        raise CaptureError(f"{name} is refused")

    def replan(rest: OffloadProblem) -> OffloadPlan:
        monkeypatch.setattr(own_halves, "Session", refused)
        return plan_of(rest, [2] * len(rest.jobs))

    settings = RunSettings(replan=replan, say=said.append)
    run = execute(problem, plan_of(problem, [-1] * n), [NET] * n, inputs, lambda: Client(server), settings)
    assert_right(run.outputs, inputs)  # type: ignore[arg-type]
    assert run.facts["replans"] >= 1
    assert any("is refused; the device does those jobs whole" in line for line in said)


def test_a_first_plans_half_that_is_refused_costs_no_answer(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    problem, inputs = problem_of([NET] * 3), [image(k, 64) for k in range(3)]

    def session(data: bytes, name: str) -> Session:
        if len(data) < len(NET.data):
            raise CaptureError(f"{name} is refused")
        return Session(data, name)

    monkeypatch.setattr(own_halves, "Session", session)
    settings = RunSettings(say=said.append)
    run = execute(problem, plan_of(problem, [2] * 3), [NET] * 3, inputs, lambda: Client(server), settings)
    assert_right(run.outputs, inputs)  # type: ignore[arg-type]
    assert any("is refused; the device does those jobs whole" in line for line in said)


def fail(state: State) -> None:
    raise ZeroDivisionError("a fault of ours")


@pytest.mark.parametrize("policy", [fail, lambda state: Decision(99, frozenset(), 0.0)])
def test_a_policy_that_fails_costs_no_answer(server: str, policy: Decide) -> None:
    n, said = 6, list[str]()
    problem, inputs = problem_of([NET] * n), [image(k, 64) for k in range(n)]
    settings = RunSettings(policy=lambda problem: policy, say=said.append)
    run = execute(problem, plan_of(problem, [0] * n), [NET] * n, inputs, lambda: Client(server), settings)
    assert_right(run.outputs, inputs)  # type: ignore[arg-type]
    assert any("the policy failed" in line for line in said)


def test_a_policy_that_never_decides_costs_no_answer(server: str) -> None:
    problem, inputs = problem_of([NET] * 3), [image(k, 64) for k in range(3)]
    settings = RunSettings(policy=lambda problem: lambda state: None)
    run = execute(problem, plan_of(problem, [0] * 3), [NET] * 3, inputs, lambda: Client(server), settings)
    assert_right(run.outputs, inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize("stamps", [None, 3, [], [[1, float("nan")]], [[1, 2.0], [1, 1.0]], [[0, 1.0]], [[10**400, 1.0]], [["a", 1]], [[1, 1.0]]])  # fmt: skip
def test_a_server_that_measures_no_link_is_told_in_a_sentence(stamps: object) -> None:
    with pytest.raises(Unreachable):
        _rate(_checked_stamps(stamps, "a server"))


def talks(stamps: object, chunks: Iterator[bytes]) -> SimpleNamespace:
    """A channel to a server whose Sink says such stamps and whose Source sends such chunks."""
    source = type("Chunks", (), {"__iter__": lambda self: chunks, "cancel": lambda self: None})()
    return SimpleNamespace(
        stream_unary=lambda path: lambda *_, **__: pack({"stamps": stamps}),
        unary_stream=lambda path: lambda *_, **__: source,
        close=lambda: None,
    )


@pytest.mark.parametrize(
    ("stamps", "chunk"),
    [([[1000, -1e308], [1000, -1e308], [1000, 1e308], [1000, 1e308]], b"ab" * 500), ([[1000, 1.0], [1000, 2.0]], b"a")],
)
def test_stamps_that_span_ages_and_transfers_without_end(
    stamps: object, chunk: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client("127.0.0.1:1") as client:
        monkeypatch.setattr(client, "hello", lambda: Welcome(1, 1 << 20, 0.0, 1e-4))
        monkeypatch.setattr(client, "_channel", talks(stamps, repeat(chunk)))
        with pytest.raises(Unreachable, match="no link"):
            client.link(0.01)


def test_what_is_computed_between_messages_goes_up_a_slow_link_and_fills_the_caches() -> None:
    model = computing(MOST_LAYERS)
    assert len(model.data) < 60_000
    made = Session(model.data, "computing").run(random_inputs(model))
    assert all(1e-3 < float(np.abs(y).max()) < 1e3 for y in made.values())


def test_messages_that_were_not_taken_have_no_price(tmp_path: Path) -> None:
    with served(tmp_path, "--memory-mb", "3") as (where, _), pytest.raises(Refused, match="while messages were priced"):
        message_cost(lambda: Client(where), 2e6, jobs=2, rounds=1)


def test_a_policy_may_cut_models_that_the_first_plan_leaves_whole(tmp_path: Path) -> None:
    """They go up where they are first wanted, beside the jobs."""
    with served(tmp_path) as (where, _):
        models = [NET, net("other", 5)] * 10
        problem = problem_of(models)
        problem = replace(problem, jobs=tuple(replace(j, release_s=0.05 * k) for k, j in enumerate(problem.jobs)))
        half = [frozenset(m.tasks_topological[:1]) for m in models]
        settings = RunSettings(policy=lambda p: lambda state: Decision(0, half[state.waiting[0].model], 0.0))
        inputs = [image(k, m.inputs[0].shape[-1]) for k, m in enumerate(models)]
        run = execute(problem, plan_of(problem, [1, -1] * 10), models, inputs, lambda: Client(where), settings)
    assert {t.where for t in run.times[::2]} == {"both"}
    assert (run.times[1].where, run.times[-1].where) == ("device", "both")
    assert (run.facts["lost"], run.facts["connections"]) == (0, 1)


def test_jobs_that_were_under_way_when_a_model_was_first_wanted_bring_it_up_once(tmp_path: Path) -> None:
    """Of no work for the device: all ten are sent before the first refusal is heard."""
    with served(tmp_path) as (where, _):
        n = 20
        problem = problem_of([NET] * n)
        jobs = [replace(j, release_s=0.0 if k < n // 2 else 1.0) for k, j in enumerate(problem.jobs)]
        settings = RunSettings(policy=lambda p: lambda state: Decision(0, frozenset(), 0.0))
        run = execute(
            replace(problem, jobs=tuple(jobs)), plan_of(problem, [-1] * n), [NET] * n, [image(k, 64) for k in range(n)],
            lambda: Client(where), settings,
        )  # fmt: skip
    assert run.facts["refused"] >= 3
    assert {t.where for t in run.times[n // 2 :]} == {"server"}


def brought(connection: Connection, sent_s: float) -> None:
    """The model is up again, for a job sent then."""
    assert connection.takes(NET)
    for _ in range(5):  # as many jobs are refused, the same thing is said of all
        connection.bring(NET, sent_s)
    deadline = time.monotonic() + 10
    while not connection.takes(NET):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_model_that_the_server_drops_again_and_again_stays_here(server: str) -> None:
    connection = Connection(lambda: Client(server), [], [])
    try:
        assert connection.events.get(timeout=10).kind == "up"
        assert connection.alone_since_s() < 0
        for _ in range(2):
            before_s = time.perf_counter()
            brought(connection, before_s)
            assert connection.alone_since_s() > before_s
            connection.bring(NET, before_s)  # of a job sent before the model was there
            assert connection.takes(NET)
        connection.bring(NET, time.perf_counter())
        assert not connection.takes(NET)
        assert "does not keep small" in connection.events.get(timeout=10).why
    finally:
        connection.close()


def test_a_process_without_another_thread_brings_no_model_up(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    connection = Connection(lambda: Client(server), [], [])
    try:
        assert connection.events.get(timeout=10).kind == "up"
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fail)
            connection.bring(NET, time.perf_counter())
        assert "can't start new thread" in connection.events.get(timeout=10).why
        assert not connection.takes(NET)
        assert connection.alone_since_s() < 0
    finally:
        connection.close()


def test_a_model_that_does_not_get_up_is_told(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Client, model: object) -> None:
        raise Unreachable("it took too long")

    connection = Connection(lambda: Client(server), [], [])
    try:
        assert connection.events.get(timeout=10).kind == "up"
        monkeypatch.setattr(Client, "put", fail)
        connection.bring(NET, time.perf_counter())
        event = connection.events.get(timeout=10)
        assert (event.kind, event.why) == ("refused-model", "small did not get to the server: it took too long")
        assert not connection.takes(NET)
    finally:
        connection.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("partita-")]


def test_a_policy_is_made_anew_for_sides_that_are_not_as_fast_as_planned(server: str) -> None:
    """It decides on every job, so that a plan for the rest would change nothing."""
    known: list[float] = []

    def policy(problem: OffloadProblem) -> Decide:
        known.append(problem.jobs[0].tasks[0].device_s)
        return Policy.of(problem).decide

    n = 12
    problem = slower_than_planned(n, server_s=1.0)
    inputs = [image(k, 64) for k in range(n)]
    settings = RunSettings(replan=lambda rest: plan_of(rest, [-1] * len(rest.jobs)), policy=policy)
    run = execute(problem, plan_of(problem, [-1] * n), [NET] * n, inputs, lambda: Client(server), settings)
    assert run.facts["replans"] == len(known) - 1 >= 1
    assert known[0] == 1e-7
    assert min(known[1:]) > 1e-6


def test_a_link_that_breaks_and_comes_back(server: str) -> None:
    n = 80
    inputs = [image(k, 64) for k in range(n)]
    with SlowLink(server, 5e7) as link:
        problem = problem_of([NET] * n, rate=5e7)
        problem = replace(problem, jobs=tuple(replace(j, release_s=0.05 * k) for k, j in enumerate(problem.jobs)))
        cuts = [threading.Timer(s, link.cut) for s in (0.8, 2.4)]
        for c in cuts:
            c.start()
        run = execute(problem, plan_of(problem, [1] * n), [NET] * n, inputs, lambda: Client(f"127.0.0.1:{link.port}"))
        for c in cuts:
            c.join()
    assert_right(run.outputs, inputs)  # type: ignore[arg-type]
    assert run.facts["connections"] == 3
    assert run.times[-1].where == "both"
