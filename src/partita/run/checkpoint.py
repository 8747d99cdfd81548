"""Checkpoints: safetensors under the model's own parameter names, written whole or not at all.

    DIR/step-00000120/model.safetensors       every parameter and buffer, tied ones under each of their names
    DIR/step-00000120/optimizer.safetensors   "parameter/key", e.g. "conv1.weight/momentum_buffer"
    DIR/step-00000120/state.json              step, epoch, place in the epoch, scheduler, plain numbers of the optimizer

Ranks send their tensors to rank 0 as safetensors bytes (nothing is pickled); rank 0 writes into a folder beside, and
renames it when everything is on disk. Because names are the model's own, a checkpoint resumes under any plan.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from partita.errors import CheckpointError
from partita.files import read_json

_KEEP = 2


@dataclass(frozen=True)
class Progress:
    """How far training has come: `step` steps done; the next batch is number `index` of `epoch`."""

    step: int = 0
    epoch: int = 0
    index: int = 0


def optimizer_tensors(
    optimizer: torch.optim.Optimizer | None, names: list[str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, numbers) of an optimizer's state, keyed "parameter/key"; `names` are its parameters' names in order."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    state = optimizer.state_dict()["state"] if optimizer else {}
    for number, values in state.items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{names[number]}/{key}"] = value.detach().contiguous()
            else:
                numbers[f"{names[number]}/{key}"] = value
    return tensors, numbers


def restore_optimizer(
    optimizer: torch.optim.Optimizer, names: list[str], tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
) -> None:
    """Put a saved state back, for the parameters that this rank has."""
    position = {n: i for i, n in enumerate(names)}
    state: dict[int, dict[str, Any]] = {}
    for path, value in [*tensors.items(), *numbers.items()]:
        name, _, key = path.rpartition("/")
        if name in position:
            state.setdefault(position[name], {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def gather_tensors(tensors: Mapping[str, Tensor], rank: int, ranks: int) -> dict[str, Tensor]:
    """All ranks' tensors on rank 0 (a name that several ranks have: the lowest rank's); elsewhere an empty dict."""
    own = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    if rank > 0:
        blob = torch.frombuffer(bytearray(save(own)), dtype=torch.uint8)
        dist.send(torch.tensor([blob.numel()]), 0)
        dist.send(blob, 0)
        return {}
    for other in range(1, ranks):
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, other)
        blob = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(blob, other)
        own = {**load(blob.numpy().tobytes()), **own}
    return own


def write(
    folder: Path,
    progress: Progress,
    model: Mapping[str, Tensor],
    aliases: Mapping[str, tuple[str, ...]],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write one checkpoint; older ones beyond the newest two are removed afterwards. Returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{progress.step:08d}"
    beside = folder / f".step-{progress.step:08d}.part"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    full = dict(model)
    for first, others in aliases.items():
        full |= {o: model[first].clone() for o in others if first in model}
    save_file(full, beside / "model.safetensors", metadata={"format": "pt"})
    save_file(dict(optimizer), beside / "optimizer.safetensors")
    text = {
        "format": "partita-checkpoint",
        "version": 1,
        "step": progress.step,
        "epoch": progress.epoch,
        "index": progress.index,
        **state,
    }
    (beside / "state.json").write_text(json.dumps(text))
    for file in beside.iterdir():
        _flush(file)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(beside, final)
    _flush(folder)
    for old in sorted(folder.glob("step-*"))[:-_KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def latest(folder: Path) -> Path:
    """The newest whole checkpoint of a folder, or the folder itself if it is one. Raises CheckpointError where there is none."""
    if (folder / "state.json").is_file():
        return folder
    found = sorted(p for p in folder.glob("step-*") if (p / "state.json").is_file())
    if not found:
        raise CheckpointError(
            f"{folder} holds no checkpoint", hint="give the folder that training wrote its checkpoints to"
        )
    return found[-1]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back."""

    progress: Progress
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the saved values into this rank's tensors. Raises CheckpointError where a name or a shape does not fit."""
        missing = [n for n in tensors if n not in self.model]
        if missing:
            raise CheckpointError(
                f"the checkpoint lacks {len(missing)} of {len(tensors)} tensors, first {missing[0]!r}",
                hint="it belongs to another model",
            )
        for name, tensor in tensors.items():
            saved = self.model[name]
            if saved.shape != tensor.shape:
                raise CheckpointError(
                    f"{name} has shape {tuple(saved.shape)} in the checkpoint, {tuple(tensor.shape)} in the model",
                    hint="it belongs to another model",
                )
            with torch.no_grad():
                tensor.copy_(saved)


def read(folder: str | Path) -> Checkpoint:
    """The newest checkpoint of a folder. Raises CheckpointError where a file is missing or damaged."""
    path = latest(Path(folder))
    state = read_json(path / "state.json", CheckpointError, "partita-checkpoint")
    try:
        model = load_file(path / "model.safetensors")
        optimizer = load_file(path / "optimizer.safetensors")
        progress = Progress(int(state["step"]), int(state["epoch"]), int(state["index"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}", hint="give an earlier checkpoint") from error
    return Checkpoint(progress, model, optimizer, state)
