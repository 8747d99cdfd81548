"""A page's main picture: timelines one above the other on the same axis.

Spans are drawn in milliseconds along x and pixels along y; the page's script adds ticks and numbers, and zooms by moving
the view box alone, so that thousands of spans cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.nouns.timeline import Timeline
from partita.page.markup import tag, words

MOST_SPANS = 12_000  #: of one timeline on the page; beyond, the shortest are left out, and the page says so


@dataclass(frozen=True, slots=True)
class Lane:
    """One queue's strip in a panel."""

    queue: int
    name: str
    top: float
    height: float
    device: bool


@dataclass(frozen=True)
class Panel:
    """One timeline and where it is drawn."""

    title: str  #: "Predicted" or "Measured"
    timeline: Timeline  #: begins at 0
    top: float  #: of the title
    lanes: tuple[Lane, ...]

    @property
    def bottom(self) -> float:
        return max((lane.top + lane.height for lane in self.lanes), default=self.top)


@dataclass(frozen=True, slots=True)
class Mark:
    """How a span is drawn."""

    look: str  #: its class
    row: int  #: of the page's data that the pointer shows
    style: str | None = None
    thin: bool = False  #: a line in the lane's middle


ZOOM = '<span class="screen">Drag to zoom; click, then use the wheel; double-click to see everything again.</span>'
TITLE, GAP = 30.0, 26.0  #: pixels: a panel's title line; between two panels


def frame(panels: Sequence[Panel], spans: str, what: str) -> tuple[str, dict[str, Any]]:
    """The picture around spans that are drawn already, and what the script needs to know of it besides "rows".

    `what` the timelines are of, for readers who do not see them.
    """
    height = panels[-1].bottom + 34
    width_ms = 1e3 * max(p.timeline.duration_s for p in panels) * 1.015 or 1.0
    plot = tag(
        "div",
        tag("svg", spans, class_="spans", viewBox=f"0 0 {width_ms:.4f} {height:g}", preserveAspectRatio="none", height=height),
        tag("svg", "", class_="over", height=height),
        class_="plot",
        tabindex=0,
        role="img",
        aria_label=" and ".join(p.title for p in panels) + f" timeline of {what} on one time axis",
    )  # fmt: skip
    names = tag("div", *(_names(p) for p in panels), class_="names")
    data = {"span": round(width_ms, 4), "height": height, "panels": [_panel_data(p) for p in panels]}
    return tag("div", names, plot, class_="timelines", id="timelines", style=f"height:{height:g}px"), data


def rectangles(panel: Panel, mark: Callable[[int], Mark]) -> str:
    """The lanes of a panel and its longest spans in them; x in ms. `mark` says how a span is drawn."""
    t = panel.timeline
    length = t.end_s - t.start_s
    keep = np.zeros(len(t), np.bool_)
    keep[np.argsort(-length, kind="stable")[:MOST_SPANS]] = True
    parts = []
    for lane in panel.lanes:
        parts.append(_rectangle("lane", 0.0, t.duration_s, lane.top, lane.height))
        for k in np.flatnonzero((t.queue == lane.queue) & keep & (length > 0)).tolist():
            how = mark(k)
            top, height = (lane.top + lane.height / 2 - 2, 4.0) if how.thin else (lane.top, lane.height)
            more = f' style="{how.style}"' * (how.style is not None) + f' data-i="{how.row}"'
            parts.append(_rectangle(how.look, float(t.start_s[k]), float(length[k]), top, height, more))
    return "".join(parts)


def _rectangle(look: str, start_s: float, length_s: float, top: float, height: float, more: str = "") -> str:
    """By hand, since there may be thousands."""
    x, width = f"{1e3 * start_s:.4f}", f"{1e3 * length_s:.4f}"
    return f'<rect class="{look}"{more} x="{x}" y="{top:g}" width="{width}" height="{height:g}"/>'


def _panel_data(p: Panel) -> dict[str, Any]:
    return {"name": p.title, "top": p.top, "bottom": p.bottom, "end": round(1e3 * p.timeline.duration_s, 4)}


def _names(panel: Panel) -> str:
    title = tag(
        "div",
        tag("b", words(panel.title)),
        class_="panel",
        style=f"top:{panel.top:g}px",
    )
    lanes = "".join(
        tag(
            "div", words(lane.name), class_="device" if lane.device else "link",
            style=f"top:{lane.top:g}px;height:{lane.height:g}px;line-height:{lane.height:g}px",
        )
        for lane in panel.lanes
    )  # fmt: skip
    return title + lanes
