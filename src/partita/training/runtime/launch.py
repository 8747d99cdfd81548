"""Start the workers of a run on this machine, watch them, and end all of them when one dies.

Workers find each other through a file and speak over loopback: nothing listens beyond this machine. What a worker prints
goes to worker-rankN.log in the run's folder; the error of a run is one sentence about its first cause:

    a rank that was killed   >   an error of a rank's own   >   a rank that fell silent   >   a rank that lost its peer
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partita.errors import BadInput, PartitaError, WorkerFailed
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.program import Program
from partita.simulate.lower import lower
from partita.training.runtime.spec import Spec
from partita.training.runtime.worker_status import Board, Row, doing

Watch = Callable[[Row], None]  #: called a few times a second with the row of the rank that makes the loss
Process = subprocess.Popen[bytes]

_GRACE_S = 2.0  #: between asking a worker to end and killing it


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    interrupted: bool  #: the user asked to stop, and it stopped before its end
    wall_s: float
    last_step: int = 0


def launch(spec: Spec, file: PlanFile, program: Program | None, watch: Watch | None = None) -> Ended:
    """Run all workers to their end. Raises what the first of them failed with; WorkerFailed names the rank that died.

    Ctrl-C (or SIGTERM) in training lets the workers finish a step and save; a second one ends them at once.
    """
    assert isinstance(file.plan, PipelinePlan)
    ranks = len(file.plan.devices)
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        spec = replace(spec, rendezvous=f"file://{folder}/rendezvous", board=f"{folder}/board")
        board = Board.create(spec.board, ranks)
        told = Path(folder) / "spec.json"
        told.write_text(json.dumps(spec.to_json()))
        _remove_traces(Path(spec.out))
        began = time.monotonic()
        workers: list[Process] = []
        with _terminate_like_interrupt():
            try:
                for rank in range(ranks):
                    workers.append(_start(told, rank, ranks, spec))
                _attend(workers, board, spec, file, watch)
            finally:
                _end(workers)
        _remove_traces(Path(spec.out), only_empty=True)
        rows = board.rows()
        last = max(r.step for r in rows)
        stopped = rows[0].stop_after is not None and last >= rows[0].stop_after
        return Ended(stopped, time.monotonic() - began, last)


def log_path(out: str | Path, rank: int) -> Path:
    """Where a worker's output goes."""
    return Path(out) / f"worker-rank{rank}.log"


def _remove_traces(out: Path, *, only_empty: bool = False) -> None:
    """Errors and logs of an earlier run, or the empty logs of this one."""
    for old in [*out.glob("error-rank*.json"), *out.glob("worker-rank*.log")]:
        if not only_empty or old.stat().st_size == 0:
            old.unlink(missing_ok=True)


