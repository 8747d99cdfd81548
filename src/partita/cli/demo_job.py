"""The demo's job: a small residual CNN on scikit-learn's handwritten digits (1,797 real images of 8 x 8 pixels)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from partita.errors import MissingDependency
from partita.training.job import Batch, TrainingJob

BATCH = 64


class Block(nn.Module):
    """Two 3x3 convolutions with a way round them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + x)


class DigitNet(nn.Module):
    """Enlarges the digits to 16 x 16, then two groups of residual blocks."""

    def __init__(self, width: int = 48, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.group1 = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.down = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU()
        )
        self.group2 = nn.Sequential(*[Block(2 * width) for _ in range(blocks)])
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.group2(self.down(self.group1(self.stem(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def digits() -> tuple[Tensor, Tensor]:
    """(images [1797, 1, 8, 8] of about zero mean, labels [1797]). Raises MissingDependency without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependency(
            "the demo's images come with scikit-learn, which is not installed", hint="pip install 'partita[demo]'"
        ) from error
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    return images, torch.tensor(data.target)


def job() -> TrainingJob:
    """Train DigitNet by SGD with momentum, batches of 64, a new order every epoch."""
    images, labels = digits()

    def batches(epoch: int) -> Iterator[Batch]:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for chosen in torch.split(order, BATCH):
            yield images[chosen], labels[chosen]

    return TrainingJob(
        model=DigitNet,
        loss=nn.functional.cross_entropy,
        batches=batches,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    )
