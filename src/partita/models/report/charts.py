"""The pictures of a performance model: predicted against measured, what is left over, the learning curve. Values to SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.page.bars import NARROW, minus
from partita.page.markup import Scale, number, tag, words
from partita.page.text import count, percent

BAND = 0.1  #: shaded: predictions within this share of the measured value
MOST_POINTS = 2500  #: beyond, every second row is drawn, or every third ..
APART = 56.0  #: pixels between two labels of the learning curve
BINS = 12  #: of the running median
LEFT, RIGHT = 54.0, NARROW - 10.0


@dataclass(frozen=True, slots=True)
class Point:
    """A held-out row."""

    tip: int  #: its place in the page's data
    measured: float
    predicted: float
    low: float
    high: float
    group: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Cloud:
    """All points that are drawn, by group."""

    points: tuple[Point, ...]
    groups: tuple[str, ...]

    @staticmethod
    def of(rows: Sequence[Mapping[str, Any]]) -> Cloud:
        """Points that have a place on a logarithmic axis; groups in numeric order. `tip` is the place in `rows`."""
        groups = sorted({str(r["group"]) for r in rows}, key=lambda g: (_as_number(g), g))
        points = [
            Point(i, r["measured"], r["predicted"], r["low"], r["high"], groups.index(str(r["group"])))
            for i, r in enumerate(rows)
            if r["measured"] > 0 and r["predicted"] > 0
        ]
        return Cloud(tuple(points), tuple(groups))

    @property
    def every(self) -> int:
        """One point in so many is drawn."""
        return -(-len(self.points) // MOST_POINTS) or 1

    def of_group(self, group: int) -> list[Point]:
        return [p for p in self.points if p.group == group]


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def colour(group: int, groups: int) -> str:
    """The colour of a group as a style: from one end of a scale to the other."""
    at = 2 * group / (groups - 1) if groups > 1 else 0.0
    ends = ("--low", "--middle") if at <= 1 else ("--middle", "--high")
    return f"--c:color-mix(in oklab,var({ends[1]}) {100 * (at if at <= 1 else at - 1):.0f}%,var({ends[0]}))"


def swatches(cloud: Cloud, what: str) -> str:
    """Which colour is which group, above both pictures."""
    if len(cloud.groups) < 2:
        return ""
    keys = [
        tag("span", tag("i", class_="swatch group", style=colour(k, len(cloud.groups))), words(g), class_="key")
        for k, g in enumerate(cloud.groups)
    ]
    return tag("p", tag("span", words(what), class_="quiet"), *keys, class_="legend")


# ---------------------------------------------------------------------------------------------- logarithmic axes


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Round values on a logarithmic axis: as many in every decade as fit, else powers of ten.

    >>> log_ticks(90.0, 1100.0, 6), log_ticks(0.5, 2e6, 4)
    ([100.0, 200.0, 300.0, 500.0, 1000.0], [1.0, 100.0, 10000.0, 1000000.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**k for k in decades for m in steps if low <= m * 10.0**k <= high]
        if len(found) <= most:
            return found
    return found[:: -(-len(found) // most)]


def _extent(values: Sequence[float]) -> tuple[float, float]:
    """Logarithms of the ends of an axis, a little beyond the values."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.04 * (high - low), 0.03)
    return low - margin, high + margin


def _label(value: float) -> str:
    return count(value) if value >= 1000 else f"{value:g}"


def _log_axis(x: Scale, top: float, bottom: float, title: str) -> str:
    """A horizontal logarithmic axis below a picture."""
    parts = []
    for v in log_ticks(10**x.low, 10**x.high, 6):
        at = x(math.log10(v))
        parts.append(tag("line", class_="grid", x1=at, x2=at, y1=top, y2=bottom))
        parts.append(tag("text", _label(v), class_="axis", x=at, y=bottom + 18, text_anchor="middle"))
    parts.append(tag("text", words(title), class_="axis", x=x.end, y=bottom + 38, text_anchor="end"))
    return "".join(parts)


# ------------------------------------------------------------------------------------------ predicted and measured


def scatter(cloud: Cloud, unit: str) -> str:
    """Predicted over measured, both logarithmic, with the diagonal; intervals as whiskers."""
    if not cloud.points:
        return ""
    low, high = _extent([v for p in cloud.points for v in (p.measured, p.predicted)])
    top = 24.0
    bottom = top + RIGHT - LEFT
    x, y = Scale(low, high, LEFT, RIGHT), Scale(low, high, bottom, top)
    shown = cloud.points[:: cloud.every]
    parts = [_diagonal_band(x, y), _log_axis(x, top, bottom, _titled("measured", unit))]
    for v in log_ticks(10**low, 10**high, 6):
        at = y(math.log10(v))
        parts.append(tag("line", class_="grid", x1=LEFT, x2=RIGHT, y1=at, y2=at))
        parts.append(tag("text", _label(v), class_="axis", x=LEFT - 9, y=at + 4, text_anchor="end"))
    parts.append(tag("text", words(_titled("predicted", unit)), class_="axis", x=0, y=12))
    parts.append(tag("line", class_="zero", x1=LEFT, y1=bottom, x2=RIGHT, y2=top))
    parts += [_whiskers([p for p in shown if p.group == k], x, y, k, cloud) for k in range(len(cloud.groups))]
    parts.append(_dots(cloud, shown, lambda p: (x(math.log10(p.measured)), y(math.log10(p.predicted)), False)))
    if cloud.every > 1:
        parts.append(tag("text", f"one row in {cloud.every} drawn", class_="axis", x=LEFT, y=bottom + 38))
    return tag("svg", *parts, viewBox=f"0 0 {NARROW} {bottom + 46:g}", class_="chart", id="scatter")


