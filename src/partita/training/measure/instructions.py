"""What a step costs a device besides its tasks: the interpreter run on a model whose tasks take next to nothing.

A step of a chain of tiny layers is timed as one stage and as several on the same device, with few and with many micro-batches:

    seconds(stages, micro_batches) = step + micro_batches (work + 2 stages instruction)

where `work` is what the layers take, `instruction` a forward or a backward of a stage (the interpreter's line, the call of the
stage's code, autograd's start), and `step` what happens once: the batch is cut, the gradients and receives are prepared.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from partita.nouns.cluster import Cluster, Device
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.training.capture.model import Captured, capture
from partita.training.job import Batch
from partita.training.runtime.deployment import Deployment, Groups
from partita.training.runtime.interpreter import Interpreter
from partita.training.runtime.stage import batch_leaves
from partita.training.runtime.transport import Transport

_LAYERS, _WIDTH = 4, 4
_MANY = 8  #: micro-batches


@dataclass(frozen=True)
class CallCosts:
    """Seconds of a device."""

    instruction_s: float  #: a forward or a backward of a stage, whatever the stage holds
    around_s: float  #: the part of it that is not the call of the stage's code
    step_s: float  #: what happens once a step


class _Nothing:
    """Stands for the optimizer."""

    def reduce(self, group: int) -> Callable[[], None]:
        return lambda: None

    def reduce_norm(self) -> None: ...
    def update(self) -> None: ...


def call_costs(device: torch.device, repeats: int = 40) -> CallCosts:
    """Measured by the thread that calls it, in a fraction of a second."""
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)))
    captured = capture(model, _loss, _batch(1))  # on the CPU, as any model
    model.to(device)
    runs = {(k, m): _Run(model, captured, k, m, device) for k in (1, _LAYERS) for m in (1, _MANY)}
    for run in runs.values():  # the first steps find their way
        run.seconds()
    rounds = [{key: run.seconds() for key, run in runs.items()} for _ in range(repeats)]
    took = {key: statistics.median(r[key] for r in rounds) for key in runs}
    instruction = (took[_LAYERS, _MANY] - took[1, _MANY]) / (2 * _MANY * (_LAYERS - 1))
    per_micro_batch = (took[1, _MANY] - took[1, 1]) / (_MANY - 1)
    code = statistics.median(runs[1, 1].code_seconds() for _ in range(repeats))
    return CallCosts(
        max(instruction, 0.0), max((per_micro_batch - code) / 2, 0.0), max(took[1, 1] - per_micro_batch, 0.0)
    )


class _Run:
    """The model as so many stages on one device, and a batch of so many micro-batches."""

    def __init__(
        self, model: nn.Module, captured: Captured, stages: int, micro_batches: int, device: torch.device
    ) -> None:
        self._device, self._batch = device, _batch(micro_batches)
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
        now = clock(self._device)
        began = now()
        self._interpreter.step(self._batch, 1, 0, 0)
        return now() - began

    def code_seconds(self) -> float:
        """Of the first stage's forward and backward alone, on one micro-batch."""
        now, stage, leaves = clock(self._device), self._bound.stages[0], batch_leaves(_batch(1), self._device)
        began = now()
        stage.forward(0, leaves, {}, 0)
        stage.backward(0, [], 1.0)
        return now() - began


def clock(device: torch.device) -> Callable[[], float]:
    """CPU time of this thread; on a GPU the time at which what was asked of it is done."""
    if device.type != "cuda":
        return time.thread_time

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def _batch(size: int) -> Batch:
    return torch.zeros(size, _WIDTH), torch.zeros(size, _WIDTH)
