"""A ResNet on CIFAR-10 images: `partita run examples/cifar_resnet.py:job --set data=DIR --devices 2`.

DIR holds train.parquet and test.parquet with the columns `img.bytes` (an encoded image) and `label`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from partita.training.job import Batch, TrainingJob


class Block(nn.Module):
    """Two 3x3 convolutions and a way round them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    """Three groups of blocks; 1,084,586 parameters at width 32 with three blocks a group."""

    def __init__(self, width: int = 32, blocks: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width, 2 * width, 4 * width]
        layers: list[nn.Module] = []
        inputs = width
        for k, w in enumerate(widths):
            for i in range(blocks):
                layers.append(Block(inputs, w, 2 if k > 0 and i == 0 else 1))
                inputs = w
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@lru_cache(maxsize=2)
def images(path: str, most: int | None) -> tuple[Tensor, Tensor]:
    """(images [n, 3, 32, 32] normalised float32, labels [n]) of a Parquet file."""
    import pyarrow.parquet as pq
    from PIL import Image

    table = pq.read_table(path, columns=["img", "label"])
    table = table.slice(0, most) if most else table
    encoded = [row["bytes"] for row in table["img"].to_pylist()]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(b)).convert("RGB")) for b in encoded])
    mean, std = torch.tensor([0.491, 0.482, 0.447]), torch.tensor([0.247, 0.243, 0.262])
    x = (torch.from_numpy(pixels).float() / 255 - mean) / std
    return x.permute(0, 3, 1, 2).contiguous(), torch.tensor(table["label"].to_pylist())


def job(
    data: str, batch: str = "64", images_used: str = "4096", lr: str = "0.05", width: str = "32", blocks: str = "3"
) -> TrainingJob:
    """The training job; settings come from the command line as text."""
    size = int(batch)

    def batches(epoch: int) -> Iterator[Batch]:
        x, y = images(str(Path(data) / "train.parquet"), int(images_used) or None)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(x), size):
            chosen = order[start : start + size]
            yield x[chosen], y[chosen]

    return TrainingJob(
        model=lambda: ResNet(int(width), int(blocks)),
        loss=nn.functional.cross_entropy,
        batches=batches,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=float(lr), momentum=0.9),
    )
