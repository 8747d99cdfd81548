"""measured.json: the timeline of one step, put together from what every rank saw of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.program import Op, Program
from partita.nouns.timeline import Timeline
from partita.training.runtime import checkpoint
from partita.training.runtime.session import Session
from partita.training.runtime.stopwatch import Stamps, in_seconds


@dataclass(frozen=True)
class Trace:
    """One step as a rank saw it."""

    step_s: float
    stamps: Stamps  #: of its own instructions
    first: bool = False  #: of the run, and so slow: it counts where there is no other


def write_timeline(
    session: Session, program: Program, numbers: IntArray, traces: Sequence[Trace], cpu_s: float
) -> None:
    """Rank 0 gathers every rank's times of the step of median length and writes measured.json. Every rank calls it."""
    session.clock.compare()  # the traces are of the last steps: clocks are compared close to them
    order = sorted(range(len(traces)), key=lambda i: traces[i].step_s)
    chosen = torch.tensor([order[len(order) // 2]])
    dist.broadcast(chosen, 0)
    trace = traces[min(int(chosen), len(traces) - 1)]
    start, end = map(session.clock.to_rank_0, in_seconds(trace.stamps))
    mine = {
        "numbers": torch.from_numpy(numbers),
        "start": torch.from_numpy(start),
        "end": torch.from_numpy(end),
    }
    gathered = checkpoint.gather_tensors(
        {f"{k}.{session.rank}": v for k, v in mine.items()}, session.rank, session.ranks
    )
    total = torch.tensor([cpu_s], dtype=torch.float64)
    dist.all_reduce(total)
    if session.rank > 0:
        return
    starts, ends = np.full(len(program), np.nan), np.full(len(program), np.nan)
    for r in range(session.ranks):
        at = gathered[f"numbers.{r}"].numpy()
        starts[at], ends[at] = gathered[f"start.{r}"].numpy(), gathered[f"end.{r}"].numpy()
    facts = {**session.spec.facts, "cpu_s": float(total), "load": os.getloadavg()[0], "steps_traced": len(traces)}
    measured_timeline(program, starts, ends, facts).write(Path(session.spec.out) / "measured.json")


def measured_timeline(program: Program, start: FloatArray, end: FloatArray, facts: Mapping[str, Any]) -> Timeline:
    """Times of all ranks as a timeline: a message runs from its posting until its receiver has it."""
    end = end.copy()
    for i in np.flatnonzero(program.op == Op.RECV):
        for j in program.needs.row(int(i)):
            if program.op[j] == Op.SEND:
                end[j] = max(end[i], start[j])
    origin = float(np.nanmin(start[program.op != Op.RECV]))  # a rank may wait for a step that has not begun
    start = np.maximum(start, origin)
    end = np.maximum(end, start)
    return Timeline.of(program, start - origin, end - origin, "measured", facts)
