"""A page's main picture: timelines one above the other on the same axis.

Spans are drawn in milliseconds along x and pixels along y; the page's script adds ticks and numbers, and zooms by moving
the view box alone, so that thousands of spans cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
