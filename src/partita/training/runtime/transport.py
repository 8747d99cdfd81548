"""Moving tensors between ranks over torch.distributed, receives posted ahead.

A tensor keeps its memory layout on the way (channels-last stays channels-last), so that the kernels on the other side are
the ones the whole model would have used.

CPU tensors go over gloo with a tag per message. CUDA tensors go over NCCL, one communicator a direction, or, where
ranks share a GPU, over gloo through pinned memory. The CUDA paths are untried: no GPU was at hand when they were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from partita.training.capture.model import TensorMeta


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """The elements fill one block of memory, each place once.

    >>> is_dense((2, 3), (1, 2)), is_dense((2, 3), (0, 1))
    (True, False)
    """
    expected = 1
    for step, n in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= n
    return True


def empty_like_meta(meta: TensorMeta, device: torch.device, *, pinned: bool = False) -> Tensor:
    """Room for a value: in its own layout where that is dense, else contiguous."""
    if is_dense(meta.shape, meta.stride):
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device, pin_memory=pinned)
    return torch.empty(meta.shape, dtype=meta.dtype, device=device, pin_memory=pinned)


def memory_of(tensor: Tensor) -> Tensor:
    """A dense tensor's memory as one dimension, without copying."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def laid_out(tensor: Tensor, meta: TensorMeta) -> Tensor:
    """The tensor in the layout its receiver expects; copied only where it has another."""
    tensor = tensor.detach()
    room_stride = meta.stride if is_dense(meta.shape, meta.stride) else torch.empty(meta.shape, device="meta").stride()
    if tuple(tensor.stride()) == tuple(room_stride) or tensor.numel() <= 1:
        return tensor
    return empty_like_meta(meta, tensor.device).copy_(tensor)


@dataclass
class Pending:
    """A receive that has been posted."""

    buffer: Tensor
    work: Any
    device: torch.device

    def wait(self) -> Tensor:
        self.work.wait()
        return self.buffer if self.buffer.device == self.device else self.buffer.to(self.device, non_blocking=True)


class Transport:
    """Point-to-point messages of one rank."""

    def __init__(self, device: torch.device, backend: str, groups: dict[tuple[int, int], Any] | None = None) -> None:
        """`groups`: for NCCL, a communicator for each (from, to); they keep both directions independent."""
        self.device = device
        self.staged = device.type == "cuda" and backend == "gloo"
        self._groups = groups or {}
        self._world: Any = dist.group.WORLD

    def receive(self, meta: TensorMeta, source: int, target: int, tag: int) -> Pending:
        """Post a receive from rank `source`; wait() gives the tensor."""
        buffer = empty_like_meta(meta, torch.device("cpu") if self.staged else self.device, pinned=self.staged)
        if self._groups:
            work = dist.irecv(memory_of(buffer), source, group=self._groups[source, target])
        else:  # the group's own call: dist.irecv would check its arguments anew for every message
            work = self._world.recv([memory_of(buffer)], source, tag)
        return Pending(buffer, work, self.device)

    def send(self, tensor: Tensor, meta: TensorMeta, source: int, target: int, tag: int) -> tuple[Any, Tensor]:
        """Post a send to rank `target`; the tensor must live until the work is done."""
        tensor = laid_out(tensor, meta)
        if self.staged:
            tensor = empty_like_meta(meta, torch.device("cpu"), pinned=True).copy_(tensor)
        if self._groups:
            return dist.isend(memory_of(tensor), target, group=self._groups[source, target]), tensor
        return self._world.send([memory_of(tensor)], target, tag), tensor
