"""Comparing engines: every one takes the same step on the same batch in turn, round after round."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from partita.errors import PlanError
from partita.files import dump_json, write_whole
from partita.nouns.metrics import number_to_json
from partita.training.job import Batch, batch_size
from partita.training.runtime import checkpoint
from partita.training.runtime.batches import Progress, ahead, turns
from partita.training.runtime.baton import Baton
from partita.training.runtime.interpreter import Meanwhile, StepResult
from partita.training.runtime.measured import Trace, write_timeline
from partita.training.runtime.pipeline import Pipeline
from partita.training.runtime.recorder import gathered, own_readings
from partita.training.runtime.session import Session
from partita.training.runtime.single import SingleProcess
from partita.training.runtime.train import check_same_everywhere, with_trace

if TYPE_CHECKING:
    from partita.training.runtime.session import Engine


def compare(session: Session) -> None:
    """Every engine in turn for as many steps as were asked for; rank 0 writes compare.json. Raises PlanError, JobError."""
    spec, board, engines = session.spec, session.board, session.engines
    board.enter(session.rank, "running")
    times: dict[str, list[float]] = {n: [] for n in engines}
    losses: dict[str, list[float]] = {n: [] for n in engines}
    cpu: dict[str, list[float]] = {n: [] for n in engines}
    gradients: dict[str, float] = {}
    traces: list[Trace] = []
    recorders = {n: session.recorder(n) for n in engines if not n.startswith("torch")}
    batches = ahead(turns(session.job, Progress(), steps=spec.steps, epochs=spec.epochs))
    for turn in Baton.of(spec.ring, session.rank).rounds(batches):
        if turn.first:
            check_same_everywhere(turn.batch, turn.done.epoch)
        board.begin_step(session.rank, turn.done.step, batch_size(turn.batch))
        # gradients are compared behind the first step: rounding grows with every one
        row = spec.in_a_row if turn.done.step > 1 else 1
        for name, engine in engines.items():
            recorder = recorders.get(name)
            own = _timed(engine, turn.batch, turn.done.step, row, recorder.begin() if recorder else None)
            if recorder:  # right behind the steps, as in a run: a core that has slept between is slow for a while
                # all ranks go by the last steps that they know of together, so they read together
                known_s = times[name][-1] if times[name] else own.wall_s
                recorder.after(row * known_s, own.core_share, session.comparable_s(own.worked_s, turn.batch))
            step = _of_all(own)
            times[name].append(step.wall_s)
            losses[name].append(step.loss)
            cpu[name].append(step.cpu_s)
            traces = with_trace(traces, session, engine, turn.batch, step.wall_s, first=turn.done.step <= spec.warmup)
        first = next(iter(engines))
        board.end_step(session.rank, losses[first][-1], times[first][-1])
        if spec.check_gradients and turn.done.step == 1:
            gradients = _gradient_errors(session)
    world = session.assignment.world
    readings = {"pipeline": gathered(recorders.get("pipeline"), world, session.rank)}
    if recorder := recorders.get("single"):  # on rank 0
        readings["single"] = own_readings(recorder, world[0])
    if session.rank == 0:
        value = {
            "step_s": {n: t[spec.warmup :] for n, t in times.items()},
            "cpu_s": {n: t[spec.warmup :] for n, t in cpu.items()},
            "losses": {n: [number_to_json(x) for x in ls] for n, ls in losses.items()},
            "gradient_errors": {n: number_to_json(e) for n, e in gradients.items()},  # of a loss that is not finite
            "readings": {n: r.since(spec.warmup).to_json() for n, r in readings.items() if r},
        }
        write_whole(Path(spec.out) / "compare.json", dump_json(value))
    pipeline = engines.get("pipeline")
    if isinstance(pipeline, Pipeline) and traces:
        full = session.full_batch
        write_timeline(session, pipeline.program_of(full), pipeline.numbers_of(full), traces, sum(cpu["pipeline"]))


class _Timed(NamedTuple):
    """A step of one engine on a rank, or on all of them."""

    wall_s: float  #: of the rank that took longest; in a row of one step from a common start
    loss: float  #: nan where this rank knows none
    cpu_s: float  #: of all ranks, with what they read meanwhile
    core_share: float  #: of its core that this rank had
    worked_s: float  #: of this rank's computations


def _timed(engine: Engine | None, batch: Batch, step: int, row: int, meanwhile: Meanwhile | None) -> _Timed:
    """A rank's step of so many in a row, none waiting for more than its messages, as in a run, and `meanwhile` doing what a run does.
    The first of several is not counted: it finds caches cold, and a core that has slept."""
    dist.barrier()
    if row > 1:
        _stepped(engine, batch, step)
    began, cpu, counted = time.perf_counter(), time.process_time(), max(1, row - 1)
    results = [_stepped(engine, batch, step, meanwhile) for _ in range(counted)]
    spent, used = (time.perf_counter() - began) / counted, (time.process_time() - cpu) / counted
    share, worked_s = statistics.median(r.core_share for r in results), statistics.mean(r.worked_s for r in results)
    return _Timed(spent, results[-1].loss, used, share, worked_s)


def _of_all(own: _Timed) -> _Timed:
    """Of all ranks, which all call it."""
    known = not math.isnan(own.loss)
    share = torch.tensor([own.wall_s, own.cpu_s, own.loss if known else 0.0, float(known)], dtype=torch.float64)
    most = share[:1].clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(share)
    mean_loss = float(share[2] / share[3]) if share[3] > 0 else math.nan
    return _Timed(float(most[0]), mean_loss, float(share[1]), own.core_share, own.worked_s)


def _stepped(engine: Engine | None, batch: Batch, step: int, meanwhile: Meanwhile | None = None) -> StepResult:
    """A step that is done, and not only queued on a GPU."""
    result = engine.step(batch, step - 1, meanwhile) if engine is not None else StepResult(math.nan, 0.0)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return result


def _gradient_errors(session: Session) -> dict[str, float]:
    """Engine -> the largest difference of its gradients from the single process', relative to each one's largest."""
    errors: dict[str, float] = {}
    single = session.engines.get("single")
    reference = {n: g.cpu() for n, g in _dense(single.gradients()).items()} if isinstance(single, SingleProcess) else {}
    for name, engine in session.engines.items():
        if name == "single" or engine is None:
            continue
        found = checkpoint.gather_tensors(_dense(engine.gradients()), session.rank, session.ranks)
        if session.rank == 0 and reference:
            missing = reference.keys() ^ found.keys()
            if missing:
                raise PlanError(f"engine {name} has gradients of other parameters: {sorted(missing)[:3]}")
            least = max(float(g.abs().max()) for g in reference.values()) / 1000
            errors[name] = max(_relative(found[n], reference[n], least) for n in reference)
    return errors


def _dense(gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same numbers in dense tensors: an embedding's may be sparse."""
    return {n: g.detach().to_dense() for n, g in gradients.items()}


def _relative(found: Tensor, reference: Tensor, least: float) -> float:
    """The largest difference, relative to the largest element; `least` stands in where that is but rounding."""
    scale = max(float(reference.abs().max()), least)
    return float((found - reference).abs().max()) / scale if scale > 0 else float(found.abs().max())
