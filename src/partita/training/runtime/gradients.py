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

_TAG = -1  #: messages of sums, and those below it: between two ranks they come in the order in which both ask for sums

Finish = Callable[[], None]
Begin = Callable[[Tensor, int], Finish]


def begin_reduction(parameters: Sequence[Tensor], begin: Begin) -> Finish:
    """Begin to sum the gradients of some parameters over ranks, as one message a type. What is returned waits for the sums
    and puts them where the gradients were; `begin(tensor, number)` begins to sum a tensor, in place, and likewise returns
    what waits for its end.

    A parameter of which no member has a gradient gets none: an optimizer would decay it.
    """
    by_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for p in parameters:
        by_type[p.dtype].append(p)
    begun: list[tuple[list[Tensor], list[Tensor], Tensor, Finish]] = []
    for number, own in enumerate(by_type.values()):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
        has = torch.tensor([p.grad is not None for p in own], dtype=own[0].dtype, device=own[0].device)
        flat = torch.cat([*(g.reshape(-1) for g in grads), has])
        begun.append((own, grads, flat, begin(flat, number)))

    def finish() -> None:
        for own, grads, flat, end in begun:
            end()
            *parts, has = torch.split(flat, [*(g.numel() for g in grads), len(own)])
            for p, g, part, there in zip(own, grads, parts, has.tolist(), strict=True):
                p.grad = g.copy_(part.view_as(g)) if there else None

    return finish


def sum_in_memory(mailboxes: Mailboxes, tensor: Tensor, ranks: Sequence[int]) -> None:
    """Sum a contiguous tensor over ranks of this machine, in place; each of them calls it. Raises PeerGone."""
    begin_sum_in_memory(mailboxes, tensor, ranks)()


def begin_sum_in_memory(mailboxes: Mailboxes, tensor: Tensor, ranks: Sequence[int], key: int = 0) -> Finish:
    """The same in two parts: now everybody is sent what is his to add up; what is returned adds up, and waits for the
    others. Sums that are under way together have different keys."""
    me, others = mailboxes.rank, [r for r in ranks if r != mailboxes.rank]
    parts = dict(zip(ranks, torch.tensor_split(tensor.view(-1), len(ranks)), strict=True))
    meta = {r: (TensorMeta(tuple(p.shape), (1,), p.dtype, False),) for r, p in parts.items()}
    out, back = _TAG - 2 * key, _TAG - 2 * key - 1
    for r in others:
        mailboxes.send(r, out, [parts[r]], meta[r])

    def finish() -> None:
        for r in others:
            mailboxes.take(r, out, meta[me], lambda got: parts[me].add_(got[0]))
        for r in others:
            mailboxes.send(r, back, [parts[me]], meta[me])
        for r in others:
            mailboxes.take(r, back, meta[r], lambda got, r=r: parts[r].copy_(got[0]))  # type: ignore[misc]

    return finish
