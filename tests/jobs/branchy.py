"""Jobs whose operators can run beside each other: Inception-like blocks, two towers; and some that hardly can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.training.job import Batch, TrainingJob

BATCHES = 400


def _conv(inside: int, outside: int, size: int | tuple[int, int], stride: int = 1) -> nn.Sequential:
    pad = tuple(s // 2 for s in size) if isinstance(size, tuple) else size // 2
    return nn.Sequential(
        nn.Conv2d(inside, outside, size, stride, pad, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
    )


class _Mixed(nn.Module):
    """Four branches side by side, as in Inception-v3's 17 x 17 blocks."""

    def __init__(self, inside: int, w: int) -> None:
        super().__init__()
        self.one = _conv(inside, w, 1)
        self.two = nn.Sequential(_conv(inside, w, 1), _conv(w, w, (1, 7)), _conv(w, w, (7, 1)))
        self.three = nn.Sequential(
            _conv(inside, w, 1), _conv(w, w, (7, 1)), _conv(w, w, (1, 7)), _conv(w, w, (7, 1)), _conv(w, w, (1, 7))
        )
        self.four = _conv(inside, w, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.avg_pool2d(x, 3, 1, 1)
        return torch.cat([self.one(x), self.two(x), self.three(x), self.four(pooled)], 1)


class InceptionLike(nn.Module):
    def __init__(self, w: int, blocks: int) -> None:
        super().__init__()
        self.stem = _conv(3, w, 3, 2)
        self.blocks = nn.Sequential(*(_Mixed(w if k == 0 else 4 * w, w) for k in range(blocks)))
        self.head = nn.Linear(4 * w, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class _Basic(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.a = _conv(inside, outside, 3, stride)
        self.b = nn.Sequential(nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside))
        self.short = (
            nn.Identity()
            if inside == outside and stride == 1
            else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(self.a(x)) + self.short(x))


class ResNet(nn.Module):
    """ResNet-18's eight blocks where `each` is 2."""

    def __init__(self, w: int, each: int) -> None:
        super().__init__()
        self.stem = _conv(3, w, 3)
        blocks, inside = [], w
        for k in range(4):
            for j in range(each):
                blocks.append(_Basic(inside, w << k, 2 if k and not j else 1))
                inside = w << k
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class TwoTowers(nn.Module):
    """Two encoders that meet in the end only."""

    def __init__(self, w: int) -> None:
        super().__init__()
        self.left, self.right = (
            nn.Sequential(nn.Linear(w, 4 * w), nn.ReLU(), nn.Linear(4 * w, 4 * w), nn.ReLU(), nn.Linear(4 * w, w))
            for _ in range(2)
        )
        self.head = nn.Linear(2 * w, 10)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.cat([self.left(left), self.right(right)], 1))


class AlexNetLike(nn.Module):
    """Five convolutions in a row and three wide layers; nothing runs beside anything."""

    def __init__(self, w: int) -> None:
        super().__init__()
        widths = (w, 3 * w, 6 * w, 4 * w, 4 * w)
        parts: list[nn.Module] = []
        for k, (a, b) in enumerate(zip((3, *widths), widths, strict=False)):
            parts += [nn.Conv2d(a, b, 5 if k == 0 else 3, 1, 2 if k == 0 else 1), nn.ReLU(inplace=True)]
            parts += [nn.MaxPool2d(2)] if k in (0, 1, 4) else []
        self.features = nn.Sequential(*parts)
        self.classes = nn.Sequential(
            nn.Linear(4 * w * 16, 16 * w), nn.ReLU(), nn.Linear(16 * w, 16 * w), nn.ReLU(), nn.Linear(16 * w, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.features(x).flatten(1))


def _images(batch: int, size: int) -> Callable[[int], Iterator[Batch]]:
    def batches(epoch: int) -> Iterator[Batch]:
        g = torch.Generator().manual_seed(1000 + epoch)
        for _ in range(BATCHES):
            yield torch.randn(batch, 3, size, size, generator=g), torch.randint(0, 10, (batch,), generator=g)

    return batches


def _job(
    model: Callable[[], nn.Module], batches: Callable[[int], Iterator[Batch]], batch: int, lr: float = 0.02
) -> TrainingJob:
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9)

    return TrainingJob(model, F.cross_entropy, batches, sgd, micro_batch_sizes=(batch,))


def inception(batch: str = "4", width: str = "4", blocks: str = "2", size: str = "16") -> TrainingJob:
    return _job(lambda: InceptionLike(int(width), int(blocks)), _images(int(batch), int(size)), int(batch))


def resnet(batch: str = "4", width: str = "4", each: str = "1", size: str = "16") -> TrainingJob:
    return _job(lambda: ResNet(int(width), int(each)), _images(int(batch), int(size)), int(batch))


def alexnet(batch: str = "4", width: str = "4") -> TrainingJob:
    return _job(lambda: AlexNetLike(int(width)), _images(int(batch), 32), int(batch))


def towers(batch: str = "8", width: str = "16", lr: str = "0.02") -> TrainingJob:
    def batches(epoch: int) -> Iterator[Batch]:
        g = torch.Generator().manual_seed(2000 + epoch)
        for _ in range(BATCHES):
            sides = (torch.randn(int(batch), int(width), generator=g), torch.randn(int(batch), int(width), generator=g))
            yield sides, torch.randint(0, 10, (int(batch),), generator=g)

    return _job(lambda: TwoTowers(int(width)), batches, int(batch), float(lr))


def softmax(batch: str = "8", width: str = "64") -> TrainingJob:
    """A regression with a softmax: one layer."""

    def batches(epoch: int) -> Iterator[Batch]:
        g = torch.Generator().manual_seed(3000 + epoch)
        for _ in range(BATCHES):
            yield torch.randn(int(batch), int(width), generator=g), torch.randint(0, 10, (int(batch),), generator=g)

    return _job(lambda: nn.Linear(int(width), 10), batches, int(batch))
