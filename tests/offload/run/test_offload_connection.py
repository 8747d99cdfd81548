"""The device's end of the connection: whatever breaks is told once it is down, and the thread lives on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from offload.run.small_nets import image, net, plan_of, problem_of

from partita.nouns.offload import OffloadProblem, OffloadSpeeds, Speed
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.onnx_session import Session
from partita.offload.run.client import Client, Unreachable, Welcome
from partita.offload.run.connection import Connection, Event, Parcel
from partita.offload.run.execute import RunSettings, execute
from partita.offload.run.wire import pack, unpack

NET = net()


class Fake(Client):
    """A server in this process: it answers each job with `reply`, bytes or an error."""

    def __init__(self, reply: Any) -> None:
        super().__init__("127.0.0.1:9")
        self.reply = reply

    def hello(self, timeout_s: float = 1.0) -> Welcome:
        return Welcome(1, 1 << 26, 0.0, 1e-4)

    def put(self, model: OnnxModel) -> bool:
        return True

    def prepare(self, model: OnnxModel, device_tasks: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ()

    def work(self, messages: Iterator[bytes]) -> Any:
        return Replies(messages, self.reply)


class Replies:
    def __init__(self, messages: Iterator[bytes], reply: Any) -> None:
        self.messages, self.reply = messages, reply

    def __iter__(self) -> Iterator[bytes]:
        for raw in self.messages:
            head = unpack(raw)[0]
            if isinstance(self.reply, Exception):
                raise self.reply
            now = time.perf_counter()
            yield pack({"kind": "received", "job": head["job"], "attempt": head["attempt"], "received": now})
            yield self.reply(head)

    def cancel(self) -> None:
        pass


def answer(head: dict[str, Any], outputs: Any = True, **more: Any) -> bytes:
    times = dict.fromkeys(("start", "end", "sent"), time.perf_counter())
    laps = {"wall_s": 1e-3, "cpu_s": 1e-3, "received_s": 1e-3, "probe_s": 1e-4}
    said = {"kind": "answer", "job": head["job"], "attempt": head["attempt"], **times, **laps, **more}
    made = Session(NET.data, "net").run(image(head["job"]))
    return pack({k: v for k, v in said.items() if v is not None}, {"nothing": np.zeros(1)} if outputs is None else made)


def speeds_known(problem: OffloadProblem) -> OffloadProblem:
    """With the sides' speeds, so that a run is compared with what the plan has at its own."""
    return replace(problem, speeds=OffloadSpeeds(Speed(1e-4, 1.0), Speed(1e-4, 1.0)))


BROKEN = {
    "an error nobody thought of": ZeroDivisionError("a fault of ours"),
    "memory": MemoryError(),
    "noise": lambda head: b"noise",
    "no kind": lambda head: pack({}),
    "a list for a kind": lambda head: answer(head, kind=[1]),
    "no job": lambda head: answer(head, job=None),
    "a huge job": lambda head: answer(head, job=1e400),
    "no times": lambda head: answer(head, start=None),
    "endless times": lambda head: answer(head, end=float("inf")),
    "words for times": lambda head: answer(head, sent="soon"),
    "times of another age": lambda head: answer(head, start=1e200),
    "no outputs": lambda head: answer(head, outputs=None),
    "nothing wrong": answer,
    "work in no time": lambda head: answer(head, wall_s=0.0),
    "hardly any work": lambda head: answer(head, wall_s=1e-300, received_s=1e-320),
    "a core of nothing": lambda head: answer(head, received_s=1e-9, wall_s=9e4),
    "a probe of ages": lambda head: answer(head, probe_s=1e200),
    "a negative probe": lambda head: answer(head, probe_s=-1.0),
}


@pytest.mark.parametrize("what", BROKEN)
def test_whatever_a_server_replies_every_job_is_answered(what: str) -> None:
    problem = problem_of([NET] * 3)
    inputs = [image(k) for k in range(3)]
    settings = RunSettings(patience_s=0.3)
    problem = speeds_known(problem)
    run = execute(problem, plan_of(problem, [2] * 3), [NET] * 3, inputs, lambda: Fake(BROKEN[what]), settings)
    whole = Session(NET.data, "net")
    for found, given in zip(run.outputs, inputs, strict=True):
        np.testing.assert_allclose(found["y"], whole.run(given)["y"], atol=1e-5)


class Talker(Fake):
    """It says of the first job that it came, again and again, and nothing else."""

    def __init__(self) -> None:
        super().__init__(None)
        self.gone = threading.Event()

    def close(self) -> None:
        self.gone.set()

    def work(self, messages: Iterator[bytes]) -> Any:
        return Talk(messages, self.gone)


class Talk(Replies):
    def __init__(self, messages: Iterator[bytes], gone: threading.Event) -> None:
        super().__init__(messages, None)
        self.gone = gone

    def __iter__(self) -> Iterator[bytes]:
        head = unpack(next(self.messages))[0]
        said = {"kind": "received", "job": head["job"], "attempt": head["attempt"]}
        while not self.gone.wait(0.005):
            yield pack(said | {"received": time.perf_counter()})
        raise Unreachable("the connection was closed")


def test_saying_a_thing_again_is_no_sign_of_life() -> None:
    problem = speeds_known(problem_of([NET] * 3))
    inputs, began = [image(k) for k in range(3)], time.monotonic()
    settings = RunSettings(patience_s=0.3)
    run = execute(problem, plan_of(problem, [2] * 3), [NET] * 3, inputs, Talker, settings)
    assert time.monotonic() - began < 10
    assert all(o.keys() >= {"y"} for o in run.outputs)


def events_until(connection: Connection, kind: str) -> Event:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        event = connection.events.get(timeout=10)
        if event.kind == kind:
            return event
    raise AssertionError(f"no {kind}")


@pytest.mark.parametrize("error", [ZeroDivisionError("a fault of ours"), Unreachable("gone"), MemoryError()])
def test_down_is_told_once_it_is_down_and_the_thread_tries_again(error: Exception) -> None:
    """A device that hears "down" must not find the old connection still open: its job would wait for nobody."""
    connection = Connection(lambda: Fake(error), [NET], [(NET, frozenset())])
    open_at_down: list[bool] = []
    put = connection.events.put

    def watched(event: Event, *more: Any) -> None:
        if event.kind == "down":
            open_at_down.append(connection.welcome is not None)
        put(event, *more)

    connection.events.put = watched  # type: ignore[method-assign, assignment]
    try:
        for epoch in (1, 2):
            events_until(connection, "up")
            assert connection.send(Parcel(0, 1, NET.hash, frozenset(), image(0))) == epoch
            assert events_until(connection, "down").epoch == epoch
    finally:
        connection.close()
    assert open_at_down[:2] == [False, False]
    assert "partita-connection" not in {t.name for t in threading.enumerate()}
