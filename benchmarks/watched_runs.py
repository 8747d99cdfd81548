"""`partita run` started as users start it, and watched from outside while it trains."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import Json


@dataclass
class WatchedRun:
    """A run that goes on."""

    process: subprocess.Popen[bytes]
    out: Path

    def wait_for(self, step: int) -> float:
        """time.monotonic() when the step's line was there. Raises RuntimeError where the run ends before."""
        while self.steps < step:
            if self.process.poll() is not None:
                raise RuntimeError(f"the run has ended with {self.process.returncode} before step {step}: {self.said}")
            time.sleep(0.002)
        return time.monotonic()

    @property
    def steps(self) -> int:
        """Lines of metrics so far."""
        path = self.out / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def ended(self) -> int:
        return self.process.wait(600)

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
    runs: int = 0

    def start(self, steps: int, *options: str, plan: Path | None = None) -> WatchedRun:
        self.runs += 1
        out = self.room / f"run{self.runs}"
        out.mkdir()
        given = [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        words = ["run", self.source, *given, "--plan", plan or self.plan, "--steps", steps, "-o", out, *options]
        with open(out / "said", "wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "partita", *map(str, words)], stdout=said, stderr=said, stdin=subprocess.DEVNULL
            )
        return WatchedRun(process, out)


def median(values: Sequence[float]) -> float:
    """nan of none."""
    return statistics.median(values) if values else float("nan")


def steps_until(times: Sequence[float], since: int, most: float) -> int | None:
    """Steps after `since` until the median of five is at most so much; None: never."""
    for k in range(since + 1, len(times) - 4):
        if statistics.median(times[k : k + 5]) <= most:
            return k + 5 - since
    return None
