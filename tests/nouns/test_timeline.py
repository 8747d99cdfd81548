"""Timeline: busy shares, the critical path, and traces that Perfetto reads."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from small_worlds import damaged, refused_or

from partita.errors import TimelineError
from partita.files import write_whole
from partita.nouns.program import Builder, Op, Piece, Program
from partita.nouns.timeline import Span, Timeline


def two_devices() -> Program:
    """cpu0 computes F0 and sends it; cpu1, which computes X first, receives it and computes F1."""
    build = Builder(["cpu0", "cpu1"])
    message = Piece("F0>F1", "values", 0, (), (0,), ("cpu0", "cpu1"))
    f0 = build.add(Op.COMPUTE, "cpu0", Piece("F0", "forward", 0, (0,)), 0)
    send = build.add(Op.SEND, "cpu0->cpu1", message, 0, [f0], 4.0)
    build.add(Op.COMPUTE, "cpu1", Piece("X", "forward", 1, (1,)), 0)
    receive = build.add(Op.RECV, "cpu1", message, 0, [send])
    build.add(Op.COMPUTE, "cpu1", Piece("F1", "forward", 1, (2,)), 0, [receive])
    return build.program()


PROGRAM = two_devices()
TIMELINE = Timeline.of(
    PROGRAM, np.array([1.0, 3.0, 1.0, 4.0, 4.0]), np.array([3.0, 4.0, 2.0, 4.0, 5.0]), "measured", {"load": 0.5}
)


def test_a_span_is_an_instruction_with_its_time() -> None:
    assert TIMELINE[1] == Span(1, "cpu0->cpu1", "F0>F1", "values", 0, 3.0, 4.0)
    assert len(TIMELINE) == 5
    assert TIMELINE.duration_s == 4.0
    assert TIMELINE.busy_share() == {"cpu0": 0.5, "cpu1": 0.5}
    assert TIMELINE.check() == []


def test_the_critical_path_goes_through_what_was_waited_for() -> None:
    none = np.zeros(5)
    assert TIMELINE.critical_path(PROGRAM, none) == [0, 1, 3, 4]
    late = dataclasses.replace(
        TIMELINE, start_s=np.array([1.0, 3.0, 1.0, 6.0, 6.0]), end_s=np.array([3.0, 4.0, 6.0, 6.0, 7.0])
    )
    assert late.critical_path(PROGRAM, none) == [2, 3, 4]
    latency = np.array([0.0, 2.5, 0.0, 0.0, 0.0])  # the message arrives at 6.5, after X has ended
    assert late.critical_path(PROGRAM, latency) == [0, 1, 3, 4]
    with pytest.raises(TimelineError, match="the timeline has 5 spans, the program 1 instructions"):
        TIMELINE.critical_path(one_computation("F0"), none)


def one_computation(name: str) -> Program:
    build = Builder(["a"])
    build.add(Op.COMPUTE, "a", Piece(name, "forward", 0))
    return build.program()


def test_timelines_are_compared_instruction_by_instruction() -> None:
    part = dataclasses.replace(
        TIMELINE,
        **{k: getattr(TIMELINE, k)[3:] for k in ("instruction", "queue", "label", "kind", "micro_batch", "start_s")},
        end_s=TIMELINE.end_s[3:] + 1.0,
    )
    assert TIMELINE.compare(part) == [(3, "F0>F1", 0, 0.0, 1.0), (4, "F1", 0, 1.0, 2.0)]
    with pytest.raises(TimelineError, match=r"no instruction in common.* hint: compare timelines of the same program"):
        TIMELINE.compare(Timeline.of(one_computation("Y"), np.zeros(1), np.ones(1)))
    other = dataclasses.replace(TIMELINE, label=("F0", "F0>F1", "B1", "B1>B0", "B0"))
    with pytest.raises(TimelineError, match=r"of 5 and 5 instructions, have 2 instructions in common"):
        TIMELINE.compare(other)


def test_a_file_gives_the_same_timeline(tmp_path: Path) -> None:
    again = Timeline.read(TIMELINE.write(tmp_path / "t.json"))
    assert (again.queues, again.devices, again.label) == (TIMELINE.queues, 2, TIMELINE.label)
    assert (again.source, again.facts) == ("measured", {"load": 0.5})
    for name in ("instruction", "queue", "micro_batch"):
        assert getattr(again, name).tolist() == getattr(TIMELINE, name).tolist()
    np.testing.assert_allclose(again.start_s, TIMELINE.start_s)
    np.testing.assert_allclose(again.end_s, TIMELINE.end_s)


def test_the_trace_is_what_perfetto_expects() -> None:
    trace = json.loads(json.dumps(TIMELINE.to_perfetto()))
    named = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [named[e["tid"]] for e in spans] == [PROGRAM[i].queue for i in range(5)]
    assert spans[0]["ts"] == 1e6  # microseconds
    assert spans[0]["dur"] == 2e6


def test_all_faults_are_told_at_once() -> None:
    bad = dataclasses.replace(
        TIMELINE, end_s=np.array([0.0, math.nan, 2.0, 4.0, 5.0]), queue=np.array([0, 1, 9, 1, 1], np.int32), devices=7
    )
    faults = bad.check()
    assert faults[:2] == ["span 0 (F0) runs from 1.0 to 0.0", "span 1 (F0>F1) runs from 3.0 to nan"]
    assert faults[2:] == ["span 2 (X) is on queue 9 of 3", "it has 3 queues, 7 of them devices"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"traceEvents": []}, "is damaged: KeyError: 'otherData'.* hint: give a timeline that"),
        (
            {"otherData": {"format": "other", "version": 1}},
            "is a 'other' of version 1, not a partita-timeline of version 2. hint: make it again",
        ),
        ({"otherData": 3}, "is damaged: TypeError"),
    ],
)
def test_another_trace_is_told(tmp_path: Path, value: dict[str, Any], says: str) -> None:
    with pytest.raises(TimelineError, match=says):
        Timeline.read(write_whole(tmp_path / "t.json", json.dumps(value)))


@settings(max_examples=400)
@given(damaged(TIMELINE.to_perfetto()))
def test_damage_is_refused_or_harmless(value: dict[str, Any]) -> None:
    again = refused_or(lambda: Timeline.from_perfetto(value), TimelineError)
    if again is not None:
        assert again.check() == []
        assert {again[k].queue for k in range(len(again))} <= set(again.queues)
