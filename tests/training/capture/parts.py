"""Run a captured model in parts, all in this process: what the workers of a pipeline do, without the messages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from partita.training.capture.model import Captured
from partita.training.job import Batch, call
from partita.training.runtime.stage import Stage, batch_leaves, stage_code


@dataclass(frozen=True)
class Outcome:
    """What a step leaves."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def forward_tasks(captured: Captured) -> list[str]:
    return [t.id for t in captured.graph.tasks if t.phase == "forward"]


def allowed_cuts(captured: Captured) -> list[int]:
    """Positions in the order of the tasks where a cut tears no colocation group."""
    tasks = [t for t in captured.graph.tasks if t.phase == "forward"]
    ends: dict[str, list[int]] = {}
    for i, t in enumerate(tasks):
        if t.group is not None:
            ends.setdefault(t.group, []).append(i)
    return [c for c in range(1, len(tasks)) if not any(e[0] < c <= e[-1] for e in ends.values())]


def cut_at(captured: Captured, cuts: Sequence[int]) -> list[list[str]]:
    tasks = forward_tasks(captured)
    edges = [0, *sorted(cuts), len(tasks)]
    return [tasks[a:b] for a, b in itertools.pairwise(edges)]


def run_eagerly(model: nn.Module, loss: Any, batch: Batch) -> Outcome:
    """The model itself; its buffers are put back, its gradients cleared."""
    before = {n: b.clone() for n, b in model.named_buffers()}
    model.zero_grad()
    value = loss(call(model, batch[0]), batch[1])
    value.backward()
    outcome = Outcome(
        value.detach(),
        {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None},
        {n: b.clone() for n, b in model.named_buffers()},
    )
    model.zero_grad()
    with torch.no_grad():
        for n, b in model.named_buffers():
            b.copy_(before[n])
    return outcome


def run_in_parts(
    captured: Captured, model: nn.Module, batch: Batch, parts: Sequence[Sequence[str]], *, recompute: bool = False
) -> Outcome:
    """Forward through all parts, backward through them in reverse; every value that crosses is detached on the way."""
    tensors: dict[str, Tensor] = {
        n: nn.Parameter(p.detach().clone(), p.requires_grad) for n, p in model.named_parameters()
    }
    tensors |= {n: b.detach().clone() for n, b in model.named_buffers()}
    ids = [t.id for t in captured.graph.tasks]
    part_of = {t: k for k, ts in enumerate(parts) for t in ts}
    made: list[list[str]] = [[] for _ in parts]
    for k, value in enumerate(captured.values):
        if value:
            home = part_of[ids[int(captured.graph.producer[k])]]
            if any(part_of[ids[r]] != home for r in captured.graph.readers.row(k).tolist()):
                made[home].append(value)
    device = torch.device("cpu")
    stages = [
        Stage(stage_code(captured, ts, vs), captured.bindings, tensors, device=device, recompute=recompute)
        for ts, vs in zip(parts, made, strict=True)
    ]
    leaves, values, loss = batch_leaves(batch, device), dict[str, Tensor](), torch.zeros(())
    for stage in stages:
        received = {v: values[v].detach().requires_grad_(captured.meta[v].requires_grad) for v in stage.code.received}
        outputs = stage.forward(0, leaves, received, 7)
        values |= dict(zip(stage.code.gives, outputs, strict=True))
        loss = outputs[-1] if stage.code.has_loss else loss
    back: dict[str, Tensor] = {}
    differentiable = {t.of for t in captured.graph.tasks if t.phase == "backward"}
    for stage, tasks in zip(reversed(stages), reversed(parts), strict=True):
        if differentiable.isdisjoint(tasks):
            continue
        gives = stage.code.gives[:-1] if stage.code.has_loss else stage.code.gives
        for name, gradient in stage.backward(0, [back.get(v) for v in gives], 1.0).items():
            back[name] = back[name] + gradient if name in back else gradient
    return Outcome(
        loss.detach(),
        {n: t.grad for n, t in tensors.items() if t.grad is not None},
        {n: t.detach() for n, t in tensors.items() if not isinstance(t, nn.Parameter)},
    )


def difference(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Largest difference, each tensor's relative to its largest element; inf where the names differ.

    A gradient that is zero but for rounding (of a key's bias, say) is measured by a thousandth of the largest of all.
    """
    if found.keys() != wanted.keys():
        return float("inf")
    largest = {n: float(t.abs().max()) if t.numel() else 0.0 for n, t in wanted.items()}
    least = max(largest.values(), default=0.0) / 1000 or 1.0

    def one(n: str) -> float:
        far = float((found[n].double() - wanted[n].double()).abs().max()) if wanted[n].numel() else 0.0
        return far / max(largest[n], least)

    return max(map(one, wanted), default=0.0)
