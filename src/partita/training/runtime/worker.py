"""A worker process: one rank. Started by `partita run` (a file tells it everything) or by torchrun.

python -m partita.training.runtime.worker SPEC.json
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from partita.errors import BadInput, DiskFull, Interrupted, PartitaError, WorkerFailed, place_of, sentence_of
from partita.files import write_whole
from partita.memory import keep_freed_memory
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.spawn import process_state, threads_env
from partita.training.runtime.failure import log_path, program_by_samples, resume_hint, word_paths
from partita.training.runtime.join import (
    check_ranks,
    claimed_twice,
    expect_cores,
    expect_host,
    process_group,
    readable,
    stay_on_loopback,
    world,
)
from partita.training.runtime.spec import Spec
from partita.training.runtime.worker_status import DONE, Board, doing, lives

_BEGAN_S = time.time()

if TYPE_CHECKING:
    from partita.training.runtime.steering import Steers
    from partita.training.runtime.stop import StopRequest


def main(steers: Steers | None = None) -> int:
    """Run this rank for the launcher; on failure leave error-rankN.json in the run's folder. `steers` makes who may change
    the plan between two steps."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher alone decides what Ctrl-C means
    faulthandler.enable()  # a crash in compiled code leaves the line of Python in the log
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        run_rank(spec, rank, ranks, steers=steers)
    except PartitaError as error:
        leave_word(spec, rank, error)
        return error.exit_code
    except Exception as error:
        leave_word(spec, rank, error)
        with contextlib.suppress(OSError):  # a full disk
            traceback.print_exc()
        return 1
    return 0


def run_rank(
    spec: Spec,
    rank: int,
    ranks: int,
    request: StopRequest | None = None,
    steers: Steers | None = None,
    begun: Callable[[], None] = lambda: None,
) -> int:
    """Everything one rank does; returns the last step. Raises PartitaError where the job, the plan or a peer fails.

    `request` says when a signal asks to stop; without one it is the launcher's business. `begun` is called before the first step,
    when all ranks are ready.
    """
    file = PlanFile.read(spec.plan)
    check_ranks(file, ranks, launched=spec.launched)
    _settle(file, spec, rank, ranks)
    import torch

    torch.set_num_threads(spec.threads)
    board = Board.open(spec.board, ranks) if spec.board else Board.create(_own_board(spec, rank), ranks)
    board.enter(rank, "starting", os.getpid())
    from partita.training.runtime.session import Session

    board.enter(rank, "joining the others")
    with process_group(spec, file, rank, ranks):
        board.enter(rank, "building its stage")
        session = Session.start(spec, file, rank, ranks, board, request)
        if spec.task == "compare":
            from partita.training.runtime.compare import compare

            compare(session)
            last = spec.steps or 0
        else:
            from partita.training.runtime.by_launcher import ByLauncher
            from partita.training.runtime.train import train

            steering = steers(session) if steers else ByLauncher(session) if spec.watched else None
            last = train(session, steering, begun).step
        board.enter(rank, DONE)
        return last


def run_rank_alone(spec: Spec, rank: int, ranks: int, begun: Callable[[], None]) -> None:
    """run_rank without a launcher, as under torchrun. Raises PartitaError for everything that goes wrong; Interrupted where
    a signal asked for the end and all ranks stopped and saved.

    A lost peer is named together with what it was doing, where its board lies in the same folder.
    """
    from partita.training.runtime.interpreter import is_lost_peer
    from partita.training.runtime.stop import StopRequest

    with contextlib.suppress(FileNotFoundError):
        log_path(spec.out, rank).unlink()
    request = StopRequest(rank)
    with request.listening():
        try:
            last = run_rank(spec, rank, ranks, request, begun=begun)
        except WorkerFailed as error:
            raise _with_peers(error, spec, rank, ranks) from error
        except PartitaError:
            raise
        except Exception as error:
            if is_lost_peer(error):
                lost = WorkerFailed(f"rank {rank} lost a peer: {sentence_of(error)}", rank=-1, doing="")
                raise _with_peers(lost, spec, rank, ranks) from error
            with contextlib.suppress(OSError):
                log_path(spec.out, rank).write_text(traceback.format_exc())
            raise WorkerFailed(
                f"rank {rank} failed during {_doing(spec, rank, ranks)}{place_of(error)}: {sentence_of(error)}",
                rank=rank,
                doing=_doing(spec, rank, ranks),
                hint=f"see {log_path(spec.out, rank)}",
            ) from error
    _own_board(spec, rank).unlink(missing_ok=True)
    if request.stopped:
        raise stopped(last, spec.checkpoints)


