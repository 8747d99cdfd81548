"""A Spark event log as values: jobs, the stages they ran, and what the tasks of each stage spent.

A job is one Spark job. A stage is here as it was executed: one that Spark skipped (its output was there) is none, and one
that was tried again has the tasks that counted in the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import CaptureError
from partita.files import damaged
from partita.nouns.graph import FloatArray
from partita.spark.capture.event_file import HINT, WANTED, EventFile

MOST_TASKS = 5_000_000
ADAPTIVE = "spark.sql.adaptive.enabled"
EXECUTION = "spark.sql.execution.id"

#: Columns of a task: seconds, bytes.
LAUNCH, FINISH, RUN, WAIT, REQUESTS, REMOTE = range(6)


@dataclass(frozen=True, eq=False)
class LoggedStage:
    """One stage as it was executed."""

    number: int
    name: str
    last_rdd: int  #: number of its last RDD: the order in which the program made the stages
    parents: tuple[int, ...]  #: numbers of stages; some may be in no job here
    tasks: FloatArray  #: [tasks, 6] the columns above
    executors: tuple[str, ...]  #: [tasks]
    attempts: int
    done: bool


@dataclass(frozen=True)
class LoggedJob:
    """One Spark job; times are seconds since the log's first job."""

    number: int
    submitted_s: float
    ended_s: float | None  #: None: it was running when the log ends
    failed: bool
    stages: tuple[int, ...]  #: numbers of the stages it asked for
    properties: Mapping[str, str]

    @property
    def whole(self) -> bool:
        """It was done well."""
        return self.ended_s is not None and not self.failed


@dataclass(frozen=True)
class EventLog:
    """What a log tells."""

    path: str
    version: str
    jobs: tuple[LoggedJob, ...]
    stages: Mapping[int, LoggedStage]
    conf: Mapping[str, str]
    ended: bool  #: the application said goodbye
    cut: bool
    compacted: bool
    says_requests: bool  #: its tasks tell Remote Requests Duration
    failed_tasks: int
    zero_s: float  #: the clock (Unix time) at second 0


def read_event_log(path: str | Path) -> EventLog:
    """The log in a file or a rolling folder. Raises CaptureError for what is none. O(bytes)."""
    file, reader = EventFile(Path(path)), _Reader()
    with damaged(CaptureError, str(path), hint=HINT):
        for event in file.events():
            reader.take(event)
        if reader.heads:
            return reader.log(file)
    raise CaptureError(f"{path} has no Spark job: the application ran none, or it is another kind of file", hint=HINT)


@dataclass
class _Head:
    """A stage as a job announced it."""

    name: str = ""
    last_rdd: int = -1
    parents: tuple[int, ...] = ()


