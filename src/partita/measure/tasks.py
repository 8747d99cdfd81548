"""Time every task of a captured model, forward and backward, in the order and with the memory traffic of a real step.

A pass runs all tasks forward one by one, then all backward in reverse, and notes each one's seconds. Calling autograd
once a task costs more than calling it once a stage, so the model is also timed whole, and the surplus is taken off every
task alike; what is left of the difference is spread in proportion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from partita.capture.model import Captured
from partita.costs import Estimate
from partita.graph import FloatArray
from partita.job import Batch
from partita.run.stage import Stage, batch_leaves, stage_code

Tick = Callable[[], None]


@dataclass(frozen=True)
class TaskTimes:
    """Seconds of each forward task (columns, in graph order) in each pass (rows), and of the whole model."""

    forward: FloatArray  #: [passes, tasks]
    backward: FloatArray  #: [passes, tasks]; 0 where a task has no backward
    whole_forward: FloatArray  #: [passes]
    whole_backward: FloatArray  #: [passes]


def time_tasks(
    captured: Captured,
    model: nn.Module,
    batch: Batch,
    device: torch.device,
    *,
    budget_s: float,
    least: int = 3,
    most: int = 40,
    tick: Tick = lambda: None,
) -> TaskTimes:
    """Passes over all tasks until the budget is spent, at least `least` and at most `most`; buffers are left as they were."""
    runner = _Runner(captured, model, batch, device)
    runner.one_pass()  # warm up: allocations, first-call caches
    runner.whole_pass()
    began, passes, wholes = time.perf_counter(), [], []
    while len(passes) < least or (len(passes) < most and time.perf_counter() - began < budget_s):
        passes.append(runner.one_pass())
        wholes.append(runner.whole_pass())
        tick()
    return TaskTimes(
        np.array([f for f, _ in passes]),
        np.array([b for _, b in passes]),
        np.array([f for f, _ in wholes]),
        np.array([b for _, b in wholes]),
    )


def estimates(times: TaskTimes) -> tuple[list[Estimate], list[Estimate]]:
    """(forward, backward) estimate of every task: the median over passes, its quartiles as the interval, set right by the whole."""
    return _set_right(times.forward, times.whole_forward), _set_right(times.backward, times.whole_backward)


def _set_right(tasks: FloatArray, whole: FloatArray) -> list[Estimate]:
    """Medians whose sum is the median of the whole: a constant per call is taken off first, the rest in proportion."""
    medians, target = np.median(tasks, axis=0), float(np.median(whole))
    surplus = _surplus_per_call(medians, target)
    kept = np.where(medians > 0, np.maximum(medians - surplus, 0.1 * medians), 0.0)
    scale = target / kept.sum() if kept.sum() > 0 else 1.0
    factor = np.divide(kept * scale, medians, out=np.zeros_like(medians), where=medians > 0)
    low, high = np.quantile(tasks, 0.25, axis=0) * factor, np.quantile(tasks, 0.75, axis=0) * factor
    return [Estimate(float(m), float(a), float(b), "measured") for m, a, b in zip(kept * scale, low, high, strict=True)]


def _surplus_per_call(medians: FloatArray, target: float) -> float:
    """The seconds s with sum(max(m - s, 0.1 m)) = target; 0 where the tasks sum to less than the target. By bisection."""
    low, high = 0.0, float(medians.max(initial=0.0))
    for _ in range(50):
        s = (low + high) / 2
        low, high = (s, high) if np.maximum(medians - s, 0.1 * medians).sum() > target else (low, s)
    return low


class _Runner:
    """Runs a captured model task by task, and whole."""

    def __init__(self, captured: Captured, model: nn.Module, batch: Batch, device: torch.device) -> None:
        tensors: dict[str, Tensor] = {
            n: nn.Parameter(p.detach().to(device), p.requires_grad) for n, p in model.named_parameters()
        }
        tensors |= {n: b.detach().clone().to(device) for n, b in model.named_buffers()}
        ids = [t.id for t in captured.graph.tasks]
        tasks = [t.id for t in captured.graph.tasks if t.phase == "forward"]
        self._device = device
        self._parameters = [t for t in tensors.values() if isinstance(t, nn.Parameter)]
        self._leaves = batch_leaves(batch, device)
        self._meta = captured.meta
        made: dict[str, list[str]] = {t: [] for t in tasks}
        for k, value in enumerate(captured.values):
            if value:
                made[ids[int(captured.graph.producer[k])]].append(value)
        self._stages = [
            Stage(stage_code(captured, [t], made[t]), captured.bindings, tensors, device=device) for t in tasks
        ]
        self._whole = Stage(stage_code(captured, tasks, ()), captured.bindings, tensors, device=device)

    def one_pass(self) -> tuple[list[float], list[float]]:
        """Seconds of every task's forward and backward, one after the other."""
        self._clear()
        values: dict[str, Tensor] = {}
        forward, backward = [], []
        for stage in self._stages:
            received = {v: values[v].detach().requires_grad_(self._meta[v].requires_grad) for v in stage.code.received}
            spent, outputs = self._timed(stage.forward, 0, self._leaves, received, 0)
            forward.append(spent)
            values |= dict(zip(stage.code.gives, outputs, strict=True))
        gradients: dict[str, Tensor] = {}
        for stage in reversed(self._stages):
            wanted = [gradients.get(v) for v in (stage.code.gives[:-1] if stage.code.has_loss else stage.code.gives)]
            if not stage.code.has_loss and all(g is None for g in wanted):
                backward.append(0.0)
                continue
            spent, owed = self._timed(stage.backward, 0, wanted, 1.0)
            backward.append(spent)
            for name, gradient in owed.items():
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
        return forward, backward[::-1]

    def whole_pass(self) -> tuple[float, float]:
        """Seconds of the whole model's forward and backward."""
        self._clear()
        forward, _ = self._timed(self._whole.forward, 0, self._leaves, {}, 0)
        backward, _ = self._timed(self._whole.backward, 0, [], 1.0)
        return forward, backward

    def _clear(self) -> None:
        for p in self._parameters:
            p.grad = None

    def _timed(self, function: Callable[..., object], *arguments: object) -> tuple[float, object]:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        result = function(*arguments)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began, result


def time_update(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], repeats: int = 5
) -> tuple[float, float]:
    """(median seconds of an optimizer's step, bytes of its state per byte of parameters); the parameters are left as they were."""
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    optimizer.step()  # makes the state
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - began)
    state = sum(
        v.numel() * v.element_size() for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)
    )
    with torch.no_grad():
        for p, b in zip(parameters, before, strict=True):
            p.copy_(b)
            p.grad = None
    total = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    return float(np.median(times)), state / total if total else 0.0
