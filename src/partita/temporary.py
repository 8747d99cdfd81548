"""Folders for as long as a block runs. What a process that was killed has left is taken away by the next one.

Whoever makes a folder holds a lock on a file in it, which ends with the process, however that ends; a folder whose lock
nobody holds is left over.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX, LOCK = "partita-", ".held"
YOUNG_S = 60.0  #: a folder may be so old without its lock being held yet


@contextlib.contextmanager
def temporary_folder(what: str, place: str | None = None) -> Iterator[Path]:
    """A new folder, and everything in it, until the block ends. `what` is in its name; `place`: None is the usual one for
    temporary files. Raises OSError where there is no room."""
    sweep(Path(place or tempfile.gettempdir()))
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{what}-", dir=place, ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        lock = stack.enter_context(open(folder / LOCK, "wb"))
        with contextlib.suppress(OSError):  # a file system without locks: nothing is taken away there
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def sweep(place: Path) -> None:
    """Take away what is left over there. O(entries of the place)."""
    for lock in place.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            if time.time() - lock.stat().st_mtime > YOUNG_S and _is_left(lock):
                shutil.rmtree(lock.parent, ignore_errors=True)


def _is_left(lock: Path) -> bool:
    """Nobody holds it. Raises OSError where somebody does, or it is another user's."""
    with open(lock, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
