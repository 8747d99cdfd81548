"""The same plan on torch.distributed.pipelining: the peer in benchmarks (`--engine torch`).

A plan's schedule names one of that engine's: 1f1b, gpipe, interleaved (Interleaved1F1B), zb-h1 and zb-h2 (InterleavedZeroBubble with
one stage a worker), zb-v (ZBVZeroBubble). As "torch-zb" it runs chunks that go round and round by its InterleavedZeroBubble.

Its stages can only send to the next one, so values that skip stages are handed through; weights shared by stages get
wrong gradients there without an error, and replicas of a stage are not known to it: both are refused here.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from partita.errors import PlanError
from partita.nouns.pipeline_plan import PipelinePlan
from partita.simulate.boundaries import shared_over_stages
from partita.training.capture.model import Captured, capture
from partita.training.job import Batch, TrainingJob, batch_size, micro_batches
from partita.training.runtime.interpreter import Meanwhile, StepResult
from partita.training.runtime.pipeline import Assignment
from partita.training.runtime.stage import StageCode, batch_leaves, stage_code

_LONE = MappingProxyType({"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe})  #: of one stage a worker
_CHUNKED = MappingProxyType(
    {
        "interleaved": ScheduleInterleaved1F1B,
        "zb-h1": ScheduleInterleavedZeroBubble,
        "zb-h2": ScheduleInterleavedZeroBubble,
        "zb-v": ScheduleZBVZeroBubble,
    }
)  #: of a list of stages


class TorchPipelining:
    """One rank of torch's own pipeline engine under one of our plans."""

    name = "torch"

    @property
    def reports_loss(self) -> bool:
        return self._makes_loss

    def __init__(
        self, job: TrainingJob, assignment: Assignment, device: torch.device, *, zero_bubble: bool = False
    ) -> None:
        """`zero_bubble`: by its InterleavedZeroBubble, a plan of chunks that go round. Raises PlanError where the plan is beyond
        what that engine can do."""
        plan, self._job, self._device = assignment.plan, job, device
        model = job.build()
        part = next(micro_batches(job.example(), assignment.micro_batch_size))
        captured = capture(model, job.loss, part, splits=assignment.splits)
        _refuse_beyond(captured, plan, job)
        self._micro_batch_size = assignment.micro_batch_size
        _expect_places(assignment)
        served = plan.stages_of(assignment.device)
        modules = {k: _module(captured, plan, k, model, device) for k in served}
        self._makes_loss = len(plan.stages) - 1 in served
        own = {n: m.own[n] for m in modules.values() for n in m.own}
        self.parameters = list(own.items())
        self.optimizer = job.optimizer_of(self.parameters) if self.parameters else None
        self.scheduler = job.scheduler(self.optimizer) if job.scheduler and self.optimizer else None
        stages = [PipelineStage(m, k, len(plan.stages), device) for k, m in modules.items()]
        name = "zb-h1" if zero_bubble and plan.schedule == "interleaved" else plan.schedule
        self._schedule = _schedule(name, stages, plan.micro_batches)
        self._whole = plan.micro_batches * assignment.micro_batch_size

    def step(self, batch: Batch, step: int, meanwhile: Meanwhile | None = None) -> StepResult:
        """One optimizer step; where torch waits it calls no `meanwhile`. Raises PlanError for a batch that does not fall into equal
        micro-batches."""
        began = time.perf_counter()
        if batch_size(batch) != self._whole:
            raise PlanError(
                f"torch's engine needs batches of {self._whole}; this one has {batch_size(batch)}",
                hint="drop the last smaller batch, or use Partita's own engine",
            )
        if self.optimizer:
            self.optimizer.zero_grad(set_to_none=True)
        leaves: dict[str, Any] = {f"leaf{i}": t for i, t in enumerate(batch_leaves(batch, self._device))}
        losses: list[Tensor] = []
        dummy = torch.zeros(self._whole)
        extra: dict[str, Any] = {"target": dummy, "losses": losses} if self._makes_loss else {}
        self._schedule.step(return_outputs=False, **leaves, **extra)
        if self.optimizer:
            self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()
        loss = float(sum(float(v.detach()) for v in losses) / len(losses)) if losses else float("nan")
        return StepResult(loss, time.perf_counter() - began)

    def gradients(self) -> dict[str, Tensor]:
        """The last step's gradients of this rank's parameters, by name."""
        return {n: p.grad for n, p in self.parameters if p.grad is not None}


def _schedule(name: str, stages: list[Any], micro_batches: int) -> Any:
    """That engine's schedule. Raises PlanError for a number of micro-batches that it does not know."""

    def loss(output: Tensor, _: Tensor) -> Tensor:
        return output

    try:
        if name in _LONE:
            return _LONE[name](stages[0], micro_batches, loss_fn=loss)
        return _CHUNKED[name](stages, micro_batches, loss_fn=loss)
    except ValueError as error:
        raise PlanError(f"torch's engine: {error}", hint="use Partita's own engine") from error


def _module(captured: Captured, plan: PipelinePlan, stage: int, model: nn.Module, device: torch.device) -> _Module:
    """A stage's code as that engine wants it."""
    incoming, outgoing = _handed_over(captured, plan, stage)
    made_here = {v for t in plan.stages[stage].tasks for v in captured.task_nodes[t]}
    code = stage_code(captured, plan.stages[stage].tasks, tuple(v for v in outgoing if v in made_here))
    return _Module(code, captured, model, incoming, outgoing, _read_by(captured, plan, stage), device)


