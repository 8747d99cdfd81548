"""Program: its queues, its check, its JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from small_worlds import damaged, refused_or, stage_plan, training_chain

from partita.errors import ProgramError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import csr
from partita.nouns.program import Builder, Op, Piece, Program
from partita.simulate.lower import lower

CHAIN = training_chain(2)
LOWERED = lower(CHAIN, Cluster.uniform(3), stage_plan(CHAIN, [2, 1], 3, 4))
F0 = Piece("F0", "forward", 0)


def test_instructions_read_as_they_were_added() -> None:
    build = Builder(["cpu0"])
    message = Piece("F0>F1", "transfer", 0, (), (3,), ("cpu0", "cpu1"))
    first = build.add(Op.COMPUTE, "cpu0", F0, 2)
    send = build.add(Op.SEND, "cpu0->cpu1", message, 2, [first], 8.0)
    build.add(Op.COMPUTE, "cpu0", F0)
    build.need(first + 2, send)
    program = build.program(fair=["cpu0->cpu1"])
    assert [str(i) for i in program] == ["compute F0 micro-batch 2", "send F0>F1 micro-batch 2", "compute F0"]
    assert [(i.queue, i.needs, i.size_bytes) for i in program] == [
        ("cpu0", (), 0.0), ("cpu0->cpu1", (0,), 8.0), ("cpu0", (1,), 0.0)
    ]  # fmt: skip
    assert (program.queues, program.devices, program.fair) == (("cpu0", "cpu0->cpu1"), 1, {"cpu0->cpu1"})
    assert len(program.pieces) == 2


def test_queues_hold_their_instructions_in_order() -> None:
    held = np.concatenate(LOWERED.by_queue)
    assert sorted(held.tolist()) == list(range(len(LOWERED)))
    for q, items in enumerate(LOWERED.by_queue):
        assert (np.diff(items) > 0).all()
        assert {LOWERED[int(i)].queue for i in items} <= {LOWERED.queues[q]}


def test_json_gives_the_same_program() -> None:
    again = Program.from_json(json.loads(json.dumps(LOWERED.to_json(), allow_nan=False)))
    assert (again.queues, again.devices, again.pieces, again.fair) == (
        LOWERED.queues, LOWERED.devices, LOWERED.pieces, LOWERED.fair
    )  # fmt: skip
    assert list(again) == list(LOWERED)
    for name in ("op", "queue", "piece", "micro_batch", "size_bytes"):
        assert getattr(again, name).dtype == getattr(LOWERED, name).dtype


def test_all_faults_are_told_at_once() -> None:
    bad = Program(
        ("cpu0",), 1, (F0,), np.array([9, Op.RECV], np.uint8), np.array([0, 4], np.int32), np.array([0, 1], np.int32),
        np.zeros(2, np.int32), np.array([math.nan, 0.0]), csr([[], [7]]),
    )  # fmt: skip
    faults = "; ".join(bad.check())
    for fault in (
        "unknown operation 9", "piece numbers run from 0 to 1; there are 1", "instruction 0 moves nan bytes",
        "queue numbers run from 0 to 4; there are 1", "needed run from 7 to 7; there are 2",
    ):  # fmt: skip
        assert fault in faults
    short = dataclasses.replace(bad, queue=np.zeros(1, np.int32))
    assert short.check() == ["its columns have 2, 1, 2, 2, 2, 2 entries"]


def test_what_nobody_sends_cannot_be_received() -> None:
    build = Builder(["cpu0"])
    compute = build.add(Op.COMPUTE, "cpu0", F0)
    build.add(Op.RECV, "cpu0", F0, needs=[compute])
    build.add(Op.RECV, "cpu0", F0)
    with pytest.raises(ProgramError, match="instruction 1 receives what nobody sends; instruction 2 receives"):
        build.program()
    with pytest.raises(ProgramError, match="it has no instructions"):
        Builder(["cpu0"]).program()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "x"}, "is 'x', not 'partita-program'"),
        ({"version": 0}, "has version 0"),
        ({"queues": ["cpu0", "cpu0"]}, "1 different queues of 2"),
        ({"devices": 99}, "99 of them devices"),
        ({"instructions": [{"op": "DANCE"}]}, "damaged: KeyError: 'DANCE'"),
        ({"instructions": []}, "it has no instructions"),
    ],
)
def test_a_damaged_program_is_told(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        Program.from_json({**LOWERED.to_json(), **change})


@settings(max_examples=400)
@given(damaged(LOWERED.to_json()))
def test_damage_is_refused_or_harmless(value: dict[str, Any]) -> None:
    program = refused_or(lambda: Program.from_json(value), ProgramError)
    assert program is None or program.check() == []