def _start(told: Path, rank: int, ranks: int, spec: Spec) -> Process:
    env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    env |= {n: str(spec.threads) for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    env |= {"PARTITA_LAUNCHER": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    with open(log_path(spec.out, rank), "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "partita.training.runtime.worker", str(told)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


# ---- watching -----------------------------------------------------------------------------------------------------------


def _attend(workers: Sequence[Process], board: Board, spec: Spec, file: PlanFile, watch: Watch | None) -> None:
    """Wait until all have ended well. Raises on the first failure, and KeyboardInterrupt where nothing is to be saved."""
    asked = False
    while True:
        try:
            codes = [w.poll() for w in workers]
            if any(c not in (None, 0) for c in codes):
                raise _failure(workers, board, spec, file)
            if all(c == 0 for c in codes):
                return
            if watch:
                watch(max(board.rows(), key=lambda row: (row.loss == row.loss and row.loss != 0, row.step)))
            time.sleep(0.1)
        except KeyboardInterrupt:
            if asked or spec.task != "train" or max(r.step for r in board.rows()) == 0:
                raise
            asked = True
            with _frozen(workers):
                board.ask_to_stop()


@contextlib.contextmanager
def _frozen(workers: Sequence[Process]) -> Iterator[None]:
    """Nobody runs meanwhile: each process is stopped, and goes on afterwards."""
    alive = [w for w in workers if w.poll() is None]
    try:
        for w in alive:
            w.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and any(process_state(w.pid) not in "TtZX" for w in alive):
            time.sleep(0.001)
        yield
    finally:
        for w in alive:
            w.send_signal(signal.SIGCONT)


def process_state(pid: int) -> str:
    """The kernel's letter for a process of this machine: R runs, S sleeps, T is stopped, Z ended, X is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] or "X"
    except OSError:
        return "X"


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM is handled like Ctrl-C, so that a batch system's polite end is a graceful one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(workers: Sequence[Process]) -> None:
    """Let no worker outlive its run, however impatient the user is."""
    with _uninterrupted():
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


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---- failures -----------------------------------------------------------------------------------------------------------


def _failure(workers: Sequence[Process], board: Board, spec: Spec, file: PlanFile) -> PartitaError:
    """The first cause as one error; see the order at the top of this file."""
    deadline = time.monotonic() + 1.5  # time for the others to notice and leave word
    while time.monotonic() < deadline and any(w.poll() is None for w in workers):
        time.sleep(0.05)
    words = {r: _word(Path(spec.out) / f"error-rank{r}.json") for r in range(len(workers))}
    killed = [r for r, w in enumerate(workers) if (w.poll() or 0) != 0 and not words[r]]
    own = [r for r, w in words.items() if w and not w["lost_peer"]]
    silent = [r for r, w in enumerate(workers) if w.poll() is None and not words[r]]
    about = _About(board, spec, program_by_samples(file))
    if killed:
        return about.killed(killed[0], workers[killed[0]].poll() or 0)
    if own:
        return about.reported(own[0], words[own[0]] or {})
    if silent:
        return about.silent(silent[0], workers[silent[0]].pid)
    losers = [r for r, w in words.items() if w]
    return about.reported(losers[0], words[losers[0]] or {})


@dataclass(frozen=True)
class _About:
    """Puts a rank's end into words."""

    board: Board
    spec: Spec
    program_of: Callable[[int], Program | None]

    def doing(self, rank: int) -> str:
        return doing(self.board.row(rank), self.program_of)

    def killed(self, rank: int, code: int) -> WorkerFailed:
        """It ended without a word."""
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        log = log_path(self.spec.out, rank)
        hints = [
            "memory may have run out: look at dmesg" if code == -signal.SIGKILL else "",
            f"see {log}" if log.exists() and log.stat().st_size else "",
        ]
        what = self.doing(rank)
        message = f"rank {rank} (process {self.board.row(rank).pid}) {how} during {what}"
        return WorkerFailed(message, rank=rank, doing=what, hint=self._hint(*hints))

    def silent(self, rank: int, pid: int) -> WorkerFailed:
        """It lives, but the others waited for it in vain."""
        row, what = self.board.row(rank), self.doing(rank)
        stopped = process_state(pid) in "Tt"
        how = "is stopped (SIGSTOP)" if stopped else f"gave no answer for {self.spec.timeout_s:.0f} s"
        message = f"rank {rank} (process {row.pid or pid}) {how} during {what}"
        hint = "let it go on with kill -CONT next time" if stopped else "if its work takes so long, raise --timeout-s"
        return WorkerFailed(message, rank=rank, doing=what, hint=self._hint(hint))

    def reported(self, rank: int, word: Mapping[str, Any]) -> PartitaError:
        """It left word of what went wrong."""
        if word["code"] == BadInput.exit_code:
            return BadInput(word["message"], hint=word["hint"])
        what = self.doing(rank)
        if word["lost_peer"]:
            return WorkerFailed(word["message"], rank=int(word.get("peer", rank)), doing=what, hint=self._hint())
        message = f"rank {rank} failed during {what}{word['place']}: {word['message']}"
        return WorkerFailed(message, rank=rank, doing=what, hint=self._hint(word["hint"]))

    def _hint(self, *hints: str) -> str:
        folder = self.spec.checkpoints
        resume = f"resume with --resume {folder}" if folder and any(Path(folder).glob("step-*")) else ""
        return "; ".join(h for h in (*hints, resume) if h)


def program_by_samples(file: PlanFile) -> Callable[[int], Program | None]:
    """How many samples a batch has -> the program that runs it; None where the plan file does not tell."""
    plan, problem = file.plan, file.problem

    def program_of(samples: int) -> Program | None:
        if not (isinstance(plan, PipelinePlan) and isinstance(problem, PipelineProblem)) or samples < 1:
            return None
        return lower(file.graph, file.cluster, plan.of_micro_batches(-(-samples // problem.micro_batch_size)))

    return program_of


def _word(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None
