"""A CNN on CIFAR-10 images that trains until it is good enough, at any batch size:

    partita run examples/cifar_application.py:job --set data=DIR --set batch=64 --set target=0.6 --epochs 100 --devices 2

DIR holds train.parquet and test.parquet with the columns `img.bytes` (an encoded image) and `label`. Every `every` images
the running average of the weights is judged on images held out of the test set; training ends at the first judgement that
is at least `target`. With a `course`, rank 0 adds a JSON line for each judgement to that file, with the times of the monotonic
clock at which training and the judgement began, and the seconds for which all ranks together have waited for their cores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from cifar_resnet import images
from torch import Tensor, nn

from partita.training.job import Batch, TrainingJob

RATE = 0.03  #: the learning rate that very large batches would take
HALF_RATE_BATCH = 64  #: the batch that takes half of it; smaller ones take less, in proportion to their noise
MEMORY = 10_000  #: images over which the weights are averaged
WARM_UP = 4_000  #: images over which the learning rate rises


def network(width: int) -> nn.Module:
    """Three convolutions without batch statistics, so that one worker and several compute the same gradients."""
    return nn.Sequential(
        nn.Conv2d(3, width, 5, 2, 2), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * width * 16, 10),
    )  # fmt: skip


@dataclass
class Course:
    """How a training run goes: its averaged weights, judged every so many images."""

    average: nn.Module  #: holds the running average of the weights
    held_out: tuple[Tensor, Tensor]
    target: float
    every: int
    path: Path | None
    live: list[Tensor] = field(default_factory=list)  #: the weights in training, in the order of the average's
    seen: int = 0  #: images
    judged: int = 0
    reached: bool = False
    began: float = 0.0  #: time.monotonic() at the first batch

    def watch(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Take note of the weights that are trained."""
        known = {name: p.detach() for name, p in parameters}
        self.live = [known[name] for name, _ in self.average.named_parameters()]
        with torch.no_grad():
            torch._foreach_copy_([p.detach() for p in self.average.parameters()], self.live)

    def after_step(self, batch: int) -> None:
        """The average moves on; at every `every` images it is judged. A young average looks back a third of the way."""
        self.seen += batch
        share = min(1.0, batch / min(MEMORY, self.seen / 3))
        torch._foreach_lerp_([p.detach() for p in self.average.parameters()], self.live, share)
        if self.seen >= (self.judged + 1) * self.every:
            self.judged = self.seen // self.every
            self._judge()

    def _judge(self) -> None:
        """Accuracy of the average on the held-out images; the ranks share the work and learn the same sums."""
        began = time.monotonic()
        right, queued = over_ranks([self.right(), queued_s()])
        accuracy = right / len(self.held_out[1])
        self.reached = accuracy >= self.target
        if self.path and place()[0] == 0:
            times = {"since": self.began, "began": began, "ended": time.monotonic(), "queued_s": queued}
            with self.path.open("a") as file:
                file.write(json.dumps({"images": self.seen, "accuracy": accuracy, **times}) + "\n")

    @torch.no_grad()
    def right(self) -> float:
        """How many of this rank's share of the held-out images the average classifies correctly."""
        rank, ranks = place()
        x, y = (t[rank::ranks] for t in self.held_out)
        parts = zip(x.split(250), y.split(250), strict=True)
        return float(sum(int((self.average(a).argmax(1) == b).sum()) for a, b in parts))


def place() -> tuple[int, int]:
    """(rank, ranks)."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def over_ranks(values: list[float]) -> list[float]:
    """The sums over all ranks."""
    total = torch.tensor(values, dtype=torch.float64)
    if place()[1] > 1:
        dist.all_reduce(total)
    return [float(v) for v in total]


def queued_s() -> float:
    """Seconds that this process was ready to run while others had its core; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def job(
    data: str,
    batch: str = "64",
    target: str = "0.6",
    seed: str = "0",
    width: str = "32",
    images_used: str = "20000",
    held_out: str = "3000",
    every: str = "2048",
    course: str = "",
) -> TrainingJob:
    """The training job; settings come from the command line as text."""
    size, chance = int(batch), int(seed)
    run = Course(
        network(int(width)).requires_grad_(requires_grad=False), images(str(Path(data) / "test.parquet"), int(held_out)),
        float(target), int(every), Path(course) if course else None,
    )  # fmt: skip

    def batches(epoch: int) -> Iterator[Batch]:
        x, y = images(str(Path(data) / "train.parquet"), int(images_used))
        generator = torch.Generator().manual_seed(1_000_003 * chance + epoch)
        order = torch.randperm(len(x), generator=generator)
        if run.seen == 0:
            run.began = time.monotonic()
        for start in range(0, len(x) - size + 1, size):
            if run.reached:
                return
            chosen = order[start : start + size]
            mirrored = torch.rand(size, generator=generator) < 0.5
            pictures = x[chosen]
            pictures[mirrored] = pictures[mirrored].flip(3)
            yield pictures, y[chosen]
            run.after_step(size)

    def optimizer(parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        pairs = list(parameters)
        if len(pairs) == len(list(run.average.parameters())):  # a stage that holds a part of the model cannot judge it
            run.watch(pairs)
        return torch.optim.SGD(pairs, lr=RATE / (1 + HALF_RATE_BATCH / size), momentum=0.9)

    def warm_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) * size / WARM_UP))

    return TrainingJob(
        model=lambda: network(int(width)), loss=nn.functional.cross_entropy, batches=batches, optimizer=optimizer,
        scheduler=warm_up, seed=chance,
    )  # fmt: skip
