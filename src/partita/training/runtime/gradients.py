"""Sums of gradients over ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def reduce_gradients(parameters: Sequence[Tensor], group: Any) -> None:
    """Sum the gradients of some parameters over a group, as one message a type.

    A parameter of which no member has a gradient gets none: an optimizer would decay it.
    """
    by_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for p in parameters:
        by_type[p.dtype].append(p)
    for own in by_type.values():
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
        has = torch.tensor([p.grad is not None for p in own], dtype=own[0].dtype, device=own[0].device)
        flat = torch.cat([*(g.reshape(-1) for g in grads), has])
        dist.all_reduce(flat, group=group)
        *parts, has = torch.split(flat, [*(g.numel() for g in grads), len(own)])
        for p, g, part, there in zip(own, grads, parts, has.tolist(), strict=True):
            p.grad = g.copy_(part.view_as(g)) if there else None
