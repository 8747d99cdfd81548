"""Ranks that torchrun has started again (`--max-restarts`) go on from the newest checkpoint of their own run.

The first time each rank leaves a note with the time; checkpoints that are older belong to another run in the same folder.
torchrun ends all ranks of a machine before it starts them again, so that nobody is still writing.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from partita.training.runtime.saved import written_since


def restarted_from(folder: Path, rank: int) -> str:
    """The checkpoint to go on from; "" where the run begins, or has written none."""
    note = _note(folder, rank)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        folder.mkdir(parents=True, exist_ok=True)
        note.write_text(repr(time.time()))
        return ""
    with contextlib.suppress(OSError, ValueError):
        found = written_since(folder / "checkpoints", float(note.read_text()))
        return str(found) if found else ""
    return ""


def forget(folder: Path, rank: int) -> None:
    """The run has ended: no note of it is needed."""
    _note(folder, rank).unlink(missing_ok=True)


def _note(folder: Path, rank: int) -> Path:
    return folder / f".began-{rank}"
