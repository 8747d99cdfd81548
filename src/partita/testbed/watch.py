"""The companion of a test bed that a program made: waits for the program's end, however it comes, and takes the bed down.

A process file descriptor becomes readable when its process ends, also by kill -9, so nothing has to be polled and no
signal handler is put into the program. Run as `python -m partita.testbed.watch NAME PID STARTED`.
"""

from __future__ import annotations

import os
import select
import sys

from partita.testbed import state as testbed_state
from partita.testbed.state import Process


def watch(name: str, owner: Process) -> None:
    """Return when the owner has ended and its bed is gone."""
    from partita.testbed.hosts import dismantle

    _wait(owner)
    with testbed_state.locked():
        state = testbed_state.find(name)
        if state is not None and state.owner == owner:
            dismantle(state)


def _wait(owner: Process) -> None:
    try:
        handle = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return
    # opened first, compared second: the descriptor cannot change its process, the number can
    if owner.alive:
        select.select([handle], [], [])
    os.close(handle)


if __name__ == "__main__":
    watch(sys.argv[1], Process(int(sys.argv[2]), int(sys.argv[3])))
