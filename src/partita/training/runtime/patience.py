"""Waiting for other ranks of this machine by looking at the board, for as long as the run's patience lasts."""

from __future__ import annotations

import time
from collections.abc import Callable

from partita.training.runtime.mailbox import PeerGone

_LOOK_S = 1e-4  #: between two looks


def await_others(there: Callable[[], bool], missing: str, patience_s: float) -> None:
    """Until it is so. Raises PeerGone, with what is `missing`, where that takes too long.

    >>> await_others(lambda: True, "has not begun", 1.0)
    """
    if there():
        return
    deadline = time.monotonic() + patience_s
    while not there():
        if time.monotonic() > deadline:
            raise PeerGone(f"timed out: a rank {missing} for {patience_s:.0f} s")
        time.sleep(_LOOK_S)