def _expect_places(assignment: Assignment) -> None:
    """Raise PlanError where stages are not on the workers that this engine takes for granted: round and round, or there and
    back."""
    plan, world = assignment.plan, assignment.world
    n, number = len(world), {name: r for r, name in enumerate(world)}
    places = [number[s.devices[0]] for s in plan.stages]
    wanted = [min(k, 2 * n - 1 - k) if plan.schedule == "zb-v" else k % n for k in range(len(places))]
    whole = len(places) == n if plan.schedule in _LONE else len(places) % n == 0
    if places != wanted or not whole:
        raise PlanError(
            f"the plan has its stages on workers {places}; torch's engine wants {wanted}, as many on each",
            hint="start as many workers as the plan has devices, or run with --engine pipeline",
        )


class _Module(nn.Module):
    """A stage as that engine wants it: positional values from the stage before, the batch's leaves as keywords."""

    def __init__(
        self,
        code: StageCode,
        captured: Captured,
        model: nn.Module,
        incoming: list[str],
        outgoing: list[str],
        read: set[str],
        device: torch.device,
    ) -> None:
        super().__init__()
        tensors: dict[str, Any] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.own = {n: nn.Parameter(tensors[n].detach().to(device), tensors[n].requires_grad) for n in code.parameters}
        self._list = nn.ParameterList(self.own.values())
        buffers = {n: tensors[n].detach().to(device) for n in code.buffers}
        self._code, self._incoming, self._outgoing, self._loss = code, incoming, outgoing, captured.loss
        self._read = read
        self._fixed: dict[str, Any] = {}
        self._leaf: dict[str, str] = {}
        for name in code.takes:
            binding = captured.bindings.get(name)
            if binding is None:
                continue
            if binding.kind == "input":
                self._leaf[name] = f"leaf{binding.name}"
            else:
                self._fixed[name] = {
                    "parameter": self.own,
                    "buffer": buffers,
                    "constant": {binding.name: binding.constant},
                }[binding.kind][binding.name]

    def forward(self, *received: Tensor, **leaves: Any) -> Any:
        values = dict(self._fixed)
        values |= {name: leaves[leaf] for name, leaf in self._leaf.items()}
        values |= {v: _contiguous(t) for v, t in zip(self._incoming, received, strict=True)}
        outputs = self._code.function(*(values[t] for t in self._code.takes))
        values |= dict(zip(self._code.gives, outputs, strict=True))
        if self._code.has_loss:
            return values[self._loss]
        return tuple(_sendable(values[v], v in self._read) for v in self._outgoing)


class _Contiguous(torch.autograd.Function):
    """The value and its gradient in plain layout: that engine sends nothing else."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.contiguous() if not value.is_contiguous() else value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


def _contiguous(value: Tensor) -> Tensor:
    result: Tensor = _Contiguous.apply(value)  # type: ignore[no-untyped-call]
    return result


def _sendable(value: Tensor, read: bool) -> Tensor:
    """The value in plain layout, no view, and nothing that the stage itself reads: after the first part of a split backward
    that engine detaches it in place."""
    plain = value.contiguous()
    return plain.clone() if plain._is_view() or (read and plain is value) else plain


def _read_by(captured: Captured, plan: PipelinePlan, stage: int) -> set[str]:
    """Values that a stage's tasks read."""
    here = {k for k, t in enumerate(captured.graph.tasks) if plan.stage_of.get(t.id, -1) == stage}
    return {
        v for k, v in enumerate(captured.values) if v and not here.isdisjoint(captured.graph.readers.row(k).tolist())
    }


def _handed_over(captured: Captured, plan: PipelinePlan, stage: int) -> tuple[list[str], list[str]]:
    """(values that come in from the stage before, values that go out to the next), those only passing through among them."""
    ids = [t.id for t in captured.graph.tasks]

    def crossing(boundary: int) -> list[str]:
        found = []
        for k, value in enumerate(captured.values):
            made = plan.stage_of.get(ids[int(captured.graph.producer[k])], -1)
            read = max((plan.stage_of.get(ids[r], -1) for r in captured.graph.readers.row(k).tolist()), default=-1)
            if value and 0 <= made <= boundary < read:
                found.append(value)
        return found

    return crossing(stage - 1) if stage else [], crossing(stage) if stage < len(plan.stages) - 1 else []


def _refuse_beyond(captured: Captured, plan: PipelinePlan, job: TrainingJob) -> None:
    torn = [
        s.name
        for s, ks in zip(captured.graph.shared, shared_over_stages(captured.graph, plan), strict=True)
        if len(ks) > 1
    ]
    if torn:
        raise PlanError(
            f"torch's engine would give wrong gradients for {torn[0]!r}, which several stages share",
            hint="use Partita's own engine",
        )
    if any(s.replicas > 1 or s.recompute for s in plan.stages):
        raise PlanError("torch's engine runs no replicated and no recomputing stages", hint="use Partita's own engine")
    if plan.schedule not in {**_LONE, **_CHUNKED}:
        raise PlanError(
            f"torch's engine knows no schedule {plan.schedule!r}",
            hint="use Partita's own engine, or plan with --schedule 1f1b",
        )
    if job.clip_norm is not None or job.autocast is not None:
        raise PlanError("torch's engine clips no gradients and casts nothing here", hint="use Partita's own engine")
