"""The jobs of schedules.py: the ResNet of examples/cifar_resnet.py, and a transformer whose weights no two stages share; of unequal.py: a
plain CNN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from harness import loaded
from prediction_jobs import bert as bert_of_tokens
from torch import Tensor, nn

from partita.cli.demo_job import digits
from partita.training.job import Batch, TrainingJob

BATCH = 64
_cifar = loaded(Path(__file__).parents[1] / "examples" / "cifar_resnet.py")


def resnet(data: str = "") -> TrainingJob:
    """On CIFAR-10's train.parquet in a folder; without one on scikit-learn's digits, enlarged to 32 x 32."""
    if data:
        found: TrainingJob = _cifar.job(data, batch=str(BATCH), images_used="2048")
        return found

    def batches(epoch: int) -> Iterator[Batch]:
        x, y = _enlarged()
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield x[chosen], y[chosen]

    return TrainingJob(
        model=lambda: _cifar.ResNet(32, 3),
        loss=nn.functional.cross_entropy,
        batches=batches,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    )


def cnn(data: str = "") -> TrainingJob:
    """On the same images: six convolutions, ever wider, in pairs with pooling behind each; 1.2 million parameters."""
    return replace(resnet(data), model=_cnn)


def _cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 64), (64, 128), (128, 256)):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.ReLU(),
        ]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 10))


def _enlarged() -> tuple[Tensor, Tensor]:
    """(images [1797, 3, 32, 32], labels [1797])."""
    x, y = digits()
    return nn.functional.interpolate(x, size=(32, 32)).expand(-1, 3, -1, -1).contiguous(), y


def bert() -> TrainingJob:
    return bert_of_tokens()
