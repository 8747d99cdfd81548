"""Start the workers of a run on this machine, watch them, and end all of them when one dies.

Workers find each other through a file and speak over loopback: nothing listens beyond this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partita.errors import BadInput, PartitaError, WorkerFailed
from partita.plan import PipelinePlan, PlanFile
from partita.program import Program
from partita.run.board import Board, Row
from partita.run.spec import Spec

Watch = Callable[[Row], None]  #: called a few times a second with the row of the rank that makes the loss

_GRACE_S = 4.0  #: between asking a worker to end and killing it


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    interrupted: bool
    wall_s: float


def launch(spec: Spec, file: PlanFile, program: Program | None, watch: Watch | None = None) -> Ended:
    """Run all workers to their end. Raises what the first of them failed with; WorkerFailed names the rank that died.

    Ctrl-C lets the workers finish a step and save; a second one ends them at once.
    """
    assert isinstance(file.plan, PipelinePlan)
    ranks = len(file.plan.devices)
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        spec = replace(spec, rendezvous=f"file://{folder}/rendezvous", board=f"{folder}/board")
        board = Board.create(spec.board, ranks)
        told = Path(folder) / "spec.json"
        told.write_text(json.dumps(spec.to_json()))
        for old in Path(spec.out).glob("error-rank*.json"):
            old.unlink()
        began = time.monotonic()
        workers = [_start(told, rank, ranks, spec.threads) for rank in range(ranks)]
        try:
            interrupted = _attend(workers, board, spec, program, watch)
        finally:
            _end(workers)
        return Ended(interrupted, time.monotonic() - began)


def _start(told: Path, rank: int, ranks: int, threads: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    env |= {n: str(threads) for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return subprocess.Popen(
        [sys.executable, "-m", "partita.run.worker", str(told)],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        start_new_session=True,
    )


def _attend(
    workers: Sequence[subprocess.Popen[bytes]], board: Board, spec: Spec, program: Program | None, watch: Watch | None
) -> bool:
    """Wait until all have ended well; returns whether the user asked to stop. Raises on the first failure."""
    interrupted = False
    while True:
        try:
            codes = [w.poll() for w in workers]
            if any(c not in (None, 0) for c in codes):
                raise _failure(workers, board, spec, program)
            if all(c == 0 for c in codes):
                return interrupted
            if watch:
                watch(
                    max(
                        (board.row(r) for r in range(len(workers))),
                        key=lambda row: (row.loss == row.loss and row.loss != 0, row.step),
                    )
                )
            time.sleep(0.1)
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            board.ask_to_stop()


def _failure(
    workers: Sequence[subprocess.Popen[bytes]], board: Board, spec: Spec, program: Program | None
) -> PartitaError:
    """The root cause: a rank that was killed comes before one that reports an error of its own, before one that lost its peer."""
    deadline = time.monotonic() + 1.5  # time for the others to notice and leave word
    while time.monotonic() < deadline and any(w.poll() is None for w in workers):
        time.sleep(0.05)
    words = {r: _word(Path(spec.out) / f"error-rank{r}.json") for r in range(len(workers))}
    killed = [r for r, w in enumerate(workers) if (w.poll() or 0) != 0 and not words[r]]
    if killed:
        rank = killed[0]
        row = board.row(rank)
        doing = describe(row, program)
        code = workers[rank].poll() or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return WorkerFailed(
            f"rank {rank} (process {row.pid}) {how} during {doing}", rank=rank, doing=doing, hint=_resume_hint(spec)
        )
    own = [w for w in words.values() if w and not w["lost_peer"]] or [w for w in words.values() if w]
    return _as_error(own[0], spec)


def _as_error(word: dict[str, Any], spec: Spec) -> PartitaError:
    message = f"rank {word['rank']}: {word['message']}"
    if word["code"] == 2:
        return BadInput(word["message"], hint=word["hint"])
    return WorkerFailed(
        message,
        rank=int(word.get("peer", word["rank"])),
        doing=str(word.get("doing", "")),
        hint=word["hint"] or _resume_hint(spec),
    )


def _resume_hint(spec: Spec) -> str:
    return f"resume with --resume {spec.checkpoints}" if spec.checkpoints and Path(spec.checkpoints).exists() else ""


def _word(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def describe(row: Row, program: Program | None) -> str:
    """What a rank was doing: 'step 12, compute F0 micro-batch 3'."""
    if row.instruction >= 0 and program is not None and row.instruction < len(program):
        return f"step {row.step}, {program[row.instruction]}"
    return f"step {row.step}, {row.state}" if row.step else row.state


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let no worker outlive its run."""
    for w in workers:
        if w.poll() is None:
            w.terminate()
    deadline = time.monotonic() + _GRACE_S
    for w in workers:
        try:
            w.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            w.kill()
            w.wait()
