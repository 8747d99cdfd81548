"""Ten small models whose training step takes 0.5 to 10 ms on one core: what calls, instructions and messages cost tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.training.job import Batch, TrainingJob

Shape = tuple[int, ...]


def _job(model: Callable[[], nn.Module], *shapes: Shape, classes: int = 10, tokens: int = 0) -> TrainingJob:
    """Random inputs of these shapes (numbers below `tokens`, where it is given), random classes; SGD with momentum."""

    def batches(epoch: int) -> Iterable[Batch]:
        generator = torch.Generator().manual_seed(epoch)
        kept = [_batch(shapes, classes, tokens, generator) for _ in range(8)]
        return _turning(kept)

    return TrainingJob(model, F.cross_entropy, batches, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))


def _turning(kept: list[Batch]) -> Iterator[Batch]:
    for k in range(2000):
        yield kept[k % len(kept)]


def _batch(shapes: tuple[Shape, ...], classes: int, tokens: int, generator: torch.Generator) -> Batch:
    inputs: list[Tensor] = [
        torch.randint(0, tokens, s, generator=generator) if tokens else torch.randn(s, generator=generator)
        for s in shapes
    ]
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), torch.randint(
        0, classes, shapes[0][:1], generator=generator
    )


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.two(torch.relu(self.one(x))))


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(256, 192), nn.ReLU(), nn.Linear(192, 96)) for _ in range(2))
        self.head = nn.Linear(192, 10)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(torch.cat([self.left(a), self.right(b)], 1))  # type: ignore[no-any-return]


class Words(nn.Module):
    """Embedded words, each read by what `reads`, their mean classified."""

    def __init__(self, reads: nn.Module, width: int) -> None:
        super().__init__()
        self.words, self.reads, self.head = nn.Embedding(500, width), reads, nn.Linear(width, 10)

    def forward(self, ids: Tensor) -> Tensor:
        found = self.reads(self.words(ids))
        return self.head((found[0] if isinstance(found, tuple) else found).mean(1))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.one, self.two = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(self.one(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(read)
        return x + self.down(F.gelu(self.up(self.two(x))))  # type: ignore[no-any-return]


def softmax() -> TrainingJob:
    return _job(lambda: nn.Linear(784, 10), (256, 784))


def perceptron() -> TrainingJob:
    return _job(
        lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
        (64, 784),
    )


def deep_perceptron() -> TrainingJob:
    def model() -> nn.Module:
        layers = [m for _ in range(12) for m in (nn.Linear(64, 64), nn.Tanh())]
        return nn.Sequential(*layers, nn.Linear(64, 10))

    return _job(model, (128, 64))


def lenet() -> TrainingJob:
    def model() -> nn.Module:
        convolutions = [
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        return nn.Sequential(
            *convolutions,
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )

    return _job(model, (32, 1, 28, 28))


def residual() -> TrainingJob:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            *(Residual(16) for _ in range(3)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        )

    return _job(model, (16, 3, 16, 16))


def mobile() -> TrainingJob:
    def block(a: int, b: int) -> list[nn.Module]:
        return [
            nn.Conv2d(a, a, 3, padding=1, groups=a),
            nn.BatchNorm2d(a),
            nn.ReLU(),
            nn.Conv2d(a, b, 1),
            nn.BatchNorm2d(b),
            nn.ReLU(),
        ]

    return _job(
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), *block(16, 32), *block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
        (16, 3, 24, 24),
    )  # fmt: skip


def towers() -> TrainingJob:
    return _job(Towers, (128, 256), (128, 256))


def words() -> TrainingJob:
    return _job(lambda: Words(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), 64), (64, 24), tokens=500)


def recurrent() -> TrainingJob:
    return _job(lambda: Words(nn.GRU(48, 48, batch_first=True), 48), (32, 12), tokens=500)


def transformer() -> TrainingJob:
    return _job(lambda: Words(nn.Sequential(Block(64, 4), Block(64, 4)), 64), (16, 16), tokens=500)


MODELS = (
    "softmax",
    "perceptron",
    "deep_perceptron",
    "lenet",
    "residual",
    "mobile",
    "towers",
    "words",
    "recurrent",
    "transformer",
)
