"""History: what a search has tried, read from a run's folder; a line for the terminal, a table for the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from partita.errors import BadInput, refuse
from partita.files import expect_format, parse_json, read_json, read_text
from partita.mapping.plan.surrogates import Score
from partita.nouns.costs import MOST_SECONDS
from partita.page.text import percent, seconds, table
from partita.records import record

MOST_SLOWER = 1e6  #: beyond it, a number is damage
PHASES = ("seeds", "bayes", "genetic", "deferred", "by lot", "finals")


@dataclass(frozen=True)
class Row:
    """A mapping tried: a line of search.jsonl."""

    tried: int  #: how many with this one
    phase: str
    name: str  #: who found it
    predicted_s: float  #: by the simulator
    measured_s: float
    expected_s: float | None = None  #: by the surrogate
    step: int = 0  #: of the run
    at_s: float = 0.0  #: since the search began
    segments: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)  #: operators on each
    slower: float = 1.0  #: as many times as long as predicted took what was computed

    @property
    def settled_s(self) -> float:
        """Measured, at the speed that was predicted: what mappings of different minutes are compared by."""
        return self.measured_s / self.slower


@dataclass(frozen=True)
class End:
    """How a search ended: search.json."""

    settled: bool  #: false: training ended first, or the search failed
    step: int
    steps: int  #: that it took
    tried: int
    wall_s: float
    budget_s: float
    thinking_s: float  #: rank 0 decided, the others waited
    switching_s: float  #: from plan to plan: weights moved, code was made
    steps_s: float  #: training steps
    best: str | None = None  #: who found it
    predicted_s: float = 0.0
    measured_s: float = 0.0
    single_s: float = 0.0  #: one device, in turn with it
    surrogates: tuple[Score, ...] = ()
    why: str = ""  #: it failed

    def to_json(self) -> dict[str, Any]:
        return {"format": "partita-search", "version": 1, **asdict(self)}


@dataclass(frozen=True)
class History:
    """Mappings in the order in which they were tried, and how the search ended."""

    rows: tuple[Row, ...]
    end: End | None = None  #: None: it goes on

    @staticmethod
    def read(folder: str | Path) -> History:
        """Empty where nothing was searched. Raises BadInput for a damaged file; half a line at the very end is left out."""
        rows, end = Path(folder) / "search.jsonl", Path(folder) / "search.json"
        return History(_rows(rows) if rows.exists() else (), _end(end) if end.exists() else None)

    def to_json(self) -> dict[str, Any]:
        """How it ended, with what every phase came to."""
        end = {} if self.end is None else self.end.to_json()
        return {**end, "phases": list(phases(self.rows)), "history": [asdict(r) for r in self.rows]}


@dataclass
class Following:
    """What is said beside the bar while a search goes on: asked often, it reads every line of search.jsonl once."""

    folder: Path
    read_bytes: int = 0
    best: Row | None = None
    last: Row | None = None
    over: bool = False

    def line(self) -> str:
        """Empty before the first mapping was tried and when the search has ended. Raises BadInput for a damaged line."""
        self.over = self.over or (self.folder / "search.json").exists()
        if self.over:
            return ""
        for row in self._new():
            self.last = row
            if self.best is None or row.settled_s < self.best.settled_s:
                self.best = row
        if self.last is None or self.best is None:
            return ""
        return (
            f"; {self.last.tried} mappings tried, best {seconds(self.best.settled_s)} ({self.best.name}), "
            f"now {self.last.phase}: {seconds(self.last.predicted_s)} predicted, {seconds(self.last.settled_s)} measured"
        )

    def _new(self) -> list[Row]:
        """The lines that were ended since."""
        path = self.folder / "search.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(self.read_bytes)
                ended = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        if not ended:
            return []
        self.read_bytes += len(ended) + 1
        return [_row(line, str(path)) for line in ended.decode(errors="replace").split("\n") if line.strip()]


def _rows(path: Path) -> tuple[Row, ...]:
    lines = [line for line in read_text(path, BadInput).split("\n") if line.strip()]
    found = []
    for number, line in enumerate(lines, 1):
        what = f"{path} line {number}"
        try:
            row = record(Row, parse_json(line, BadInput, what), BadInput, what)
        except BadInput:
            if number == len(lines):  # its writer was stopped, or is writing
                break
            raise
        found.append(_sound(row, what))
    return tuple(found)


def _row(line: str, what: str) -> Row:
    return _sound(record(Row, parse_json(line, BadInput, what), BadInput, what), what)


def _sound(row: Row, what: str) -> Row:
    """Raises BadInput where its numbers are none."""
    faults = [] if 1 / MOST_SLOWER <= row.slower <= MOST_SLOWER else [f"slower is {row.slower}"]
    refuse(BadInput, faults + _no_seconds(row, "predicted_s", "measured_s", "at_s"), what)
    return row


def _end(path: Path) -> End:
    value = read_json(path, BadInput, "partita-search")
    expect_format(value, "partita-search", BadInput, str(path), 1)
    end = record(End, value, BadInput, str(path))
    names = ("wall_s", "thinking_s", "switching_s", "steps_s", "predicted_s", "measured_s", "single_s")
    faults = _no_seconds(end, *names)
    for score in end.surrogates:
        numbers = (score.mape, score.median_error, score.rank_correlation, score.fit_s)
        faults += [] if all(abs(x) <= MOST_SECONDS for x in numbers) else [f"{score.name} has no sound scores"]
    refuse(BadInput, faults, str(path))
    return end


def _no_seconds(item: Row | End, *names: str) -> list[str]:
    """What of it is no number of seconds."""
    told = [(n, getattr(item, n)) for n in names]
    return [f"{n} is {v}" for n, v in told if not 0 <= v <= MOST_SECONDS]


def phases(rows: Sequence[Row]) -> Sequence[dict[str, Any]]:
    """Of every phase how many mappings were tried, and the fastest, at the speed that was predicted."""
    found = []
    for phase in PHASES:
        mine = [r for r in rows if r.phase == phase]
        if mine:
            best = min(mine, key=lambda r: r.settled_s)
            found.append({"phase": phase, "tried": len(mine), "best_s": best.settled_s, "name": best.name})
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
    if search.get("why"):
        return f"The search was given up after {search['tried']} mappings, since it failed ({search['why']}); {search['best']} was the fastest."
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
        f"{seconds(spent)} of them ({percent(spent / search['wall_s'] if search['wall_s'] > 0 else 0.0)}) thinking and switching; nothing after it."
    )