def expect_unclaimed(out: str, rank: int, ranks: int) -> None:
    """Raise BadInput where a process that lives is this rank of a run in this folder; nothing of it has been touched then."""
    try:
        row = Board.open(_board_at(out, rank), ranks).row(rank)
    except (OSError, ValueError):
        return
    if lives(row):
        raise claimed_twice(rank, ranks, f"process {row.pid} on {socket.gethostname()}")


def stopped(last: int, checkpoints: str) -> Interrupted:
    """Training was stopped in good order after step `last`."""
    if not checkpoints:
        return Interrupted(f"stopped after step {last}; --engine torch writes no checkpoints")
    return Interrupted(f"stopped after step {last}, which is saved", hint=f"go on with --resume {checkpoints}")


# ---- settling in --------------------------------------------------------------------------------------------------------


def _settle(file: PlanFile, spec: Spec, rank: int, ranks: int) -> None:
    """Before torch is loaded: pin to the device's cores, one pool of threads, loopback."""
    assert isinstance(file.plan, PipelinePlan)
    keep_freed_memory()
    if not spec.launched:
        expect_host(file, rank, ranks)
    device = world(file, ranks, launched=spec.launched)[rank]
    expect_cores(file, [device])
    cores = set(file.cluster.by_name[device].cores) & os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    os.environ.update(threads_env(spec.threads))
    stay_on_loopback(launched=spec.launched)


# ---- last words ---------------------------------------------------------------------------------------------------------


def leave_word(spec: Spec, rank: int, error: BaseException) -> None:
    """What went wrong, for the launcher."""
    from partita.training.runtime.interpreter import is_lost_peer

    known = isinstance(error, PartitaError)
    word = {
        "message": readable(error.message if isinstance(error, PartitaError) else sentence_of(error)),
        "hint": error.hint if isinstance(error, PartitaError) else f"see {log_path(spec.out, rank)}",
        "place": "" if known else place_of(error),
        "code": error.exit_code if isinstance(error, PartitaError) else 1,
        "lost_peer": is_lost_peer(error),
    }
    if isinstance(error, WorkerFailed):
        word |= {"peer": error.rank, "doing": error.doing}
    for path in word_paths(spec, rank):
        with contextlib.suppress(BadInput, DiskFull):
            write_whole(path, json.dumps(word))
            return


def _own_board(spec: Spec, rank: int) -> Path:
    """Where a rank without a launcher writes what it is doing."""
    Path(spec.out).mkdir(parents=True, exist_ok=True)
    return _board_at(spec.out, rank)


def _board_at(out: str, rank: int) -> Path:
    return Path(out) / f".board-{rank}"


def _doing(spec: Spec, rank: int, ranks: int) -> str:
    """What a rank's board says, where it can be read."""
    try:
        row = Board.open(_board_at(spec.out, rank), ranks).row(rank)
        return doing(row, program_by_samples(PlanFile.read(spec.plan)))
    except (OSError, ValueError, PartitaError):
        return "something unknown"


def _with_peers(error: WorkerFailed, spec: Spec, rank: int, ranks: int) -> WorkerFailed:
    """The error with the name of the peer that is gone from this machine, what it was doing, and what this rank was."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending already
    deadline = time.monotonic() + 1.0  # a connection breaks a moment before the process is gone
    gone: list[int] = []
    while not gone and time.monotonic() < deadline:
        gone = [r for r in range(ranks) if r != rank and _is_gone(spec, r, ranks, rank)]
        time.sleep(0.02)
    if not gone and not error.doing:
        return WorkerFailed(f"{readable(error.message)} during {_doing(spec, rank, ranks)}", rank=error.rank, doing="")
    if not gone:
        return WorkerFailed(readable(error.message), rank=error.rank, doing=error.doing, hint=error.hint)
    peer = gone[0]
    message = (
        f"rank {peer} is gone; it was in {_doing(spec, peer, ranks)}, and rank {rank} in {_doing(spec, rank, ranks)}"
    )
    hint = resume_hint(spec, _BEGAN_S) or error.hint
    return WorkerFailed(message, rank=peer, doing=_doing(spec, peer, ranks), hint=hint)


def _is_gone(spec: Spec, rank: int, ranks: int, me: int) -> bool:
    """A rank of this folder that has not said it is done, and whose process does not exist on this machine any more."""
    try:
        mine, row = (Board.open(_board_at(spec.out, r), ranks).row(r) for r in (me, rank))
    except (OSError, ValueError):
        return False
    same_run = row.boot == mine.boot and abs(row.started_s - mine.started_s) <= spec.timeout_s
    return same_run and row.state != DONE and process_state(row.pid) in "ZX"


def leave(code: int) -> None:
    """End this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a broken process group may block in its destructor


if __name__ == "__main__":
    leave(main())
