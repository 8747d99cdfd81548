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
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from partita.pipeline.plan.bench import Bench, Candidate
from partita.pipeline.plan.chain_dp import Chain, busiest, on_devices, segment_s, solve
from partita.pipeline.plan.local_search import improved
from partita.pipeline.plan.pipeline_task import PipelineTask

RUNNERS_UP = 6  #: chains taken for each line of devices
FEW_STATES = 12  #: with at most so many, and few lines, every chain is simulated
MOST_CHAINS = 1500  #: of them for each line
MOST_LINES = 24  #: different lines; where there are more, a few are chosen
PATIENCE = 24  #: chains simulated without finding a faster one before the others, whose bounds are higher, are left out
STARTS = 3  #: candidates from which the local search sets out
LINES_SHARE = 0.3  #: of the effort that may go into lines, where there are many,
ALL_LINES_SHARE = 0.6  #: and where all are taken
LEAD = 15.0  #: effort (see `bench.Effort`) of a chain's bound and guess, for each of its stages
LEADS_SHARE = 0.5  #: of what is left then, into simulating the chains found
MOST_WALKS = 200  #: lines tried after that
NEAR = 1.1  #: times the best step; a candidate within it is worth a local search

Line = tuple[int, ...]  #: numbers of devices


@dataclass(frozen=True, slots=True)
class Lead:
    """A chain worth a simulation, a bound of its step, and a guess."""

    bound_s: float
    likely_s: float
    rank: int  #: among the chains of its line
    bench: Bench
    chain: Chain


def propose(task: PipelineTask) -> Iterator[Candidate]:
    """The program's best chains by ascending bound, and what the local search makes of the fastest of them."""
    all_lines = every_line(task)
    few = len(task.states) <= FEW_STATES and all_lines is not None
    found: dict[Candidate, float] = {}
    best, since = math.inf, 0
    leads = sorted(_leads(task, all_lines, few), key=lambda x: (x.rank if all_lines is None else 0, x.likely_s))
    enough = task.effort.left * (1 - LEADS_SHARE)
    for lead in leads:
        if (since > PATIENCE and not few) or (found and task.effort.left <= enough):
            break
        if lead.bound_s >= best:
            continue
        for candidate in _candidates(task, lead, few, all_lines is None):
            found[candidate] = lead.bench.step_s(candidate)
            yield candidate
        value = min(found.values())
        best, since = (value, 0) if value < best else (best, since + 1)
    ends = [improved(task, start, devices=False) for start in _starts(found)[: STARTS if all_lines else 1]]
    if not ends:
        return
    ends.append(improved(task, min(ends, key=lambda c: task.bench(c).step_s(c))))
    if all_lines is None:
        ends.append(_wandered(task, min(ends, key=lambda c: task.bench(c).step_s(c))))
    yield from ends


def _candidates(task: PipelineTask, lead: Lead, few: bool, many: bool) -> list[Candidate]:
    """The chain with different numbers of micro-batches in flight: few of them where there are many lines."""
    numbers = task.in_flight(lead.chain, lead.bench.costs.micro_batches)
    chosen = numbers if few or task.tight else dict.fromkeys((numbers[-1 if many else 0], numbers[-1]))
    return [Candidate(lead.bench.number, lead.chain, n, task.schedule) for n in chosen]


