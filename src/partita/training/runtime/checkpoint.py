"""Checkpoints: safetensors under the model's own parameter names, written whole or not at all.

    DIR/step-00000120/model.safetensors       what the model's state_dict holds, tied tensors under each of their names
    DIR/step-00000120/optimizer.safetensors   "parameter/key", e.g. "conv1.weight/momentum_buffer"
    DIR/step-00000120/rest.safetensors        buffers that the state_dict leaves out; absent where there are none
    DIR/step-00000120/state.json              step, epoch, place in the epoch, scheduler, plain numbers of the optimizer

Ranks send their tensors to rank 0 as safetensors bytes (nothing is pickled); rank 0 writes into a folder beside, and
renames it when everything is on disk. Because names are the model's own, a checkpoint resumes under any plan.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from partita.errors import CheckpointError, DiskFull, refuse
from partita.files import is_full, read_json
from partita.records import record
from partita.training.runtime.batches import Progress
from partita.training.runtime.optimizer_state import OptimizerState, flat_tensors, from_json, merged, to_json, words_of
from partita.training.runtime.saved import latest, name_of
from partita.training.runtime.words import received_bytes, send_bytes

# ---- from all ranks to rank 0 -------------------------------------------------------------------------------------------


def gather_tensors(tensors: Mapping[str, Tensor], rank: int, ranks: int) -> dict[str, Tensor]:
    """All ranks' tensors on rank 0 (a name that several ranks have: the lowest rank's); elsewhere an empty dict."""
    own = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    blobs = _gather_bytes(save(_apart(own)) if rank > 0 else b"", rank, ranks)
    for blob in blobs:
        own = {**load(blob), **own}
    return own if rank == 0 else {}


def gather_optimizer(state: OptimizerState, rank: int, ranks: int) -> OptimizerState:
    """All ranks' optimizers as one on rank 0; elsewhere an empty one. Raises CheckpointError where they disagree."""
    tensors = gather_tensors(flat_tensors(state), rank, ranks)
    said = gather_values(to_json(state), rank, ranks)
    return merged([from_json(v, tensors) for v in said])


def gather_values(value: Mapping[str, Any], rank: int, ranks: int) -> list[dict[str, Any]]:
    """[ranks] what each rank has to say, as JSON, on rank 0; elsewhere an empty list."""
    blobs = _gather_bytes(json.dumps(value).encode() if rank > 0 else b"", rank, ranks)
    return [dict(value), *(json.loads(b) for b in blobs)] if rank == 0 else []


def _gather_bytes(own: bytes, rank: int, ranks: int) -> list[bytes]:
    """The bytes of ranks 1, 2, .. on rank 0."""
    if rank > 0:
        send_bytes(0, own)
        return []
    return [received_bytes(other) for other in range(1, ranks)]


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, none of which shares memory with another: safetensors holds no views."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        at = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if at in seen else tensor.contiguous()
        seen.add(at)
    return found


# ---- writing ------------------------------------------------------------------------------------------------------------


