"""A rank of a pipeline: the stage it owns, its optimizer, and a Program for every shape of batch that comes along."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from partita.errors import JobError, PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import IntArray
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.program import Program
from partita.simulate.lower import boundaries, lower, reductions, shared_over_stages
from partita.training.capture.model import Captured, capture
from partita.training.job import Batch, TrainingJob, batch_size, micro_batches
from partita.training.runtime.interpreter import Interpreter, Place, StepResult, reduce_gradients
from partita.training.runtime.stage import Stage, stage_code
from partita.training.runtime.transport import Transport


@dataclass(frozen=True)
class Assignment:
    """What a plan gives to one rank."""

    plan: PipelinePlan
    cluster: Cluster
    micro_batch_size: int
    rank: int

    @cached_property
    def stage(self) -> int:
        return next(k for k, s in enumerate(self.plan.stages) if self.device in s.devices)

    @property
    def device(self) -> str:
        return self.plan.devices[self.rank]

    @staticmethod
    def of(file: PlanFile, rank: int) -> Assignment:
        """Raises PlanError where the file holds no pipeline of a training job."""
        if not isinstance(file.plan, PipelinePlan) or not isinstance(file.problem, PipelineProblem):
            raise PlanError(
                "this plan places tasks; it does not say how to train a job",
                hint="make a plan from a profile that `partita measure` wrote",
            )
        return Assignment(file.plan, file.cluster, file.problem.micro_batch_size, rank)


def torch_device(assignment: Assignment) -> torch.device:
    """The torch device of a rank: its cluster device's kind, for CUDA with the number its name ends with."""
    device = assignment.cluster.by_name[assignment.device]
    if device.kind != "cuda":
        return torch.device("cpu")
    digits = "".join(c for c in device.name.rpartition(":")[2] if c.isdigit())
    return torch.device("cuda", int(digits or 0) % max(torch.cuda.device_count(), 1))


class Pipeline:
    """One rank's share of a training job under a plan."""

    name = "pipeline"

    def __init__(
        self, job: TrainingJob, assignment: Assignment, transport: Transport, cell: npt.NDArray[np.int64]
    ) -> None:
        """Builds the model, keeps this stage's tensors, drops the rest. Raises PlanError where the plan is for another model."""
        self.assignment = assignment
        self._job, self._transport, self._cell = job, transport, cell
        self.place = Place(assignment.rank, assignment.stage, assignment.plan, transport.device)
        model = job.build()
        _check_same_weights(model, assignment.rank)
        self.captured: dict[int, Captured] = {}
        self._stages: dict[int, Stage] = {}
        self._interpreters: dict[tuple[int, int], Interpreter] = {}
        first = self._capture(model, next(micro_batches(job.example(), assignment.micro_batch_size)))
        self.aliases = first.aliases
        self.tensors = _owned(model, first, assignment, transport.device)
        self._bind(first, assignment.micro_batch_size)
        self.last: Interpreter | None = None
        self.parameters: list[tuple[str, nn.Parameter]] = [
            (n, t) for n, t in self.tensors.items() if isinstance(t, nn.Parameter)
        ]
        self.optimizer = job.optimizer(self.parameters) if self.parameters else None
        self.scheduler = job.scheduler(self.optimizer) if job.scheduler and self.optimizer else None
        self._groups = _reduction_groups(first, assignment.plan)
        self._replica_group = _replica_group(assignment)

    def step(self, batch: Batch, step: int) -> StepResult:
        """One optimizer step on a batch; all ranks call it with the same batch."""
        if self.optimizer:
            self.optimizer.zero_grad(set_to_none=True)
        self.last = self._interpreter(batch)
        result = self.last.step(batch, self.assignment.micro_batch_size, step, self._job.seed)
        return replace(result, loss=self._whole_loss(result.loss))

    def _whole_loss(self, loss: float) -> float:
        """The batch's loss: replicas of the stage that makes it add up their parts."""
        makes_loss = self._stages[self.assignment.micro_batch_size].code.has_loss
        if not makes_loss or self._replica_group is None:
            return loss
        part = torch.tensor([0.0 if math.isnan(loss) else loss], dtype=torch.float64)
        dist.all_reduce(part, group=self._replica_group)
        return float(part)

    def gradients(self) -> dict[str, Tensor]:
        """The last step's gradients of this rank's parameters, by name."""
        return {n: p.grad for n, p in self.parameters if p.grad is not None}

    @property
    def program(self) -> Program:
        """The program of the last step."""
        assert self.last is not None
        return self.last.program

    def program_of(self, batch: int) -> Program:
        """The program of a batch of this many samples, which must have occurred."""
        return self._interpreters[self._key(batch)].program

    def numbers_of(self, batch: int) -> IntArray:
        """The numbers of this rank's instructions in that program."""
        return self._interpreters[self._key(batch)].numbers

    def average_buffers(self) -> None:
        """Give all replicas of a stage the mean of their running statistics, so that what is saved is one model."""
        group = self._replica_group
        if group is None:
            return
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, nn.Parameter) and tensor.is_floating_point() and name in self._written:
                dist.all_reduce(tensor, group=group)
                tensor /= self.assignment.plan.stages[self.place.stage].replicas

    def _key(self, total: int) -> tuple[int, int]:
        """(micro-batches, size of the last one) of a batch."""
        size = self.assignment.micro_batch_size
        return math.ceil(total / size), total % size or size

    def _interpreter(self, batch: Batch) -> Interpreter:
        """The interpreter for a batch of this size: another number of micro-batches is another program."""
        size = self.assignment.micro_batch_size
        key = self._key(batch_size(batch))
        last = key[1]
        if key not in self._interpreters:
            if last not in self._stages:
                *_, remainder = micro_batches(batch, size)
                self._bind(self._capture(self._job.build(), remainder), last)
            plan = replace(self.assignment.plan, micro_batches=key[0])
            program = lower(self.captured[size].graph, self.assignment.cluster, plan)
            self._interpreters[key] = Interpreter(
                program, self.place, self._stages, self.captured, self._transport, self._update, self._reduce, self._cell,
                ahead=plan.in_flight + 2,
            )  # fmt: skip
        return self._interpreters[key]

    def _capture(self, model: nn.Module, part: Batch) -> Captured:
        state = torch.get_rng_state()
        captured = capture(model, self._job.loss, part)
        torch.set_rng_state(state)
        found, wanted = captured.graph.fingerprint, self.assignment.plan.graph
        if found != wanted:
            raise PlanError(
                f"the plan was made for graph {wanted}, the job's model is graph {found} ({len(captured.nodes)} forward tasks)",
                hint="measure and plan this job again",
            )
        return captured

    def _bind(self, captured: Captured, size: int) -> None:
        """Make this stage's code for one micro-batch size, on the tensors that are already here."""
        plan, stage = self.assignment.plan, self.place.stage
        crossing = boundaries(captured.graph, plan)
        wanted = dict.fromkeys(captured.values[t] for b in crossing if b.source == stage for t in b.tensors)
        code = stage_code(captured, plan.stages[stage].tasks, tuple(wanted))
        self.captured[size] = captured
        self._written = code.written
        self._stages[size] = Stage(
            code, captured.bindings, self.tensors, device=self.place.device, recompute=plan.stages[stage].recompute
        )

    def _update(self) -> None:
        if self.optimizer:
            self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()

    def _reduce(self, name: str) -> None:
        if name in self._groups:
            parameters, group = self._groups[name]
            reduce_gradients([self.tensors[p] for p in parameters if p in self.tensors], group)


