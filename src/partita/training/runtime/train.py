"""Training on one rank: steps until the asked-for end, or until all are asked to stop, with checkpoints on the way."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import torch
import torch.distributed as dist

from partita import __version__
from partita.errors import CheckpointError, JobError, PlanError
from partita.files import write_whole
from partita.nouns.metrics import METRICS, Metric, read_metrics, without_steps_from
from partita.nouns.pipeline_plan import PipelinePlan
from partita.training.job import Batch, batch_size
from partita.training.runtime import checkpoint, copies
from partita.training.runtime.batches import Progress, Turn, ahead, batch_digest, turns
from partita.training.runtime.baton import Baton
from partita.training.runtime.copy_files import close_all
from partita.training.runtime.interpreter import StepResult
from partita.training.runtime.measured import Trace, write_timeline
from partita.training.runtime.optimizer_state import optimizer_state, restore
from partita.training.runtime.pipeline import Pipeline
from partita.training.runtime.recorder import gathered
from partita.training.runtime.saved import latest, latest_until
from partita.training.runtime.session import Session
from partita.training.runtime.stop import Agreement
from partita.training.runtime.worker_status import Ran

if TYPE_CHECKING:
    from partita.training.runtime.session import Engine
    from partita.training.runtime.steering import Steering

StopAfter = Callable[[int, float], bool]

_TRACES = 20  #: of the last full batches; the timeline is of the one of median length


def train(session: Session, steering: Steering | None = None, begun: Callable[[], None] = lambda: None) -> Progress:
    """Steps, then a last checkpoint and the timeline; returns how far it came. `begun` is called before the first one, `steering` may
    change the plan between two.

    Raises JobError, CheckpointError, WorkerFailed.
    """
    spec, board, rank = session.spec, session.board, session.rank
    engine = session.engines[spec.engine]
    assert engine is not None
    store = _Store(session, engine)
    progress = began = store.resume()
    _check_same_start(progress)
    begun()
    if spec.only_save:
        store.save(progress)
        return progress
    record = _Record(session, engine)
    copying = _Copying(session, engine) if spec.copies else None
    traces: list[Trace] = []
    usage = time.process_time()
    recorder = session.recorder(spec.engine, began.step)
    baton = Baton.of(spec.ring, rank)
    board.enter(rank, "running")
    with contextlib.closing(record), _stopping(session) as stop_after:
        for turn in baton.rounds(_checked_turns(session, progress)):
            board.begin_step(rank, turn.done.step, batch_size(turn.batch))
            result = engine.step(turn.batch, turn.done.step - 1, recorder.begin() if recorder else None)
            board.end_step(rank, result.loss, result.step_s)
            record.write(turn.done.step, result.loss, result.step_s)
            traces = with_trace(traces, session, engine, turn.batch, result.step_s, first=progress == began)
            progress = turn.done
            if spec.watched:
                board.note(rank, _ran(engine, turn, result))
            if copying:
                copying.after(progress)
            if recorder:
                recorder.after(result.step_s, result.core_share, session.comparable_s(result.worked_s, turn.batch))
            store.after(progress)
            if stop_after(progress.step, result.step_s):
                baton.pass_on()
                break
            plan = steering.after(progress.step, result.step_s) if steering else None
            if plan is not None:
                _deploy(engine, plan)
                traces = []
                if recorder and spec.watched:
                    recorder.forget()  # what is read stands beside the last plan
                elif recorder:
                    recorder.compute_otherwise()
                record.hand_on()
        if (
            progress == began and not spec.goes_on
        ):  # of a run whose last step was done when a worker died, nothing is left
            raise JobError(
                "there is nothing to train: the job has no batches beyond the checkpoint",
                hint="ask for more steps or epochs",
            )
        if steering:
            steering.end(progress.step)
        store.save(progress)  # a signal that comes late does not hinder it
        if isinstance(engine, Pipeline) and engine.last and traces:
            full, cpu_s = session.full_batch, time.process_time() - usage
            write_timeline(session, engine.program_of(full), engine.numbers_of(full), traces, cpu_s)
        readings = gathered(recorder, session.assignment.world, rank)
        if readings and readings.steps:
            readings.since(spec.warmup).write(Path(spec.out) / "readings.json")
    return progress


def _deploy(engine: Engine, plan: PipelinePlan) -> None:
    if not isinstance(engine, Pipeline):
        raise PlanError("only Partita's own engine changes its plan", hint="leave --engine away")
    engine.deploy(plan)


def with_trace(
    traces: list[Trace], session: Session, engine: Engine | None, batch: Batch, step_s: float, *, first: bool
) -> list[Trace]:
    """The traces with this step's, where it is one of a full batch; a first one, which is slow, stays until there is another."""
    if not isinstance(engine, Pipeline) or not engine.last or batch_size(batch) != session.full_batch:
        return traces
    kept = [t for t in traces if not t.first]
    return [*kept, Trace(step_s, engine.last.watch.stamps(), first)][-_TRACES:]


