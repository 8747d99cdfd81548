"""A worker process: one rank. Started by `partita run` (a file tells it everything) or by torchrun.

python -m partita.run.worker SPEC.json
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from partita.errors import JobError, PartitaError, WorkerFailed
from partita.plan import PlanFile
from partita.run.memory import keep_freed_memory
from partita.run.spec import Spec


def main() -> int:
    """Run this rank; on failure leave error-rankN.json in the run's folder."""
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        run_rank(spec, rank, ranks)
    except PartitaError as error:
        _leave_word(spec, rank, error, error.exit_code)
        return error.exit_code
    except Exception as error:
        traceback.print_exc()
        _leave_word(spec, rank, error, 1)
        return 1
    return 0


def run_rank(spec: Spec, rank: int, ranks: int) -> None:
    """Everything one rank does. Raises PartitaError where the job, the plan or a peer fails."""
    file = PlanFile.read(spec.plan)
    _settle(file, spec, rank, ranks)
    import torch

    from partita.run.board import Board

    torch.set_num_threads(spec.threads)
    board = Board.open(spec.board, ranks) if spec.board else Board.create(Path(spec.out) / f".board-{rank}", ranks)
    board.enter(rank, "starting", os.getpid())
    from partita.run.session import Session

    with _group(spec, file, rank, ranks), contextlib.ExitStack() as stack:
        session = Session.start(spec, file, rank, ranks, board)
        stack.callback(session.close)
        session.compare() if spec.task == "compare" else session.train()
        board.enter(rank, "done")


def _settle(file: PlanFile, spec: Spec, rank: int, ranks: int) -> None:
    """Before torch is loaded: pin to the device's cores, and die with the launcher."""
    from partita.plan import PipelinePlan

    if not isinstance(file.plan, PipelinePlan):
        raise JobError("this plan places tasks; it does not say how to train", hint="plan from a profile")
    if len(file.plan.devices) != ranks:
        raise JobError(
            f"the plan uses {len(file.plan.devices)} devices, {ranks} workers were started",
            hint=f"start {len(file.plan.devices)} workers",
        )
    keep_freed_memory()
    cores = set(file.cluster.by_name[file.plan.devices[rank]].cores) & os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(spec.threads)
    if spec.board:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what Ctrl-C means
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no orphans when the launcher is killed


@contextlib.contextmanager
def _group(spec: Spec, file: PlanFile, rank: int, ranks: int) -> Iterator[None]:
    """The process group. Raises JobError where the rendezvous fails, e.g. because its port is in use."""
    import torch.distributed as dist

    backend = backend_for(file)
    try:
        dist.init_process_group(
            backend, init_method=spec.rendezvous, rank=rank, world_size=ranks, timeout=timedelta(seconds=spec.timeout_s)
        )
    except (RuntimeError, OSError) as error:
        port = os.environ.get("MASTER_PORT", "")
        first = str(error).strip().splitlines()[0]
        hint = (
            f"port {port} may be in use: choose another MASTER_PORT"
            if "env" in spec.rendezvous
            else "look at the other workers' errors"
        )
        raise JobError(f"rank {rank} could not join the others: {first}", hint=hint) from error
    try:
        yield
    finally:
        if sys.exc_info()[0] is None:
            dist.destroy_process_group()


def backend_for(file: PlanFile) -> str:
    """gloo; with CUDA devices that no two ranks share, NCCL beside it."""
    kinds = {d.kind for d in file.cluster.devices if d.name in getattr(file.plan, "devices", ())}
    return "cpu:gloo,cuda:nccl" if "cuda" in kinds else "gloo"


def _leave_word(spec: Spec, rank: int, error: BaseException, code: int) -> None:
    """What went wrong, for the launcher; on stderr where there is none (torchrun)."""
    word = {
        "rank": rank,
        "kind": type(error).__name__,
        "message": getattr(error, "message", str(error)),
        "hint": getattr(error, "hint", ""),
        "code": code,
    }
    from partita.run.interpreter import is_lost_peer

    word["lost_peer"] = is_lost_peer(error)
    if isinstance(error, WorkerFailed):
        word |= {"peer": error.rank, "doing": error.doing}
    if spec.board:
        (Path(spec.out) / f"error-rank{rank}.json").write_text(json.dumps(word))
    else:
        print(f"partita: rank {rank}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a broken process group may block in its destructor
