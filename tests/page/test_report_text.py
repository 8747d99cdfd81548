from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.report.sample_run import make_story

from partita.nouns.program import Builder, Op, Piece
from partita.nouns.timeline import Timeline
from partita.page.spans import look
from partita.page.text import draw, facts, figures, nice_step, percent, rate, seconds, size, table, times

SCALE = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}


@given(st.floats(1e-9, 119.0))
def test_a_time_reads_back_within_half_a_per_cent(value: float) -> None:
    digits, unit = seconds(value).split(" ")
    assert float(digits) * SCALE[unit] == pytest.approx(value, rel=5.01e-3)
    assert 0.9995 <= float(digits) < 1000 or unit == "s"


@given(st.floats(1000.0, 1e15))
def test_a_size_reads_back_within_half_a_per_cent(value: float) -> None:
    digits, unit = size(value).split(" ")
    assert float(digits) * SCALE[unit] == pytest.approx(value, rel=5.01e-3)


@given(st.floats(1e-6, 1e6))
def test_figures_are_plain_decimals(value: float) -> None:
    text = figures(value)
    assert re.fullmatch(r"\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(value, rel=5.01e-3)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (seconds(0.9999), "1.00 s"),
        (seconds(math.inf), "unlimited"),
        (seconds(math.nan), "-"),
        (seconds(119.9), "120 s"),
        (seconds(3661), "61 min 01 s"),
        (seconds(-0.01), "-10.0 ms"),
        (size(999.0), "999 B"),
        (size(math.inf), "unlimited"),
        (rate(math.inf), "unlimited"),
        (percent(-0.0001, signed=True), "0 %"),
        (percent(0.0996), "10 %"),
        (percent(-0.25, signed=True), "-25 %"),
        (percent(math.inf), "unlimited"),
        (times(math.nan), "-"),
    ],
)
def test_numbers(text: str, wanted: str) -> None:
    assert text == wanted


def test_a_table_has_one_unit_a_column_and_its_points_below_each_other() -> None:
    lines = table([("what", "text"), ("time", "s"), ("size", "bytes")], [["a", 0.4, 3e6], ["bb", 0.0123, None]]).split(
        "\n"
    )
    assert lines[0].split() == ["what", "time", "/", "ms", "size", "/", "MB"]
    assert lines[2].index("400") + 3 == lines[3].index("12.3") + 2
    assert lines[3].rstrip().endswith("-")
    assert len({len(line) for line in lines}) == 1


def test_a_table_without_rows_is_its_head() -> None:
    assert table([("what", "text"), ("time", "s")], []).split("\n")[0].split() == ["what", "time", "/", "s"]


def test_facts_stand_in_one_column() -> None:
    assert facts([("a", "1"), ("long", "2")]) == "a     1\nlong  2"
    assert facts([]) == ""


@given(st.floats(1e-6, 1e6), st.integers(1, 40))
def test_steps_are_round_and_few(span: float, most: int) -> None:
    step = nice_step(span, most)
    assert span / step <= most * (1 + 1e-6)
    assert f"{step:.0e}"[0] in "125"


@pytest.mark.parametrize("width", [60, 100, 137])
def test_the_drawing_fits_its_width_and_shows_every_device_and_link(width: int) -> None:
    story = make_story(3, 6)
    assert story.predicted is not None
    lines = draw(story.predicted, width).split("\n")
    assert max(map(len, lines)) <= width
    used = {story.predicted.queues[q] for q in story.predicted.queue}
    assert {line.split(" ")[0] for line in lines if "│" in line} == used
    first = next(line for line in lines if line.startswith("cpu0 "))
    assert "░" in first
    assert "▒" in first
    assert first.endswith("%")


def test_the_drawing_is_true_to_time() -> None:
    build = Builder(["cpu0"])
    build.add(Op.COMPUTE, "cpu0", Piece("F0", "forward", 0), 0)
    build.add(Op.COMPUTE, "cpu0", Piece("B0", "backward", 0), 0)
    line = Timeline.of(build.program(), np.array([0.0, 0.5]), np.array([0.25, 1.0]))
    lane = draw(line, 54).split("\n")[0].split("│")[1]
    assert len(lane) == 40
    assert lane == "0" + "░" * 9 + " " * 10 + "0" + "▒" * 19


def test_receiving_is_no_work() -> None:
    story = make_story(2, 4)
    assert story.measured is not None
    t = story.measured
    for q in range(t.devices):
        works = [k for k in range(len(t)) if t.queue[k] == q and look(t.kind[k]) in ("forward", "backward", "update")]
        wanted = sum(float(t.end_s[k] - t.start_s[k]) for k in works) / t.duration_s
        assert t.busy_share()[t.queues[q]] == pytest.approx(wanted)
