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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from partita.errors import BadInput
from partita.interrupts import terminate_like_interrupt
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.program import Program
from partita.spawn import Process, end, process_state, spawn, threads_env
from partita.temporary import temporary_folder
from partita.training.runtime.failure import Failure, count_oom_kills, failure, log_path
from partita.training.runtime.spec import Spec
from partita.training.runtime.steering import plan_at
from partita.training.runtime.worker_status import DONE, Board, Row

Watch = Callable[[Row], None]  #: called a few times a second with the row of the rank that makes the loss

_ROOM_BYTES = 1 << 20  #: the boards of two hundred ranks, and the notes they leave each other
_ROOM_A_RANK = 1 << 13
WORKER = "partita.training.runtime.worker"
_LATER_S = 1.0  #: so much later than the others, who can say what they waited for
_GRACE_S = 2.0  #: between asking a worker to end and killing it


class Minds(Protocol):
    """Looks at the board a few times a second while workers run, and may change their plan between two steps."""

    def look(self, board: Board) -> PipelinePlan | None:
        """The plan that all ranks should go on with, None: the same one."""
        ...

    def told(self, step: int) -> None:
        """That plan holds after this step."""
        ...


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    interrupted: bool  #: the user asked to stop, and it stopped before its end
    wall_s: float
    last_step: int = 0


@dataclass(frozen=True)
class Broken:
    """How it broke off."""

    failure: Failure
    step: int  #: the foremost one that a rank had begun
    asked: bool  #: the user had asked to stop


def launch(
    spec: Spec,
    file: PlanFile,
    program: Program | None,
    watch: Watch | None = None,
    *,
    ranks: int = 0,
    worker: str = WORKER,
    mind: Minds | None = None,
) -> Ended:
    """Run all workers to their end. Raises what the first of them failed with; WorkerFailed names the rank that died.

    `ranks`: how many, where more than the plan's devices are wanted; `worker`: the module that each one runs.

    Ctrl-C (or SIGTERM) in training lets the workers finish a step and save; a second one ends them at once.
    """
    found = attempt(spec, file, watch, ranks=ranks, worker=worker, mind=mind)
    if isinstance(found, Broken):
        raise found.failure.error
    return found


def attempt(
    spec: Spec,
    file: PlanFile,
    watch: Watch | None = None,
    *,
    ranks: int = 0,
    worker: str = WORKER,
    handles: Sequence[int] = (),
    mind: Minds | None = None,
) -> Ended | Broken:
    """As `launch`, but what a worker failed with is told. Every worker inherits the open files `handles`."""
    assert isinstance(file.plan, PipelinePlan)
    ranks = ranks or len(file.plan.devices)
    began_s, oom_kills = time.time(), count_oom_kills()
    with _meeting_room(ranks) as folder:
        spec = replace(spec, rendezvous=f"file://{folder}/rendezvous", board=f"{folder}/board")
        board = Board.create(spec.board, ranks)
        told = folder / "spec.json"
        told.write_text(json.dumps(asdict(spec)))
        _remove_traces(Path(spec.out), logs=not spec.goes_on)
        began = time.monotonic()
        workers: list[Process] = []
        attends = _Attends(workers, board, spec, watch, mind)
        with terminate_like_interrupt():
            try:
                for rank in range(ranks):
                    workers.append(_start(told, rank, ranks, spec, worker, handles))
                if not attends.to_the_end():
                    found = failure(workers, board, spec, file, began_s, oom_kills)
                    return Broken(found, max(r.step for r in board.rows()), attends.asked)
            finally:
                end(workers, _GRACE_S)
        _remove_traces(Path(spec.out), only_empty=True)
        rows = board.rows()
        last = max(r.step for r in rows)
        stopped = rows[0].stop_after is not None and last >= rows[0].stop_after
        return Ended(stopped, time.monotonic() - began, last)