@dataclass
class _Reader:
    """Takes one event after another."""

    heads: dict[int, dict[str, Any]] = field(default_factory=dict)  #: job -> its start
    ends: dict[int, tuple[float, bool]] = field(default_factory=dict)
    stages: dict[int, _Head] = field(default_factory=dict)
    done: dict[int, bool] = field(default_factory=dict)  #: stage -> its last attempt was completed without failure
    attempts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    tasks: dict[int, dict[int, tuple[tuple[float, ...], str]]] = field(default_factory=lambda: defaultdict(dict))
    conf: dict[str, str] = field(default_factory=dict)
    version: str = ""
    over: bool = False
    says_requests: bool = True
    failed_tasks: int = 0
    count: int = 0

    def take(self, event: Mapping[str, Any]) -> None:
        name = event["Event"].rpartition(".")[2]
        if name in WANTED:
            getattr(self, name.replace("SparkListener", "_", 1))(event)

    def _LogStart(self, event: Mapping[str, Any]) -> None:
        self.version = str(event.get("Spark Version", ""))

    def _EnvironmentUpdate(self, event: Mapping[str, Any]) -> None:
        self.conf = {str(k): str(v) for k, v in dict(event.get("Spark Properties") or {}).items()}

    def _ApplicationEnd(self, event: Mapping[str, Any]) -> None:
        self.over = True

    def _JobStart(self, event: Mapping[str, Any]) -> None:
        number = int(event["Job ID"])
        properties = {str(k): str(v) for k, v in dict(event.get("Properties") or {}).items()}
        rows = event["Stage Infos"]
        self.heads[number] = {"at": _ms(event["Submission Time"]), "stages": tuple(int(r["Stage ID"]) for r in rows), "properties": properties}  # fmt: skip
        for row in rows:
            self.stages.setdefault(int(row["Stage ID"]), _head(row))

    def _JobEnd(self, event: Mapping[str, Any]) -> None:
        good = event["Job Result"]["Result"] == "JobSucceeded"
        self.ends[int(event["Job ID"])] = (_ms(event["Completion Time"]), not good)

    def _StageSubmitted(self, event: Mapping[str, Any]) -> None:
        row = event["Stage Info"]
        number = int(row["Stage ID"])
        self.attempts[number] = max(self.attempts[number], int(row["Stage Attempt ID"]) + 1)
        self.done[number] = False
        self.stages.setdefault(number, _head(row))

    def _StageCompleted(self, event: Mapping[str, Any]) -> None:
        row = event["Stage Info"]
        self.done[int(row["Stage ID"])] = "Failure Reason" not in row

    def _TaskEnd(self, event: Mapping[str, Any]) -> None:
        self.count += 1
        if self.count > MOST_TASKS:
            raise CaptureError(f"it has more than {MOST_TASKS:,} tasks", hint="give the log of a shorter application")
        if event["Task End Reason"]["Reason"] != "Success":
            self.failed_tasks += 1
            return
        info, metrics = event["Task Info"], event.get("Task Metrics") or {}
        reads = metrics.get("Shuffle Read Metrics") or {}
        self.says_requests &= not reads or "Remote Requests Duration" in reads
        row = (
            _ms(info["Launch Time"]),
            _ms(info["Finish Time"]),
            _ms(metrics.get("Executor Run Time", 0)),
            _ms(reads.get("Fetch Wait Time", 0)),
            _ms(reads.get("Remote Requests Duration", reads.get("Fetch Wait Time", 0))),
            _number(reads.get("Remote Bytes Read", 0)),
        )
        # of copies and later attempts of a task, the last that succeeded counts
        partition = int(
            info.get("Partition ID", info["Index"])
        )  # an attempt for a few lost ones counts its tasks from 0
        self.tasks[int(event["Stage ID"])][partition] = (row, str(info["Executor ID"]))

    def log(self, file: EventFile) -> EventLog:
        zero = min(h["at"] for h in self.heads.values())
        jobs = tuple(self._job(n, h, zero) for n, h in sorted(self.heads.items()))
        stages = {n: self._stage(n, zero) for n in sorted(self.stages) if self.attempts.get(n) or n in self.tasks}
        return EventLog(
            str(file.path), self.version, jobs, stages, self.conf, self.over, file.cut, file.compacted, self.says_requests, self.failed_tasks, zero
        )  # fmt: skip

    def _job(self, number: int, head: Mapping[str, Any], zero: float) -> LoggedJob:
        end, failed = self.ends.get(number, (None, False))
        return LoggedJob(number, head["at"] - zero, None if end is None else end - zero, failed, head["stages"], head["properties"])  # fmt: skip

    def _stage(self, number: int, zero: float) -> LoggedStage:
        head, found = self.stages[number], self.tasks.get(number, {})
        rows = [found[i] for i in sorted(found)]
        table = np.array([r for r, _ in rows], np.float64).reshape(len(rows), 6)
        table[:, :2] -= zero
        return LoggedStage(
            number, head.name, head.last_rdd, head.parents, table, tuple(e for _, e in rows),
            max(1, self.attempts.get(number, 1)), self.done.get(number, False),
        )  # fmt: skip


def _head(row: Mapping[str, Any]) -> _Head:
    rdds = [int(r["RDD ID"]) for r in row.get("RDD Info") or []]
    return _Head(str(row.get("Stage Name", "")), max(rdds, default=-1), tuple(int(p) for p in row["Parent IDs"]))


def _number(value: Any) -> float:
    """A count, not below 0. Raises ValueError for what is none."""
    found = float(value)
    if not 0 <= found < 1e18:
        raise ValueError(f"{value!r} is no count")
    return found


def _ms(value: Any) -> float:
    """Milliseconds as seconds."""
    return _number(value) / 1e3
