"""The page's smaller pictures and tables, each a function from values to markup; "" where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from partita.nouns.plan import Verdict
from partita.page.agreement import Event, relative_error
from partita.page.bars import NARROW, WIDE, bar, minus, pair_ms
from partita.page.markup import Scale, number, tag, words
from partita.page.sheet import cells, framed
from partita.page.spans import Look, look
from partita.page.text import count, figures, percent, seconds, size
from partita.pipeline.report.stages import StageRow
from partita.pipeline.report.story import PIPELINE, SINGLE, Engine, Story

KEY_ENGINES = "measured; tick: predicted; line: 10th to 90th percentile"
TRAINING = "training by this plan"
MOST_GROUPS = 24  #: more labels than this are put together by phase
MOST_DOTS = 800  #: a label; beyond, every second event is drawn, or every third ..


# ------------------------------------------------------------------------------------------------ tables with bars


def engines(story: Story) -> str:
    """Step time of every engine: bar, median with its range, prediction, error, speed-up over one process."""
    shown = [e for e in story.engines if e.measured_s is not None or e.predicted_s is not None]
    if not shown:
        return ""
    longest = max(x for e in shown for x in (e.measured_s, e.predicted_s, e.high_s) if x is not None)
    single = story.engine(SINGLE).measured_s
    classes = ["", "wide", "n", "n soft", "n", "n", "n"]
    heads = ["", KEY_ENGINES, "median", "10th to 90th percentile", "predicted", "error", "speed-up"]
    return framed(heads, classes, [_engine(e, longest, single, classes) for e in shown], "bars")


def _engine(e: Engine, longest: float, single: float | None, classes: Sequence[str]) -> str:
    def scaled(x: float | None) -> float | None:
        return None if x is None else x / longest

    spread = "" if e.low_s is None or e.high_s is None else _range(e.low_s, e.high_s)
    steps = "" if not e.steps else tag("span", f" {count(e.steps)} steps", class_="quiet")
    error = "" if e.measured_s is None or e.predicted_s is None else percent(e.predicted_s / e.measured_s - 1, signed=True)  # fmt: skip
    speed = "" if single is None or e.measured_s is None else f"{single / e.measured_s:.2f}×"
    name = tag("b" if e.key == PIPELINE else "span", words(e.name))
    values = [
        name + steps,
        bar(scaled(e.measured_s) or 0.0, tick=scaled(e.predicted_s), low=scaled(e.low_s), high=scaled(e.high_s), main=e.key == PIPELINE),
        "" if e.measured_s is None else tag("b", seconds(e.measured_s)),
        spread,
        "" if e.predicted_s is None else seconds(e.predicted_s),
        minus(error),
        speed,
    ]  # fmt: skip
    return cells(values, classes)


def _range(low_s: float, high_s: float) -> str:
    """Two times with one unit where they share it."""
    low, high = seconds(low_s), seconds(high_s)
    same = low.rsplit(" ", 1)[-1] == high.rsplit(" ", 1)[-1]
    return f"{low.rsplit(' ', 1)[0] if same else low} – {high}"


def alternatives(values: Mapping[str, float], verdict: Verdict | None) -> str:
    """Methods by their predicted step, the chosen one first among equals, and the lower bound as a tick on each bar."""
    values = {**values, verdict.method: verdict.value_s} if verdict else values
    if len(values) < 2:
        return ""
    longest = max(values.values()) or 1.0
    chosen = verdict.method if verdict else min(values, key=lambda k: values[k])
    bound = verdict.lower_bound_s / longest if verdict and 0 < verdict.lower_bound_s <= longest else None
    classes = ["", "wide", "n", "n"]
    rows = [
        cells(
            [
                tag("b" if name == chosen else "span", words(name)),
                bar(value / longest, tick=bound, main=name == chosen),
                tag("b" if name == chosen else "span", seconds(value)),
                "chosen" if name == chosen else minus(percent(relative_error(value, values[chosen]), signed=True)),
            ],
            classes,
        )
        for name, value in sorted(values.items(), key=lambda kv: (kv[1], kv[0] != chosen))
    ]
    return framed(
        ["", "tick: lower bound" if bound is not None else "", "predicted step", "against chosen"],
        classes,
        rows,
        "bars",
    )


# -------------------------------------------------------------------------------------------------------- stages


def cuts(rows: Sequence[StageRow]) -> str:
    """The model as one bar, a task as wide as its predicted time, with the cuts and what crosses each."""
    total = sum(sum(r.task_s) for r in rows)
    if len(rows) < 2 or not total > 0:
        return ""
    gap, top, tall = 5.0, 26.0, 40.0
    x = Scale(0.0, total, 0.0, WIDE - gap * (len(rows) - 1))
    parts: list[str] = []
    done = 0.0
    for k, row in enumerate(rows):
        left, right = x(done) + k * gap, x(done + sum(row.task_s)) + k * gap
        parts.append(tag("rect", class_="stage", x=left, y=top, width=right - left, height=tall, rx=2))
        parts += _task_lines(row, left, x, top, tall)
        parts.append(_stage_label(k, row, left, right, top, tall))
        if k:
            middle = left - gap / 2
            parts.append(tag("line", class_="cut", x1=middle, x2=middle, y1=top - 6, y2=top + tall + 6))
            parts.append(tag("text", words(size(row.crossing_bytes)), class_="value", x=middle, y=top - 11, text_anchor="middle"))  # fmt: skip
        done += sum(row.task_s)
    svg = tag("svg", *parts, viewBox=f"0 0 {WIDE} {top + tall + 26:g}", class_="chart strip")
    return tag("div", svg, class_="scroll")


def _task_lines(row: StageRow, left: float, x: Scale, top: float, tall: float) -> list[str]:
    """A hairline between every two tasks, but never closer than three pixels."""
    parts, at, last = [], 0.0, -9.0
    for task_s in row.task_s[:-1]:
        at += task_s
        here = left + x(at) - x(0.0)
        if here - last >= 3:
            parts.append(tag("line", class_="task", x1=here, x2=here, y1=top, y2=top + tall))
            last = here
    return parts


def _stage_label(k: int, row: StageRow, left: float, right: float, top: float, tall: float) -> str:
    """Over the bar the stage and its time, under it the first and the last task, where there is room."""
    room = right - left
    inside = f"stage {k} · {seconds(sum(row.task_s))}"
    parts = []
    if room > 6.4 * len(inside):
        parts.append(tag("text", words(inside), class_="name", x=left + 10, y=top + tall / 2 + 4.5))
    elif room > 16:
        parts.append(tag("text", str(k), class_="name", x=(left + right) / 2, y=top + tall / 2 + 4.5, text_anchor="middle"))  # fmt: skip
    if room > 6.2 * (len(row.first) + len(row.last) + 3):
        parts.append(tag("text", words(row.first), class_="axis", x=left, y=top + tall + 17))
        parts.append(tag("text", words(row.last), class_="axis", x=right, y=top + tall + 17, text_anchor="end"))
    return "".join(parts)


def stages(rows: Sequence[StageRow]) -> str:
    """The stages as a table, times a micro-batch in ms."""
    if not rows:
        return ""
    measured = any(r.forward[1] is not None or r.backward[1] is not None for r in rows)
    heads = ["stage", "device", "tasks", "from", "to", "parameters / MB", "sends on / MB", "forward / ms", "backward / ms"]  # fmt: skip
    classes = ["", "", "n", "code", "code", "n", "n", "n", "n"]
    if measured:
        heads, classes = [*heads, "error"], [*classes, "n"]
    body = [
        cells([*_stage_cells(k, r), *([minus(_error(r))] if measured else [])], classes) for k, r in enumerate(rows)
    ]
    return framed(heads, classes, body, "plain")


def _stage_cells(k: int, r: StageRow) -> list[str]:
    devices = ", ".join(r.devices) + (" · recomputes" if r.recompute else "")
    return [
        str(k),
        words(devices),
        count(r.tasks),
        words(r.first),
        words(r.last),
        figures(r.parameter_bytes / 1e6),
        figures(r.sends_bytes / 1e6) if r.sends_bytes else "",
        pair_ms(*r.forward),
        pair_ms(*r.backward),
    ]


def _error(r: StageRow) -> str:
    pairs = [p for p in (r.forward, r.backward) if p[0] is not None and p[1] is not None]
    predicted, measured = sum(p[0] or 0.0 for p in pairs), sum(p[1] or 0.0 for p in pairs)
    return percent(predicted / measured - 1, signed=True) if measured > 0 else ""


# ----------------------------------------------------------------------------------------------------- agreement


def errors(both: Sequence[Event], rows: Mapping[int, int]) -> str:
    """A dot an event, placed by its error, a line of dots a label; the band is 10 % either way.

    `rows` gives each instruction's row in the page's data."""
    groups = _grouped(both)
    if not groups:
        return ""
    reach = _reach([e for _, items in groups for e in items])
    left, right, top, pitch = 108.0, NARROW - 58.0, 10.0, 24.0 if len(groups) <= 16 else 17.0
    x = Scale(-reach, reach, left, right)
    bottom = top + pitch * len(groups)
    parts = [_error_frame(x, top, bottom, min(0.1, reach))]
    for k, (name, items) in enumerate(groups):
        parts.append(_error_row(name, items, x, top + pitch * (k + 0.5), pitch, rows))
    every = -(-max(len(items) for _, items in groups) // MOST_DOTS)
    if every > 1:
        parts.append(
            tag("text", f"one event in {every} drawn", class_="axis", x=x(0.0), y=bottom + 36, text_anchor="middle")
        )
    parts.append(tag("text", "prediction too short", class_="axis", x=left, y=bottom + 36))
    parts.append(tag("text", "too long", class_="axis", x=right, y=bottom + 36, text_anchor="end"))
    return tag("svg", *parts, viewBox=f"0 0 {NARROW} {bottom + 42:g}", class_="chart", id="errors")


def _grouped(both: Sequence[Event]) -> list[tuple[str, list[Event]]]:
    """Events by label, F0 F1 .. B0 B1 .. U0; by phase where there are too many labels."""
    few = len({e.label for e in both}) <= MOST_GROUPS
    found: dict[str, list[Event]] = {}
    for e in both:
        found.setdefault(e.label if few else look(e.kind), []).append(e)
    kinds = get_args(Look)

    def place(item: tuple[str, list[Event]]) -> tuple[int, int, str]:
        label, items = item
        number_ = int(label[1:]) if label[1:].isdigit() else 0
        return kinds.index(look(items[0].kind)), number_, label

    return sorted(found.items(), key=place)


def _reach(both: Sequence[Event]) -> float:
    """Half the width of the error axis: the events that make up 98 % of the time, at least 12 %, at most 60 %."""
    known = sorted((abs(e.error), e.measured_s) for e in both if math.isfinite(e.error))
    share = np.cumsum([s for _, s in known]) / (sum(s for _, s in known) or 1.0)
    widest = next((error for (error, _), done in zip(known, share, strict=True) if done >= 0.98), 0.0)
    return min(0.6, max(0.12, 1.15 * widest))


def _error_frame(x: Scale, top: float, bottom: float, band: float) -> str:
    parts = [tag("rect", class_="band", x=x(-band), y=top, width=x(band) - x(-band), height=bottom - top)]
    for v in x.ticks(6):
        parts.append(tag("line", class_="zero" if v == 0 else "grid", x1=x(v), x2=x(v), y1=top, y2=bottom))
        label = "0" if v == 0 else minus(f"{100 * v:+.3g}") + " %"
        parts.append(tag("text", label, class_="axis", x=x(v), y=bottom + 17, text_anchor="middle"))
    return "".join(parts)


def _error_row(
    name: str,
    items: Sequence[Event],
    x: Scale,
    y: float,
    pitch: float,
    rows: Mapping[int, int],
) -> str:
    """Dots spread a little up and down so that none hides another; the median as a tick, with its value."""
    known = [e for e in items if math.isfinite(e.error)]
    short = name if len(name) <= 16 else name[:15] + "…"
    parts = [tag("text", words(short), class_="name", x=0, y=y + 4)]
    every = -(-len(known) // MOST_DOTS)
    for k, e in enumerate(known[:: every or 1]):
        off = ((k * 0.618034) % 1.0 - 0.5) * (pitch - 12) if len(known) > 1 else 0.0
        kind = look(e.kind) + (" out" if abs(e.error) > x.high else "")
        parts.append(
            tag("circle", class_=kind, cx=x.clamped(e.error), cy=y + off, r=2.4, data_i=rows.get(e.instruction))
        )
    if known:
        longest = float(np.median([e.measured_s for e in known]))
        middle = float(np.median([e.error for e in known]))
        at = x.clamped(middle)
        parts.append(tag("text", words(seconds(longest)), class_="axis", x=100, y=y + 4, text_anchor="end"))
        parts.append(tag("line", class_="median", x1=at, x2=at, y1=y - pitch / 2 + 3, y2=y + pitch / 2 - 3))
        parts.append(tag("text", minus(percent(middle, signed=True)), class_="value", x=NARROW, y=y + 4, text_anchor="end"))  # fmt: skip
    return "".join(parts)


# ---------------------------------------------------------------------------------------------------------- loss


def losses(story: Story) -> str:
    """Loss over steps; runs whose losses agree are drawn on top of each other, with one label."""
    compared = sorted((e for e in story.engines if len(e.losses) > 1), key=lambda e: e.key == PIPELINE)
    shown = [*compared, *([Engine(TRAINING, losses=story.training)] if len(story.training) > 1 else [])]
    points = [(s, v) for e in shown for s, v in e.losses if math.isfinite(v)]
    if not points:
        return ""
    left, right, top, bottom = 40.0, NARROW - 8.0, 24.0, 236.0
    x = Scale(min(s for s, _ in points), max(s for s, _ in points), left, right)
    y = _loss_scale([v for _, v in points], top, bottom)
    parts = [frame("loss", x, y, left, right, bottom)]
    bundles = _bundles(shown)
    for k, bundle in enumerate(bundles):
        if len(bundle) > 1:
            parts.append(tag("path", class_="loss under", d=_path(bundle[0], x, y)))
        parts.append(tag("path", class_=f"loss line{k if len(bundles) > 1 else 0}", d=_path(bundle[-1], x, y)))
    parts += [_loss_label(bundle, k, x, y) for k, bundle in enumerate(bundles)]
    return tag("svg", *parts, viewBox=f"0 0 {NARROW} {bottom + 34:g}", class_="chart", id="losses")


def _path(e: Engine, x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{number(x(s))} {number(y.clamped(v))}" for s, v in e.losses if math.isfinite(v))


def _bundles(shown: Sequence[Engine]) -> list[list[Engine]]:
    """Runs whose losses agree within one in a thousand; the bundle with the training or the pipeline first."""
    bundles: list[list[Engine]] = []
    for e in shown:
        home = next((b for b in bundles if loss_difference(b[0], e) < 1e-3), None)
        bundles.append([e]) if home is None else home.append(e)
    return sorted(bundles, key=lambda b: all(e.key not in (PIPELINE, TRAINING) for e in b))


def _loss_scale(values: Sequence[float], top: float, bottom: float) -> Scale:
    """From zero where zero is near, else from just below the lowest."""
    low, high = min(values), max(values)
    base = 0.0 if 0 <= low < 0.5 * high else low - 0.06 * ((high - low) or 1.0)
    return Scale(base, high + 0.04 * ((high - base) or 1.0), bottom, top)


def frame(what: str, x: Scale, y: Scale, left: float, right: float, bottom: float) -> str:
    """Axes of `what` over steps."""
    parts = [
        tag("text", what, class_="axis", x=0, y=11),
        tag("text", "step", class_="axis", x=right, y=bottom + 28, text_anchor="end"),
    ]
    for v in y.ticks(5):
        parts.append(tag("line", class_="grid", x1=left, x2=right, y1=y(v), y2=y(v)))
        parts.append(tag("text", minus(f"{v:g}"), class_="axis", x=left - 10, y=y(v) + 4, text_anchor="end"))
    for v in [v for v in x.ticks(6) if v == int(v)]:
        near = x(v) > right - 40
        parts.append(
            tag("text", count(v), class_="axis", x=x(v), y=bottom + (14 if near else 17), text_anchor="middle")
        )
    return "".join(parts)


def _loss_label(bundle: Sequence[Engine], k: int, x: Scale, y: Scale) -> str:
    """The names of a bundle, above the middle of its line; the training's on a line of its own."""
    names = [e.name for e in bundle if e.key != TRAINING]
    lines = [TRAINING] if bundle[-1].key == TRAINING else []
    if names:
        lines.append(("= " if lines else "") + " = ".join(names))
    middle = len(bundle[-1].losses) // 2
    step, value = bundle[-1].losses[middle]
    left = min(x(step), x.end - 5.8 * max(map(len, lines)))
    here = [v for s, v in bundle[-1].losses if x(s) >= left and math.isfinite(v)]
    bottom = max(12.0 + 16 * (len(lines) - 1), y.clamped(max([*here, value])) - 12 - 18 * k)
    return "".join(
        tag("text", words(line), class_=f"name line{k}", x=left, y=bottom - 16 * (len(lines) - 1 - i))
        for i, line in enumerate(lines)
    )


def loss_difference(a: Engine, b: Engine) -> float:
    """The largest relative difference of the losses of the steps that both have; infinite where there are none.

    >>> loss_difference(Engine("a", losses=((0, 2.0),)), Engine("b", losses=((0, 2.0),)))
    0.0
    """
    there = dict(b.losses)
    pairs = [(v, there[s]) for s, v in a.losses if s in there and math.isfinite(v) and math.isfinite(there[s])]
    return max((abs(p - q) / max(abs(p), abs(q), 1e-30) for p, q in pairs), default=math.inf)
