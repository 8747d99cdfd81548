"""Method `antichain-dp`: the dynamic program over augmented antichains, its runners-up, and a search around the best.

The program (`chain_dp`) minimises the worst stage's share of the step over all chains of states, for devices that stand in
a line. Where there are few different lines, all are taken; otherwise the fastest devices, more and more of them, in a few
orders. Against the formula of the sheet, T = (C + 4 (m - 1) W / (B m)) / m, the gradients are summed once a step and not
once a micro-batch, because the step ends with a flush. The optimum for every line, and the chains nearly as good, are
simulated; from the fastest of them a local search sets out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from partita.pipeline.plan.bench import Bench, Candidate
from partita.pipeline.plan.chain_dp import Chain, on_devices, segment_s, solve
from partita.pipeline.plan.local_search import improved
from partita.pipeline.plan.pipeline_task import PipelineTask

RUNNERS_UP = 6  #: chains taken for each line of devices
FEW_STATES = 12  #: with at most so many, and few lines, every chain is simulated
MOST_CHAINS = 1500  #: of them for each line
MOST_LINES = 24  #: different lines; where there are more, a few are chosen
PATIENCE = 24  #: chains simulated without finding a faster one before the others, whose bounds are higher, are left out
STARTS = 3  #: candidates from which the local search sets out
LINE_WORK = 2e9  #: stages that the dynamic programs look at, for all lines together

Line = tuple[int, ...]  #: numbers of devices


@dataclass(frozen=True, slots=True)
class Lead:
    """A chain worth a simulation, and a bound of its step."""

    bound_s: float
    bench: Bench
    chain: Chain


def propose(task: PipelineTask) -> Iterator[Candidate]:
    """The program's best chains by ascending bound, and what the local search makes of the fastest of them."""
    all_lines = every_line(task)
    few = len(task.states) <= FEW_STATES and all_lines is not None
    found: dict[Candidate, float] = {}
    best, since = math.inf, 0
    for lead in sorted(_leads(task, all_lines, few), key=lambda x: x.bound_s):
        if lead.bound_s >= best or (since > PATIENCE and not few) or task.effort.left <= 0:
            break
        numbers = task.in_flight(lead.chain, lead.bench.costs.micro_batches)
        for number in numbers if few or task.tight else {numbers[0]: None, numbers[-1]: None}:
            candidate = Candidate(lead.bench.number, lead.chain, number, task.schedule)
            found[candidate] = lead.bench.step_s(candidate)
            yield candidate
        value = min(found.values())
        best, since = (value, 0) if value < best else (best, since + 1)
    ends = [improved(task, start) for start in _starts(found)]
    yield from ends
    if ends and task.wish.schedule is None and task.wish.in_flight is None:
        best_end = min(ends, key=lambda c: task.bench(c).step_s(c))
        yield replace(best_end, schedule="gpipe", in_flight=task.bench(best_end).costs.micro_batches)


def _starts(found: dict[Candidate, float]) -> list[Candidate]:
    """The fastest candidates that differ in micro-batches, devices or slack."""
    tops: dict[tuple[int, int, int], Candidate] = {}
    for c in sorted((c for c in found if math.isfinite(found[c])), key=found.__getitem__):
        tops.setdefault((c.sample, len(c.chain), c.in_flight), c)
    return list(tops.values())[:STARTS]


def every_line(task: PipelineTask) -> list[Line] | None:
    """Every line of all devices; those of one type count as one where all links are alike. None: more than MOST_LINES."""
    devices, number = range(len(task.cluster.devices)), task.class_of
    if task.cluster.links and math.factorial(len(devices)) <= MOST_LINES:
        return list(itertools.permutations(devices))
    lines = math.factorial(len(devices)) // math.prod(math.factorial(len(t.names)) for t in task.types)
    if lines > MOST_LINES:
        return None
    shapes = _shuffles(tuple(len(t.names) for t in task.types))
    of_type = [[d for d in devices if number[d] == t] for t in range(len(task.types))]
    return [tuple(next(pools[t]) for t in shape) for shape in shapes for pools in [[iter(ds) for ds in of_type]]]


def _shuffles(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every order of so many of each type."""
    if not any(counts):
        yield ()
    for t, n in enumerate(counts):
        if n:
            yield from ((t, *rest) for rest in _shuffles((*counts[:t], n - 1, *counts[t + 1 :])))


def some_lines(task: PipelineTask) -> list[Line]:
    """More and more of the fastest devices: in the cluster's order, the fastest first, and last."""
    work = task.benches[0].costs.forward_s[-1] + task.benches[0].costs.backward_s[-1]
    n = len(task.cluster.devices)
    fast = sorted(range(n), key=lambda d: (work[task.class_of[d]], -task.cluster.devices[d].memory_bytes))
    counts = [k for k in range(1, n + 1) if k <= 4 or k == n or any(k == n * x // 8 for x in range(1, 8))]
    orders = [tuple(o) for k in counts for o in (fast[:k], fast[:k][::-1], sorted(fast[:k]))]
    return list(dict.fromkeys(orders))


def _leads(task: PipelineTask, all_lines: list[Line] | None, few: bool) -> Iterator[Lead]:
    """The best few chains for each micro-batch size, line and way to count what is in flight."""
    lines = some_lines(task) if all_lines is None else all_lines
    seen: set[tuple[int, Chain]] = set()
    for at, bench in enumerate(task.benches):
        windows = task.windows(bench)
        if few and task.tight:
            windows = windows[-1:]  # the least in flight: whatever fits at all
        for window, line in itertools.product(windows, lines):
            table = solve(task.chain_problem(bench, line, window))
            for first in range(len(line)) if all_lines is not None else (0,):
                chains = table.chains(first, MOST_CHAINS if few else RUNNERS_UP, math.inf if few else 1.25)
                for _, places in chains:
                    chain = on_devices(places, line)
                    if (at, chain) not in seen:
                        seen.add((at, chain))
                        yield Lead(least_s(task, at, chain), bench, chain)


def least_s(task: PipelineTask, bench: int, chain: Chain) -> float:
    """No plan with this chain takes less."""
    return max(segment_s(task.least_tables[bench], [task.class_of[d] for d in s.devices], 0, s) for s in chain)
