"""Sums of gradients over ranks.

Ranks of one machine sum through memory. Of n ranks each is handed one n-th of everybody's numbers, adds them up, and hands the
sum to all:

    rank 0   a0 a1       rank 0   a0 + b0 ->        rank 0   a0 + b0   a1 + b1
    rank 1   b0 b1       rank 1   a1 + b1 ->        rank 1   a0 + b0   a1 + b1

so that a rank copies 2 (n - 1) / n of its bytes, as in a ring, and all have the same bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from partita.training.capture.captured import TensorMeta
from partita.training.runtime.mailbox import Mailboxes

_TAG = -1  #: messages of sums: between two ranks they come in the order in which both ask for sums


def reduce_gradients(parameters: Sequence[Tensor], sum_up: Callable[[Tensor], None]) -> None:
    """Sum the gradients of some parameters over ranks, as one message a type; `sum_up` sums a tensor, in place.

    A parameter of which no member has a gradient gets none: an optimizer would decay it.
    """
    by_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for p in parameters:
        by_type[p.dtype].append(p)
    for own in by_type.values():
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
        has = torch.tensor([p.grad is not None for p in own], dtype=own[0].dtype, device=own[0].device)
        flat = torch.cat([*(g.reshape(-1) for g in grads), has])
        sum_up(flat)
        *parts, has = torch.split(flat, [*(g.numel() for g in grads), len(own)])
        for p, g, part, there in zip(own, grads, parts, has.tolist(), strict=True):
            p.grad = g.copy_(part.view_as(g)) if there else None


def sum_in_memory(mailboxes: Mailboxes, tensor: Tensor, ranks: Sequence[int]) -> None:
    """Sum a contiguous tensor over ranks of this machine, in place; each of them calls it. Raises PeerGone."""
    me, others = mailboxes.rank, [r for r in ranks if r != mailboxes.rank]
    parts = dict(zip(ranks, torch.tensor_split(tensor.view(-1), len(ranks)), strict=True))
    meta = {r: [TensorMeta(tuple(p.shape), (1,), p.dtype, False)] for r, p in parts.items()}
    for r in others:
        mailboxes.send(r, _TAG, [parts[r]], meta[r])
    for r in others:
        mailboxes.take(r, _TAG, meta[me], lambda got: parts[me].add_(got[0]))
    for r in others:
        mailboxes.send(r, _TAG, [parts[me]], meta[me])
    for r in others:
        mailboxes.take(r, _TAG, meta[r], lambda got, r=r: parts[r].copy_(got[0]))  # type: ignore[misc]