def _remove_traces(out: Path, *, logs: bool = True, only_empty: bool = False) -> None:
    """Errors and logs of an earlier run, or the empty logs of this one; a generation of workers writes on in those of the last."""
    for old in [*out.glob("error-rank*.json"), *(out.glob("worker-rank*.log") if logs else ())]:
        if not only_empty or old.stat().st_size == 0:
            old.unlink(missing_ok=True)


def _start(told: Path, rank: int, ranks: int, spec: Spec, worker: str, handles: Sequence[int]) -> Process:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    return spawn(
        worker,
        told,
        env=threads_env(spec.threads) | place,
        log=log_path(spec.out, rank),
        handles=handles,
        append=spec.goes_on,
    )


@contextlib.contextmanager
def _meeting_room(ranks: int = 0) -> Iterator[Path]:
    """A folder for the file through which the workers meet, and for the board: the temporary one, or shared memory.

    Raises BadInput where neither has room: a mapped file that cannot grow would end whoever writes to it.
    """
    full, room = [], _ROOM_BYTES + ranks * _ROOM_A_RANK
    for place in (None, "/dev/shm"):
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(temporary_folder("run", place))
                with open(folder / "room", "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, room)
            except OSError as error:
                full.append(f"{place or tempfile.gettempdir()} ({error.strerror})")
                continue
            yield folder
            return
    raise BadInput(f"the workers cannot meet: no room for {room / 1e6:.0f} MB in {' or '.join(full)}", hint="free some, or set TMPDIR")  # fmt: skip


# ---- watching -----------------------------------------------------------------------------------------------------------


class Hurried(KeyboardInterrupt):
    """The user asked for the end a second time: at once, then."""


@dataclass
class _Attends:
    """Waits until all workers have ended, and tells them meanwhile what they are asked for."""

    workers: Sequence[Process]
    board: Board
    spec: Spec
    watch: Watch | None
    mind: Minds | None
    asked: bool = False  #: the user wants to stop
    _still_since: dict[int, float] = field(default_factory=dict)  #: rank -> when it was first seen stopped

    def to_the_end(self) -> bool:
        """All have ended well; False: one has not. Raises KeyboardInterrupt where nothing is to be saved."""
        while True:
            try:
                codes = [w.poll() for w in self.workers]
                if any(c not in (None, 0) for c in codes) or self._hangs():
                    self._see()
                    return False
                if all(c == 0 for c in codes):
                    self._see()
                    return all(row.state == DONE for row in self.board.rows())  # a job may end its process itself
                self._look()
                time.sleep(0.1)
            except KeyboardInterrupt:
                if self.asked:
                    raise Hurried from None
                if self.spec.task != "train" or not self._has_something_to_save:
                    raise
                self.asked = True
                with _frozen(self.workers):
                    self.board.ask_to_stop()

    @property
    def _has_something_to_save(self) -> bool:
        return self.spec.base_step > 0 or max(r.step for r in self.board.rows()) > 0

    def _see(self) -> PipelinePlan | None:
        """What there is to see; the plan to go on with, if it is to be another one."""
        if self.watch:
            self.watch(max(self.board.rows(), key=lambda row: (row.loss == row.loss and row.loss != 0, row.step)))
        return self.mind.look(self.board) if self.mind else None

    def _look(self) -> None:
        plan = self._see()
        if plan is not None and self.mind is not None and not self.asked:
            with _frozen(self.workers):
                plan_at(Path(self.spec.board).parent, self.board.ahead).write_text(json.dumps(plan.to_json()))
                step = self.board.ask_to_switch()
            self.mind.told(step)

    def _hangs(self) -> bool:
        """A worker has been stopped (SIGSTOP) for longer than the others wait; where nobody waits for it, only this tells."""
        now = time.monotonic()
        for rank, worker in enumerate(self.workers):
            if process_state(worker.pid) in "Tt":
                self._still_since.setdefault(rank, now)
            else:
                self._still_since.pop(rank, None)
        return any(now - since > self.spec.timeout_s + _LATER_S for since in self._still_since.values())


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
