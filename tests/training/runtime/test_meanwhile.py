"""What a rank does while it waits for others, it does where it waits longest."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
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
        time.sleep(max(0.0, self.wire.there_s[self.sender] - (time.perf_counter() - self.wire.began)))
        return [torch.zeros(1, dtype=torch.uint8)]


@dataclass
class Wire:
    """Messages that are there so many seconds after a step's begin."""

    there_s: dict[int, float]
    seen: list[str] = field(default_factory=list)
    began: float = 0.0

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


def steps_of(wire: Wire) -> tuple[list[float], Any]:
    told: list[float] = []
    place = Place("c", {"a": 0, "b": 1, "c": 2}, torch.device("cpu"), ())
    it = Interpreter(receiving(), place, {1: Bound(MODEL, {})}, wire, None, np.zeros(1, np.int64))  # type: ignore[arg-type]

    def step(meanwhile_s: float = 0.0, *, meanwhile: bool = True) -> list[str]:
        def instead(wait_s: float) -> None:
            wire.seen.append("meanwhile")
            told.append(wait_s)
            time.sleep(meanwhile_s)

        wire.seen.clear()
        wire.began = time.perf_counter()
        it.step((torch.zeros(1), torch.zeros(1)), 1, 1, 0, instead if meanwhile else None)
        return wire.seen[:]

    return told, step


def test_it_is_done_before_the_longest_wait_of_the_last_step() -> None:
    wire = Wire({0: 0.0, 1: 0.05})
    told, step = steps_of(wire)
    assert step() == ["from 0", "from 1"]  # nothing is known of where it waits
    assert step() == ["from 0", "meanwhile", "from 1"]
    assert told == [pytest.approx(0.05, abs=0.02)]


def test_what_is_done_meanwhile_does_not_hide_the_wait() -> None:
    """Of a step in which something was done, the waits say little."""
    wire = Wire({0: 0.01, 1: 0.06})
    told, step = steps_of(wire)
    step()
    for _ in range(3):
        assert step(meanwhile_s=0.055) == ["from 0", "meanwhile", "from 1"]
    assert len(set(told)) == 1
    wire.there_s = {0: 0.05, 1: 0.06}
    step(meanwhile=False)
    assert step() == ["meanwhile", "from 0", "from 1"]
