"""Jobs that go wrong, each in one way. `where` is the rank that fails; others go on until they notice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from small_models import two_inputs
from torch import Tensor, nn

from partita.training.job import Batch, TrainingJob

FEATURES = 16


def _batches(epoch: int) -> Iterator[Batch]:
    g = torch.Generator().manual_seed(epoch)
    for _ in range(3):
        yield torch.randn(8, FEATURES, generator=g), torch.randint(0, 4, (8,), generator=g)


def _model() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(FEATURES, FEATURES), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(FEATURES, 4))


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def good(seconds: str = "0") -> TrainingJob:
    """Trains; every batch takes so long to come."""

    def batches(epoch: int) -> Iterator[Batch]:
        for batch in _batches(epoch):
            time.sleep(float(seconds))
            yield batch

    return TrainingJob(_model, F.cross_entropy, batches, _sgd)


def wider() -> TrainingJob:
    """Another model than `good`'s."""
    return replace(good(), model=lambda: nn.Sequential(_model(), nn.Linear(4, 4)))


def raises() -> TrainingJob:
    raise FileNotFoundError("data/train.parquet")


def raises_on(where: str = "1") -> TrainingJob:
    """On one rank only."""
    return raises() if os.environ.get("RANK") == where else good()


def exits() -> TrainingJob:
    raise SystemExit(7)


def not_a_job() -> Any:
    return {"model": _model()}


def not_a_module() -> TrainingJob:
    return replace(good(), model=lambda: [1, 2])  # type: ignore[arg-type,return-value]


def wrong_fields() -> TrainingJob:
    optimizer: Any = torch.optim.SGD(_model().parameters(), lr=0.1)
    return TrainingJob(_model, F.cross_entropy, [1, 2], optimizer)  # type: ignore[arg-type]


def no_batches() -> TrainingJob:
    return replace(good(), batches=lambda epoch: [])


def wrong_shape() -> TrainingJob:
    return replace(good(), batches=lambda epoch: [(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))])


class Branches(nn.Module):
    """A way through the model that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _model()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if y.sum() > 0:
            return y * 2
        return y


def branches() -> TrainingJob:
    return replace(good(), model=Branches)


def broken_loss() -> TrainingJob:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        raise KeyError("weights")

    return replace(good(), loss=loss)


def batches_fail(where: str = "1", says: str = "disk on fire") -> TrainingJob:
    """The second epoch cannot be read, on one rank."""

    def batches(epoch: int) -> Iterator[Batch]:
        for k, batch in enumerate(_batches(epoch)):
            if epoch == 1 and k == 1 and os.environ.get("RANK") == where:
                raise OSError(says)
            yield batch

    return replace(good(), batches=batches)


def diverges() -> TrainingJob:
    """From the second epoch on, its fourth step, the loss is no number."""

    def batches(epoch: int) -> Iterator[Batch]:
        for x, y in _batches(epoch):
            yield x * (1.0 if epoch == 0 else float("nan")), y

    return replace(good(), batches=batches)


def leaves(where: str = "1") -> TrainingJob:
    """A rank ends its process in the second epoch, as if all were well."""

    def batches(epoch: int) -> Iterator[Batch]:
        for batch in _batches(epoch):
            if epoch == 1 and os.environ.get("RANK") == where:
                os._exit(0)
            yield batch

    return replace(good(), batches=batches)


def changing_shapes() -> TrainingJob:
    def batches(epoch: int) -> Iterator[Batch]:
        for k, (x, y) in enumerate(_batches(epoch)):
            yield (x if k < 2 else torch.cat([x, x], 1)), y

    return replace(good(), batches=batches)


def different_batches() -> TrainingJob:
    """Every rank has its own data."""

    def batches(epoch: int) -> Iterator[Batch]:
        for x, y in _batches(epoch):
            yield x + float(os.environ.get("RANK", "0")), y

    return replace(good(), batches=batches)


class FailingSgd(torch.optim.SGD):
    """Its fourth step raises where it is told to."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps == 4 and os.environ.get("RANK") == "1":
            raise ArithmeticError("the moon is in the wrong phase")
        return super().step(closure)


def optimizer_fails() -> TrainingJob:
    return replace(good(), optimizer=lambda parameters: FailingSgd(parameters, lr=0.05))


def shuffled() -> TrainingJob:
    """Two inputs, dropout, Adam, a scheduler; batches of 10, 10 and 4, shuffled and blurred by torch's global generator."""
    (x, side), y = two_inputs("24").example()

    def batches(epoch: int) -> Iterator[Batch]:
        for chosen in torch.randperm(24).split(10):
            yield (x[chosen] + 0.1 * torch.randn(len(chosen), 16), side[chosen]), y[chosen]

    return replace(two_inputs(), batches=batches)


class Counting(nn.Module):
    """Buffers of all kinds: one that changes and is not saved in the state_dict, a saved one, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _model()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("warmth", torch.zeros(()), persistent=False)
        self.register_buffer("scale", torch.ones(8)[:4], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * y.mean(0))
            self.warmth.add_(0.25)
        return (y - self.mean) * self.scale * torch.tanh(self.warmth)


def by_adam() -> TrainingJob:
    return replace(good(), optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01))


def grouped() -> TrainingJob:
    """AdamW that decays matrices only, each group with a learning rate of its own, under schedulers in schedulers; a model with buffers."""
    from torch.optim import lr_scheduler as lrs

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        named = list(parameters)
        plain, decay = [p for _, p in named if p.dim() < 2], [p for _, p in named if p.dim() > 1]
        return torch.optim.AdamW([{"params": plain, "weight_decay": 0.0, "lr": 0.02}, {"params": decay}], lr=0.01)

    def scheduler(o: torch.optim.Optimizer) -> lrs.LRScheduler:
        warm, later = lrs.LinearLR(o, 0.2, total_iters=3), lrs.MultiStepLR(o, [2, 3], 0.5)
        return lrs.SequentialLR(o, [warm, later], [3])

    return replace(good(), model=Counting, optimizer=optimizer, scheduler=scheduler)


class UnkeepableSgd(torch.optim.SGD):
    """Keeps what no checkpoint holds."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["rule"] = max
        return super().step(closure)


def unkeepable() -> TrainingJob:
    return replace(good(), optimizer=lambda parameters: UnkeepableSgd(parameters, lr=0.05))


def summed() -> TrainingJob:
    """Its loss is a sum: micro-batches would weigh it as a mean."""
    return replace(good(), loss=lambda y, t: F.cross_entropy(y, t, reduction="sum"))
