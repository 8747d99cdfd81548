"""A rank of a run: its state, the plan it is deployed under, and a program for every shape of batch that comes along."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

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
from partita.nouns.splits import Split
from partita.training.capture.model import Captured, capture
from partita.training.job import Batch, TrainingJob, batch_size, drawing, micro_batches
from partita.training.runtime.deployment import Deployment, Groups
from partita.training.runtime.gradients import begin_reduction
from partita.training.runtime.interpreter import Bound, Interpreter, Meanwhile, StepResult
from partita.training.runtime.state import State, average, moved
from partita.training.runtime.transport import Transport

MOST_TYPES = 16  #: of parameters in one sum; torch has fewer that can be trained


@dataclass(frozen=True)
class Assignment:
    """What a run gives to one rank."""

    plan: PipelinePlan
    cluster: Cluster
    micro_batch_size: int
    rank: int
    world: tuple[str, ...]  #: [ranks] the devices of the run
    splits: tuple[Split, ...] = ()  #: operators in parts

    @property
    def device(self) -> str:
        return self.world[self.rank]

    @staticmethod
    def of(file: PlanFile, rank: int, world: tuple[str, ...]) -> Assignment:
        """Raises PlanError where the file holds no pipeline of a job."""
        if not isinstance(file.plan, PipelinePlan) or not isinstance(file.problem, PipelineProblem):
            raise PlanError(
                "this plan places tasks; it does not say how to train a job",
                hint="make a plan from a profile that `partita measure` wrote",
            )
        return Assignment(file.plan, file.cluster, file.problem.micro_batch_size, rank, world, file.problem.splits)


class Pipeline:
    """One rank's share of a training job, under a plan that may change between two steps."""

    name = "pipeline"

    def __init__(
        self,
        job: TrainingJob,
        assignment: Assignment,
        transport: Transport,
        cell: npt.NDArray[np.int64],
    ) -> None:
        """Builds the model, keeps this rank's tensors, drops the rest. Raises PlanError where the plan is for another model."""
        self._job, self._transport, self._cell, self._splits = job, transport, cell, assignment.splits
        model = job.build()
        check_same_weights(model, assignment.rank)
        size = assignment.micro_batch_size
        first = self._capture(model, next(micro_batches(job.example(), size)))
        self.captured: dict[int, Captured] = {size: first}
        self.deployment = Deployment(
            assignment.plan, assignment.cluster, assignment.world, assignment.rank, first, size,
            job.clip_norm is not None, Groups(),
        )  # fmt: skip
        self._names = [n for n, _ in (*model.named_parameters(), *model.named_buffers())]
        self.state = State.of(job, self._own(model))
        self._bounds: dict[int, Bound] = {}
        self._interpreters: dict[tuple[int, int], Interpreter] = {}
        self._bind(size)
        self.last: Interpreter | None = None
        self._square: Tensor | None = None  #: of the norm of all gradients, once it is summed over the ranks

    # ---- steps ------------------------------------------------------------------------------------------------------

    def step(self, batch: Batch, step: int, meanwhile: Meanwhile | None = None) -> StepResult:
        """One optimizer step on a batch; all ranks call it with the same batch. `meanwhile`: as in `Interpreter.step`."""
        if self.state.optimizer:
            _drop_gradients(self.state.optimizer)
        self._square = None
        self.last = self._interpreter(batch)
        result = self.last.step(batch, self.deployment.micro_batch_size, step, self._job.seed, meanwhile)
        if not self.deployment.stages:
            self.update()  # a rank without work has no UPDATE; what it holds of optimizer and scheduler goes along
        return replace(result, loss=self._whole_loss(result))

    def deploy(self, plan: PipelinePlan) -> None:
        """Go on under another plan of the same model and micro-batch size; all ranks call it between the same two steps.

        Tensors and what the optimizer remembers move by name; no step is lost or repeated. Raises PlanError where the plan
        does not fit, before anything has moved.
        """
        new = replace(self.deployment, plan=plan)
        new.program(plan.micro_batches)
        self.average_buffers()
        before, after = self.deployment.holdings(self._names), new.holdings(self._names)
        rank, device = new.rank, self._transport.device
        self.state = moved(self.state, self._job, rank, before, after, self._names, device)
        self.deployment = new
        self._bounds, self._interpreters, self.last = {}, {}, None
        for size in self.captured:
            self._bind(size)

    def _whole_loss(self, result: StepResult) -> float:
        """The batch's loss: replicas of the stage that makes it add up their parts; one that has had no micro-batch has none."""
        if not self.deployment.makes_loss or self.deployment.loss_group is None:
            return result.loss
        part = torch.tensor([result.loss if result.made else 0.0], dtype=torch.float64)
        self._transport.sum(part, self.deployment.loss_group)
        return float(part)

    # ---- what others ask ----------------------------------------------------------------------------------------------

    @property
    def tensors(self) -> dict[str, Tensor]:
        return dict(self.state.tensors)

    @property
    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return self.state.parameters

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self.state.optimizer

    @property
    def scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        return self.state.scheduler

    @property
    def reports_loss(self) -> bool:
        return self.deployment.reports_loss

    @property
    def aliases(self) -> dict[str, tuple[str, ...]]:
        return dict(self.deployment.captured.aliases)

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
        return self._interpreters[self.deployment.shape_of(batch)].program

    def numbers_of(self, batch: int) -> IntArray:
        """The numbers of this rank's instructions in that program."""
        return self._interpreters[self.deployment.shape_of(batch)].numbers

    def average_buffers(self) -> None:
        """Give all replicas of a stage the mean of their running statistics, so that what is saved is one model."""
        for stage, share, group in self.deployment.replicas:
            average(self.state.tensors, self.deployment.read[stage].written, share, group)

    @property
    def shares(self) -> dict[str, float]:
        """Running statistics that replicas average -> this rank's part in them."""
        d = self.deployment
        return {n: share for stage, share, _ in d.replicas for n in d.read[stage].written}

    # ---- what the interpreter calls -------------------------------------------------------------------------------------

    def reduce(self, group: int) -> Callable[[], None]:
        """Begin to sum the gradients of a group's parameters over its ranks; what is returned waits for the sums."""
        s = self.deployment.sums[group]
        tensors = [self.state.tensors[n] for n in s.parameters if n in self.state.tensors]

        def begin(flat: Tensor, number: int) -> Callable[[], None]:
            return self._transport.begin_sum(flat, s.group, key=1 + MOST_TYPES * group + number)

        return begin_reduction([t for t in tensors if t.requires_grad], begin)

    def reduce_norm(self) -> None:
        """Sum the square of the norm of all gradients over all devices of the plan."""
        self._square = self._own_square()
        self._transport.sum(self._square, self.deployment.everyone)

    def update(self) -> None:
        """Clip, where the job wants it, and step."""
        if self._job.clip_norm is not None:
            self._clip(self._job.clip_norm)
        if self.state.optimizer:
            self.state.optimizer.step()
        if self.state.scheduler:
            self.state.scheduler.step()

    def _own_square(self) -> Tensor:
        """The part of the squared norm that this rank answers for: a parameter of several ranks counts once."""
        grads = [p.grad for n, p in self.parameters if p.grad is not None and n in self.deployment.counted]
        return sum(
            (g.double().square().sum() for g in grads),
            torch.zeros((), dtype=torch.float64, device=self._transport.device),
        )

    def _clip(self, most: float) -> None:
        """As torch.nn.utils.clip_grad_norm_ does for a model in one piece."""
        square = self._own_square() if self._square is None else self._square
        factor = torch.clamp(most / (square.sqrt() + 1e-6), max=1.0)
        for _, p in self.parameters:
            if p.grad is not None:
                p.grad.mul_(factor.to(p.grad.device, p.grad.dtype))

    # ---- making -----------------------------------------------------------------------------------------------------

    def _interpreter(self, batch: Batch) -> Interpreter:
        """The interpreter for a batch of this size: another number of micro-batches is another program."""
        size, key = self.deployment.micro_batch_size, self.deployment.shape_of(batch_size(batch))
        last = key[1]
        if key not in self._interpreters:
            if last not in self.captured:
                *_, remainder = micro_batches(batch, size)
                captured = self._capture(self._job.build(), remainder)
                self.deployment.expect_graph(captured)
                self.captured[last] = captured
                self._bind(last)
            self._interpreters[key] = Interpreter(
                self.deployment.program(key[0]), self.deployment.place(self._transport.device), self._bounds,
                self._transport, self, self._cell, ahead=self.deployment.plan.in_flight + 2,
            )  # fmt: skip
        return self._interpreters[key]

    def _capture(self, model: nn.Module, part: Batch) -> Captured:
        with drawing:  # the next batch is being made by a thread
            state = torch.get_rng_state()
            precision = self._job.precision(torch.device("cpu"))
            captured = capture(model, self._job.loss, part, precision=precision, splits=self._splits)
            torch.set_rng_state(state)
        return captured

    def _bind(self, size: int) -> None:
        """This rank's stages at one micro-batch size, on the tensors that are here."""
        device = self._transport.device
        self._bounds[size] = self.deployment.bound(
            self.captured[size], self.state.tensors, device, self._job.precision(device)
        )

    def _own(self, model: nn.Module) -> dict[str, Tensor]:
        """Name -> tensor of what this rank keeps of a freshly built model."""
        mine, device = self.deployment.holdings(self._names)[self.deployment.rank], self._transport.device
        kept: dict[str, Tensor] = {
            n: nn.Parameter(p.detach().to(device), p.requires_grad) for n, p in model.named_parameters() if n in mine
        }
        return kept | {n: b.detach().to(device) for n, b in model.named_buffers() if n in mine}


def _drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """As `zero_grad` does, in a third of its time, unless the optimizer or its class has one of its own."""
    if getattr(optimizer.zero_grad, "__func__", None) is not torch.optim.Optimizer.zero_grad:
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None


def check_same_weights(model: nn.Module, rank: int) -> None:
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
