"""Is a job's loss a mean over the samples? Micro-batches weigh it by their share of the batch, so a sum would go wrong.

A sum tells itself: the loss of some samples is the sum of the losses of their halves, and so again for a half of them. A
loss that couples the samples of a batch (contrastive learning) may agree once by chance; it is let through.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from partita.errors import JobError
from partita.training.job import Batch, TrainingJob, batch_size, call, drawing, micro_batches

_SAMPLES = (
    8  #: of the batch that are looked at: 24 forward passes of one sample, at the start of a measurement or a run
)
_CLOSE = 1e-3  #: relative; sums in another order differ by 1e-6


def check_loss(job: TrainingJob, model: nn.Module, batch: Batch) -> None:
    """Raise JobError where the loss is a sum over the samples. The model stays as it was.

    Nothing is said of a model or a loss that does not run on parts of the batch, without gradients, in evaluation mode.
    """
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        with drawing, torch.random.fork_rng(devices=[]), torch.no_grad():
            losses = _halved(lambda part: float(job.loss(call(model, part[0]), part[1])), batch)
    except Exception:
        return
    finally:
        for module, training in modes.items():
            module.training = training
    if not losses or not all(_is_sum(*each) for each in losses):
        return
    whole, first, second = losses[0]
    raise JobError(
        f"the loss of {min(batch_size(batch), _SAMPLES)} samples is {whole:.6g}, the sum of its halves' {first:.6g} and {second:.6g}: "
        "over micro-batches, which weigh it as a mean, the gradients would be too small by their number",
        hint='let the loss be a mean over the samples, as reduction="mean" is; to train as before, multiply the learning rate by the batch size',
    )


def _halved(loss_of: Callable[[Batch], float], batch: Batch) -> list[tuple[float, float, float]]:
    """(loss of some samples, of their first half, of their second half): of the first samples, then of half of them, .."""
    found = []
    part = next(micro_batches(batch, _SAMPLES))
    while (n := batch_size(part)) > 1:
        first, second = micro_batches(part, -(-n // 2))
        found.append((loss_of(part), loss_of(first), loss_of(second)))
        part = first
    return found


def _is_sum(whole: float, first: float, second: float) -> bool:
    """
    >>> _is_sum(8.0, 3.0, 5.0), _is_sum(4.0, 3.0, 5.0), _is_sum(0.0, 0.0, 0.0)
    (True, False, False)
    """
    return math.isfinite(whole) and whole != 0.0 and abs(whole - (first + second)) <= _CLOSE * abs(whole)
