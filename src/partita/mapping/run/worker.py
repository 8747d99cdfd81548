"""A worker whose plan is searched for while it trains.

python -m partita.mapping.run.worker SPEC.json
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.training.runtime.worker import leave, main

if TYPE_CHECKING:
    from partita.training.runtime.session import Session
    from partita.training.runtime.steering import Steering


def steers(session: Session) -> Steering:
    """The search, brought in once torch is there."""
    from partita.mapping.run.steered import Steered

    return Steered(session)


if __name__ == "__main__":
    leave(main(steers))
