"""Method `groups`: devices that differ in speed, memory and links, in groups that each run a pipeline of the whole model.

    line of cuts -> clusters -> groups (estimated) -> plans (simulated) -> cuts, shares and micro-batches in flight, one at a time

In a group, an ordered pipeline by dynamic programming (`pipe`); between groups data parallelism with shares of the micro-batches
in proportion to speed, in whole numbers (`crew`); devices that make the step longer are left out. One group is a pipeline, groups
of one device are data parallelism.

Peers: HetPipe (ATC 2020), Asteroid (MobiCom 2024); the clustering of Duan (Temple thesis, 2022) is known by its abstract only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from partita.pipeline.plan import single
from partita.pipeline.plan.bench import Bench, Candidate, Effort, Written
from partita.pipeline.plan.groups.clusters import best_groupings
from partita.pipeline.plan.groups.crew import ALL_ORDERS, SLACKS, Crews, Pipe, Shared
from partita.pipeline.plan.groups.line import line_of
from partita.pipeline.plan.groups.written import written
from partita.pipeline.plan.pipeline_task import FEW, PipelineTask

SHARE = 0.2  #: of what is left for each search around one
ALL_ORDERS_OF_FEW = 6  #: of few devices, every order of groups of so many is tried
STEPS = (1, -1, 2, -2, 4, -4)  #: places by which a cut is moved
ROUNDS = 12  #: of changing one thing at a time
#: Plans that are: where sums hide behind backwards, the fastest estimate is not the fastest plan.
TUNED, TUNED_OF_FEW = 3, 10
SPLITS_TRIED, MOST_SPLITS = 8, 3  #: places tried by gradient bytes and by work, and splits made
MATTERS = 1e-3  #: share of the step that a split must bring
NEAR = 1.1  #: times the fastest estimate: worth a simulation


def propose(task: PipelineTask) -> Iterator[Candidate]:
    """The best groupings of each micro-batch size, and what changing them one thing at a time makes of them. One device is
    always among them."""
    yield from single.propose(task)
    if not task.wants_groups:
        return
    for bench in task.benches:
        effort = Effort(task.groups_effort / len(task.benches))
        few = len(task.cluster.devices) <= FEW
        orders = ALL_ORDERS_OF_FEW if few else ALL_ORDERS
        crews = Crews(line_of(task, bench), bench.costs.micro_batches, effort, orders)
        found = best_groupings(crews, task.wish.seed, alone=not task.wish.allow_replicas)
        near = [s for s in found if s.step_s <= NEAR * found[0].step_s]
        plans = {s: candidate(bench, crews, s) for s in near}
        yield from plans.values()
        best = sorted(near, key=lambda s: bench.step_s(plans[s]))[: TUNED_OF_FEW if few else TUNED]
        for s in best:
            if math.isfinite(bench.step_s(plans[s])):
                changed, plan = tuned(bench, crews, s, plans[s])
                yield plan
                yield overlapped(bench, crews, changed, plan)


def candidate(bench: Bench, crews: Crews, shared: Shared) -> Candidate:
    """Groups with their shares as a plan."""
    return Candidate(bench.number, (), 0, written=Written(written(bench, crews.line, shared)))


def tuned(bench: Bench, crews: Crews, start: Shared, first: Candidate) -> tuple[Shared, Candidate]:
    """Cuts, shares and slack changed one at a time as long as the simulated step gets shorter."""
    best, made, value = start, first, bench.step_s(first)
    enough = bench.effort.left * (1 - SHARE)
    for _ in range(ROUNDS):
        before = value
        for tried in _neighbours(crews, best):
            if bench.effort.left <= enough:
                return best, made
            if tried.step_s > value * NEAR:
                continue
            written_out = candidate(bench, crews, tried)
            seconds = bench.step_s(written_out)
            if seconds < value * (1 - 1e-9):
                best, made, value = tried, written_out, seconds
        if value >= before:
            break
    return best, made


def overlapped(bench: Bench, crews: Crews, start: Shared, first: Candidate) -> Candidate:
    """Stages split where that lets gradients be summed while earlier backwards run, one split at a time, as long as the
    simulated step gets shorter by more than MATTERS. Where a sum's copying and adding were measured, the devices themselves do
    it, and nothing is gained."""
    links = bench.cluster.links_in_use()
    if len(start.pipes) == 1 or any(k.sum_s_per_byte > 0 for k in links):
        return first
    best, made, value = start, first, bench.step_s(first)
    gradient = crews.line.gradient
    parts = np.searchsorted(gradient, gradient[-1] * np.arange(1, SPLITS_TRIED) / SPLITS_TRIED)
    work = np.searchsorted(crews.line.backward_s[0], crews.line.backward_s[0, -1] * np.arange(1, SPLITS_TRIED) / SPLITS_TRIED)  # fmt: skip
    places = sorted({int(x) + d for x in (*parts, *work) for d in (-1, 0)} & set(range(1, len(gradient) - 1)))
    enough = bench.effort.left * (1 - SHARE)
    for _ in range(MOST_SPLITS):
        tries = [replace(best, splits=(*best.splits, x)) for x in places if x not in best.splits]
        found = [(bench.step_s(c), k, c) for k, c in enumerate(candidate(bench, crews, t) for t in tries) if bench.effort.left > enough]  # fmt: skip
        if not found or min(found, key=lambda x: x[:2])[0] >= value * (1 - MATTERS):
            break
        value, k, made = min(found, key=lambda x: x[:2])
        best = tries[k]
    return made


def _neighbours(crews: Crews, s: Shared) -> Iterator[Shared]:
    """One cut moved, one micro-batch given to another group, or one group with other slack."""
    pipes, numbers = list(s.pipes), list(s.batches)
    for g, h in ((g, h) for g in range(len(pipes)) for h in range(len(pipes)) if g != h):
        if numbers[g] > 1:
            other = [n - (k == g) + (k == h) for k, n in enumerate(numbers)]
            if all(_again(crews, p, n) for p, n in zip(pipes, other, strict=True)):
                yield crews.with_shares(pipes, other)
    for g, p in enumerate(pipes):
        changed = [replace(p, slack=x) for x in SLACKS if x != p.slack and len(p.order) > 1]
        for k in range(1, len(p.order)):
            for step in STEPS:
                at = p.cuts[k] + step
                if p.cuts[k - 1] < at < p.cuts[k + 1]:
                    changed.append(replace(p, cuts=(*p.cuts[:k], at, *p.cuts[k + 1 :])))
        for q in changed:
            timed = _again(crews, q, numbers[g])
            if timed:
                yield crews.with_shares([*pipes[:g], timed, *pipes[g + 1 :]], numbers)


def _again(crews: Crews, p: Pipe, batches: int) -> Pipe | None:
    return crews.timed(p.order, p.cuts, p.slack, batches)
