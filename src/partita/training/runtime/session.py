"""A rank's session: the job loaded, the engines built, the clocks compared. `train` and `compare` work with it."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from partita.errors import PlanError
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.training.job import TrainingJob, load_job
from partita.training.runtime.clock import Clock
from partita.training.runtime.pipeline import Assignment, Pipeline, torch_device
from partita.training.runtime.single import SingleProcess
from partita.training.runtime.spec import Spec
from partita.training.runtime.stop import StopRequest
from partita.training.runtime.transport import Transport, nccl_groups
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
        assignment = Assignment.of(file, rank)
        device = torch_device(assignment)
        transport = _transport(assignment, device)
        engines: dict[str, Engine | None] = {}
        for name in spec.engine.split(","):
            if name == "pipeline":
                engines[name] = Pipeline(job, assignment, transport, board.instruction_cell(rank))
            elif name == "torch":
                from partita.training.runtime.torch_engine import (
                    TorchPipelining,  # a second to import: only where it is wanted
                )

                engines[name] = TorchPipelining(job, assignment, device)
            elif name == "single":
                engines[name] = SingleProcess(job, assignment.micro_batch_size, device) if rank == 0 else None
            else:
                raise PlanError(f"unknown engine {name!r}", hint="known: pipeline, torch, single")
        gc.collect()
        gc.freeze()  # what is built now stays: a collection in the middle of a step need not walk through it
        clock = Clock(rank, ranks)
        clock.compare()
        return Session(spec, file, job, assignment, ranks, board, engines, clock, request)

    @property
    def rank(self) -> int:
        return self.assignment.rank

    @property
    def full_batch(self) -> int:
        """Samples of the batch that the plan was made for."""
        return self.file.problem.batch_size if isinstance(self.file.problem, PipelineProblem) else 0


def _transport(assignment: Assignment, device: torch.device) -> Transport:
    if device.type != "cuda":
        return Transport(device, "gloo")
    devices = [torch_device(replace(assignment, rank=r)) for r in range(len(assignment.plan.devices))]
    if len(set(devices)) < len(devices):  # ranks share a GPU, which NCCL refuses
        return Transport(device, "gloo")
    pairs = [(a, b) for a in range(len(devices)) for b in range(len(devices)) if a != b]
    return Transport(device, "nccl", nccl_groups(pairs))
