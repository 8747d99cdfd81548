"""Local search around a candidate, by simulation: cuts, devices, recomputation and micro-batches in flight are changed one
at a time as long as that helps and effort is left. The same seed gives the same walk."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from partita.nouns.graph import FloatArray
from partita.pipeline.plan.bench import Candidate
from partita.pipeline.plan.chain_dp import Chain, Segment
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.pipeline.plan.stage_costs import StageCosts

NEIGHBOURS = 8  #: states tried on each side when a cut is moved
SHARE = 0.25  #: of the effort left that one search may spend
SWAPS = 400  #: exchanges of devices tried in a round
LEAST = 1e-12  #: share of the step that an improvement must bring


def improved(task: PipelineTask, start: Candidate, devices: bool = True) -> Candidate:
    """The fastest candidate that the search comes to; `devices`: it may change which devices a stage has.

    It spends at most SHARE of the effort that is left."""
    bench = task.bench(start)
    best, value = start, bench.step_s(start)
    lots = random.Random(task.wish.seed)
    enough = task.effort.left * (1 - SHARE)
    while True:
        before = value
        for kind in (_cuts, *((_devices,) if devices else ()), _modes, _flights):  # the last need new programs
            for candidate in kind(task, best, lots):
                if task.effort.left <= enough:
                    return best
                seconds = bench.step_s(candidate)
                if seconds < value * (1 - LEAST):
                    best, value = candidate, seconds
        if value >= before:
            return best


def _flights(task: PipelineTask, c: Candidate, lots: random.Random) -> Iterator[Candidate]:
    """Other numbers of micro-batches in flight."""
    yield from (replace(c, in_flight=n) for n in task.in_flight(c.chain, task.bench(c).costs.micro_batches))


def _cuts(task: PipelineTask, c: Candidate, lots: random.Random) -> Iterator[Candidate]:
    """One cut moved to a state nearby."""
    yield from (replace(c, chain=chain) for chain in cuts_moved(task.bench(c).costs, c.chain))


def cuts_moved(costs: StageCosts, chain: Chain, steps: Sequence[int] = range(1, NEIGHBOURS + 1)) -> Iterator[Chain]:
    """The chain with one cut moved to a state nearby: so many states away in work, on either side."""
    work = (costs.forward_s + costs.backward_s)[:, 0]
    for k in range(1, len(chain)):
        for state in _between(costs, work, chain[k - 1].start, chain[k].start, chain[k].end, steps):
            yield _cut_at(chain, k, state)


def _between(costs: StageCosts, work: FloatArray, low: int, at: int, high: int, steps: Sequence[int]) -> list[int]:
    """States between two others, those nearest in work to the present cut first."""
    inside = np.flatnonzero(costs.states.contains[low] & costs.states.contains[:, high])
    inside = inside[inside != at]
    sides = [inside[work[inside] <= work[at]], inside[work[inside] > work[at]]]
    near = [s[np.argsort(np.abs(work[s] - work[at]), kind="stable")] for s in sides]
    return [int(side[n - 1]) for side in near for n in steps if n <= len(side)]


def _cut_at(chain: Chain, k: int, state: int) -> Chain:
    return (
        *chain[: k - 1], replace(chain[k - 1], end=state), replace(chain[k], start=state), *chain[k + 1 :],
    )  # fmt: skip


def _devices(task: PipelineTask, c: Candidate, lots: random.Random) -> Iterator[Candidate]:
    """Two devices change places (one of them may be idle), or one goes to a neighbouring stage."""
    places = [(k, r) for k, s in enumerate(c.chain) for r in range(len(s.devices))]
    used = {d for s in c.chain for d in s.devices}
    idle = [d for d in range(len(task.cluster.devices)) if d not in used]
    if len(task.types) > 1 or task.cluster.links:
        pairs = [(a, b) for x, a in enumerate(places) for b in places[x + 1 :]] + [(a, d) for a in places for d in idle]
        lots.shuffle(pairs)
        for a, b in pairs[:SWAPS]:
            here = c.chain[a[0]].devices[a[1]]
            there = c.chain[b[0]].devices[b[1]] if isinstance(b, tuple) else b
            swap = {here: there, there: here}
            yield replace(c, chain=_with(c.chain, [tuple(swap.get(d, d) for d in s.devices) for s in c.chain]))
    if task.wish.allow_replicas:
        yield from _regrouped(task, c, idle)


def _regrouped(task: PipelineTask, c: Candidate, idle: list[int]) -> Iterator[Candidate]:
    """A device goes from a stage with replicas to another stage, comes to one, or is let go."""
    teams = [s.devices for s in c.chain]
    for k, team in enumerate(teams):
        for d in idle[:1]:
            yield _flown(
                task, replace(c, chain=_with(c.chain, [(*t, d) if x == k else t for x, t in enumerate(teams)]))
            )
        for d in team if len(team) > 1 else ():
            without = [tuple(e for e in t if e != d) for t in teams]
            yield _flown(task, replace(c, chain=_with(c.chain, without)))
            for x in (k - 1, k + 1):
                if 0 <= x < len(teams):
                    moved = [(*t, d) if y == x else t for y, t in enumerate(without)]
                    yield replace(c, chain=_with(c.chain, moved))


def _flown(task: PipelineTask, c: Candidate) -> Candidate:
    """The candidate with a usual number of micro-batches in flight for its devices."""
    return (
        replace(c, in_flight=task.in_flight(c.chain, task.bench(c).costs.micro_batches)[0])
        if c.schedule == "1f1b"
        else c
    )


def _with(chain: Chain, teams: list[tuple[int, ...]]) -> Chain:
    return tuple(replace(s, devices=t) for s, t in zip(chain, teams, strict=True))


def _modes(task: PipelineTask, c: Candidate, lots: random.Random) -> Iterator[Candidate]:
    """One stage recomputes that did not, or the other way round."""
    if len(task.modes) > 1:
        for k, s in enumerate(c.chain):
            other = Segment(s.start, s.end, s.devices, not s.recompute)
            yield replace(c, chain=(*c.chain[:k], other, *c.chain[k + 1 :]))
