"""A worker of a searched run whose rank 1 is killed in the midst of a change of plan.

python -m mapping.run.dying_worker SPEC.json     with DIES_AT: the number of the change, and before or after it was sent its tensors
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from partita.training.runtime.worker import leave, main

if TYPE_CHECKING:
    from partita.training.runtime.session import Session
    from partita.training.runtime.steering import Steering


def steers(session: Session) -> Steering:
    from partita.mapping.run.steered import Steered
    from partita.training.runtime import pipeline

    number, when = os.environ["DIES_AT"].split()
    moves, left = pipeline.moved, int(number)

    def moved(*told: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and when == "after":
            moves(*told)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return moves(*told)

    if session.rank == 1:
        pipeline.moved = moved
    return Steered(session)


if __name__ == "__main__":
    leave(main(steers))