def write(
    folder: Path,
    progress: Progress,
    model: Mapping[str, Tensor],
    aliases: Mapping[str, tuple[str, ...]],
    optimizer: OptimizerState,
    facts: Mapping[str, Any],
    *,
    saved: Collection[str] | None = None,
    keep: Collection[Path] = (),
) -> Path:
    """Write one checkpoint; all others but those to `keep` are removed afterwards. Returns its folder.

    `saved` are the names in the model's state_dict (None: all). A reader sees the whole checkpoint or none of it, at any
    time. Raises CheckpointError where the disk does not take it.
    """
    full = dict(model)
    for first, others in aliases.items():
        full |= {o: model[first] for o in others if first in model}
    rest = {n: t for n, t in full.items() if saved is not None and n not in saved}
    text = {
        "format": "partita-checkpoint",
        "version": 1,
        "step": progress.step,
        "epoch": progress.epoch,
        "index": progress.index,
        **facts,
        **to_json(optimizer),
    }
    final, beside = folder / name_of(progress.step), folder / f".part-{progress.step:08d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in [*folder.glob(".part-*"), *folder.glob(".old-*")]:
            shutil.rmtree(left, ignore_errors=True)
        beside.mkdir()
        save_file(
            _apart({n: t for n, t in full.items() if n not in rest}), beside / "model.safetensors", {"format": "pt"}
        )
        save_file(_apart(flat_tensors(optimizer)), beside / "optimizer.safetensors")
        if rest:
            save_file(_apart(rest), beside / "rest.safetensors")
        text["files"] = {p.name: _digest_of(p) for p in sorted(beside.glob("*.safetensors"))}
        text["digest"] = _digest(text)
        (beside / "state.json").write_text(json.dumps(text, allow_nan=False))
        mode = (beside / "state.json").stat().st_mode
        for path in beside.iterdir():
            os.chmod(path, mode)  # safetensors writes for the owner only
            _flush(path)
        _flush(beside)
        _put_away(final)
        os.replace(beside, final)
        _flush(folder)
        for old in folder.glob("step-*"):
            if old != final and old not in keep:
                _put_away(old)
    except (OSError, SafetensorError, ValueError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        kept = sorted(p.name for p in folder.glob("step-*"))
        raise (DiskFull if is_full(error) else CheckpointError)(
            f"{final} cannot be written: {error}; {f'the last whole one is {kept[-1]}' if kept else 'there is no other'}",
            hint="see that the disk has room",
        ) from error
    return final


def _digest(text: Mapping[str, Any]) -> int:
    """Of all that a checkpoint says, but itself."""
    return zlib.crc32(json.dumps({k: v for k, v in text.items() if k != "digest"}, sort_keys=True).encode())


def _digest_of(path: Path) -> int:
    """Of a file's content. O(bytes), 1 to 3 GB a second."""
    digest = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest = zlib.crc32(part, digest)
    return digest


def _put_away(checkpoint: Path) -> None:
    """Remove a checkpoint so that it is never seen in part: first its name, then what is in it."""
    if checkpoint.exists():
        aside = checkpoint.with_name(f".old-{checkpoint.name}")
        os.replace(checkpoint, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- reading ------------------------------------------------------------------------------------------------------------


def examine(folder: str | Path) -> tuple[Path, Progress]:
    """(its place, how far it came) of the newest checkpoint, its files looked at but not loaded.

    Raises CheckpointError where one is missing or damaged.
    """
    path = latest(Path(folder))
    _, progress = _state(path)
    with _damage_told(path):
        for name in ("model", "optimizer"):
            with safe_open(path / f"{name}.safetensors", "pt") as file:
                file.keys()
    return path, progress


@contextlib.contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Turns whatever goes wrong with a checkpoint's files into a CheckpointError."""
    try:
        yield
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}",
            hint=f"give an earlier checkpoint, or remove {path} to resume from the one before",
        ) from error


def _state(path: Path) -> tuple[dict[str, Any], Progress]:
    file, hint = path / "state.json", "give an earlier checkpoint"
    state = read_json(file, CheckpointError, "partita-checkpoint")
    progress = record(Progress, state, CheckpointError, str(file), hint=hint)
    wrong = [f"{k} is {state.get(k)}" for k, n in asdict(progress).items() if k not in state or n < 0]
    if state.get("digest", _digest(state)) != _digest(state):  # those of before 2026-11-25 have none
        wrong.append("it is not what was written")
    refuse(CheckpointError, wrong, str(file), hint=hint)
    words_of(state, str(file))
    return state, progress


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back."""

    progress: Progress
    model: dict[str, Tensor]
    optimizer: OptimizerState
    facts: dict[str, Any]  #: what else state.json says

    def restore(self, tensors: Mapping[str, Tensor], saved: Collection[str] | None = None) -> None:
        """Copy the saved values into this rank's tensors; those outside of `saved` may be missing.

        Raises CheckpointError where a name or a shape does not fit.
        """
        missing = [n for n in tensors if n not in self.model and (saved is None or n in saved)]
        if missing:
            raise CheckpointError(
                f"the checkpoint lacks {len(missing)} of {len(tensors)} tensors, first {missing[0]!r}",
                hint="it belongs to another model",
            )
        for name, tensor in tensors.items():
            value = self.model.get(name, tensor)
            if value.shape != tensor.shape:
                raise CheckpointError(
                    f"{name} has shape {tuple(value.shape)} in the checkpoint, {tuple(tensor.shape)} in the model",
                    hint="it belongs to another model",
                )
            with torch.no_grad():
                tensor.copy_(value)


def read(folder: str | Path) -> Checkpoint:
    """The newest checkpoint of a folder. Raises CheckpointError where a file is missing or damaged."""
    path = latest(Path(folder))
    state, progress = _state(path)
    with _damage_told(path):
        changed = [n for n, digest in state.get("files", {}).items() if _digest_of(path / n) != digest]
        if changed:
            raise ValueError(f"{', '.join(changed)} is not what was written")
        model = load_file(path / "model.safetensors")
        optimizer = load_file(path / "optimizer.safetensors")
        if (path / "rest.safetensors").exists():
            model |= load_file(path / "rest.safetensors")
    return Checkpoint(progress, model, from_json(state, optimizer), state)
