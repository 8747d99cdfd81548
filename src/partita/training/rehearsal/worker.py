"""A rank of a rehearsal: the interpreter of a training run over emulated stages, links and sums.

python -m partita.training.rehearsal.worker SPEC.json
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from partita.errors import PartitaError
from partita.nouns.plan import PlanFile
from partita.spawn import threads_env
from partita.training.runtime.join import check_ranks, process_group, stay_on_loopback, world
from partita.training.runtime.spec import Spec
from partita.training.runtime.worker import leave, leave_word
from partita.training.runtime.worker_status import DONE, Board


def on_cpu(file: PlanFile) -> PlanFile:
    """The plan with devices that are CPU workers to whoever starts them: nothing is computed on the real ones."""
    cluster = file.cluster
    devices = tuple(replace(d, kind="cpu", cores=(), host="localhost") for d in cluster.devices)
    return replace(file, problem=file.problem.on(replace(cluster, devices=devices)))


def main() -> int:
    """Run this rank for the launcher; on failure leave error-rankN.json in the rehearsal's folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        _rehearse(spec, rank, ranks)
    except PartitaError as error:
        leave_word(spec, rank, error)
        return error.exit_code
    except Exception as error:
        leave_word(spec, rank, error)
        traceback.print_exc()
        return 1
    return 0


def _rehearse(spec: Spec, rank: int, ranks: int) -> None:
    file = PlanFile.read(spec.plan)
    check_ranks(file, ranks)
    os.environ.update(threads_env(1))
    stay_on_loopback(launched=True)
    import torch

    torch.set_num_threads(1)
    board = Board.open(spec.board, ranks)
    board.enter(rank, "joining the others", os.getpid())
    with process_group(spec, on_cpu(file), rank, ranks):
        board.enter(rank, "building its stage")
        from partita.training.rehearsal.rank import Rank
        from partita.training.runtime.mailbox import open_mailboxes
        from partita.training.runtime.transport import Transport

        mailboxes = open_mailboxes(rank, ranks, patience_s=spec.timeout_s)
        transport = Transport(torch.device("cpu"), "gloo", mailboxes=mailboxes)
        Rank.of(file, spec, rank, world(file, ranks), transport, board).run(spec, board)
        board.enter(rank, DONE)


if __name__ == "__main__":
    leave(main())