def _check_same_weights(model: nn.Module, rank: int) -> None:
    """Raise JobError where the ranks built models of different weights: each would train a part of another model."""
    digest = 0
    for p in model.state_dict().values():
        digest = zlib.crc32(
            p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if p.dim() else repr(p.item()).encode(),
            digest,
        )
    least, most = torch.tensor([digest]), torch.tensor([digest])
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if int(least) != int(most):
        raise JobError(
            f"rank {rank}: the workers built models of different weights",
            hint="build all of the model inside the job's `model=` function: it is called after seeding",
        )


def _owned(model: nn.Module, captured: Captured, assignment: Assignment, device: torch.device) -> dict[str, Tensor]:
    """Name -> tensor of what this rank keeps: its stage's parameters and buffers; rank 0 also keeps what no stage reads."""
    plan = assignment.plan
    read = [_read_by(captured, s.tasks) for s in plan.stages]
    nobody = set(dict(model.named_parameters())) | set(dict(model.named_buffers()))
    nobody -= {n for names in read for n in names}
    mine = read[assignment.stage] | (nobody if assignment.rank == 0 else set())
    kept: dict[str, Tensor] = {
        n: nn.Parameter(p.detach().to(device), p.requires_grad) for n, p in model.named_parameters() if n in mine
    }
    return kept | {n: b.detach().to(device) for n, b in model.named_buffers() if n in mine}


def _read_by(captured: Captured, tasks: tuple[str, ...]) -> set[str]:
    code = stage_code(captured, tasks, ())
    return {*code.parameters, *code.buffers}


def _reduction_groups(captured: Captured, plan: PipelinePlan) -> dict[str, tuple[list[str], Any]]:
    """Reduction -> (names of the parameters it sums, process group). Every rank makes every group, in one order."""
    shared: Mapping[str, tuple[int, ...]] = dict(
        zip((s.name for s in captured.graph.shared), shared_over_stages(captured.graph, plan), strict=True)
    )
    torn = {n: ks for n, ks in shared.items() if len(ks) > 1}
    found: dict[str, tuple[list[str], Any]] = {}
    for name, devices, _ in reductions(captured.graph, plan):
        stages = tuple(int(k) for k in name[1:].split("+"))
        names = [n for n, ks in torn.items() if ks == stages]
        if len(stages) == 1:
            names = sorted(_read_by(captured, plan.stages[stages[0]].tasks) - set(torn))
            names = [n for n in names if _trainable(captured, n)]
        found[name] = (names, dist.new_group([plan.devices.index(d) for d in devices]))
    return found


def _replica_group(assignment: Assignment) -> Any:
    """The process group of this rank's stage, None where it has one replica. Every rank makes every group."""
    mine = None
    for stage in assignment.plan.stages:
        if stage.replicas > 1:
            group = dist.new_group([assignment.plan.devices.index(d) for d in stage.devices])
            mine = group if assignment.device in stage.devices else mine
    return mine


def _trainable(captured: Captured, name: str) -> bool:
    return any(b.kind == "parameter" and b.name == name for b in captured.bindings.values())
