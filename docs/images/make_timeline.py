"""Draw a run's predicted timeline above its measured one, as one SVG that stands alone and suits light and dark pages.

    python docs/images/make_timeline.py RUN_DIR [-o docs/images/timeline.svg]
    python docs/images/make_timeline.py predicted.json measured.json

The figure is the report's own (`partita.pipeline.report.timelines.figure`), taken apart and painted with colours that need no page
around them: mid-tones, no background, no script.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.nouns.timeline import Timeline
from partita.page.markup import Scale, tag, words
from partita.page.text import seconds
from partita.pipeline.report.story import Story
from partita.pipeline.report.timelines import figure

LEFT, WIDTH, BOTTOM = 88.0, 1000.0, 24.0  #: pixels: room for the names; of the picture; for the time axis
TEXT, LANE = "#7d8590", "#7d859018"
PAINT = {
    "forward": "#3f7cc4",
    "backward": "#e5a544",
    "update": "#8a63d2",
    "transfer": "#8793a1",
    "handling": "#8793a1",
    "other": "#6d8fb8",
}
ON = {"forward": "#ffffff", "backward": "#3d2a06", "update": "#ffffff"}
LEGEND = (("forward", "forward"), ("backward", "backward"), ("update", "update"), ("transfer", "message"))
FONT = "-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
NARROWEST_NUMBER = 13.0  #: pixels that a span must have to carry its micro-batch's number


@dataclass(frozen=True)
class Figure:
    """The report's figure as values."""

    names: tuple[ET.Element, ...]
    spans: tuple[ET.Element, ...]
    data: dict[str, Any]
    x: Scale  #: milliseconds -> pixels


def taken_apart(story: Story) -> Figure:
    """The report's own figure of a story. Raises SystemExit where the story has no timeline."""
    markup, data = figure(story)
    if not markup:
        raise SystemExit("no timeline to draw: give a run's folder, or predicted.json and measured.json")
    root = ET.fromstring(f"<figure>{markup}</figure>")
    names = tuple(e for e in root.iter("div") if e.get("class") in ("panel", "device", "link"))
    return Figure(names, tuple(root.iter("rect")), data, Scale(0.0, data["span"], LEFT, WIDTH))


def svg(story: Story) -> str:
    """The whole picture."""
    parts = taken_apart(story)
    height = parts.data["height"] - 34 + BOTTOM
    inner = [*map(_name, parts.names), *_ends(parts), *_legend(), *_axis(parts, height - BOTTOM)]
    for rect in parts.spans:
        inner += _span(rect, parts)
    title = "Predicted and measured timeline of one training step on one time axis"
    return tag(
        "svg", tag("title", title), *inner, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img", font_family=FONT, font_size=11, fill=TEXT,
    )  # fmt: skip


def _style(element: ET.Element) -> dict[str, float]:
    pairs = (rule.split(":") for rule in (element.get("style") or "").split(";") if rule)
    return {k: float(v.removesuffix("px")) for k, v in pairs}


def _name(element: ET.Element) -> str:
    """A panel's title, a device's name or a link's."""
    text, at, kind = "".join(element.itertext()), _style(element), element.get("class")
    if kind == "panel":
        return tag("text", words(text), x=0.0, y=at["top"] + 15, font_size=14, font_weight=600)
    small = kind == "link"
    return tag(
        "text",
        words(text),
        x=10.0 if small else 0.0,
        y=at["top"] + at["height"] / 2 + (3 if small else 4),
        font_size=9 if small else 12,
    )


def _span(rect: ET.Element, parts: Figure) -> list[str]:
    """One instruction as a rectangle, with its micro-batch's number where there is room; or a lane's ground."""
    kind, number = rect.get("class", ""), rect.get("data-i")
    x, y, w, h = (float(rect.get(k, "0")) for k in ("x", "y", "width", "height"))
    left, width = parts.x(x), parts.x(x + w) - parts.x(x)
    if number is None:
        return [tag("rect", x=left, y=y, width=width, height=h, fill=LANE)]
    drawn = [tag("rect", x=left, y=y, width=max(width - 0.8, 0.4), height=h, fill=PAINT[kind])]
    micro_batch = parts.data["rows"][int(number)][1]
    if kind in ON and micro_batch >= 0 and width >= NARROWEST_NUMBER:
        drawn.append(
            tag("text", str(micro_batch), x=left + width / 2, y=y + h / 2 + 4, fill=ON[kind], text_anchor="middle")
        )
    return drawn


def _ends(parts: Figure) -> list[str]:
    """How long each panel's step takes, beside its title."""
    panels = parts.data["panels"]
    return [
        tag("text", words(f"{seconds(p['end'] / 1e3)} a step"), x=LEFT, y=p["top"] + 15, font_size=14) for p in panels
    ]


def _legend() -> list[str]:
    drawn, x = [], WIDTH - 330
    for kind, word in LEGEND:
        drawn.append(tag("rect", x=x, y=6.0, width=10.0, height=10.0, fill=PAINT[kind]))
        drawn.append(tag("text", word, x=x + 15, y=15.0, font_size=12))
        x += 85
    return drawn


def _axis(parts: Figure, y: float) -> list[str]:
    ticks = parts.x.ticks(10)
    lines = [tag("line", x1=parts.x(t), x2=parts.x(t), y1=y - 2, y2=y + 3, stroke=TEXT) for t in ticks]
    return lines + [
        tag("text", f"{t:g}" + (" ms" if t == 0 else ""), x=parts.x(t), y=y + 15, text_anchor="middle") for t in ticks
    ]


def story_from(paths: list[str]) -> Story:
    """The story in a run's folder, or of two timeline files."""
    if len(paths) == 1:
        return Story.read(paths[0])
    predicted, measured = map(Timeline.read, paths)
    return Story("timeline", None, predicted, measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a run's folder, or two timelines")
    parser.add_argument("-o", "--out", default=str(Path(__file__).parent / "timeline.svg"), metavar="SVG")
    options = parser.parse_args()
    Path(options.out).write_text(svg(story_from(options.paths)) + "\n")


if __name__ == "__main__":
    main()
