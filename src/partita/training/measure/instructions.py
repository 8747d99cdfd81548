"""What a stage costs a device besides its tasks: the interpreter run on a model whose tasks do nothing but fill the caches.

A step of a chain of small layers is timed as one stage and as several on the same device:

    seconds(stages) = step + micro_batches (work + 2 stages instruction)

where `work` is what the layers take, `instruction` a forward or a backward of a stage (the interpreter's line, the call of the
stage's code, autograd's start), and `step` what happens once. A job of which two micro-batches are short tells it itself (`tasks.cutting_of`).

An instruction takes three times as long where the tasks before it have filled the caches with other things: 60 us behind 16 KB,
200 us behind 2 MB of tensors (AMD EPYC, 2026-11-22); an Inception in 17 to 45 stages has 220 us of it, in 134 stages 100 us. So a
layer hands on as much as the job does from one instruction to the next.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn

from partita.memory import objects_aside
from partita.training.capture.model import capture
from partita.training.job import Batch
from partita.training.measure.steps import Steps

_LAYERS = 4
_COUNT = 4  #: micro-batches
_STAGES = 16  #: that a job may be cut into
_SMALL, _LARGE = 1 << 12, 1 << 19  #: numbers in a layer: fewer change nothing; more only take time
_ENOUGH_S, _FEWEST = 1.5, 8  #: of rounds


def instruction_s(device: torch.device, job_bytes: float = 0.0, repeats: int = 40) -> float:
    """Seconds of a device that a forward or a backward of a stage takes, whatever the stage holds. Measured by the thread that calls
    it, in a second or two; `job_bytes`: of all tensors that the job's tasks hand on for a micro-batch, forward and backward."""
    width = int(min(job_bytes / (2 * _STAGES) / 4, _LARGE))
    width = width if width > _SMALL else 4
    model, batch = nn.Sequential(*(_Scale(width) for _ in range(_LAYERS))), _batch(_COUNT, width)
    captured = capture(model, _loss, _batch(1, width))  # on the CPU, as any model
    model.to(device)
    layers = [part.tolist() for part in np.array_split([*captured.task_nodes], _LAYERS)]
    one, staged = (Steps(captured, dict(model.named_parameters()), batch, 1, device, parts) for parts in ([], layers))
    for steps in (one, staged):  # the first steps find their way
        steps.seconds()
    rounds: list[float] = []
    began = time.perf_counter()
    with objects_aside():
        while len(rounds) < _FEWEST or (len(rounds) < repeats and time.perf_counter() - began < _ENOUGH_S):
            rounds.append(staged.seconds() - one.seconds())
    return max(0.0, float(np.median(rounds))) / (2 * _COUNT * (_LAYERS - 1))


class _Scale(nn.Module):
    """A layer that does little, and touches all that it holds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def _batch(size: int, width: int) -> Batch:
    return torch.zeros(size, width), torch.zeros(size, width)
