"""The search's part of a run's report: every mapping tried, in order, phases, surrogates, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.mapping.report.history import History, Row, ending
from partita.page.markup import Scale, tag, words
from partita.page.sheet import cells, framed, section
from partita.page.text import count, percent, seconds

_WIDE, _TALL = 960.0, 220.0


def search_section(history: History) -> str:
    """The section; nothing where nothing was searched."""
    if not history.rows:
        return ""
    found = history.to_json()
    tables = _phases(found["phases"]) + (_surrogates(found["surrogates"]) if found.get("surrogates") else "")
    return section("The search", words(ending(found)), _picture(history.rows) + tables)


def _picture(rows: Sequence[Row]) -> str:
    """Measured seconds of each mapping, at the speed that was predicted, as a dot, what was predicted as a short line, and the
    best so far."""
    high = max(max(r.settled_s, r.predicted_s) for r in rows)
    x, y = Scale(0, len(rows) + 1, 48.0, _WIDE - 8), Scale(0.0, 1.05 * high, _TALL - 24, 16.0)
    parts = [
        tag("text", words("a step"), class_="axis", x=0, y=11),
        tag("text", words("mappings tried"), class_="axis", x=_WIDE - 8, y=_TALL - 4, text_anchor="end"),
    ]
    for value in (high, high / 2):
        parts.append(tag("text", words(seconds(value)), class_="tick", x=44, y=y(value) + 4, text_anchor="end"))
        parts.append(tag("line", class_="grid", x1=48, x2=_WIDE - 8, y1=y(value), y2=y(value)))
    best, line = float("inf"), []
    for k, r in enumerate(rows, 1):
        took, foreseen = r.settled_s, r.predicted_s
        best = min(best, took)
        line.append(f"{x(k):.1f} {y(best):.1f}")
        told = f"{r.phase}, {r.name}: {seconds(foreseen)} predicted, {seconds(r.measured_s)} measured"
        told += f", computing {r.slower:.2f} times as long" if abs(r.slower - 1) > 0.005 else ""
        parts.append(tag("line", class_="axis", stroke="currentColor", x1=x(k) - 3, x2=x(k) + 3, y1=y(foreseen), y2=y(foreseen)))  # fmt: skip
        parts.append(tag("circle", tag("title", words(told)), cx=x(k), cy=y(took), r=3, fill="currentColor"))
    parts.append(tag("path", class_="loss line0", d="M" + "L".join(line)))
    return tag("svg", *parts, viewBox=f"0 0 {_WIDE:g} {_TALL:g}", class_="chart", id="search")


def _phases(found: Sequence[Mapping[str, Any]]) -> str:
    heads, classes = ("phase", "mappings", "fastest", "found by"), ("", "number", "number", "")
    rows = [
        cells([words(p["phase"]), count(p["tried"]), words(seconds(p["best_s"])), words(p["name"])], classes)
        for p in found
    ]
    return framed(heads, classes, rows, "phases")


def _surrogates(scores: Sequence[Mapping[str, Any]]) -> str:
    heads = ("surrogate", "mean error", "median error", "rank correlation", "a fit")
    classes = ("", *["number"] * 4)
    rows = [
        cells(
            [words(s["name"]), percent(s["mape"]), percent(s["median_error"]), f"{s['rank_correlation']:.3f}", words(seconds(s["fit_s"]))],
            classes,
        )
        for s in scores
    ]  # fmt: skip
    return framed(heads, classes, rows, "surrogates")
