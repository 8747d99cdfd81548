"""A rank's state copied into memory that outlives it, after every step or every few: what a run goes on from when a rank dies.

    tensors    parameters, buffers and what the optimizer keeps for them, one after the other
    text       a line of JSON that names them, and one with all the rest: progress, groups, learning rates, scheduler

Two files are written in turn (`copy_files`). A copy is begun only when all ranks have finished theirs of the step before:
then nobody can overwrite what another one still lacks, also where a rank could run ahead of the others because nothing
comes back to it (a stage without gradients).
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from partita.errors import BadInput, CheckpointError
from partita.training.runtime.batches import Progress
from partita.training.runtime.checkpoint import Checkpoint
from partita.training.runtime.copy_files import HEAD, HEAD_BYTES, Handles, head_of, step_of
from partita.training.runtime.optimizer_state import OptimizerState, flat_tensors, from_json, merged, to_json
from partita.training.runtime.patience import await_others
from partita.training.runtime.worker_status import Board

_ALIGNED = 64
_SPARE_TEXT = 4096  #: bytes of room for text to grow into

Index = tuple[tuple[str, str, tuple[int, ...]], ...]  #: name, type and shape of each tensor


@dataclass
class _Slot:
    """One file, mapped."""

    handle: int
    index: Index = ()
    memory: Tensor | None = None  #: [bytes]
    views: list[Tensor] | None = None
    words: bytes = b""  #: the line that names the tensors
    text_at: int = 0

    def fill(self, step: int, tensors: Mapping[str, Tensor], rest: bytes) -> None:
        """What it held is gone; it is whole again when this returns. Raises BadInput where memory has no room."""
        index = tuple((n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in tensors.items())
        if self.memory is not None:
            self._write_head(0, 0)
        if self.memory is None or index != self.index:
            self._lay_out(index, tensors)
        text = self.words + rest
        self._make_room(self.text_at + len(text))
        assert self.memory is not None
        assert self.views is not None
        with torch.no_grad():
            if self.views:
                torch._foreach_copy_(self.views, list(tensors.values()))
        self.memory[self.text_at : self.text_at + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._write_head(step + 1, len(text))

    def _write_head(self, mark: int, text: int) -> None:
        """The mark last: who reads it finds the rest."""
        assert self.memory is not None
        words = self.memory[: HEAD.size].view(torch.int64)
        if not mark:
            words[0] = 0
            return
        words[1], words[2] = self.text_at, text
        words[0] = mark

    def _lay_out(self, index: Index, tensors: Mapping[str, Tensor]) -> None:
        ends, at = [], HEAD_BYTES
        for t in tensors.values():
            at += -(-t.numel() * t.element_size() // _ALIGNED) * _ALIGNED
            ends.append(at)
        self.index, self.text_at, self.views = index, at, None
        starts = [HEAD_BYTES, *ends][: len(ends)]
        self.words = json.dumps([[*row, s] for row, s in zip(index, starts, strict=True)]).encode() + b"\n"
        self._make_room(at + len(self.words))
        assert self.memory is not None
        self.views = [_view(self.memory, s, t.dtype, t.shape) for s, t in zip(starts, tensors.values(), strict=True)]

    def _make_room(self, size: int) -> None:
        if self.memory is not None and len(self.memory) >= size:
            return
        size += _SPARE_TEXT
        try:
            os.posix_fallocate(self.handle, 0, size)  # where there is no memory it is said here, and not by a signal
        except OSError as error:
            raise BadInput(
                f"no room in memory for a copy of {size / 1e6:.1f} MB: {error.strerror}",
                hint="use --redundancy checkpoint",
            ) from error
        before = self.memory
        self.memory = _mapped(self.handle, size)
        if before is not None and self.views is not None:
            self.views = [_view(self.memory, v.data_ptr() - before.data_ptr(), v.dtype, v.shape) for v in self.views]


def _mapped(handle: int, size: int) -> Tensor:
    return torch.from_file(f"/proc/self/fd/{handle}", shared=True, size=size, dtype=torch.uint8)


def _view(memory: Tensor, start: int, dtype: torch.dtype, shape: Any) -> Tensor:
    size = dtype.itemsize
    for n in shape:
        size *= n
    return memory[start : start + size].view(dtype).view(shape)


class Copies:
    """One rank's copies of its own state."""

    def __init__(self, handles: Collection[int], rank: int, board: Board, patience_s: float) -> None:
        self._slots = [_Slot(h) for h in handles]
        self._rank, self._board, self._patience_s = rank, board, patience_s
        self._last: int | None = None  #: the step copied last

    def write(
        self, progress: Progress, tensors: Mapping[str, Tensor], state: OptimizerState, shares: Mapping[str, float]
    ) -> None:
        """Copy everything. `shares`: of the tensors that are averaged over replicas, this rank's part.

        Raises PeerGone where others do not come along, BadInput where memory has no room. O(bytes).
        """
        self._wait_for_others()
        named = {f"model/{n}": t.detach() for n, t in tensors.items()}
        named |= {f"optimizer/{n}": t for n, t in flat_tensors(state).items()}
        rest = {"progress": asdict(progress), "optimizer": to_json(state), "shares": dict(shares)}
        self._slots[0].fill(progress.step, named, json.dumps(rest).encode())
        self._slots.reverse()
        self._last = progress.step
        self._board.note_copy(self._rank, progress.step)

    def _wait_for_others(self) -> None:
        """Until all have a copy of the step that this rank copied last."""
        last = self._last
        if last is not None:
            await_others(lambda: self._board.copied() >= last, f"has made no copy of step {last}", self._patience_s)


# ---- going on from them -------------------------------------------------------------------------------------------------


def read(handles: Handles, step: int, wanted: Collection[str]) -> Checkpoint:
    """The state of a step as all ranks' copies hold it, of it the parameters and buffers `wanted`, as a checkpoint.

    What is averaged over replicas is their mean. Raises CheckpointError where a rank's copy is missing or damaged.
    """
    parts = [_part(pair, step, wanted) for pair in handles]
    shared = {n for p in parts for n in p.shares}
    model: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.model.items():
            if name in shared and tensor.is_floating_point():
                weighed = tensor * part.shares.get(name, 0.0)
                model[name] = model[name] + weighed if name in model else weighed
            else:
                model.setdefault(name, tensor)
    return Checkpoint(parts[0].progress, model, merged([p.optimizer for p in parts]), {})


@dataclass(frozen=True)
class _Part:
    """What one rank copied."""

    progress: Progress
    model: Mapping[str, Tensor]
    optimizer: OptimizerState
    shares: Mapping[str, float]


def _part(pair: Collection[int], step: int, wanted: Collection[str]) -> _Part:
    handle = next((h for h in pair if step_of(h) == step), None)
    if handle is None:
        raise CheckpointError(f"a rank has no copy of step {step}", hint="go on with --resume from a checkpoint")
    _, at, size = head_of(handle)
    memory = _mapped(handle, at + size)
    index, _, rest = memory[at:].numpy().tobytes().partition(b"\n")
    told: dict[str, Any] = json.loads(rest)
    model: dict[str, Tensor] = {}
    optimizer: dict[str, Tensor] = {}
    for path, dtype, shape, start in json.loads(index):
        kind, _, name = path.partition("/")
        place = model if kind == "model" else optimizer
        if (name if kind == "model" else name.rpartition("/")[0]) in wanted:
            place[name] = _view(memory, start, getattr(torch, dtype), shape).clone()
    state = from_json(told["optimizer"], optimizer)
    return _Part(Progress(**told["progress"]), model, state, told["shares"])
