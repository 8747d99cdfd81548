"""Moving tensors between ranks: through memory where both are on one machine (`mailbox`), else over torch.distributed, receives
posted ahead.

A tensor keeps its memory layout on the way (channels-last stays channels-last), so that the kernels on the other side are
the ones the whole model would have used.

Otherwise CPU tensors go over gloo with a tag each. CUDA tensors go over NCCL, one communicator a direction, or, where
ranks share a GPU, over gloo through pinned memory. The CUDA paths are untried: no GPU was at hand when they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from partita.training.capture.model import TensorMeta
from partita.training.runtime.gradients import begin_sum_in_memory, sum_in_memory
from partita.training.runtime.mailbox import Mailboxes


def memory_of(tensor: Tensor) -> Tensor:
    """A dense tensor's memory as one dimension, without copying."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def room_for(meta: TensorMeta, device: torch.device, *, pinned: bool = False) -> Tensor:
    return torch.empty_strided(meta.shape, meta.dense_stride, dtype=meta.dtype, device=device, pin_memory=pinned)


def laid_out(tensor: Tensor, meta: TensorMeta) -> Tensor:
    """The tensor in the layout its receiver expects; copied only where it has another."""
    tensor = tensor.detach()
    if tuple(tensor.stride()) == meta.dense_stride or tensor.numel() <= 1:
        return tensor
    return room_for(meta, tensor.device).copy_(tensor)


@dataclass
class Pending:
    """A message that has been asked for."""

    parts: Sequence[tuple[Tensor, Any]]  #: the room for each tensor, and the work that fills it
    device: torch.device

    def wait(self) -> list[Tensor]:
        """Its tensors, once they are there."""
        found = []
        for buffer, work in self.parts:
            work.wait()
            found.append(buffer if buffer.device == self.device else buffer.to(self.device, non_blocking=True))
        return found


@dataclass
class InMailbox:
    """A message that a rank of this machine puts into a box."""

    mailboxes: Mailboxes
    source: int
    tag: int
    metas: tuple[TensorMeta, ...]

    def wait(self) -> list[Tensor]:
        return self.mailboxes.receive(self.source, self.tag, self.metas)


class Transport:
    """Point-to-point messages of one rank; a message is one tensor or several."""

    def __init__(
        self,
        device: torch.device,
        backend: str,
        groups: Mapping[tuple[int, int], Any] = MappingProxyType({}),
        mailboxes: Mailboxes | None = None,
    ) -> None:
        """`groups`: for NCCL, a communicator for each (from, to); they keep both directions independent. `mailboxes`: of CPU
        ranks, reach those on this machine."""
        self.device = device
        self.staged = device.type == "cuda" and backend == "gloo"
        self._groups = groups
        self._world: Any = dist.group.WORLD
        self._mailboxes = mailboxes or Mailboxes({})

    def receive(self, metas: tuple[TensorMeta, ...], source: int, target: int, tag: int) -> Pending | InMailbox:
        """Ask for a message of rank `source`; wait() gives its tensors. Tags count tensors: the first one's."""
        if source in self._mailboxes:
            return InMailbox(self._mailboxes, source, tag, metas)
        place = torch.device("cpu") if self.staged else self.device
        parts = []
        for j, meta in enumerate(metas):
            buffer = room_for(meta, place, pinned=self.staged)
            if self._groups:
                work = dist.irecv(memory_of(buffer), source, group=self._groups[source, target])
            else:  # the group's own call: dist.irecv would check its arguments anew for every message
                work = self._world.recv([memory_of(buffer)], source, tag + j)
            parts.append((buffer, work))
        return Pending(parts, self.device)

    def send(
        self, tensors: Sequence[Tensor], metas: tuple[TensorMeta, ...], source: int, target: int, tag: int
    ) -> list[tuple[Any, Tensor]]:
        """Post a message to rank `target`: the works that it takes, each with a tensor that must live until it is done."""
        if target in self._mailboxes:
            self._mailboxes.send(target, tag, tensors, metas)
            return []
        return [self._sent(t, m, source, target, tag + j) for j, (t, m) in enumerate(zip(tensors, metas, strict=True))]

    def sum(self, tensor: Tensor, group: Any = None) -> None:
        """Sum a contiguous tensor over the ranks of a group, of all where none is given, in place; all of them call it."""
        ranks = dist.get_process_group_ranks(group or self._world)
        if tensor.device.type == "cpu" and self._mailboxes.join(ranks):
            sum_in_memory(self._mailboxes, tensor, ranks)
        else:
            dist.all_reduce(tensor, group=group)

    def begin_sum(self, tensor: Tensor, group: Any = None, *, key: int = 0) -> Callable[[], None]:
        """Begin to sum a contiguous tensor in place; what is returned waits for its end. Several sums may be under way: all
        ranks of a group begin them in the same order, and `key` tells them apart."""
        ranks = dist.get_process_group_ranks(group or self._world)
        if tensor.device.type == "cpu" and self._mailboxes.join(ranks):
            return begin_sum_in_memory(self._mailboxes, tensor, ranks, key)
        work: Any = dist.all_reduce(tensor, group=group, async_op=True)
        return lambda: _ended(work)

    def _sent(self, tensor: Tensor, meta: TensorMeta, source: int, target: int, tag: int) -> tuple[Any, Tensor]:
        tensor = laid_out(tensor, meta)
        if self.staged:
            tensor = room_for(meta, torch.device("cpu"), pinned=True).copy_(tensor)
        if self._groups:
            return dist.isend(memory_of(tensor), target, group=self._groups[source, target]), tensor
        return self._world.send([memory_of(tensor)], target, tag), tensor


def _ended(work: Any) -> None:
    work.wait()
