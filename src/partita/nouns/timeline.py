"""Timeline: what happened when. The simulator and the real engine both emit it, with the instruction ids of the Program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.errors import TimelineError, refuse
from partita.files import damaged, read_json, write_whole
from partita.nouns.costs import MOST_SECONDS
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.program import Program

MESSAGES = frozenset(("values", "gradients"))  #: kinds of pieces that a device receives rather than computes


@dataclass(frozen=True, slots=True)
class Span:
    """One instruction's time on one queue."""

    instruction: int
    queue: str
    label: str  #: e.g. "F0"
    kind: str  #: of its piece: forward, backward, values, ... (`program.PieceKind`)
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans as columns, in ascending instruction number. Times are seconds since the step began."""

    queues: tuple[str, ...]  #: devices first, then links
    devices: int
    instruction: IntArray  #: [spans]
    queue: npt.NDArray[np.int32]  #: [spans] position in `queues`
    label: tuple[str, ...]  #: [spans]
    kind: tuple[str, ...]  #: [spans] of its piece (`program.PieceKind`)
    micro_batch: npt.NDArray[np.int32]  #: [spans]
    start_s: FloatArray  #: [spans]
    end_s: FloatArray  #: [spans]
    source: str = "simulated"  #: "simulated", "measured" or "rehearsed"
    facts: Mapping[str, Any] = field(default_factory=dict)  #: e.g. machine, load, CPU seconds

    @staticmethod
    def of(
        program: Program,
        start_s: FloatArray,
        end_s: FloatArray,
        source: str = "simulated",
        facts: Mapping[str, Any] | None = None,
    ) -> Timeline:
        """The timeline of a whole program, one span an instruction."""
        pieces = program.piece.tolist()
        label = tuple(program.pieces[p].name for p in pieces)
        kind = tuple(program.pieces[p].kind for p in pieces)
        number = np.arange(len(program), dtype=np.int64)
        return Timeline(
            program.queues,
            program.devices,
            number,
            program.queue,
            label,
            kind,
            program.micro_batch,
            start_s,
            end_s,
            source,
            facts or {},
        )

    def __len__(self) -> int:
        return len(self.instruction)

    def __getitem__(self, i: int) -> Span:
        return Span(
            int(self.instruction[i]),
            self.queues[self.queue[i]],
            self.label[i],
            self.kind[i],
            int(self.micro_batch[i]),
            float(self.start_s[i]),
            float(self.end_s[i]),
        )

    @property
    def duration_s(self) -> float:
        """From the first start to the last end."""
        return float(self.end_s.max() - self.start_s.min()) if len(self) else 0.0

    def busy_share(self) -> dict[str, float]:
        """Device name -> share of the duration during which it computes.

        Receives are left out: measured ones last as long as the device waits for the message. O(spans)."""
        total = self.duration_s or 1.0
        works = np.array([kind not in MESSAGES for kind in self.kind], np.float64)
        spent = np.bincount(self.queue, works * (self.end_s - self.start_s), len(self.queues))
        return {name: float(spent[q] / total) for q, name in enumerate(self.queues[: self.devices])}

    def critical_path(self, program: Program, lag_s: FloatArray) -> list[int]:
        """Instructions from the first to the last end, each waiting for the one before it (its need or its queue).

        `lag_s` [n]: from the end of an instruction until those that need it may start (`Durations.lag_s`). In a
        simulated timeline of these durations the path has no gaps: an instruction starts when the one before it has
        ended and, where that is needed, its lag is over. O(instructions + needs). Raises TimelineError where the
        timeline is not of that program.
        """
        if len(self) != len(program):
            raise TimelineError(f"the timeline has {len(self)} spans, the program {len(program)} instructions")
        before = np.full(len(program), -1, np.int64)
        for name, items in zip(program.queues, program.by_queue, strict=True):
            if name not in program.fair:  # there nobody stands behind another
                before[items[1:]] = items[:-1]
        arrives = self.end_s + lag_s
        at = int(np.argmax(self.end_s))
        path = [at]
        while True:
            waits = {int(j): float(arrives[j]) for j in program.needs.row(at)}
            if before[at] >= 0:
                waits.setdefault(int(before[at]), float(self.end_s[before[at]]))
            if not waits:
                return path[::-1]
            at = max(waits, key=lambda j: waits[j])
            path.append(at)

    def compare(self, other: Timeline) -> list[tuple[int, str, int, float, float]]:
        """Rows (instruction, label, micro-batch, seconds here, seconds there) of the instructions both have.

        Raises TimelineError where they have less than half of the shorter one in common: a label or two are alike by chance."""
        there = {int(i): k for k, i in enumerate(other.instruction)}
        rows = [
            (
                int(i),
                self.label[k],
                int(self.micro_batch[k]),
                float(self.end_s[k] - self.start_s[k]),
                float(other.end_s[there[int(i)]] - other.start_s[there[int(i)]]),
            )
            for k, i in enumerate(self.instruction)
            if int(i) in there and other.label[there[int(i)]] == self.label[k]
        ]
        if not rows or 2 * len(rows) < min(len(self), len(other)):
            raise TimelineError(
                f"the two timelines, of {len(self)} and {len(other)} instructions, have {len(rows) or 'no'} instruction{'s' * (len(rows) > 1)} in common",
                hint="compare timelines of the same program",
            )
        return rows

    def check(self) -> list[str]:
        """Every fault at once; empty when the timeline is sound."""
        known = (np.abs(self.start_s) <= MOST_SECONDS) & (np.abs(self.end_s) <= MOST_SECONDS)  # false for nan
        bad = np.flatnonzero(~(known & (self.end_s >= self.start_s)))
        faults = [f"span {k} ({self.label[k]}) runs from {self.start_s[k]} to {self.end_s[k]}" for k in bad]
        lost = np.flatnonzero((self.queue < 0) | (self.queue >= len(self.queues)))
        faults += [f"span {k} ({self.label[k]}) is on queue {self.queue[k]} of {len(self.queues)}" for k in lost]
        if not 0 <= self.devices <= len(self.queues):
            faults.append(f"it has {len(self.queues)} queues, {self.devices} of them devices")
        return faults

    def to_perfetto(self) -> dict[str, Any]:
        """Chrome / Perfetto trace events; times in microseconds as that format wants them."""
        names = [
            {"ph": "M", "pid": 0, "tid": q, "name": "thread_name", "args": {"name": n}}
            for q, n in enumerate(self.queues)
        ]
        spans = [
            {
                "ph": "X", "pid": 0, "tid": int(self.queue[k]), "name": self.label[k], "cat": self.kind[k], "ts": self.start_s[k] * 1e6, "dur": (self.end_s[k] - self.start_s[k]) * 1e6,
                "args": {"instruction": int(self.instruction[k]), "micro_batch": int(self.micro_batch[k])},
            }
            for k in range(len(self))
        ]  # fmt: skip
        other = {
            "format": "partita-timeline",
            "version": 2,
            "queues": list(self.queues),
            "devices": self.devices,
            "source": self.source,
            "facts": dict(self.facts),
        }
        return {"otherData": other, "displayTimeUnit": "ms", "traceEvents": names + spans}

    def write(self, path: str | Path) -> Path:
        return write_whole(path, json.dumps(self.to_perfetto()))

    @staticmethod
    def from_perfetto(value: Mapping[str, Any], what: str = "timeline") -> Timeline:
        """The timeline in a trace that `to_perfetto` made. Raises TimelineError where it is another kind of trace."""
        with damaged(TimelineError, what, hint="give a timeline that simulate or run wrote"):
            other = value["otherData"]
            if other["format"] != "partita-timeline" or other["version"] != 2:
                raise TimelineError(
                    f"{what} is a {other['format']!r} of version {other['version']!r}, not a partita-timeline of version 2",
                    hint="make it again with this Partita: simulate and run write timelines",
                )
            spans = sorted((e for e in value["traceEvents"] if e["ph"] == "X"), key=lambda e: e["args"]["instruction"])
            start = np.array([e["ts"] / 1e6 for e in spans], np.float64)
            timeline = Timeline(
                tuple(str(q) for q in other["queues"]),
                int(other["devices"]),
                np.array([e["args"]["instruction"] for e in spans], np.int64),
                np.array([e["tid"] for e in spans], np.int32),
                tuple(str(e["name"]) for e in spans),
                tuple(str(e["cat"]) for e in spans),
                np.array([e["args"]["micro_batch"] for e in spans], np.int32),
                start,
                start + np.array([e["dur"] / 1e6 for e in spans], np.float64),
                str(other["source"]),
                dict(other["facts"]),
            )
        refuse(TimelineError, timeline.check(), what)
        return timeline

    @staticmethod
    def read(path: str | Path) -> Timeline:
        """The timeline in a file."""
        return Timeline.from_perfetto(read_json(path, TimelineError), str(path))
