"""A rank's session: training, or comparing engines on the same batches, step by step in turn."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from partita import __version__
from partita.errors import CheckpointError, JobError, PlanError
from partita.files import dump_json, write_whole
from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.program import Program
from partita.nouns.timeline import Timeline
from partita.training.job import Batch, TrainingJob, batch_size, check_alike, load_job
from partita.training.runtime import checkpoint
from partita.training.runtime.batches import batch_digest, epoch_batches
from partita.training.runtime.clock import clock_offset
from partita.training.runtime.pipeline import Assignment, Pipeline, torch_device
from partita.training.runtime.single import SingleProcess
from partita.training.runtime.spec import Spec
from partita.training.runtime.transport import Transport, nccl_groups
from partita.training.runtime.worker_status import Board

if TYPE_CHECKING:
    from partita.training.runtime.torch_engine import TorchPipelining

    Engine = Pipeline | TorchPipelining | SingleProcess


@dataclass
class Session:
    """One rank of one run."""

    spec: Spec
    file: PlanFile
    job: TrainingJob
    assignment: Assignment
    ranks: int
    board: Board
    engines: dict[str, Engine | None]
    offset_s: float
    metrics: TextIO | None = None
    newest: Path | None = None  #: the checkpoint that this run wrote last, or resumed from
    saved: checkpoint.Progress | None = None  #: what it holds

    @staticmethod
    def start(spec: Spec, file: PlanFile, rank: int, ranks: int, board: Board) -> Session:
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
        return Session(spec, file, job, assignment, ranks, board, engines, clock_offset(rank, ranks))

    @property
    def rank(self) -> int:
        return self.assignment.rank

    def close(self) -> None:
        if self.metrics:
            self.metrics.close()

    # ---- training -------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Steps until the asked-for end, or until the launcher says stop; then a last checkpoint and the traces."""
        engine = self.engines[self.spec.engine]
        assert engine is not None
        progress = self._resume(engine)
        self.board.enter(self.rank, "running")
        traces: list[tuple[float, FloatArray, FloatArray]] = []
        usage = time.process_time()
        steps = 0
        for done, batch in self._batches(progress):
            self.board.begin_step(self.rank, done.step, batch_size(batch))
            result = engine.step(batch, done.step - 1)
            self.board.end_step(self.rank, result.loss, result.step_s)
            self._record(done.step, result.loss, result.step_s)
            progress = done
            steps += 1
            if isinstance(engine, Pipeline) and steps > 1 and batch_size(batch) == self._full_batch():
                start, end = engine.last.trace() if engine.last else (np.zeros(0), np.zeros(0))
                traces = [*traces, (result.step_s, start, end)][-20:]
            if self.spec.checkpoint_every and done.step % self.spec.checkpoint_every == 0:
                self._save(engine, progress)
            if done.step >= self.board.stop_after:
                break
        if steps == 0:
            raise JobError(
                "there is nothing to train: the job has no batches beyond the checkpoint",
                hint="ask for more steps or epochs",
            )
        self._save(engine, progress)
        cpu_s = time.process_time() - usage
        if isinstance(engine, Pipeline) and engine.last and traces:
            self._write_timeline(
                engine.program_of(self._full_batch()), engine.numbers_of(self._full_batch()), traces, cpu_s
            )

    def _full_batch(self) -> int:
        return self.file.problem.batch_size if isinstance(self.file.problem, PipelineProblem) else 0

    def _batches(self, progress: checkpoint.Progress) -> Iterator[tuple[checkpoint.Progress, Batch]]:
        """(progress once it is done, batch) from where training stands until the asked-for step or epoch.

        Raises JobError for a batch that is unlike the first one, or that is another one on another rank.
        """
        step, last = progress.step, self.spec.steps
        epoch, skip = progress.epoch, progress.index
        example = self.job.example()
        while last is not None or epoch < self.spec.epochs:
            any_batch, told = False, False
            for index, batch in enumerate(epoch_batches(self.job, epoch)):
                any_batch = True
                if index < skip:
                    continue
                if last is not None and step >= last:
                    return
                check_alike(batch, example, f"batch {index} of epoch {epoch}")
                if not told:
                    self._check_same_everywhere(batch, epoch)
                    told = True
                step += 1
                yield checkpoint.Progress(step, epoch, index + 1), batch
            if not any_batch:
                return
            epoch, skip = epoch + 1, 0

    def _check_same_everywhere(self, batch: Batch, epoch: int) -> None:
        """Ranks that train on different batches would give no error, only a wrong model."""
        digest = batch_digest(batch)
        most = torch.tensor([digest, -digest])
        dist.all_reduce(most, dist.ReduceOp.MAX)
        if int(most[0]) != -int(most[1]):
            raise JobError(
                f"the ranks got different batches in epoch {epoch}",
                hint="let `batches(epoch)` depend on nothing but the epoch: no clock, no process number, no set order",
            )

    def _record(self, step: int, loss: float, step_s: float) -> None:
        """A line in metrics.jsonl, by the first rank that makes the loss."""
        first = self.assignment.plan.stages[self.assignment.stage].devices[0] == self.assignment.device
        if math.isnan(loss) or not first:
            return
        if self.metrics is None:
            path = Path(self.spec.out) / "metrics.jsonl"
            write_whole(path, "".join(json.dumps(row) + "\n" for row in read_metrics(path) if row["step"] < step))
            self.metrics = open(path, "a", buffering=1)  # noqa: SIM115 (open for the run)
        self.metrics.write(json.dumps({"step": step, "loss": loss, "step_s": step_s}) + "\n")

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def _resume(self, engine: Engine) -> checkpoint.Progress:
        if not self.spec.resume:
            return checkpoint.Progress()
        if not isinstance(engine, Pipeline):
            raise PlanError("only Partita's own engine resumes", hint="leave --engine away")
        saved = checkpoint.read(self.spec.resume)
        saved.restore(engine.tensors, _saved_names(engine))
        if engine.optimizer:
            _restore_optimizer(engine, saved)
        if engine.scheduler and saved.state.get("scheduler"):
            engine.scheduler.load_state_dict(saved.state["scheduler"])
        if engine.optimizer:
            for group, numbers in zip(engine.optimizer.param_groups, saved.state["groups"], strict=False):
                group.update(numbers)
        self.newest = checkpoint.latest(Path(self.spec.resume))
        return saved.progress

    def _save(self, engine: Engine, progress: checkpoint.Progress) -> None:
        """One checkpoint of all ranks' tensors; every rank takes part."""
        if not self.spec.checkpoints or not isinstance(engine, Pipeline) or self.saved == progress:
            return
        self.board.enter(self.rank, "saving a checkpoint")
        optimizer, numbers = checkpoint.optimizer_tensors(engine.optimizer, [n for n, _ in engine.parameters])
        engine.average_buffers()
        model = checkpoint.gather_tensors(engine.tensors, self.rank, self.ranks)
        states = checkpoint.gather_tensors(optimizer, self.rank, self.ranks)
        said = checkpoint.gather_values(
            {
                "numbers": numbers,
                "kind": type(engine.optimizer).__name__ if engine.optimizer else None,
                "groups": _plain_groups(engine.optimizer),
                "scheduler": _plain(engine.scheduler.state_dict()) if engine.scheduler else None,
            },
            self.rank,
            self.ranks,
        )
        if self.rank == 0:
            having = [v for v in said if v["kind"]] or said  # a stage without parameters has no optimizer
            state = {
                "partita": __version__,
                "plan": self.assignment.plan.graph,
                "seed": self.job.seed,
                "optimizer": {k: v for rank in reversed(said) for k, v in rank["numbers"].items()},
                **{k: having[0][k] for k in ("kind", "groups", "scheduler")},
            }
            keep = [self.newest] if self.newest else []
            folder = Path(self.spec.checkpoints)
            self.newest = checkpoint.write(
                folder, progress, model, engine.aliases, states, state, saved=_saved_names(engine), keep=keep
            )
        self.saved = progress
        dist.barrier()
        self.board.enter(self.rank, "running")

    # ---- comparing ------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Every engine takes the same step in turn, round after round; rank 0 writes compare.json."""
        assert self.spec.steps is not None
        self.board.enter(self.rank, "running")
        times: dict[str, list[float]] = {n: [] for n in self.engines}
        losses: dict[str, list[float]] = {n: [] for n in self.engines}
        cpu: dict[str, list[float]] = {n: [] for n in self.engines}
        gradients: dict[str, float] = {}
        traces: list[tuple[float, FloatArray, FloatArray]] = []
        for done, batch in self._batches(checkpoint.Progress()):
            self.board.begin_step(self.rank, done.step, batch_size(batch))
            for name, engine in self.engines.items():
                step_s, loss, cpu_s = self._timed(engine, batch, done.step)
                times[name].append(step_s)
                losses[name].append(loss)
                cpu[name].append(cpu_s)
                if isinstance(engine, Pipeline) and engine.last and done.step > self.spec.warmup:
                    traces.append((step_s, *engine.last.trace()))
            self.board.end_step(self.rank, losses[next(iter(losses))][-1], times[next(iter(times))][-1])
            if self.spec.check_gradients and done.step == 1:
                gradients = self._gradient_errors()
        pipeline = self.engines.get("pipeline")
        if isinstance(pipeline, Pipeline) and traces:
            self._write_timeline(
                pipeline.program,
                pipeline.last.numbers if pipeline.last else np.zeros(0, np.int64),
                traces,
                sum(cpu["pipeline"]),
            )
        if self.rank == 0:
            skip = self.spec.warmup
            value = {
                "step_s": {n: t[skip:] for n, t in times.items()},
                "cpu_s": {n: t[skip:] for n, t in cpu.items()},
                "losses": losses,
                "gradient_errors": gradients,
            }
            write_whole(Path(self.spec.out) / "compare.json", dump_json(value))

    def _timed(self, engine: Engine | None, batch: Batch, step: int) -> tuple[float, float, float]:
        """(seconds from a common start until all ranks are done, loss, CPU seconds of all ranks)."""
        dist.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        loss = engine.step(batch, step - 1).loss if engine is not None else float("nan")
        spent, used = time.perf_counter() - began, time.process_time() - cpu
        share = torch.tensor(
            [spent, used, 0.0 if math.isnan(loss) else loss, 0.0 if math.isnan(loss) else 1.0], dtype=torch.float64
        )
        most = share[:1].clone()
        dist.all_reduce(most, dist.ReduceOp.MAX)
        dist.all_reduce(share)
        return float(most[0]), float(share[2] / share[3]) if share[3] > 0 else float("nan"), float(share[1])

    def _gradient_errors(self) -> dict[str, float]:
        """Engine -> the largest difference of its gradients from the single process', relative to each one's largest."""
        errors: dict[str, float] = {}
        single = self.engines.get("single")
        reference = (
            {n: g.detach().cpu() for n, g in single.gradients().items()} if isinstance(single, SingleProcess) else {}
        )
        for name, engine in self.engines.items():
            if name == "single" or engine is None:
                continue
            found = checkpoint.gather_tensors(engine.gradients(), self.rank, self.ranks)
            if self.rank == 0 and reference:
                missing = reference.keys() ^ found.keys()
                if missing:
                    raise PlanError(f"engine {name} has gradients of other parameters: {sorted(missing)[:3]}")
                least = max(float(g.abs().max()) for g in reference.values()) / 1000
                errors[name] = max(_relative(found[n], reference[n], least) for n in reference)
        return errors

    # ---- timeline -------------------------------------------------------------------------------------------------

    def _write_timeline(
        self, program: Program, numbers: Any, traces: list[tuple[float, FloatArray, FloatArray]], cpu_s: float
    ) -> None:
        """Rank 0 gathers every rank's times of the step of median length and writes measured.json."""
        order = sorted(range(len(traces)), key=lambda i: traces[i][0])
        chosen = torch.tensor([order[len(order) // 2]])
        dist.broadcast(chosen, 0)
        _, start, end = traces[min(int(chosen), len(traces) - 1)]
        mine = {
            "numbers": torch.from_numpy(numbers),
            "start": torch.from_numpy(start - self.offset_s),
            "end": torch.from_numpy(end - self.offset_s),
        }
        gathered = checkpoint.gather_tensors({f"{k}.{self.rank}": v for k, v in mine.items()}, self.rank, self.ranks)
        total = torch.tensor([cpu_s], dtype=torch.float64)
        dist.all_reduce(total)
        if self.rank > 0:
            return
        starts, ends = np.full(len(program), np.nan), np.full(len(program), np.nan)
        for r in range(self.ranks):
            at = gathered[f"numbers.{r}"].numpy()
            starts[at], ends[at] = gathered[f"start.{r}"].numpy(), gathered[f"end.{r}"].numpy()
        facts = {**self.spec.facts, "cpu_s": float(total), "load": os.getloadavg()[0], "steps_traced": len(traces)}
        timeline = measured_timeline(program, starts, ends, facts)
        timeline.write(Path(self.spec.out) / "measured.json")


def measured_timeline(program: Program, start: FloatArray, end: FloatArray, facts: Mapping[str, Any]) -> Timeline:
    """Times of all ranks as a timeline: a message runs from its posting until its receiver has it."""
    from partita.nouns.program import Op

    end = end.copy()
    for i in np.flatnonzero(program.op == Op.RECV):
        for j in program.needs.row(int(i)):
            if program.op[j] == Op.SEND:
                end[j] = max(end[i], start[j])
    origin = float(np.nanmin(start[program.op != Op.RECV]))  # a rank may wait for a step that has not begun
    start = np.maximum(start, origin)
    end = np.maximum(end, start)
    return Timeline.of(program, start - origin, end - origin, "measured", facts)


def _transport(assignment: Assignment, device: torch.device) -> Transport:
    if device.type != "cuda":
        return Transport(device, "gloo")
    devices = [torch_device(replace(assignment, rank=r)) for r in range(len(assignment.plan.devices))]
    if len(set(devices)) < len(devices):  # ranks share a GPU, which NCCL refuses
        return Transport(device, "gloo")
    pairs = [(a, b) for a in range(len(devices)) for b in range(len(devices)) if a != b]
    return Transport(device, "nccl", nccl_groups(pairs))


def _relative(found: Tensor, reference: Tensor, least: float) -> float:
    """The largest difference, relative to the largest element; `least` stands in where that is but rounding."""
    scale = max(float(reference.abs().max()), least)
    return float((found - reference).abs().max()) / scale if scale > 0 else float(found.abs().max())


def _saved_names(engine: Pipeline) -> tuple[str, ...]:
    """What the model's state_dict holds."""
    return next(iter(engine.captured.values())).saved


def _restore_optimizer(engine: Pipeline, saved: checkpoint.Checkpoint) -> None:
    """Raises CheckpointError where another kind of optimizer wrote it."""
    assert engine.optimizer is not None
    kind, found = type(engine.optimizer).__name__, saved.state.get("kind")
    if found and found != kind:
        raise CheckpointError(
            f"the checkpoint's optimizer is {found}, the job's is {kind}",
            hint="resume with the optimizer that it was trained with, or load model.safetensors in the job's model",
        )
    checkpoint.restore_optimizer(
        engine.optimizer, [n for n, _ in engine.parameters], saved.optimizer, saved.state["optimizer"]
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; lines that were cut off are left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            row = json.loads(line)
            rows += [row] if isinstance(row, dict) and "step" in row else []
    return rows


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of a state JSON can hold."""
    return {k: v for k, v in values.items() if checkpoint.is_plain(v)}


def _plain_groups(optimizer: torch.optim.Optimizer | None) -> list[dict[str, Any]]:
    """Learning rates and the like of each parameter group."""
    if optimizer is None:
        return []
    return [{k: v for k, v in _plain(g).items() if k not in ("params", "param_names")} for g in optimizer.param_groups]
