"""Bars, signs and pairs of numbers that all pages share."""

from __future__ import annotations

from collections.abc import Sequence

from partita.page.markup import tag, words
from partita.page.sheet import cells, framed
from partita.page.text import NOTHING, figures, percent

NARROW, WIDE = 520, 1080  #: pixels: the two widths a picture is drawn for


def bar(share: float, *, tick: float | None = None, low: float | None = None, high: float | None = None, main: bool = True) -> str:  # fmt: skip
    """A bar of a share of the track; a tick where the prediction is, a whisker from low to high."""
    parts = [tag("i", class_="fill" if main else "fill rest", style=f"width:{_share(share)}")]
    if low is not None and high is not None and high > low:
        parts.append(tag("i", class_="whisker", style=f"left:{_share(low)};width:{_share(high - low)}"))
    if tick is not None:
        parts.append(tag("i", class_="tick", style=f"left:{_share(tick)}"))
    return tag("div", *parts, class_="bar")


def _share(x: float) -> str:
    return f"{100 * min(max(x, 0.0), 1.0):.2f}%"


def minus(text: str) -> str:
    """A minus sign as typesetters write it."""
    return text.replace("-", "−") if text[:1] == "-" and text != NOTHING else text


def busy(shares: Sequence[tuple[str, float | None, float | None]]) -> str:
    """Busy share of each device: (name, predicted, measured)."""
    if not shares:
        return ""
    if all(m is None for _, _, m in shares):
        classes = ["", "wide", "n"]
        rows = [cells([words(d), bar(p or 0.0), percent(p or 0.0)], classes) for d, p, _ in shares]
        return framed(["", "", "predicted"], classes, rows, "bars")
    classes = ["", "wide", "n", "n"]
    rows = [
        cells([words(d), bar(m or 0.0, tick=p), tag("b", percent(m or 0.0)), "" if p is None else percent(p)], classes)
        for d, p, m in shares
    ]
    return framed(["", "measured; tick: predicted", "measured", "predicted"], classes, rows, "bars")


def bottleneck(shares: Sequence[tuple[str, float | None, float | None]], of: str) -> str:
    """What the bars of `busy` are a share of, and which is the longest: measured where that is known; "" without any."""
    known = [(name, min(p or 0.0 if m is None else m, 1.0)) for name, p, m in shares]
    if not known:
        return ""
    name, share = max(known, key=lambda s: s[1])
    return f"Share of {of}. The bottleneck is {words(name)}, idle {percent(1 - share)} of the time."


def pair_ms(predicted: float | None, measured: float | None) -> str:
    """Measured in bold after predicted, in ms."""
    one = "" if predicted is None else figures(1e3 * predicted)
    two = "" if measured is None else tag("b", figures(1e3 * measured))
    return f"{tag('span', one, class_='quiet')} → {two}" if one and two else one or two
