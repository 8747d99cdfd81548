"""Method `antichain-dp`: the dynamic program over augmented antichains, its runners-up, and a search around the best.

The program minimises, over all chains of states and all ways to deal out devices, the worst stage's share of the step

    head + ceil(M / m) max( compute + messages, 2 act(i) / B, 2 act(j) / B ) + max( tail, reduce + update )

with head and tail as in `step_bound`: the time to fill and drain around a stage. Against the formula of the sheet,
T = (C + 4 (m - 1) W / (B m)) / m, the gradients are summed once a step and not once a micro-batch, because the step ends
with a flush. Its optimum for every number of devices, and the chains nearly as good, are candidates; around the fastest of
them by simulation, cuts are moved to neighbouring states as long as that helps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.nouns.graph import FloatArray
from partita.pipeline.plan.stage import StageCosts
from partita.pipeline.plan.step_bound import Edges, reduce_s
from partita.pipeline.plan.step_time import Bench, Candidate
from partita.pipeline.plan.task import PipelineTask
from partita.solve.chain_dp import Chain, Option, solve

RUNNERS_UP = 6  #: chains taken for each number of devices
FEW_STATES = 12  #: with at most so many, every chain is simulated
MOST_CHAINS = 1500  #: of them for each number of devices
PATIENCE = 24  #: chains simulated without finding a faster one before the others, whose bounds are higher, are left out
MOVES = 400  #: simulations at most from one start
NEIGHBOURS = 8  #: states tried on each side when a cut is moved
STARTS = 3  #: candidates from which cuts are moved


@dataclass(frozen=True, slots=True)
class Lead:
    """A chain worth a simulation, and a bound of its step."""

    bound_s: float
    bench: Bench
    chain: Chain


def propose(task: PipelineTask) -> Iterator[Candidate]:
    """The program's best chains by ascending bound, and what moving the cuts of the fastest of them leads to."""
    few = len(task.states) <= FEW_STATES
    found: dict[Candidate, float] = {}
    best, since = math.inf, 0
    for lead in sorted(_leads(task, few), key=lambda x: x.bound_s):
        if lead.bound_s >= best or (since > PATIENCE and not few):
            break
        numbers = task.in_flight(lead.chain, lead.bench.costs.micro_batches)
        for number in numbers if few else {numbers[0]: None, numbers[-1]: None}:
            candidate = Candidate(lead.bench.number, lead.chain, number, task.schedule)
            found[candidate] = lead.bench.step_s(candidate)
            yield candidate
        value = min(found.values())
        best, since = (value, 0) if value < best else (best, since + 1)
    for start in _starts(found):
        bench = task.bench(start)
        numbers = task.in_flight(start.chain, bench.costs.micro_batches)
        tried = [replace(start, in_flight=n) for n in numbers]
        yield from tried
        moved = _moved(bench, min(tried, key=bench.step_s))
        yield from (replace(moved, in_flight=n) for n in numbers)


def _starts(found: dict[Candidate, float]) -> list[Candidate]:
    """The fastest candidates that differ in micro-batches, devices or slack."""
    tops: dict[tuple[int, int, int], Candidate] = {}
    for c in sorted((c for c in found if math.isfinite(found[c])), key=found.__getitem__):
        tops.setdefault((c.sample, len(c.chain), c.in_flight), c)
    return list(tops.values())[:STARTS]


def _leads(task: PipelineTask, few: bool) -> Iterator[Lead]:
    """The best few chains for each micro-batch size and each number of devices of each type."""
    for bench, wait, bounds in zip(task.benches, task.waits, task.bound_costs, strict=True):
        cost = stage_cost(bench.costs, wait, task.options)
        place = {(o.replicas, o.recompute): k for k, o in enumerate(task.options)}
        seen: set[Chain] = set()
        for slack in sorted(task.slacks) if task.tight else (0,):  # where memory is no limit, they all give the same
            table = solve(task.chain_problem(bench, cost, slack))
            for vector in range(1, len(table.problem.vectors)):
                for _, chain in table.chains(vector, MOST_CHAINS if few else RUNNERS_UP, math.inf if few else 1.25):
                    if chain not in seen:
                        seen.add(chain)
                        bound = max(bounds[x.type, place[x.replicas, x.recompute], x.start, x.end] for x in chain)
                        yield Lead(float(bound), bench, chain)


def stage_cost(costs: StageCosts, wait: Edges, options: Sequence[Option]) -> FloatArray:
    """[types, options, states, states] a stage's share of the step, as in this file's head; inf: impossible."""
    n, rate = len(costs.states), costs.wire.planned_rate
    weights = costs.weight_bytes / costs.per_parameter_byte
    inner = np.ones(n)
    inner[[0, -1]] = 0.0
    sends = inner * (costs.sent_bytes + costs.returned_bytes) / rate
    handles = inner * costs.wire.message_s
    out = np.empty((len(costs.types), len(options), n, n))
    for t in range(len(costs.types)):
        computes = costs.seconds(t) + handles[:, None] + handles[None, :]
        forward = costs.forward_s[None, :, t] - costs.forward_s[:, None, t]
        update = costs.update_s[None, :, t] - costs.update_s[:, None, t]
        for o, option in enumerate(options):
            seconds = np.maximum(computes + forward * option.recompute, np.maximum(sends[:, None], sends[None, :]))
            reduced = reduce_s(
                costs, weights, option.replicas, costs.wire.planned_exchange_rate, costs.wire.planned_latency_s
            )
            after = np.maximum(update + reduced, wait.tail_s[:, None])
            out[t, o] = wait.head_s[:, None] + -(-costs.micro_batches // option.replicas) * seconds + after
    return out


def _moved(bench: Bench, start: Candidate) -> Candidate:
    """Moves one cut at a time to the neighbouring state with the fastest simulated step, until none is faster."""
    best, value, left = start, bench.step_s(start), MOVES
    work = (bench.costs.forward_s + bench.costs.backward_s)[:, 0]
    while left > 0:
        before = value
        for k in range(1, len(best.chain)):
            for state in _between(bench.costs, work, best.chain[k - 1].start, best.chain[k].start, best.chain[k].end):
                candidate = replace(best, chain=_cut_at(best.chain, k, state))
                seconds, left = bench.step_s(candidate), left - 1
                if seconds < value:
                    best, value = candidate, seconds
        if value >= before:
            break
    return best


def _between(costs: StageCosts, work: FloatArray, low: int, at: int, high: int) -> list[int]:
    """States between two others, those nearest in work to the present cut first."""
    inside = np.flatnonzero(costs.states.contains[low] & costs.states.contains[:, high])
    inside = inside[inside != at]
    sides = [inside[work[inside] <= work[at]], inside[work[inside] > work[at]]]
    near = [s[np.argsort(np.abs(work[s] - work[at]), kind="stable")][:NEIGHBOURS] for s in sides]
    return [int(i) for side in near for i in side]


def _cut_at(chain: Chain, k: int, state: int) -> Chain:
    return (
        *chain[: k - 1], replace(chain[k - 1], end=state), replace(chain[k], start=state), *chain[k + 1 :],
    )  # fmt: skip
