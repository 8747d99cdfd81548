"""A run holds its folder: a second one into the same folder is told who has it, and one that is refused leaves it as it was."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from partita.errors import BadInput
from partita.files import unwritten, write_whole
from partita.nouns.metrics import METRICS

LOCK = ".running"  #: who runs in a folder; the kernel's lock on it ends with the process, however that ends


@contextlib.contextmanager
def held(folder: str | Path) -> Iterator[None]:
    """Nobody else runs in the folder meanwhile. Raises BadInput that names the process, host and time of who does, and where
    nothing can be written there."""
    path = Path(folder) / LOCK
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_opened(path))
        while not _locked(file, path):  # its holder has removed it meanwhile
            file = stack.enter_context(_opened(path))
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        who = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
        with contextlib.suppress(OSError):  # a full disk is told by whoever needs it
            file.truncate(0)
            file.write(json.dumps(who).encode())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # the folder cannot be written any more; the lock ends with the process
                path.unlink()


@contextlib.contextmanager
def kept_if_refused(folder: Path) -> Iterator[None]:
    """Documents in the folder are as they were where a run is refused before its first step: what an earlier one left is somebody's
    work, and whether the plan is the job's is known when workers have loaded that."""
    before = _documents(folder)
    try:
        yield
    except BadInput:
        now = _documents(folder)
        if now.get(METRICS, b"") in (b"", before.get(METRICS)):  # no step was made
            for name in now.keys() - before.keys():
                (folder / name).unlink()
            for name in (n for n, data in before.items() if data != now.get(n)):
                write_whole(folder / name, before[name])
        raise


def _documents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".json", ".jsonl") and p.is_file()}


def _opened(path: Path) -> FileIO:
    try:
        return open(path, "ab+", buffering=0)  # what a full disk does not take is not left for the closing to write
    except OSError as error:
        fact = f"nothing can be written into {path.parent}: {error.strerror}"
        raise unwritten(fact, error, "give a folder of your own with -o DIR") from error


def _locked(file: FileIO, path: Path) -> bool:
    """Take the kernel's lock on a file; False where that is no longer the file at this path."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BadInput(
            f"another run is writing into {path.parent}: {_holder(path)}",
            hint="wait for it to end, or give another folder with -o DIR",
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _holder(lock: Path) -> str:
    try:
        who = json.loads(lock.read_text())
        return f"process {who['process']} on {who['host']}, since {who['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "its process is not known"
