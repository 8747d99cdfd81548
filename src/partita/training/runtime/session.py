"""A rank's session: the job loaded, the engines built, the clocks compared. `train` and `compare` work with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from partita.errors import PlanError
from partita.memory import set_objects_aside
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.probe import Probe
from partita.simulate.schedules import needed_bytes
from partita.training.capture.captured import Captured
from partita.training.capture.model import capture
from partita.training.job import Batch, TrainingJob, batch_size, load_job, micro_batches
from partita.training.loss_check import check_loss
from partita.training.probing import Prober, held_bytes
from partita.training.runtime.clock import Clock
from partita.training.runtime.device import backend_for, direction_groups, torch_device
from partita.training.runtime.join import world
from partita.training.runtime.mailbox import Mailboxes, open_mailboxes
from partita.training.runtime.pipeline import Assignment, Pipeline
from partita.training.runtime.recorder import Recorder
from partita.training.runtime.single import SingleProcess
from partita.training.runtime.spec import Spec
from partita.training.runtime.stop import StopRequest
from partita.training.runtime.transport import Transport
from partita.training.runtime.worker_status import Board

if TYPE_CHECKING:
    from partita.training.runtime.torch_engine import TorchPipelining

    Engine = Pipeline | TorchPipelining | SingleProcess


@dataclass(frozen=True)
class Session:
    """One rank of one run."""

    spec: Spec
    file: PlanFile
    job: TrainingJob
    assignment: Assignment
    ranks: int
    board: Board
    engines: dict[str, Engine | None]
    clock: Clock
    request: StopRequest | None  #: None: the launcher says when to stop

    @staticmethod
    def start(
        spec: Spec, file: PlanFile, rank: int, ranks: int, board: Board, request: StopRequest | None = None
    ) -> Session:
        """Load the job and build the engines. Raises JobError, CaptureError, PlanError."""
        job = load_job(spec.job, spec.settings)
        if rank == 0:
            check_loss(job, job.build(), job.example())
        assignment = Assignment.of(file, rank, world(file, ranks, launched=spec.launched))
        device = torch_device(assignment.cluster, assignment.device)
        mailboxes = open_mailboxes(rank, ranks, wanted=device.type == "cpu", patience_s=spec.timeout_s)
        transport = _transport(assignment, ranks, device, mailboxes)
        engines: dict[str, Engine | None] = {}
        for name in spec.engine.split(","):
            if name == "pipeline":
                engines[name] = Pipeline(job, assignment, transport, board.instruction_cell(rank))
            elif name in ("torch", "torch-zb"):
                from partita.training.runtime.torch_engine import (
                    TorchPipelining,  # a second to import: only where it is wanted
                )

                engines[name] = TorchPipelining(job, assignment, device, zero_bubble=name == "torch-zb")
            elif name == "single":
                engines[name] = SingleProcess(job, assignment.micro_batch_size, device) if rank == 0 else None
            else:
                raise PlanError(f"unknown engine {name!r}", hint="known: pipeline, torch, torch-zb, single")
        set_objects_aside()
        clock = Clock(rank, ranks)
        clock.compare()
        return Session(spec, file, job, assignment, ranks, board, engines, clock, request)

    @property
    def rank(self) -> int:
        return self.assignment.rank

    def recorder(self, engine: str, done: int = 0) -> Recorder | None:
        """Takes readings of the probe for an engine that has `done` so many steps already; None where this rank has no part in it, the plan
        knows no probe, or a device has no memory left for it beside the plan: everywhere, then."""
        probe = self.probe
        if not probe or self.engines[engine] is None:
            return None
        prober = self._prober(probe)
        left = max(1, self.spec.steps - done) if self.spec.steps is not None else None
        return Recorder(probe, prober, left) if prober else None

    @property
    def probe(self) -> Probe | None:
        problem = self.file.problem
        return problem.probe if isinstance(problem, PipelineProblem) else None

    def _prober(self, probe: Probe) -> Prober | None:
        """With turns and tensors of its own; None where there is no room for them. Raises PlanError where the job has other tasks than
        the probe."""
        part, captured = self._probed
        strange = {t for p in probe.pieces for t in p.tasks} - captured.task_nodes.keys()
        if strange:
            raise PlanError(
                f"the plan's probe runs {min(strange)!r}, which the job does not have",
                hint="measure and plan this job again",
            )
        if not self._has_room(held_bytes(probe.pieces, captured)):
            return None
        device = torch_device(self.assignment.cluster, self.assignment.device)
        return Prober(probe.pieces, captured, part, device, self.job.precision(device))

    def _has_room(self, size_bytes: float) -> bool:
        """Every device of the plan, beside it."""
        problem, plan, devices = self.file.problem, self.assignment.plan, self.assignment.cluster.by_name
        assert isinstance(problem, PipelineProblem)
        needs = needed_bytes(problem.graph, plan, problem.optimizer_bytes_per_parameter_byte)
        return all(need + size_bytes <= devices[d].memory_bytes for d, need in needs.items())

    @cached_property
    def _probed(self) -> tuple[Batch, Captured]:
        """A micro-batch of the probe's size, and the job as captured with it."""
        assert self.probe is not None
        job, pipeline, size = self.job, self.engines.get("pipeline"), self.probe.micro_batch_size
        part = next(micro_batches(job.example(), size))
        known = pipeline.captured.get(size) if isinstance(pipeline, Pipeline) else None
        on_cpu, splits = job.precision(torch.device("cpu")), self.assignment.splits
        return part, known or capture(job.build(), job.loss, part, precision=on_cpu, splits=splits)

    def comparable_s(self, worked_s: float, batch: Batch) -> float:
        """What this rank's computations of a step took; nan where there was less to compute than in the others."""
        return worked_s if batch_size(batch) == self.full_batch else math.nan

    @property
    def full_batch(self) -> int:
        """Samples of the batch that the plan was made for."""
        return self.file.problem.batch_size if isinstance(self.file.problem, PipelineProblem) else 0


def _transport(assignment: Assignment, ranks: int, device: torch.device, mailboxes: Mailboxes) -> Transport:
    names = assignment.world
    if device.type != "cuda":
        return Transport(device, "gloo", mailboxes=mailboxes)
    if backend_for(assignment.cluster, names) == "gloo":
        return Transport(device, "gloo")
    return Transport(device, "nccl", direction_groups(ranks, assignment.rank, device))
