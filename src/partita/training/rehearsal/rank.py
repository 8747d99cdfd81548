"""A rank of a rehearsal: one emulated device, driven by the interpreter of a training run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from partita.files import dump_json, write_whole
from partita.memory import set_objects_aside
from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.program import Op, Program
from partita.nouns.stage_memory import stage_memory
from partita.simulate.boundaries import boundaries
from partita.simulate.lower import program_of
from partita.simulate.predicted import durations_of
from partita.simulate.simulator import Durations
from partita.training.rehearsal.emulated import (
    EmulatedModel,
    EmulatedStage,
    Ledger,
    names_given,
    names_owed,
    seconds_of,
)
from partita.training.rehearsal.pacer import Pacer, wake_precisely
from partita.training.rehearsal.told import RESULT, Told
from partita.training.rehearsal.wires import Buckets, EmulatedSum, EmulatedSums, PacedTransport, rides_of
from partita.training.runtime.checkpoint import gather_values
from partita.training.runtime.deployment import Groups
from partita.training.runtime.interpreter import Bound, Interpreter, Place, message_tags
from partita.training.runtime.measured import measured_timeline
from partita.training.runtime.spec import Spec
from partita.training.runtime.transport import Transport
from partita.training.runtime.worker_status import Board

START_S = 0.05  #: between agreeing on a start and starting


@dataclass
class Rank:
    """One emulated device."""

    number: int
    device: str
    ranks: int
    program: Program
    samples: int  #: in a batch, as the plan counts them
    interpreter: Interpreter
    pacer: Pacer
    ledger: Ledger
    told: Told

    @staticmethod
    def of(file: PlanFile, spec: Spec, rank: int, names: tuple[str, ...], transport: Transport, board: Board) -> Rank:
        """The interpreter of a rank, with everything that it drives emulated."""
        plan, problem, told = file.plan, file.problem, Told(**spec.steered)
        assert isinstance(plan, PipelinePlan)
        wake_precisely()
        program = program_of(problem, plan)
        known = durations_of(problem, plan, program)
        known = Durations(known.busy_s * told.pace, known.lag_s * told.pace)
        device, crossing = names[rank], boundaries(problem.graph, plan)
        model, pacer = EmulatedModel.of(problem.graph, told.cap_bytes), Pacer()
        optimizer = problem.optimizer_bytes_per_parameter_byte if isinstance(problem, PipelineProblem) else 0.0
        memory = {k: stage_memory(problem.graph, plan.stages[k].tasks, optimizer) for k in plan.stages_of(device)}
        ledger = Ledger(sum(m.weights for m in memory.values()))
        seconds = seconds_of(program, known.busy_s.tolist(), device)
        stages = {
            k: EmulatedStage(
                k, names_given(crossing, model, k), names_owed(crossing, model, k), model, seconds, memory[k],
                plan.stages[k].recompute, pacer, ledger,
            )
            for k in memory
        }  # fmt: skip
        buckets = Buckets.of(program, Path(spec.board).parent)
        ranks_of = {d: r for r, d in enumerate(names)}
        interpreter = Interpreter(
            program,
            Place(device, ranks_of, torch.device("cpu"), crossing),
            {1: Bound(model, stages)},
            PacedTransport(transport, pacer, buckets, rides_of(program, known, message_tags(program))),
            _sums(program, known, ranks_of, rank, transport, pacer, buckets, told.cap_bytes),
            board.instruction_cell(rank),
            ahead=plan.in_flight + 2,
        )
        size = problem.micro_batch_size if isinstance(problem, PipelineProblem) else 1
        return Rank(
            rank, device, len(names), program, size * plan.micro_batches, interpreter, pacer, ledger, told,
        )  # fmt: skip

    def run(self, spec: Spec, board: Board) -> None:
        """Warm up, rehearse so many steps, and let rank 0 write what came out."""
        parts = _micro_batches(self.program)
        batch = torch.zeros(parts), torch.zeros(parts)
        set_objects_aside()
        steps, traces, late = [], [], []
        for step in range(1, spec.warmup + (spec.steps or 1) + 1):
            board.begin_step(self.number, step, self.samples)
            board.enter(self.number, "running")
            began, late_before = self._start(), self.pacer.late_s
            self.interpreter.step(batch, 1, step, 0)
            took = self._last_end() - began
            board.end_step(self.number, float("nan"), took)
            if step > spec.warmup:
                start, end = self.interpreter.trace()
                steps.append(took)
                late.append(self.pacer.late_s - late_before)
                traces.append((start - began, end - began))
        self._write(spec, steps, traces, late)

    def _start(self) -> float:
        """The moment at which all ranks start together."""
        dist.barrier()
        moment = torch.tensor([time.perf_counter() + START_S], dtype=torch.float64)
        dist.broadcast(moment, 0)
        self.pacer.debt_s = 0.0
        self.pacer.come(float(moment))
        return float(moment)

    def _last_end(self) -> float:
        """When the last rank was done, by its device's time: what its last wait was late by has nothing behind it that could
        be shorter."""
        moment = torch.tensor([self.pacer.now_s], dtype=torch.float64)
        dist.all_reduce(moment, dist.ReduceOp.MAX)
        return float(moment)

    def _write(
        self, spec: Spec, steps: list[float], traces: list[tuple[FloatArray, FloatArray]], late: list[float]
    ) -> None:
        """Rank 0 writes the timeline of the median step, and everybody's account."""
        chosen = sorted(range(len(steps)), key=steps.__getitem__)[len(steps) // 2]
        start, end = (x / self.told.pace for x in traces[chosen])
        mine = {
            "device": self.device,
            "numbers": self.interpreter.numbers.tolist(),
            "start": start.tolist(),
            "end": end.tolist(),
            "peak_bytes": self.ledger.peak_bytes,
            "weights_bytes": self.ledger.weights_bytes,
            "peak_of": {str(k): n for k, n in self.ledger.peak_of.items()},
            "late_s": float(np.median(late)) / self.told.pace,
            "cpu_s": time.process_time(),
        }
        rows = gather_values(mine, self.number, self.ranks)
        if not rows:
            return
        starts, ends = np.full(len(self.program), np.nan), np.full(len(self.program), np.nan)
        for row in rows:
            at = np.array(row.pop("numbers"), np.int64)
            starts[at], ends[at] = row.pop("start"), row.pop("end")
        facts = {**spec.facts, **asdict(self.told), "load": os.getloadavg()[0]}
        timeline = replace(measured_timeline(self.program, starts, ends, facts), source="rehearsed")
        timeline.write(Path(spec.out) / "rehearsed.json")
        value = {"steps_s": [s / self.told.pace for s in steps], "ranks": rows}
        write_whole(Path(spec.out) / RESULT, dump_json(value))


def _micro_batches(program: Program) -> int:
    return int(program.micro_batch.max()) + 1


def _sums(
    program: Program, known: Durations, ranks_of: Mapping[str, int], rank: int, transport: Transport, pacer: Pacer,
    buckets: Buckets, cap_bytes: int,
) -> EmulatedSums:  # fmt: skip
    """The sums that a rank takes part in. Every rank makes all groups, in one order."""
    rows: dict[int, list[int]] = {}
    for i in np.flatnonzero(program.op == Op.REDUCE).tolist():
        rows.setdefault(program.pieces[program.piece[i]].group, []).append(i)
    groups, found, norm = Groups(), {}, None
    for number, members in sorted(rows.items()):
        pieces = [program.pieces[program.piece[i]] for i in members]
        ranks = tuple(ranks_of[p.route[0]] for p in pieces)
        group = groups.of(ranks)
        hops = tuple((program.queues[program.queue[i]], float(known.busy_s[i])) for i in members)
        lag_s = max(float(known.lag_s[i]) for i in members)
        s = EmulatedSum(number, ranks, hops, lag_s, min(cap_bytes, round(float(program.size_bytes[members[0]]))))
        if rank not in ranks:
            continue
        if pieces[0].kind == "norm":
            norm = s, group
        else:
            found[number] = s, group
    queue = program.queues.index(next(d for d, r in ranks_of.items() if r == rank))
    updates = [float(known.busy_s[i]) for i in program.by_queue[queue].tolist() if program.op[i] == Op.UPDATE]
    return EmulatedSums(transport, pacer, buckets, rank, found, norm, sum(updates))
