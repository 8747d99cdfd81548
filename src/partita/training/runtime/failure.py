"""What ended a run, as one sentence about its first cause:

a rank that was killed   >   an error of a rank's own   >   a rank that fell silent   >   a rank that lost its peer
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.errors import BadInput, PartitaError, WorkerFailed
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.program import Op, Program
from partita.simulate.lower import program_of
from partita.spawn import Process, ended_how, process_state
from partita.training.runtime.saved import written_since
from partita.training.runtime.spec import Spec
from partita.training.runtime.worker_status import DONE, Board, doing

_HINTS = {
    signal.SIGTERM: "something asked it to end: a batch system, a container that was stopped, or kill",
    signal.SIGINT: "something interrupted it alone",
    signal.SIGBUS: "a file it had mapped into memory could not be read or grown: see that disk and /dev/shm have room",
    signal.SIGSEGV: "it crashed in compiled code: the log says in which line of Python",
    signal.SIGABRT: "it gave up in compiled code: the log says in which line of Python",
    signal.SIGILL: "compiled code uses instructions that this processor lacks",
    signal.SIGXCPU: "it had used the CPU time that it was allowed: see ulimit -t",
}


@dataclass(frozen=True)
class Failure:
    """What ended a run."""

    error: PartitaError
    gone: tuple[int, ...] = ()  #: ranks that died or fell silent
    by_itself: bool = False  #: a rank gave up with an error of its own, which would come again


def failure(
    workers: Sequence[Process], board: Board, spec: Spec, file: PlanFile, began_s: float, oom_kills: int | None
) -> Failure:
    """The first cause as one error. `began_s`: time.time(), and `oom_kills`: `count_oom_kills()`, when the run began."""
    deadline = time.monotonic() + 1.5  # time for the others to notice and leave word
    while time.monotonic() < deadline and any(w.poll() is None for w in workers):
        time.sleep(0.05)
    words = {r: read_word(spec, r) for r in range(len(workers))}
    killed = [r for r, w in enumerate(workers) if not words[r] and _ended_early(w.poll(), board.row(r).state)]
    own = [r for r, w in words.items() if w and not w["lost_peer"]]
    silent = [r for r, w in enumerate(workers) if w.poll() is None and not words[r]]
    about = _About(board, spec, program_by_samples(file), began_s)
    if killed:
        error = about.killed(killed[0], workers[killed[0]], _since(oom_kills))
        return Failure(error, tuple(killed))
    if own:
        return Failure(about.reported(own[0], words[own[0]] or {}), by_itself=True)
    if silent:
        stopped = [r for r in silent if process_state(workers[r].pid) in "Tt"]
        gone = stopped or _waited_for(silent, words, about)
        return Failure(about.silent(gone[0], workers[gone[0]].pid), tuple(gone))
    losers = [r for r, w in words.items() if w]
    return Failure(about.reported(losers[0], words[losers[0]] or {}))


def _ended_early(code: int | None, state: str) -> bool:
    """A worker's process has ended, and not because all was done."""
    return code is not None and (code != 0 or state != DONE)


def _waited_for(silent: Sequence[int], words: Mapping[int, Mapping[str, Any] | None], about: _About) -> list[int]:
    """Of the silent ranks the one that the others waited for in vain: no one that waits itself, for the rest will be silent too
    as soon as their patience ends, and rather one that a rank has named."""
    named = {w.get("peer") for w in words.values() if w}
    return sorted(silent, key=lambda r: (about.waits(r), r not in named, r))[:1]


@dataclass(frozen=True)
class _About:
    """Puts a rank's end into words."""

    board: Board
    spec: Spec
    program_of: Callable[[int], Program | None]
    began_s: float

    def doing(self, rank: int) -> str:
        return doing(self.board.row(rank), self.program_of)

    def waits(self, rank: int) -> bool:
        """For another rank."""
        row = self.board.row(rank)
        program = self.program_of(row.samples) if row.state == "running" and row.instruction >= 0 else None
        return (
            program is not None
            and row.instruction < len(program)
            and program.op[row.instruction] in (Op.RECV, Op.REDUCE)
        )

    def killed(self, rank: int, worker: Process, oom_kills: int | None) -> WorkerFailed:
        """It ended without a word. `oom_kills`: processes that the kernel killed for memory meanwhile, where it says so."""
        code = worker.poll() or 0
        log, what = log_path(self.spec.out, rank), self.doing(rank)
        message = f"rank {rank} (process {worker.pid}) {ended_how(code)} during {what}"
        see = f"see {log}" if log.exists() and log.stat().st_size else ""
        return WorkerFailed(message, rank=rank, doing=what, hint=self._hint(_why(code, oom_kills), see))

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
        return "; ".join(h for h in (*hints, resume_hint(self.spec, self.began_s)) if h)


def _why(code: int, oom_kills: int | None) -> str:
    """What the exit code, and the kernel's count of processes that it killed for memory (None: unknown), say of the cause.

    >>> _why(-9, 0)
    'nothing here ran out of memory: somebody, or a batch system, killed it'
    """
    if code == -signal.SIGKILL and oom_kills is None:
        return "memory may have run out: look at dmesg"
    if code == -signal.SIGKILL and oom_kills:
        return "the kernel killed it for want of memory: use smaller micro-batches, more devices, or recomputation"
    if code == -signal.SIGKILL:
        return "nothing here ran out of memory: somebody, or a batch system, killed it"
    return (
        _HINTS.get(signal.Signals(-code), "")
        if code < 0
        else "something in the job, or a library that it uses, ended its process"
    )


def count_oom_kills() -> int | None:
    """Processes that this machine's kernel has killed for want of memory, in any container, since it started; None where it
    does not say."""
    try:
        rows = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(rows["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def _since(before: int | None) -> int | None:
    now = count_oom_kills()
    return None if before is None or now is None else now - before


def resume_hint(spec: Spec, began_s: float) -> str:
    """How to go on, where there is a checkpoint of this run (whole, or it would not have its name), or it was resumed itself."""
    folder = spec.checkpoints if written_since(spec.checkpoints, began_s) else spec.resume
    return f"resume with --resume {folder}" if folder else ""


# ---- what workers leave --------------------------------------------------------------------------------------------------


def log_path(out: str | Path, rank: int) -> Path:
    """Where a worker's output goes."""
    return Path(out) / f"worker-rank{rank}.log"


def word_paths(spec: Spec, rank: int) -> list[Path]:
    """Where a worker says what went wrong: the run's folder, or, where that has no room, the launcher's own."""
    folders = [Path(spec.out), *([Path(spec.board).parent] if spec.board else [])]
    return [f / f"error-rank{rank}.json" for f in folders]


def read_word(spec: Spec, rank: int) -> dict[str, Any] | None:
    """What a worker said; None where it said nothing."""
    for path in word_paths(spec, rank):
        try:
            value = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            return value
    return None


def program_by_samples(file: PlanFile) -> Callable[[int], Program | None]:
    """How many samples a batch has -> the program that runs it; None where the plan file does not tell."""
    plan, problem = file.plan, file.problem

    def found(samples: int) -> Program | None:
        if not (isinstance(plan, PipelinePlan) and isinstance(problem, PipelineProblem)) or samples < 1:
            return None
        return program_of(problem, plan.of_micro_batches(-(-samples // problem.micro_batch_size)))

    return found
