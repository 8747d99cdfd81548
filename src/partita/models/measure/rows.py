"""What a campaign has measured: a journal of visits that survives a kill, and the rows made of it.

The journal is a file of JSON lines beside the output. Its first line names the campaign; every other line is one visit,
or one failure, and is on the disk before the next visit begins. A line that a kill cut off is dropped.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from partita.errors import BadInput
from partita.files import write_whole
from partita.models.measure.file import Campaign
from partita.models.measure.networks import Configuration, size_of

FORMAT = "partita-campaign"
INPUTS = (
    "network",
    "framework",
    "layers",
    "width",
    "kernel",
    "batch",
    "input_size",
    "activation",
    "optimizer",
    "workers",
)
SIZES = ("parameters", "flops", "activations")  #: inputs too: known before a run
TARGETS = ("step_s", "corrected_s")
NOTES = ("step_low_s", "step_high_s", "visits", "agree", "reference_s", "cpu_s", "load1", "time")


@dataclass(frozen=True)
class Visit:
    """One visit of a configuration."""

    step_s: float  #: the median of its steps
    reference_s: float  #: of the fixed work timed beside them
    cpu_s: float  #: CPU seconds of all workers, a step
    steps: int
    load1: float  #: the machine's load over the last minute
    time: str

    @property
    def pace(self) -> float:
        """Steps in units of the reference work: free of the drift of the machine's speed, as far as both drift alike."""
        return self.step_s / self.reference_s


@dataclass
class Journal:
    """The visits so far, in memory and on the disk."""

    path: Path
    file: BinaryIO
    visits: dict[str, list[Visit]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  #: configurations that failed in this run -> a sentence

    @staticmethod
    def open(path: Path, campaign: Campaign) -> Journal:
        """Begin a journal, or go on with one. Raises BadInput where it belongs to another campaign or is in use."""
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}", hint="name a folder that exists") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise BadInput(
                f"{path} is in use: another campaign writes to it", hint="wait for it, or give another -o"
            ) from error
        journal = Journal(path, file)
        try:
            journal._read(campaign)
        except BadInput:
            journal.close()
            raise
        return journal

    def add(self, key: str, visit: Visit) -> None:
        self._write({"key": key, **asdict(visit)})
        self.visits.setdefault(key, []).append(visit)

    def fail(self, key: str, sentence: str) -> None:
        self._write({"key": key, "failed": sentence})
        self.failures[key] = sentence

    def close(self) -> None:
        self.file.close()

    def _write(self, value: Mapping[str, Any]) -> None:
        self.file.write((json.dumps(value) + "\n").encode())
        os.fsync(self.file.fileno())

    def _read(self, campaign: Campaign) -> None:
        whole, _, cut = self.file.read().rpartition(b"\n")
        if cut:
            self.file.truncate(len(whole) + 1 if whole else 0)
            self.file.seek(0, os.SEEK_END)
        head = {"format": FORMAT, "version": 1, "campaign": campaign.fingerprint()}
        if not whole:
            self._write(head)
            return
        first, *lines = whole.splitlines()
        found = self._value(first, 1)
        if found != head:
            raise BadInput(
                f"{self.path} holds the visits of another campaign ({found.get('campaign')}, this one is {head['campaign']})",
                hint="give another -o, or remove that file to begin anew",
            )
        for number, line in enumerate(lines, 2):
            value = self._value(line, number)
            if "failed" not in value:
                self._keep(value, number)

    def _keep(self, value: dict[str, Any], number: int) -> None:
        try:
            key = str(value.pop("key"))
            self.visits.setdefault(key, []).append(Visit(**value))
        except (KeyError, TypeError) as error:
            raise self._damaged(number) from error

    def _value(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise self._damaged(number) from error
        if not isinstance(value, dict):
            raise self._damaged(number)
        return value

    def _damaged(self, number: int) -> BadInput:
        return BadInput(f"{self.path} line {number} is no visit", hint="remove that line, or give another -o")


def closest(visits: Sequence[Visit], count: int) -> tuple[Visit, ...]:
    """The `count` visits whose paces lie closest together; all where there are fewer.

    A disturbance makes a visit slower by any amount, while undisturbed visits are alike: the closest are those that were
    not disturbed, however many further visits there were. Unlike the smallest, they do not sink with every further visit.
    """
    ranked = sorted(visits, key=lambda v: v.pace)
    windows = [ranked[i : i + count] for i in range(max(1, len(ranked) - count + 1))]
    return tuple(min(windows, key=spread_of))


def spread_of(visits: Iterable[Visit]) -> float:
    """By which share the largest pace is above the smallest."""
    paces = [v.pace for v in visits]
    return max(paces) / min(paces) - 1


def agree(visits: Sequence[Visit], campaign: Campaign) -> bool:
    """Enough visits, and so many of them within the spread."""
    return len(visits) >= campaign.passes and spread_of(closest(visits, campaign.passes)) <= campaign.spread


def rows_of(
    configurations: Sequence[Configuration], visits: Mapping[str, Sequence[Visit]], campaign: Campaign
) -> list[dict[str, Any]]:
    """A row for every configuration with enough visits.

    `corrected_s` is the pace times the median reference of all rows with as many workers: seconds on this machine at its
    usual speed.
    """
    done = [
        (c, closest(visits[c.key()], campaign.passes))
        for c in configurations
        if len(visits.get(c.key(), ())) >= campaign.passes
    ]
    usual = {
        w: statistics.median(v.reference_s for c, kept in done if c.workers == w for v in kept)
        for w in {c.workers for c, _ in done}
    }
    return [_row(c, kept, visits[c.key()], usual[c.workers], campaign) for c, kept in done]


def _row(
    c: Configuration, kept: Sequence[Visit], every: Sequence[Visit], usual_s: float, campaign: Campaign
) -> dict[str, Any]:
    median = statistics.median
    return {
        **c.to_json(),
        **asdict(size_of(c)),
        "step_s": median(v.step_s for v in kept),
        "corrected_s": median(v.pace for v in kept) * usual_s,
        "step_low_s": min(v.step_s for v in every),
        "step_high_s": max(v.step_s for v in every),
        "visits": len(every),
        "agree": agree(every, campaign),
        "reference_s": median(v.reference_s for v in kept),
        "cpu_s": median(v.cpu_s for v in kept),
        "load1": median(v.load1 for v in kept),
        "time": every[-1].time,
    }


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """Rows to Parquet, whole or not at all; the roles of the columns and the machine's facts in its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = (*INPUTS, *SIZES, *TARGETS, *NOTES)
    table = pa.table({name: [row[name] for row in rows] for name in columns})
    told = {"format": FORMAT, "inputs": [*INPUTS, *SIZES], "targets": TARGETS, "notes": NOTES, "facts": dict(facts)}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"partita": json.dumps(told)}), buffer)
    write_whole(path, buffer.getvalue())
