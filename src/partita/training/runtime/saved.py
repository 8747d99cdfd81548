"""Which checkpoints there are, told without loading any; see `checkpoint`."""

from __future__ import annotations

import os
from pathlib import Path

from partita.errors import CheckpointError
from partita.files import damaged, read_json


def latest(folder: Path) -> Path:
    """The newest checkpoint of a folder, or the folder itself if it is one. Raises CheckpointError where there is none."""
    if (folder / "state.json").is_file():
        return folder
    found = sorted(p for p in folder.glob("step-*") if p.is_dir())
    if not found:
        raise CheckpointError(
            f"{folder} holds no checkpoint", hint="give the folder that training wrote its checkpoints to"
        )
    return found[-1]


def written_since(folder: str | Path, began_s: float) -> Path | None:
    """The newest checkpoint of a folder ("": none) that was written after time.time() was `began_s`; None without one."""
    states = sorted(Path(folder or os.devnull).glob("step-*/state.json"))
    own = [s.parent for s in states if s.stat().st_mtime >= began_s - 2.0]  # file systems count coarsely
    return own[-1] if own else None


def latest_until(folder: str | Path, step: int) -> Path | None:
    """The newest checkpoint of a folder ("": none) that is of no later step: a later one is another run's; None without one."""
    found = sorted(p for p in Path(folder or os.devnull).glob("step-*") if p.is_dir() and p.name <= name_of(step))
    return found[-1] if found else None


def name_of(step: int) -> str:
    """The folder of the checkpoint after a step: they sort as their steps do."""
    return f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    """The step after which it was written. Raises CheckpointError where it does not say."""
    with damaged(CheckpointError, str(checkpoint), hint="give an earlier checkpoint"):
        return int(read_json(checkpoint / "state.json", CheckpointError)["step"])
