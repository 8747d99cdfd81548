"""A loss that is a sum is refused with its numbers; a mean, and what couples the samples, is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training.runtime.helpers import plan_file, source_of
from training.runtime.runs import train

from partita.errors import JobError
from partita.training.job import TrainingJob
from partita.training.loss_check import check_loss
from partita.training.measure.job import measure_job


class Noisy(nn.Module):
    """Everything that differs between training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y


def job(loss: Callable[[Any, Any], Tensor], samples: int = 12) -> TrainingJob:
    def batches(epoch: int) -> list[Any]:
        g = torch.Generator().manual_seed(epoch)
        return [(torch.randn(samples, 6, generator=g), torch.randint(0, 4, (samples,), generator=g))]

    return TrainingJob(Noisy, loss, batches, lambda ps: torch.optim.SGD([p for _, p in ps], lr=0.1))


def contrastive(y: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(0.01 * y @ y.T, torch.arange(len(y)))


SUMS: dict[str, Callable[[Any, Any], Tensor]] = {
    "sum": lambda y, t: F.cross_entropy(y, t, reduction="sum"),
    "squares": lambda y, t: ((y - F.one_hot(t, 4)) ** 2).sum(),
}
MEANS: dict[str, Callable[[Any, Any], Tensor]] = {
    "mean": F.cross_entropy,
    "contrastive": contrastive,
    "zero": lambda y, t: (y * 0).sum(),
    "fails": lambda y, t: y[11].sum(),
    "no number": lambda y, t: y,
}


@pytest.mark.parametrize("samples", [2, 3, 7, 12])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_refused(name: str, samples: int) -> None:
    j = job(SUMS[name], samples)
    with pytest.raises(
        JobError, match=rf"the loss of {min(samples, 8)} samples is .*, the sum of its halves' "
    ) as caught:
        check_loss(j, j.build(), j.example())
    assert 'reduction="mean"' in caught.value.hint


@pytest.mark.parametrize("samples", [1, 4, 7, 12])
@pytest.mark.parametrize("name", MEANS)
def test_others_are_not(name: str, samples: int) -> None:
    j = job(MEANS[name], samples)
    check_loss(j, j.build(), j.example())


def test_the_model_and_the_generator_stay_as_they_were() -> None:
    j = job(F.cross_entropy)
    model, state = j.build(), torch.get_rng_state()
    model.body[1].eval()  # type: ignore[index,operator]
    before = {n: t.clone() for n, t in model.state_dict().items()}
    check_loss(j, model, j.example())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert [m.training for m in model.modules()] == [True, True, True, False, True, True]


def test_told_before_anything_is_measured() -> None:
    with pytest.raises(JobError, match="the sum of its halves'"):
        measure_job(source_of("failing:summed"), devices=1)


def test_told_at_the_start_of_a_run(tmp_path: Path) -> None:
    plan_file("failing:good", stages=1).write(tmp_path / "plan.json")
    run = train(tmp_path, "failing:summed", tmp_path / "plan.json", "--steps", "2")
    assert run.wait() == 2
    assert "the sum of its halves'" in run.error()
