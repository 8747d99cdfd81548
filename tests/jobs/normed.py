"""A small network with BatchNorm, and the same one whose norms see each half of the batch by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.training.job import Batch, TrainingJob

BATCH = 8


class Halves(nn.BatchNorm2d):
    """BatchNorm of each half of the batch; the first one keeps the running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2)
        return torch.cat([super().forward(one), F.batch_norm(other, None, None, self.weight, self.bias, True)])


def _network(norm: type[nn.BatchNorm2d]) -> nn.Module:
    layers: list[nn.Module] = []
    for inside, outside in ((3, 6), (6, 8), (8, 8)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1, bias=False), norm(outside), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def _job(norm: type[nn.BatchNorm2d]) -> TrainingJob:
    def batches(epoch: int) -> Iterator[Batch]:
        g = torch.Generator().manual_seed(epoch)
        for _ in range(40):
            yield torch.randn(BATCH, 3, 8, 8, generator=g), torch.randint(0, 10, (BATCH,), generator=g)

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    return TrainingJob(lambda: _network(norm), F.cross_entropy, batches, sgd, micro_batch_sizes=(BATCH,))


def whole() -> TrainingJob:
    return _job(nn.BatchNorm2d)


def halves() -> TrainingJob:
    return _job(Halves)