def _ran(engine: Engine, turn: Turn, result: StepResult) -> Ran:
    """The step, for whoever watches the board."""
    compute_s = engine.last.computed_s() if isinstance(engine, Pipeline) and engine.last else math.nan
    return Ran(turn.done.step, result.loss, result.step_s, compute_s, batch_size(turn.batch))


# ---- when to stop -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _stopping(session: Session) -> Iterator[StopAfter]:
    """A function (step, seconds it took) -> all ranks stop after it: the launcher's word, or a signal that any rank got."""
    if session.request is None:
        yield lambda step, _: step >= session.board.stop_after
        return
    agreement = Agreement(session.request)
    with session.request.heeded():
        yield lambda _, step_s: agreement.reached(step_s)


# ---- batches ------------------------------------------------------------------------------------------------------------


def _checked_turns(session: Session, progress: Progress) -> Iterator[Turn]:
    """The batches that are left. Raises JobError for one that is another one on another rank."""
    spec = session.spec
    for turn in ahead(turns(session.job, progress, steps=spec.steps, epochs=spec.epochs)):
        if turn.first:
            check_same_everywhere(turn.batch, turn.done.epoch)
        yield turn


def _check_same_start(progress: Progress) -> None:
    """Raise CheckpointError where the ranks begin at different steps: they found different checkpoints."""
    ends = torch.tensor([progress.step, -progress.step])
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    if int(ends[0]) != -int(ends[1]):
        raise CheckpointError(
            f"the ranks would go on from different steps, {-int(ends[1])} to {int(ends[0])}; this one from {progress.step}",
            hint="let every machine see the same checkpoints: -o, and --resume, in a folder that all of them share",
        )


def check_same_everywhere(batch: Batch, epoch: int) -> None:
    """Ranks that train on different batches would give no error, only a wrong model. Raises JobError where they do."""
    digest = batch_digest(batch)
    most = torch.tensor([digest, -digest])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if int(most[0]) != -int(most[1]):
        raise JobError(
            f"the ranks got different batches in epoch {epoch}",
            hint="let `batches(epoch)` depend on nothing but the epoch: no clock, no process number, no set order",
        )


# ---- metrics ------------------------------------------------------------------------------------------------------------


class _Record:
    """metrics.jsonl, written by the first rank that makes the loss."""

    def __init__(self, session: Session, engine: Engine) -> None:
        self._engine = engine
        self._path = Path(session.spec.out) / METRICS
        self._goes_on = bool(session.spec.resume) or session.spec.goes_on
        self._file: TextIO | None = None

    def write(self, step: int, loss: float, step_s: float) -> None:
        if not self._engine.reports_loss:
            return
        if self._file is None:
            earlier = read_metrics(self._path) if self._goes_on else []
            write_whole(self._path, without_steps_from(earlier, step))
            self._file = open(self._path, "a", buffering=1)  # noqa: SIM115 (open for the run)
        self._file.write(Metric(step, loss, step_s).line())

    def hand_on(self) -> None:
        """Another rank may make the loss from here on: whoever does goes on with the file."""
        self.close()
        self._file, self._goes_on = None, True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


