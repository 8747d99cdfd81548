"""What a rank does while it waits for others, it does where it waits longest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from partita.nouns.program import Builder, Op, Piece, Program
from partita.training.capture.captured import TensorMeta
from partita.training.rehearsal.emulated import EmulatedModel
from partita.training.runtime.interpreter import Bound, Interpreter, Place

MODEL = EmulatedModel(("t",), {"t": TensorMeta((1,), (1,), torch.uint8, False)})


@dataclass
class Message:
    wire: Wire
    sender: int

    def wait(self) -> list[Tensor]:
        self.wire.seen.append(f"from {self.sender}")
        self.wire.now_s = max(self.wire.now_s, self.wire.there_s[self.sender])
        return [torch.zeros(1, dtype=torch.uint8)]


@dataclass
class Wire:
    """Messages that are there so many seconds after a step's begin, and the clock."""

    there_s: dict[int, float]
    seen: list[str] = field(default_factory=list)
    now_s: float = 0.0

    def receive(self, metas: tuple[TensorMeta, ...], source: int, target: int, tag: int) -> Message:
        return Message(self, source)

    def send(self, *_: Any) -> list[tuple[Any, Tensor]]:
        raise AssertionError("it only receives")


def receiving() -> Program:
    """A device that gets a message from each of two others."""
    build = Builder(["a", "b", "c"])
    for source in ("a", "b"):
        made = build.add(Op.COMPUTE, source, Piece("F0", "forward", 0))
        piece = Piece(f"{source}>c", "values", 0, 1, (), (0,), (source, "c"))
        sent = build.add(Op.SEND, f"{source}->c", piece, 0, [made], 8.0)
        build.add(Op.RECV, "c", piece, 0, [sent])
    return build.program()


Does = Callable[..., tuple[list[str], list[float]]]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    it = Wire({})
    clock = SimpleNamespace(perf_counter_ns=lambda: round(1e9 * it.now_s), thread_time_ns=lambda: 0)
    monkeypatch.setattr("partita.training.runtime.stopwatch.time", clock)
    return it


@pytest.fixture
def step(wire: Wire) -> Does:
    place = Place("c", {"a": 0, "b": 1, "c": 2}, torch.device("cpu"), ())
    it = Interpreter(receiving(), place, {1: Bound(MODEL, {})}, wire, None, np.zeros(1, np.int64))  # type: ignore[arg-type]

    def step(a_s: float, b_s: float, *, meanwhile_s: float | None = 0.0) -> tuple[list[str], list[float]]:
        """(What happened, for how many milliseconds it was told to wait) where messages are there so many after the step's begin."""
        told: list[float] = []

        def instead(wait_s: float) -> None:
            wire.seen.append("meanwhile")
            told.append(round(1e3 * wait_s, 3))
            wire.now_s += meanwhile_s or 0.0

        wire.seen.clear()
        wire.there_s, wire.now_s = {0: a_s, 1: b_s}, 0.0
        it.step((torch.zeros(1), torch.zeros(1)), 1, 1, 0, None if meanwhile_s is None else instead)
        return wire.seen[:], told

    return step


IN_A, IN_B = ["meanwhile", "from 0", "from 1"], ["from 0", "meanwhile", "from 1"]


def test_it_is_done_before_the_longest_wait_of_the_last_step(step: Does) -> None:
    assert step(0.0, 0.05) == (["from 0", "from 1"], [])  # nothing is known of where it waits
    assert step(0.01, 0.05) == (IN_B, [50])
    assert step(0.05, 0.06, meanwhile_s=None) == (["from 0", "from 1"], [])
    assert step(0.05, 0.06) == (IN_A, [50])


def test_what_is_done_meanwhile_does_not_hide_the_wait(step: Does) -> None:
    step(0.01, 0.06)
    for _ in range(3):
        assert step(0.01, 0.06, meanwhile_s=0.04) == (IN_B, [50])
    assert step(0.05, 0.06, meanwhile_s=0.0) == (IN_B, [50])
    assert step(0.05, 0.06, meanwhile_s=0.0) == (IN_A, [50])


def test_a_wait_that_what_is_done_meanwhile_fills_is_known_no_longer(step: Does) -> None:
    """The first step of a plan is slow: as long as in that one nobody waits any more."""
    step(0.0, 0.8)
    assert step(0.0, 0.015, meanwhile_s=0.02) == (IN_B, [800])
    assert step(0.0, 0.015) == (["from 0", "from 1"], [])
    assert step(0.0, 0.015) == (IN_B, [15])
