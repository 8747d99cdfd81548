"""What a step costs a device besides its tasks: the interpreter run on a model whose tasks do nothing but fill the caches.

A step of a chain of small layers is timed as one stage and as several on the same device, with few and with many micro-batches:

    seconds(stages, micro_batches) = step + micro_batches (work + 2 stages instruction)

where `work` is what the layers take, `instruction` a forward or a backward of a stage (the interpreter's line, the call of the
stage's code, autograd's start), and `step` what happens once: the batch is cut, the gradients and receives are prepared.

An instruction takes three times as long where the tasks before it have filled the caches with other things: 60 us behind 16 KB,
200 us behind 2 MB of tensors (AMD EPYC, 2026-11-22); an Inception in 17 to 45 stages has 220 us of it, in 134 stages 100 us. So a
layer hands on as much as the job does from one instruction to the next.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from partita.nouns.cluster import Cluster, Device
from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.training.capture.model import Captured, capture
from partita.training.job import Batch, batch_size
from partita.training.runtime.deployment import Deployment, Groups
from partita.training.runtime.device import work_clock
from partita.training.runtime.interpreter import Interpreter
from partita.training.runtime.stage import batch_leaves
from partita.training.runtime.transport import Transport

_LAYERS = 4
_MANY = 4  #: micro-batches
_STAGES = 16  #: that a job may be cut into
_SMALL, _LARGE = 1 << 12, 1 << 19  #: numbers in a layer: fewer change nothing; more only take time
_ENOUGH_S, _FEWEST = 1.5, 8  #: of rounds


@dataclass(frozen=True)
class CallCosts:
    """Seconds of a device."""

    instruction_s: float  #: a forward or a backward of a stage, whatever the stage holds
    around_s: float  #: the part of it that is not the call of the stage's code
    step_s: float  #: what happens once a step
    update_s: float = 0.0  #: what the job's optimizer takes whatever it updates


class _Nothing:
    """Stands for the optimizer."""

    def reduce(self, group: int) -> Callable[[], None]:
        return lambda: None

    def reduce_norm(self) -> None: ...
    def update(self) -> None: ...


def call_costs(device: torch.device, job_bytes: float = 0.0, repeats: int = 40) -> CallCosts:
    """Measured by the thread that calls it, in a second or two; `job_bytes`: of all tensors that the job's tasks hand on for a
    micro-batch, forward and backward."""
    width = int(min(job_bytes / (2 * _STAGES) / 4, _LARGE))
    tiny = _rounds(device, 4, repeats)
    instruction_s = tiny.instruction_s if width <= _SMALL else _rounds(device, width, repeats).instruction_s
    return replace(tiny, instruction_s=instruction_s)


def _rounds(device: torch.device, width: int, repeats: int) -> CallCosts:
    """What layers on so many numbers tell."""
    model = nn.Sequential(*(_Scale(width) for _ in range(_LAYERS)))
    captured = capture(model, _loss, _batch(1, width))  # on the CPU, as any model
    model.to(device)
    one, many, staged = (
        _Run(model, captured, k, _batch(m, width), device) for k, m in ((1, 1), (1, _MANY), (_LAYERS, _MANY))
    )
    times = (one.seconds, many.seconds, staged.seconds, one.code_seconds)
    for taken in times:  # the first steps find their way
        taken()
    rounds: list[list[float]] = []
    began = time.perf_counter()
    while len(rounds) < _FEWEST or (len(rounds) < repeats and time.perf_counter() - began < _ENOUGH_S):
        rounds.append([taken() for taken in times])
    return costs_of(np.array(rounds))


def costs_of(rounds: FloatArray) -> CallCosts:
    """`rounds` [rounds, 4] seconds of a step as one stage with one micro-batch and with _MANY, of one as _LAYERS stages with _MANY,
    and of the one stage's code by itself: medians of differences within a round, in which the machine is the same.

    >>> step, work, call, code = 90, 40, 10, 50  # microseconds; 5 of a call are around the stage's code
    >>> round = [step + 60, step + 4 * 60, step + 4 * (work + 8 * call), code]
    >>> costs_of(np.array([round, round]) * 1.0)
    CallCosts(instruction_s=10.0, around_s=5.0, step_s=90.0, update_s=0.0)
    """
    one, many, staged, code = rounds.T
    per_micro_batch = (many - one) / (_MANY - 1)
    instruction = (staged - many) / (2 * _MANY * (_LAYERS - 1))
    found = (instruction, (per_micro_batch - code) / 2, one - per_micro_batch)
    return CallCosts(*(max(float(np.median(f)), 0.0) for f in found))


class _Scale(nn.Module):
    """A layer that does little, and touches all that it holds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class _Run:
    """The model as so many stages on one device, and a batch of so many micro-batches."""

    def __init__(self, model: nn.Module, captured: Captured, stages: int, batch: Batch, device: torch.device) -> None:
        self._device, self._batch, micro_batches = device, batch, batch_size(batch)
        tasks = [t.id for t in captured.graph.tasks if t.phase == "forward"]
        parts = [tuple(p.tolist()) for p in np.array_split(tasks, stages)]
        plan = PipelinePlan(
            captured.graph.fingerprint, tuple(Stage(p, ("it",)) for p in parts), micro_batches, stages, "1f1b"
        )
        there = Deployment(plan, Cluster((Device("it"),)), ("it",), 0, captured, 1, False, Groups())
        self._bound = there.bound(captured, dict(model.named_parameters()), device, contextlib.nullcontext)
        self._interpreter = Interpreter(
            there.program(micro_batches), there.place(device), {1: self._bound}, Transport(device, "gloo"), _Nothing(),
            np.zeros(1, np.int64),
        )  # fmt: skip

    def seconds(self) -> float:
        """CPU seconds of a step; on a GPU seconds until it is done."""
        now = work_clock(self._device)
        began = now()
        self._interpreter.step(self._batch, 1, 0, 0)
        return now() - began

    def code_seconds(self) -> float:
        """Of the first stage's forward and backward alone; the batch is one micro-batch."""
        now, stage, leaves = work_clock(self._device), self._bound.stages[0], batch_leaves(self._batch, self._device)
        began = now()
        stage.forward(0, leaves, {}, 0)
        stage.backward(0, [], 1.0)
        return now() - began


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def _batch(size: int, width: int) -> Batch:
    return torch.zeros(size, width), torch.zeros(size, width)
