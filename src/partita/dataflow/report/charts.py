"""The pictures of a run: tasks a worker, memory over time, what was predicted as it went. Values to SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from partita.dataflow.report.story import FlowStory, held, stepped
from partita.page.bars import NARROW
from partita.page.markup import Scale, number, tag, words
from partita.page.palette import colour, shade
from partita.page.text import seconds, size
from partita.page.timelines import TITLE, Lane, Mark, Panel, frame, rectangles

LEFT, RIGHT, HEIGHT = 62.0, NARROW - 8.0, 210.0


def gantt(story: FlowStory) -> tuple[str, dict[str, Any]]:
    """Tasks as a row a worker; those of one step look alike."""
    t = story.timeline
    if not len(t):
        return "", {}
    height = 26.0 if len(t.queues) <= 8 else 15.0
    lanes = tuple(Lane(q, name, TITLE + q * (height + 5.0), height, True) for q, name in enumerate(t.queues))
    panel = Panel("Workers", t, 0.0, lanes)
    drawn, data = frame([panel], rectangles(panel, partial(_mark, story)), "tasks")
    return drawn, data | {"rows": [[0, -1] for _ in story.ran], "tips": [_tip(story, k) for k in range(len(story.ran))]}


def _mark(story: FlowStory, k: int) -> Mark:
    step, state = int(story.timeline.micro_batch[k]), story.ran[k].state
    look = state if state in ("failed", "cached") else shade(step, len(story.labels))
    return Mark(look, k, colour(step, len(story.labels)))


def _tip(story: FlowStory, k: int) -> tuple[str, list[tuple[str, str]]]:
    """What stands beside the pointer over a task."""
    task = story.ran[k]
    rows = [(name, str(option)[:60]) for name, option in list(task.options.items())[:8]]
    rows += [("took", seconds((task.ended_s or 0.0) - (task.started_s or 0.0))), ("result", size(task.bytes))]
    if task.runs > 1:
        rows.append(("computed", f"{task.runs} times"))
    if task.state != "run":
        rows.append((task.state, task.reason[:60]))
    return task.label, rows


def legend(story: FlowStory) -> str:
    """The colour of each step, where they are few."""
    if len(story.labels) > 14:
        return ""
    steps = len(story.labels)
    keys = [tag("span", tag("i", class_="swatch group", style=colour(k, steps)), words(label), class_="key") for k, label in enumerate(story.labels)]  # fmt: skip
    return tag("p", *keys, class_="legend")


def memory(story: FlowStory) -> str:
    """Bytes of results held, over time, with the peak."""
    points = held(story.run)
    top = max((b for _, b in points), default=0.0)
    if top <= 0:
        return ""
    end = max(story.run.seconds, points[-1][0]) or 1.0
    corners = stepped([*points, (end, points[-1][1])])
    x, y = Scale(0.0, end, LEFT, RIGHT), Scale(0.0, top * 1.12, HEIGHT - 26.0, 10.0)
    line = " ".join(f"{number(x(t))},{number(y(b))}" for t, b in corners)
    at = next(t for t, b in points if b == top)
    anchor = "start" if x(at) < (LEFT + RIGHT) / 2 else "end"
    parts = [
        tag(
            "polygon",
            points=f"{number(x(0.0))},{number(y(0.0))} {line} {number(x(end))},{number(y(0.0))}",
            class_="area",
        ),
        tag("polyline", points=line, class_="loss"),
        tag("circle", cx=x(at), cy=y(top), r=4.0, class_="peak"),
        tag(
            "text",
            words(size(top)),
            x=x(at) + (9 if anchor == "start" else -9),
            y=y(top) + 4,
            text_anchor=anchor,
            class_="value halo",
        ),
    ]
    return _framed(x, y, size, parts, f"memory over time, at most {size(top)}")


def prediction(story: FlowStory) -> str:
    """How long the whole would take, as seen while it ran, and how long it took."""
    seen = [(p[0], p[1]) for p in story.run.predictions if 0 <= p[0] <= story.run.seconds]
    if len(seen) < 2:
        return ""
    took = story.run.seconds
    top = max(took, sorted(s for _, s in seen)[int(0.97 * (len(seen) - 1))]) * 1.15
    x, y = Scale(0.0, took or 1.0, LEFT, RIGHT), Scale(0.0, top or 1.0, HEIGHT - 26.0, 10.0)
    line = " ".join(f"{number(x(t))},{number(y.clamped(s))}" for t, s in seen)
    low, high = y.clamped(took * 1.15), y(took * 0.85)
    parts = [
        tag("rect", x=LEFT, y=low, width=RIGHT - LEFT, height=high - low, class_="band"),
        tag("line", x1=LEFT, x2=RIGHT, y1=y(took), y2=y(took), class_="cut"),
        tag("polyline", points=line, class_="loss"),
        tag(
            "text", words(f"took {seconds(took)}"), x=RIGHT, y=y(took) - 7, text_anchor="end", class_="value halo line1"
        ),
    ]
    return _framed(x, y, seconds, parts, f"predicted total while it ran; it took {seconds(took)}")


def _framed(x: Scale, y: Scale, unit: Callable[[float], str], parts: Sequence[str], what: str) -> str:
    """Axes around a picture: time below, a unit at the left."""
    grid = [tag("line", x1=LEFT, x2=RIGHT, y1=y(v), y2=y(v), class_="grid") for v in y.ticks(4)]
    left = [
        tag("text", words(unit(v) if v else "0"), x=LEFT - 8, y=y(v) + 4, text_anchor="end", class_="axis")
        for v in y.ticks(4)
    ]
    ticks = x.ticks(5)
    below = [tag("text", words(seconds(v) if v else "0"), x=x(v), y=HEIGHT - 6, text_anchor="start" if k == 0 else "end" if x(v) > RIGHT - 30 else "middle", class_="axis") for k, v in enumerate(ticks)]  # fmt: skip
    return tag(
        "svg",
        *grid,
        *parts[:1],
        *left,
        *below,
        *parts[1:],
        class_="chart",
        viewBox=f"0 0 {NARROW} {number(HEIGHT)}",
        role="img",
        aria_label=what,
    )


def score_bar(story: FlowStory, score: float | None, kept: bool) -> str:
    """A bar from the lowest score of the run to the highest."""
    low, high = story.scores
    if score is None or score != score:
        return tag("div", class_="bar none")
    floor = (
        0.0 if 0 <= low <= 0.6 * high else low - 0.08 * (high - low or 1.0)
    )  # from 0 where that shows the differences
    share = (score - floor) / ((high - floor) or 1.0)
    width = f"width:{100 * min(max(share, 0.0), 1.0):.2f}%"
    return tag("div", tag("i", class_="fill" if kept else "fill rest", style=width), class_="bar")
