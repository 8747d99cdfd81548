"""Pipelines cut along one topological order, for the simple methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import numpy as np

from partita.nouns.graph import IntArray
from partita.pipeline.plan.bench import Bench, Candidate
from partita.pipeline.plan.chain_dp import Segment
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.solve.downsets import StateSequence
from partita.solve.units import Units

MANY_STAGES = 8  #: beyond these only one number of micro-batches in flight is tried: each takes a program of its own


def prefixes(states: StateSequence, units: Units) -> IntArray:
    """The states that are a prefix of the topological order, shortest first."""
    size = np.bitwise_count(states.members).sum(axis=1, dtype=np.int64)
    numbers = states.totals(np.arange(len(units), dtype=np.float64))[:, 0]
    return np.flatnonzero(numbers == size * (size - 1) / 2)


def through(task: PipelineTask, cuts: IntArray, benches: Sequence[Bench] | None = None) -> Iterator[Candidate]:
    """Candidates with these cuts, one device a stage in the cluster's order."""
    ends = [0, *dict.fromkeys(cuts.tolist()), len(task.states) - 1]
    if len(set(ends)) < len(ends) or len(ends) - 1 > len(task.cluster.devices):
        return
    if task.wish.stages and len(ends) - 1 != task.wish.stages:
        return
    for bench, recompute in product(task.benches if benches is None else benches, task.modes):
        chain = tuple(Segment(i, j, (d,), recompute) for d, (i, j) in enumerate(pairwise(ends)))
        numbers = task.in_flight(chain, bench.costs.micro_batches)
        for in_flight in numbers if len(chain) <= MANY_STAGES else numbers[-1:]:
            yield Candidate(bench.number, chain, in_flight, task.schedule)