def _wandered(task: PipelineTask, start: Candidate) -> Candidate:
    """Lines of a random number of the fastest devices, fastest first or last, whose stages may have some sizes only; what
    the program finds there, simulated, and improved where it is near the best."""
    lots, best, bench = random.Random(task.wish.seed), start, task.bench(start)
    window, fast = task.windows(bench)[0], by_speed(task)
    for _ in range(MOST_WALKS):
        line = fast[: lots.randint(1 + len(fast) // 5, len(fast))][:: lots.choice((1, 1, -1))]
        problem = task.chain_problem(bench, line, window)
        sizes = tuple(m for m in problem.sizes if m == 1 or lots.random() < 0.5)
        problem = replace(problem, sizes=sizes)
        if task.effort.left < 2 * problem.effort:
            break
        task.effort.left -= problem.effort
        for _, places in solve(problem).chains(0, 1):
            lead = Lead(0.0, 0.0, 0, bench, on_devices(places, line))
            tried = min(_candidates(task, lead, False, True), key=bench.step_s)
            if bench.step_s(tried) < bench.step_s(best) * NEAR:
                tried = improved(task, tried)
            best = min((best, tried), key=bench.step_s)
    return best


def _starts(found: dict[Candidate, float]) -> list[Candidate]:
    """The fastest candidates that differ in micro-batches, devices or slack."""
    tops: dict[tuple[int, int, int], Candidate] = {}
    for c in sorted((c for c in found if math.isfinite(found[c])), key=found.__getitem__):
        tops.setdefault((c.sample, len(c.chain), c.in_flight), c)
    return list(tops.values())


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


def by_speed(task: PipelineTask) -> list[int]:
    """All devices, the fastest first, of equal ones the largest."""
    work = task.benches[0].costs.forward_s[-1] + task.benches[0].costs.backward_s[-1]
    devices = task.cluster.devices
    return sorted(range(len(devices)), key=lambda d: (work[task.class_of[d]], -devices[d].memory_bytes))


def some_lines(task: PipelineTask) -> list[Line]:
    """The fastest devices, all or fewer of them: the fastest first, last, and in the cluster's order."""
    fast, n = by_speed(task), len(task.cluster.devices)
    halves = [n >> k for k in range(n.bit_length() - 1, -1, -1)]  # few devices are cheap to plan for: they come first
    counts = [*halves, *(c for k in halves if (c := 3 * k // 4) not in halves), 3]
    chosen = [fast[:k] for k in counts if k <= n]
    orders = [*chosen, *(line[::-1] for line in chosen), *(sorted(line) for line in chosen)]
    return list(dict.fromkeys(map(tuple, orders)))


def _leads(task: PipelineTask, all_lines: list[Line] | None, few: bool) -> Iterator[Lead]:
    """The best few chains for each micro-batch size, line and way to count what is in flight."""
    lines = some_lines(task) if all_lines is None else all_lines
    seen: set[tuple[int, Chain]] = set()
    enough = task.effort.left * (1 - (LINES_SHARE if all_lines is None else ALL_LINES_SHARE))
    for at, bench in enumerate(task.benches):
        windows = task.windows(bench)
        if few and task.tight:
            windows = windows[-1:]  # the least in flight: whatever fits at all
        for window, line in itertools.product(windows, lines):
            problem = task.chain_problem(bench, line, window)
            if seen and task.effort.left < enough:
                break
            task.effort.left -= problem.effort
            table = solve(problem)
            for first in range(len(line)) if all_lines is not None else (0,):
                chains = table.chains(
                    first, MOST_CHAINS if few else RUNNERS_UP if all_lines else 2, math.inf if few else 1.25
                )
                for rank, (_, places) in enumerate(chains):
                    chain = on_devices(places, line)
                    if (at, chain) not in seen and not (seen and task.effort.left < enough):
                        seen.add((at, chain))
                        task.effort.left -= LEAD * len(chain)
                        least = least_s(task, at, chain)
                        yield Lead(least, max(least, likely_s(task, at, chain)), rank, bench, chain)


def least_s(task: PipelineTask, bench: int, chain: Chain) -> float:
    """No plan with this chain takes less."""
    return max(segment_s(task.least_tables[bench], [task.class_of[d] for d in s.devices], 0, s) for s in chain)


def likely_s(task: PipelineTask, bench: int, chain: Chain) -> float:
    """A micro-batch goes through all stages and back, and the busiest device does the rest of its share."""
    t, once, rest = task.tables[bench], 0.0, 0.0
    for s in chain:
        classes = [task.class_of[d] for d in s.devices]
        each = {
            c: float(t.work_s[s.end, c] - t.work_s[s.start, c])
            + s.recompute * float(t.again_s[s.end, c] - t.again_s[s.start, c])
            for c in set(classes)
        }
        once += sum(each[c] for c in classes) / len(classes) + float(t.send_s[s.start])
        rest = max(rest, *(turns * each[c] for c, turns in busiest(classes, t.micro_batches).items()))
    return once + rest