def _titled(what: str, unit: str) -> str:
    return f"{what} ({unit})" if unit else what


def _diagonal_band(x: Scale, y: Scale) -> str:
    """Where a prediction is within the band, cut at the edges of the picture."""
    up, down, low, high = math.log10(1 + BAND), math.log10(1 - BAND), x.low, x.high
    corners = [(low, low), (low, low + up), (high - up, high), (high, high), (high, high + down), (low - down, low)]
    return tag("polygon", class_="band", points=" ".join(f"{number(x(a))},{number(y(b))}" for a, b in corners))


def _whiskers(points: Sequence[Point], x: Scale, y: Scale, group: int, cloud: Cloud) -> str:
    """All intervals of a group as one path."""
    if not points:
        return ""
    path = "".join(
        f"M{number(x(math.log10(p.measured)))} {number(y.clamped(_log(p.low, y)))}V{number(y.clamped(_log(p.high, y)))}"
        for p in points
    )
    faint = f";stroke-opacity:{min(0.5, max(0.1, 90 / len(points))):.2f}"  # many on top of each other
    return tag("path", class_="interval", d=path, style=colour(group, len(cloud.groups)) + faint)


def _log(value: float, scale: Scale) -> float:
    return math.log10(value) if value > 0 else scale.low


def _dots(cloud: Cloud, shown: Sequence[Point], place: Any) -> str:
    """A circle a point; `place(point)` gives x, y and whether it lies outside."""
    parts = []
    for k in sorted(range(len(cloud.groups)), key=lambda k: -len(cloud.of_group(k))):  # small groups on top
        circles = []
        for p in shown:
            if p.group == k:
                cx, cy, out = place(p)
                circles.append(tag("circle", cx=cx, cy=cy, r=2.6, data_i=p.tip, class_="out" if out else None))
        parts.append(tag("g", *circles, class_="dots", style=colour(k, len(cloud.groups))))
    return "".join(parts)


# ------------------------------------------------------------------------------------------------------ residuals


def reach_of(errors: Sequence[float]) -> float:
    """Half the height of an error axis: 98 % of the errors, at least 15 %, at most 100 %."""
    return float(np.clip(1.15 * np.quantile(np.abs(errors), 0.98), 0.15, 1.0))


def residuals(cloud: Cloud, unit: str) -> str:
    """The error of every row over its measured value, with a running median."""
    if not cloud.points:
        return ""
    low, high = _extent([p.measured for p in cloud.points])
    reach = reach_of([p.error for p in cloud.points])
    top, bottom = 24.0, 270.0
    x, y = Scale(low, high, LEFT, RIGHT), Scale(-reach, reach, bottom, top)
    inner = min(BAND, reach)
    parts = [
        tag("rect", class_="band", x=LEFT, y=y(inner), width=RIGHT - LEFT, height=y(-inner) - y(inner)),
        _log_axis(x, top, bottom, _titled("measured", unit)),
        tag("text", "predicted too long", class_="axis", x=0, y=12),
    ]
    for v in y.ticks(6):
        parts.append(tag("line", class_="zero" if v == 0 else "grid", x1=LEFT, x2=RIGHT, y1=y(v), y2=y(v)))
        parts.append(tag("text", error_label(v), class_="axis", x=LEFT - 9, y=y(v) + 4, text_anchor="end"))
    shown = cloud.points[:: cloud.every]
    parts.append(
        _dots(cloud, shown, lambda p: (x(math.log10(p.measured)), y.clamped(p.error), not -reach <= p.error <= reach))
    )
    parts.append(_running_median(cloud.points, x, y))
    return tag("svg", *parts, viewBox=f"0 0 {NARROW} {bottom + 46:g}", class_="chart", id="residuals")


def error_label(value: float) -> str:
    """An error at a tick.

    >>> error_label(0.1), error_label(-0.05), error_label(0.0)
    ('+10 %', '−5 %', '0')
    """
    return "0" if value == 0 else minus(f"{100 * value:+.3g}") + " %"


