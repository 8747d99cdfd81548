"""Method `single`: everything on one device. "Don't split" is an answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from partita.pipeline.plan.bench import Candidate
from partita.pipeline.plan.chain_dp import Segment
from partita.pipeline.plan.pipeline_task import PipelineTask


def propose(task: PipelineTask) -> Iterator[Candidate]:
    """The first device of each type, at each micro-batch size."""
    if task.wish.stages not in (None, 1):
        return
    last = len(task.states) - 1
    firsts = [task.class_of.index(t) for t in range(len(task.types))]
    for bench in task.benches:
        for device, recompute in product(firsts, task.modes):
            chain = (Segment(0, last, (device,), recompute),)
            for in_flight in task.in_flight(chain, bench.costs.micro_batches):
                yield Candidate(bench.number, chain, in_flight, task.schedule)
