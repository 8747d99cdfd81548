"""A worker process: one rank. Started by `partita run` (a file tells it everything) or by torchrun.

python -m partita.training.runtime.worker SPEC.json
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from partita.errors import PartitaError, WorkerFailed, place_of, sentence_of
from partita.files import write_whole
from partita.memory import keep_freed_memory
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.training.runtime.join import check_ranks, process_group, stay_on_loopback
from partita.training.runtime.launch import log_path, process_state, program_by_samples
from partita.training.runtime.spec import Spec
from partita.training.runtime.worker_status import Board, doing


def main() -> int:
    """Run this rank for the launcher; on failure leave error-rankN.json in the run's folder."""
    _die_with_launcher()
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        run_rank(spec, rank, ranks)
    except PartitaError as error:
        _leave_word(spec, rank, error)
        return error.exit_code
    except Exception as error:
        traceback.print_exc()
        _leave_word(spec, rank, error)
        return 1
    return 0


def run_rank(spec: Spec, rank: int, ranks: int) -> None:
    """Everything one rank does. Raises PartitaError where the job, the plan or a peer fails."""
    file = PlanFile.read(spec.plan)
    check_ranks(file, ranks)
    _settle(file, spec, rank)
    import torch

    torch.set_num_threads(spec.threads)
    board = Board.open(spec.board, ranks) if spec.board else Board.create(_own_board(spec, rank), ranks)
    board.enter(rank, "starting", os.getpid())
    from partita.training.runtime.session import Session

    board.enter(rank, "joining the others")
    with process_group(spec, file, rank, ranks), contextlib.ExitStack() as stack:
        board.enter(rank, "building its stage")
        session = Session.start(spec, file, rank, ranks, board)
        stack.callback(session.close)
        session.compare() if spec.task == "compare" else session.train()
        board.enter(rank, "done")


def run_rank_alone(spec: Spec, rank: int, ranks: int) -> None:
    """run_rank without a launcher, as under torchrun. Raises PartitaError for everything that goes wrong.

    A lost peer is named together with what it was doing, where its board lies in the same folder.
    """
    from partita.training.runtime.interpreter import is_lost_peer

    with contextlib.suppress(FileNotFoundError):
        log_path(spec.out, rank).unlink()
    with _terminated_with_a_word(rank):
        try:
            run_rank(spec, rank, ranks)
        except WorkerFailed as error:
            raise _with_peers(error, spec, rank, ranks) from error
        except PartitaError:
            raise
        except Exception as error:
            if is_lost_peer(error):
                lost = WorkerFailed(f"rank {rank} lost a peer: {sentence_of(error)}", rank=-1, doing="")
                raise _with_peers(lost, spec, rank, ranks) from error
            log_path(spec.out, rank).write_text(traceback.format_exc())
            raise WorkerFailed(
                f"rank {rank} failed during {_doing(spec, rank, ranks)}{place_of(error)}: {sentence_of(error)}",
                rank=rank,
                doing=_doing(spec, rank, ranks),
                hint=f"see {log_path(spec.out, rank)}",
            ) from error
    _own_board(spec, rank).unlink(missing_ok=True)


# ---- settling in --------------------------------------------------------------------------------------------------------


def _die_with_launcher() -> None:
    """No orphans, even when the launcher is killed; and the launcher alone decides what Ctrl-C means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(os.environ.get("PARTITA_LAUNCHER", os.getppid())):  # it died before that call
        os._exit(1)


def _settle(file: PlanFile, spec: Spec, rank: int) -> None:
    """Before torch is loaded: pin to the device's cores, one pool of threads, loopback."""
    assert isinstance(file.plan, PipelinePlan)
    keep_freed_memory()
    cores = set(file.cluster.by_name[file.plan.devices[rank]].cores) & os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(spec.threads)
    stay_on_loopback(spec)


# ---- last words ---------------------------------------------------------------------------------------------------------


def _leave_word(spec: Spec, rank: int, error: BaseException) -> None:
    """What went wrong, for the launcher."""
    from partita.training.runtime.interpreter import is_lost_peer

    known = isinstance(error, PartitaError)
    word = {
        "message": _readable(error.message if isinstance(error, PartitaError) else sentence_of(error)),
        "hint": error.hint if isinstance(error, PartitaError) else f"see {log_path(spec.out, rank)}",
        "place": "" if known else place_of(error),
        "code": error.exit_code if isinstance(error, PartitaError) else 1,
        "lost_peer": is_lost_peer(error),
    }
    if isinstance(error, WorkerFailed):
        word |= {"peer": error.rank, "doing": error.doing}
    write_whole(Path(spec.out) / f"error-rank{rank}.json", json.dumps(word))


def _readable(message: str) -> str:
    """gloo's messages without the place in its source and its guesses.

    >>> _readable("lost: [/x/y/pair.cc:537] Read error [::1]:5: Connection reset by peer. This is typically caused by a")
    'lost: Read error [::1]:5: Connection reset by peer'
    """
    return re.sub(r"\[/[^\]]*:\d+\] ", "", message).partition(". This is typically")[0]


def _own_board(spec: Spec, rank: int) -> Path:
    """Where a rank without a launcher writes what it is doing."""
    Path(spec.out).mkdir(parents=True, exist_ok=True)
    return Path(spec.out) / f".board-{rank}"


def _doing(spec: Spec, rank: int, ranks: int) -> str:
    """What a rank's board says, where it can be read."""
    try:
        row = Board.open(Path(spec.out) / f".board-{rank}", ranks).row(rank)
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
        return WorkerFailed(f"{_readable(error.message)} during {_doing(spec, rank, ranks)}", rank=error.rank, doing="")
    if not gone:
        return WorkerFailed(_readable(error.message), rank=error.rank, doing=error.doing, hint=error.hint)
    peer = gone[0]
    message = (
        f"rank {peer} is gone; it was in {_doing(spec, peer, ranks)}, and rank {rank} in {_doing(spec, rank, ranks)}"
    )
    hint = f"resume with --resume {spec.checkpoints}" if any(Path(spec.checkpoints or "-").glob("step-*")) else ""
    return WorkerFailed(message, rank=peer, doing=_doing(spec, peer, ranks), hint=hint or error.hint)


def _is_gone(spec: Spec, rank: int, ranks: int, me: int) -> bool:
    """A rank of this folder that has not said it is done, and whose process does not exist on this machine any more."""
    try:
        mine, row = (Board.open(Path(spec.out) / f".board-{r}", ranks).row(r) for r in (me, rank))
    except (OSError, ValueError):
        return False
    same_run = row.boot == mine.boot and abs(row.started_s - mine.started_s) <= spec.timeout_s
    return same_run and row.state != "done" and process_state(row.pid) in "ZX"


@contextlib.contextmanager
def _terminated_with_a_word(rank: int) -> Iterator[None]:
    """torchrun ends the remaining ranks by SIGTERM as soon as one has died: say why instead of vanishing."""

    def say(number: int, frame: FrameType | None) -> None:
        raise WorkerFailed(f"rank {rank} was ended by {signal.Signals(number).name}", rank=-1, doing="")

    before = signal.signal(signal.SIGTERM, say)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a broken process group may block in its destructor
