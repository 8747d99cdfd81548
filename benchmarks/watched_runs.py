"""`partita run` started as users start it, and watched from outside while it trains."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import Json

from partita.nouns.metrics import read_metrics


@dataclass
class WatchedRun:
    """A run that goes on."""

    process: subprocess.Popen[bytes]
    out: Path
    _read_bytes: int = 0
    _steps: int = 0

    def wait_for(self, step: int) -> None:
        """Until the step's line is there. Raises RuntimeError where the run ends before."""
        while self.steps < step:
            if self.process.poll() is not None and self.steps < step:
                raise RuntimeError(f"the run has ended with {self.process.returncode} before step {step}: {self.said}")
            time.sleep(0.005)

    @property
    def steps(self) -> int:
        """Lines of metrics so far; every byte is read once."""
        with contextlib.suppress(FileNotFoundError), open(self.out / "metrics.jsonl", "rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
            self._read_bytes += len(new)
            self._steps += new.count(b"\n")
        return self._steps

    @property
    def step_s(self) -> list[float]:
        """[steps] so far."""
        return [m.step_s or 0.0 for m in read_metrics(self.out / "metrics.jsonl")]

    def ended(self) -> int:
        """Its exit code."""
        return self.process.wait(600)

    def expect_done(self) -> None:
        """Raise RuntimeError unless it ends well."""
        if code := self.ended():
            raise RuntimeError(f"a run ended with {code}: {self.said}")

    @property
    def said(self) -> str:
        return (self.out / "said").read_text()[-800:]

    def workers(self) -> list[int]:
        """Processes that it has started and that live."""
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except OSError:
            return []
        return [int(c) for c in children if b"training.runtime.worker" in _command(int(c))]

    def rows(self, name: str) -> list[Json]:
        path = self.out / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@dataclass
class WatchedJob:
    """A job with its plan, and a place for runs."""

    source: str
    plan: Path
    room: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    runs: list[WatchedRun] = field(default_factory=list)

    def __enter__(self) -> WatchedJob:
        return self

    def __exit__(self, *error: object) -> None:
        """No run goes on behind a benchmark that has failed."""
        for run in self.runs:
            run.process.kill()
            run.ended()

    def start(self, steps: int, *options: str, plan: Path | None = None) -> WatchedRun:
        out = Path(tempfile.mkdtemp(prefix="run", dir=self.room))
        given = [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        words = ["run", self.source, *given, "--plan", plan or self.plan, "--steps", steps, "-o", out, *options]
        with open(out / "said", "wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "partita", *map(str, words)], stdout=said, stderr=said, stdin=subprocess.DEVNULL
            )
        self.runs.append(WatchedRun(process, out))
        return self.runs[-1]


def median(values: Sequence[float]) -> float:
    """nan of none."""
    return statistics.median(values) if values else float("nan")


def steps_until(times: Sequence[float], since: int, most: float) -> int | None:
    """Steps after `since` until the median of five is at most so much; None: never."""
    for k in range(since + 1, len(times) - 4):
        if statistics.median(times[k : k + 5]) <= most:
            return k + 5 - since
    return None
