"""Method `single`: everything on one device. "Don't split" is an answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from partita.pipeline.plan.step_time import Candidate
from partita.pipeline.plan.task import PipelineTask
from partita.solve.chain_dp import Link


def propose(task: PipelineTask) -> Iterator[Candidate]:
    """One device of each type, at each micro-batch size."""
    if task.wish.stages not in (None, 1):
        return
    last = len(task.states) - 1
    for bench in task.benches:
        for t, recompute in product(range(len(task.types)), task.modes):
            chain = (Link(0, last, t, 1, recompute),)
            for in_flight in task.in_flight(chain, bench.costs.micro_batches):
                yield Candidate(bench.number, chain, in_flight, task.schedule)