# ---- checkpoints --------------------------------------------------------------------------------------------------------


class _Store:
    """This run's checkpoints."""

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session, self._spec, self._engine = session, session.spec, engine
        self._newest: Path | None = None  #: written last, or resumed from
        self._saved: Progress | None = None  #: what it holds
        self._examined = False

    def resume(self) -> Progress:
        """Everything as the checkpoint says, where one is to be resumed. Raises CheckpointError where it does not fit."""
        spec, engine = self._spec, self._engine
        if not (spec.resume or spec.base):
            return Progress()
        if not isinstance(engine, Pipeline):
            raise PlanError("only Partita's own engine resumes", hint="leave --engine away")
        if spec.resume:
            self._newest = latest(Path(spec.resume))
        if spec.base:
            self._newest = latest_until(spec.checkpoints, spec.base_step)
            saved = copies.read(spec.base, spec.base_step, engine.tensors)
            close_all(spec.base)
            saved.restore(engine.tensors)
        else:
            saved = checkpoint.read(spec.resume)
            saved.restore(engine.tensors, _saved_names(engine))
        if engine.optimizer:
            make = None if spec.base else self._session.job.optimizer_of
            restore(engine.optimizer, engine.parameters, saved.optimizer, engine.scheduler, make)
        return saved.progress

    def after(self, progress: Progress) -> None:
        """A checkpoint where one is due. After the first step: raise CheckpointError where none could be written."""
        engine = self._engine
        if not self._examined and isinstance(engine, Pipeline) and self._spec.checkpoints:
            optimizer_state(engine.optimizer, engine.parameters, engine.scheduler)
            self._examined = True
        if self._spec.checkpoint_every and progress.step % self._spec.checkpoint_every == 0:
            self.save(progress)

    def save(self, progress: Progress) -> None:
        """One checkpoint of all ranks' tensors; every rank takes part."""
        engine, session = self._engine, self._session
        if not self._spec.checkpoints or not isinstance(engine, Pipeline) or self._saved == progress:
            return
        session.board.enter(session.rank, "saving a checkpoint")
        state = optimizer_state(engine.optimizer, engine.parameters, engine.scheduler)
        engine.average_buffers()
        model = checkpoint.gather_tensors(engine.tensors, session.rank, session.ranks)
        optimizer = checkpoint.gather_optimizer(state, session.rank, session.ranks)
        if session.rank == 0:
            facts = {"partita": __version__, "plan": session.assignment.plan.graph, "seed": session.job.seed}
            self._newest = checkpoint.write(
                Path(self._spec.checkpoints), progress, model, engine.aliases, optimizer, facts,
                saved=_saved_names(engine), keep=[self._newest] if self._newest else [],
            )  # fmt: skip
        self._saved = progress
        dist.barrier()
        session.board.enter(session.rank, "running")


class _Copying:
    """Copies of this rank's state in memory that outlives it."""

    def __init__(self, session: Session, engine: Engine) -> None:
        """Raises PlanError for an engine whose state is not known."""
        if not isinstance(engine, Pipeline):
            raise PlanError("only Partita's own engine goes on after a failure", hint="leave --engine away")
        spec, rank = session.spec, session.rank
        self._engine, self._every = engine, spec.copy_every
        self._copies = copies.Copies(spec.copies[rank], rank, session.board, spec.timeout_s)

    def after(self, progress: Progress) -> None:
        """A copy where one is due."""
        if progress.step % self._every:
            return
        engine = self._engine
        state = optimizer_state(engine.optimizer, engine.parameters, engine.scheduler)
        self._copies.write(progress, engine.state.tensors, state, engine.shares)


def _saved_names(engine: Pipeline) -> tuple[str, ...]:
    """What the model's state_dict holds."""
    return next(iter(engine.captured.values())).saved
