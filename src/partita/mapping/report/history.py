"""History: what a search has tried, read from a run's folder; a line for the terminal, a table for the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.errors import BadInput
from partita.files import read_json
from partita.page.text import percent, seconds, table

PHASES = ("seeds", "bayes", "genetic", "by lot", "finals")


@dataclass(frozen=True)
class History:
    """Mappings in the order in which they were tried, and how the search ended."""

    rows: tuple[Mapping[str, Any], ...]  #: of search.jsonl
    end: Mapping[str, Any]  #: of search.json; empty: it goes on

    @staticmethod
    def read(folder: str | Path) -> History:
        """Empty where nothing was searched. Raises BadInput for a damaged search.json; a line half written is left out."""
        folder = Path(folder)
        path, end = folder / "search.jsonl", folder / "search.json"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = tuple(json.loads(line) for line in lines if line.startswith("{") and line.endswith("}"))
        return History(rows, read_json(end, BadInput, "partita-search") if end.exists() else {})

    def line(self) -> str:
        """What is said beside the bar while a search goes on."""
        if not self.rows or self.end:
            return ""
        best, last = min(self.rows, key=lambda r: float(r["measured_s"])), self.rows[-1]
        return (
            f"; {last['tried']} mappings tried, best {seconds(best['measured_s'])} ({best['name']}), "
            f"now {last['phase']}: {seconds(last['predicted_s'])} predicted, {seconds(last['measured_s'])} measured"
        )

    def to_json(self) -> dict[str, Any]:
        """How it ended, with what every phase came to."""
        return {**self.end, "phases": list(phases(self.rows)), "history": [dict(r) for r in self.rows]}


def phases(rows: Sequence[Mapping[str, Any]]) -> Sequence[dict[str, Any]]:
    """Of every phase how many mappings were tried, and the fastest."""
    found = []
    for phase in PHASES:
        mine = [r for r in rows if r["phase"] == phase]
        if mine:
            best = min(mine, key=lambda r: float(r["measured_s"]))
            found.append({"phase": phase, "tried": len(mine), "best_s": best["measured_s"], "name": best["name"]})
    return found


def text(search: Mapping[str, Any]) -> str:
    """The search for a person: phases, surrogates, and what it cost."""
    parts = [
        table(
            [("phase", "text"), ("tried", "count"), ("best", "s"), ("by", "text")],
            [[p["phase"], p["tried"], p["best_s"], p["name"]] for p in search["phases"]],
        )
    ]
    if search.get("surrogates"):
        parts.append(surrogate_table(search["surrogates"]))
    return "\n\n".join(["", *parts, ending(search)])


def surrogate_table(scores: Sequence[Mapping[str, Any]]) -> str:
    """Surrogates by their cross-validated errors, the best first."""
    return table(
        [("surrogate", "text"), ("mean error", "share"), ("median error", "share"), ("rank correlation", "text"), ("a fit", "s")],
        [[s["name"], s["mape"], s["median_error"], f"{s['rank_correlation']:.3f}", s["fit_s"]] for s in scores],
    )  # fmt: skip


def ending(search: Mapping[str, Any]) -> str:
    """One sentence about how it ended and what it cost."""
    if not search.get("settled"):
        return f"The search was not finished: {search.get('tried', 0)} mappings tried when training ended."
    spent = search["thinking_s"] + search["switching_s"]
    gain = search["single_s"] / search["measured_s"] if search["measured_s"] > 0 else math.nan
    found = (
        f"{search['best']} takes {seconds(search['measured_s'])} a step, {gain:.2f}x one device in turn with it"
        if gain > 1
        else f"Nothing is faster than one device, {seconds(search['single_s'])} a step"
    )
    return (
        f"{found}. {search['tried']} mappings tried on {search['steps']} training steps in {seconds(search['wall_s'])}, "
        f"{seconds(spent)} of them ({percent(spent / search['wall_s'])}) thinking and switching; nothing after it."
    )
