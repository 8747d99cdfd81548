"""Small jobs that are trained in unusual ways: parameter groups with schedules, clipped gradients, lower precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from partita.training.job import Batch, TrainingJob


def _model() -> nn.Module:
    """Eight layers; one of them is frozen, and one holds a parameter that the loss does not depend on."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(12, 12), nn.LayerNorm(12), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(12, 5))
    model[3].requires_grad_(False)
    model.register_parameter(
        "spare", nn.Parameter(torch.ones(3))
    )  # no stage reads it: rank 0 keeps it, be it idle or not
    return model


def _batches(epoch: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(24):
        yield torch.randn(8, 12, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def _grouped(parameters: Any) -> torch.optim.Optimizer:
    named = [(n, p) for n, p in parameters]
    decayed = [p for n, p in named if p.dim() > 1]
    others = [p for n, p in named if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 3e-3}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-2)


def _warmed_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    schedule = torch.optim.lr_scheduler
    first = schedule.LinearLR(optimizer, 0.3, total_iters=3)
    return schedule.SequentialLR(optimizer, [first, schedule.ExponentialLR(optimizer, 0.9)], [3])


class _Decoder(nn.Module):
    """Every later layer reads the first one's output, as a decoder's read their encoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        encoded = h = torch.relu(self.layers[0](x))
        for layer in list(self.layers)[1:]:
            h = torch.tanh(layer(h + encoded))
        return h


def decoder() -> TrainingJob:
    return TrainingJob(_Decoder, F.cross_entropy, _batches, _grouped)


def remainders() -> TrainingJob:
    """The last batch of an epoch is smaller."""

    def batches(epoch: int) -> Iterator[Batch]:
        for x, y in list(_batches(epoch))[:3]:
            yield x, y
        yield x[:3], y[:3]

    return TrainingJob(_model, F.cross_entropy, batches, _grouped)


def groups() -> TrainingJob:
    return TrainingJob(_model, F.cross_entropy, _batches, _grouped, _warmed_up)


def clipped() -> TrainingJob:
    return TrainingJob(_model, F.cross_entropy, _batches, _grouped, clip_norm=0.05)


def bfloat16() -> TrainingJob:
    return TrainingJob(_model, F.cross_entropy, _batches, _grouped, autocast=torch.bfloat16)
