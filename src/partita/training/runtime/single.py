"""One process, the user's own model called eagerly, gradients gathered over the same micro-batches: the reference."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn

from partita.training.job import Batch, TrainingJob, batch_size, call, micro_batches
from partita.training.runtime.interpreter import Meanwhile, StepResult


class SingleProcess:
    """Trains the whole model on one device."""

    name = "single"
    reports_loss = True

    def __init__(self, job: TrainingJob, micro_batch_size: int, device: torch.device) -> None:
        self.model: nn.Module = job.build().to(device)
        self.optimizer = job.optimizer_of(list(self.model.named_parameters()))
        self.scheduler = job.scheduler(self.optimizer) if job.scheduler else None
        self._job = job
        self._size = micro_batch_size
        self._device = device

    def step(self, batch: Batch, step: int, meanwhile: Meanwhile | None = None) -> StepResult:
        """One optimizer step on a batch; it waits for nobody, and never calls `meanwhile`."""
        began, worked = time.perf_counter(), time.thread_time()
        self.optimizer.zero_grad(set_to_none=True)
        total, losses = batch_size(batch), []
        for part in micro_batches(batch, self._size):
            inputs, target = torch.utils._pytree.tree_map_only(Tensor, lambda t: t.to(self._device), part)
            weight = batch_size(part) / total
            with self._job.precision(self._device)():
                loss = self._job.loss(call(self.model, inputs), target)
            loss.backward(gradient=torch.full_like(loss, weight))  # type: ignore[no-untyped-call]
            losses.append((loss.detach(), weight))
        if self._job.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._job.clip_norm)
        self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()
        total_loss, step_s = float(sum(float(v) * w for v, w in losses)), time.perf_counter() - began
        on_core = self._device.type == "cpu" and torch.get_num_threads() == 1
        worked_s = time.thread_time() - worked if on_core else math.nan
        return StepResult(total_loss, step_s, min(1.0, worked_s / step_s) if on_core else math.nan, worked_s)

    def gradients(self) -> dict[str, Tensor]:
        """The last step's gradients by parameter name."""
        return {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
