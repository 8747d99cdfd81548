"""Start the workers of a run on this machine, watch them, and end all of them when one dies.

Workers find each other through a file and speak over loopback: nothing listens beyond this machine. What a worker prints
goes to worker-rankN.log in the run's folder; the error of a run is one sentence about its first cause (`failure`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from partita.errors import BadInput
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.program import Program
from partita.spawn import Process, end, process_state, spawn, threads_env
from partita.training.runtime.failure import count_oom_kills, failure, log_path
from partita.training.runtime.spec import Spec
from partita.training.runtime.worker_status import Board, Row

Watch = Callable[[Row], None]  #: called a few times a second with the row of the rank that makes the loss

_ROOM_BYTES = 1 << 20  #: the board of a thousand ranks, and the notes they leave each other
WORKER = "partita.training.runtime.worker"
_GRACE_S = 2.0  #: between asking a worker to end and killing it


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    interrupted: bool  #: the user asked to stop, and it stopped before its end
    wall_s: float
    last_step: int = 0


def launch(
    spec: Spec,
    file: PlanFile,
    program: Program | None,
    watch: Watch | None = None,
    *,
    ranks: int = 0,
    worker: str = WORKER,
) -> Ended:
    """Run all workers to their end. Raises what the first of them failed with; WorkerFailed names the rank that died.

    `ranks`: how many, where more than the plan's devices are wanted; `worker`: the module that each one runs.

    Ctrl-C (or SIGTERM) in training lets the workers finish a step and save; a second one ends them at once.
    """
    assert isinstance(file.plan, PipelinePlan)
    ranks = ranks or len(file.plan.devices)
    began_s, oom_kills = time.time(), count_oom_kills()
    with _meeting_room() as folder:
        spec = replace(spec, rendezvous=f"file://{folder}/rendezvous", board=f"{folder}/board")
        board = Board.create(spec.board, ranks)
        told = folder / "spec.json"
        told.write_text(json.dumps(asdict(spec)))
        _remove_traces(Path(spec.out))
        began = time.monotonic()
        workers: list[Process] = []
        with _terminate_like_interrupt():
            try:
                for rank in range(ranks):
                    workers.append(_start(told, rank, ranks, spec, worker))
                if not _attend(workers, board, spec, watch):
                    raise failure(workers, board, spec, file, began_s, oom_kills)
            finally:
                end(workers, _GRACE_S)
        _remove_traces(Path(spec.out), only_empty=True)
        rows = board.rows()
        last = max(r.step for r in rows)
        stopped = rows[0].stop_after is not None and last >= rows[0].stop_after
        return Ended(stopped, time.monotonic() - began, last)


def _remove_traces(out: Path, *, only_empty: bool = False) -> None:
    """Errors and logs of an earlier run, or the empty logs of this one."""
    for old in [*out.glob("error-rank*.json"), *out.glob("worker-rank*.log")]:
        if not only_empty or old.stat().st_size == 0:
            old.unlink(missing_ok=True)


def _start(told: Path, rank: int, ranks: int, spec: Spec, worker: str) -> Process:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    return spawn(worker, told, env=threads_env(spec.threads) | place, log=log_path(spec.out, rank))


@contextlib.contextmanager
def _meeting_room() -> Iterator[Path]:
    """A folder for the file through which the workers meet, and for the board: the temporary one, or shared memory.

    Raises BadInput where neither has room: a mapped file that cannot grow would end whoever writes to it.
    """
    full = []
    for place in (None, "/dev/shm"):
        with contextlib.ExitStack() as stack:
            try:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="partita-", dir=place)))
                with open(folder / "room", "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
            except OSError as error:
                full.append(f"{place or tempfile.gettempdir()} ({error.strerror})")
                continue
            yield folder
            return
    raise BadInput(f"the workers cannot meet: no room for {_ROOM_BYTES / 1e6:.0f} MB in {' or '.join(full)}", hint="free some, or set TMPDIR")  # fmt: skip


# ---- watching -----------------------------------------------------------------------------------------------------------


def _attend(workers: Sequence[Process], board: Board, spec: Spec, watch: Watch | None) -> bool:
    """Wait until all have ended well; False: one has not. Raises KeyboardInterrupt where nothing is to be saved."""
    asked = False
    while True:
        try:
            codes = [w.poll() for w in workers]
            if any(c not in (None, 0) for c in codes):
                return False
            if all(c == 0 for c in codes):
                return True
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