def _running_median(points: Sequence[Point], x: Scale, y: Scale) -> str:
    """The median error of equally many rows at a time; nothing where there are too few for that."""
    ordered = sorted(points, key=lambda p: p.measured)
    if len(ordered) < 8 * BINS:
        return ""
    parts = [ordered[k * len(ordered) // BINS : (k + 1) * len(ordered) // BINS] for k in range(BINS)]
    at = [
        (float(np.median([math.log10(p.measured) for p in b])), float(np.median([p.error for p in b]))) for b in parts
    ]
    path = "M" + "L".join(f"{number(x(a))} {number(y.clamped(b))}" for a, b in at)
    return tag("path", class_="running halo", d=path) + tag("path", class_="running", d=path)


def by_group(cloud: Cloud, what: str) -> str:
    """The errors of every group: half of the rows in the box, nine in ten on the line; to the right the mean size."""
    if len(cloud.groups) < 2 or not cloud.points:
        return ""
    reach = reach_of([p.error for p in cloud.points])
    top, pitch, left, right = 24.0, 30.0, 112.0, NARROW - 108.0
    x, bottom = Scale(-reach, reach, left, right), top + pitch * len(cloud.groups)
    inner = min(BAND, reach)
    parts = [
        tag("rect", class_="band", x=x(-inner), y=top, width=x(inner) - x(-inner), height=bottom - top),
        tag("text", words(what) if len(what) <= 8 else "", class_="axis", x=0, y=12),
        tag("text", "rows", class_="axis", x=left - 12, y=12, text_anchor="end"),
        tag("text", "mean error", class_="axis", x=NARROW, y=12, text_anchor="end"),
    ]
    for v in x.ticks(5):
        parts.append(tag("line", class_="zero" if v == 0 else "grid", x1=x(v), x2=x(v), y1=top, y2=bottom))
        parts.append(tag("text", error_label(v), class_="axis", x=x(v), y=bottom + 18, text_anchor="middle"))
    for k, name in enumerate(cloud.groups):
        parts.append(_box(name, cloud.of_group(k), x, top + pitch * (k + 0.5), colour(k, len(cloud.groups))))
    return tag("svg", *parts, viewBox=f"0 0 {NARROW} {bottom + 26:g}", class_="chart", id="groups")


def _box(name: str, points: Sequence[Point], x: Scale, y: float, style: str) -> str:
    short = name if len(name) <= 12 else name[:11] + "…"
    parts = [tag("text", words(short), class_="name", x=0, y=y + 4)]
    if points:
        errors = [p.error for p in points]
        a, b, c, d, e = (x.clamped(float(q)) for q in np.quantile(errors, [0.05, 0.25, 0.5, 0.75, 0.95]))
        parts += [
            tag("line", class_="reach", x1=a, x2=e, y1=y, y2=y),
            tag("rect", class_="half", x=b, y=y - 7, width=max(d - b, 1.0), height=14, rx=1),
            tag("line", class_="median", x1=c, x2=c, y1=y - 10, y2=y + 10),
            tag("text", count(len(points)), class_="axis", x=x.start - 12, y=y + 4, text_anchor="end"),
            tag("text", percent(float(np.mean(np.abs(errors)))), class_="value", x=NARROW, y=y + 4, text_anchor="end"),
        ]
    return tag("g", *parts, style=style)


# ------------------------------------------------------------------------------------------------- learning curve


def learning_curve(curve: Sequence[Mapping[str, Any]]) -> str:
    """The error on the held-out rows over the number of rows fitted to."""
    known = sorted((c["rows"], c["mape_percent"] / 100) for c in curve if c["rows"] > 0)
    if len(known) < 2:
        return ""
    low, high = _extent([r for r, _ in known])
    top, bottom, left = 24.0, 210.0, LEFT
    x, y = Scale(low, high, left, RIGHT), Scale(0.0, 1.18 * max(m for _, m in known) or 1.0, bottom, top)
    parts = [tag("text", "mean error", class_="axis", x=0, y=12)]
    for v in y.ticks(5):
        parts.append(tag("line", class_="zero" if v == 0 else "grid", x1=left, x2=RIGHT, y1=y(v), y2=y(v)))
        parts.append(tag("text", "0" if v == 0 else f"{100 * v:.3g} %", class_="axis", x=left - 9, y=y(v) + 4, text_anchor="end"))  # fmt: skip
    at = [(x(math.log10(r)), y(m)) for r, m in known]
    parts.append(tag("path", class_="loss", d="M" + "L".join(f"{number(a)} {number(b)}" for a, b in at)))
    last = -math.inf
    for (a, b), (rows, mape) in zip(at, known, strict=True):
        parts.append(tag("circle", class_="knot", cx=a, cy=b, r=4))
        if a - last < APART:
            continue
        last = a
        parts.append(tag("text", percent(mape), class_="value halo", x=a, y=b - 12, text_anchor="middle"))
        parts.append(tag("text", count(rows), class_="axis", x=a, y=bottom + 18, text_anchor="middle"))
    parts.append(tag("text", "rows fitted to", class_="axis", x=RIGHT, y=bottom + 38, text_anchor="end"))
    return tag("svg", *parts, viewBox=f"0 0 {NARROW} {bottom + 46:g}", class_="chart", id="learning")
