from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.report.sample_run import make_story

from partita.errors import TimelineError
from partita.nouns.timeline import Timeline
from partita.page.agreement import Agreement, agreement, as_text, relative_error


def timelines() -> tuple[Timeline, Timeline]:
    story = make_story(2, 8)
    assert story.predicted is not None
    assert story.measured is not None
    return story.predicted, story.measured


def test_a_timeline_agrees_with_itself() -> None:
    one, _ = timelines()
    a = agreement(one, one)
    assert a.step_error == a.median_error == a.high_error == 0.0
    assert a.only_one == 0
    assert all(g.error == 0.0 for g in (*a.groups, *a.messages))
    assert all(d.predicted == d.measured for d in a.devices)


@given(st.floats(0.2, 5.0))
def test_stretching_the_measured_time_shows_as_that_error_everywhere(factor: float) -> None:
    one, _ = timelines()
    two = replace(one, start_s=one.start_s * factor, end_s=one.end_s * factor)
    a = agreement(one, two)
    assert a.step_error == pytest.approx(1 / factor - 1)
    assert a.median_error == pytest.approx(abs(1 / factor - 1), abs=1e-9)
    assert all(g.error == pytest.approx(1 / factor - 1, abs=1e-6) for g in a.groups)
    assert all(d.predicted == pytest.approx(d.measured) for d in a.devices)


def test_groups_hold_every_computation_once_with_its_median() -> None:
    one, two = timelines()
    a = agreement(one, two)
    assert {g.label for g in a.groups} == {"F0", "F1", "B0", "B1", "U0", "U1"}
    assert sum(g.events for g in a.groups) == a.events == 2 * 8 * 2 + 2
    for g in (*a.groups, *a.messages):
        at = [k for k in range(len(two)) if two.label[k] == g.label and two.queues[two.queue[k]] != "cpu0"]
        lengths = [
            float(two.end_s[k] - two.start_s[k]) for k in at if (two.queue[k] >= two.devices) == (">" in g.label)
        ]
        if g.label != "F0" and g.label != "B0" and g.label != "U0":
            assert g.measured_s == pytest.approx(float(np.median(lengths)))
        assert g.measured_low_s <= g.measured_s <= g.measured_high_s


def test_instructions_of_one_side_only_are_counted() -> None:
    one, two = timelines()
    keep = np.arange(len(two) - 5)
    cut = replace(
        two,
        instruction=two.instruction[keep],
        queue=two.queue[keep],
        label=two.label[: len(keep)],
        kind=two.kind[: len(keep)],
        micro_batch=two.micro_batch[keep],
        start_s=two.start_s[keep],
        end_s=two.end_s[keep],
    )
    assert agreement(one, cut).only_one == 5


def test_timelines_with_nothing_in_common_are_refused() -> None:
    one, two = timelines()
    with pytest.raises(TimelineError, match="no instruction in common"):
        agreement(one, replace(two, label=tuple("x" + label for label in two.label)))


def test_the_json_reads_back_and_holds_no_infinity() -> None:
    one, two = timelines()
    a = agreement(one, two)
    assert Agreement.from_json(json.loads(json.dumps(a.to_json(), allow_nan=False))) == a
    still = replace(one, end_s=one.start_s.copy())
    b = agreement(one, still)
    assert math.isinf(b.median_error)
    assert Agreement.from_json(json.loads(json.dumps(b.to_json(), allow_nan=False))) == b


def test_the_text_says_the_step_and_every_group() -> None:
    one, two = timelines()
    text = as_text(agreement(one, two))
    for word in ("predicted", "measured", "F0", "B1", "F0>F1", "cpu1"):
        assert word in text
    assert "(10 more)" not in text
    assert "(4 more)" in as_text(agreement(one, two), most=2)


def test_relative_error_at_zero() -> None:
    assert relative_error(0.0, 0.0) == 0.0
    assert relative_error(1.0, 0.0) == math.inf
