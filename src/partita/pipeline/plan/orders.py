"""Which schedule, and which cuts for it: every schedule on the chains that the methods found best, each with cuts of its own.

1F1B wants its first stages larger than its last ones; a schedule that fills the waits wants them even; and where a device serves
several chunks there are more cuts to choose. So the cuts are moved for each schedule as long as that helps, judged by a walk over
the slots (`schedules.searched`), and what is found is simulated at the end like any plan.

    lines       straight   d0 d1 .. dP        1F1B, GPipe, ZB-H1, ZB-H2, searched
                there and back  d0 .. dP dP .. d0     ZB-V, searched
                round and round d0 .. dP d0 .. dP     interleaved, searched
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import Literal

import numpy as np

from partita.nouns.pipeline_plan import PipelinePlan, Schedule, Slot, Stage
from partita.pipeline.plan.bench import Bench, Candidate
from partita.pipeline.plan.chain_dp import Chain, Segment
from partita.pipeline.plan.local_search import cuts_moved
from partita.pipeline.plan.pipeline_task import ORDERS, PipelineTask
from partita.pipeline.plan.shop import Parted, devices_of, shop_of
from partita.simulate.schedules import device_orders
from partita.simulate.schedules.searched import Found, Shop, glanced, joined, listings, numbered, rewalked, searched

NAMED: tuple[Literal["interleaved", "zb-h1", "zb-h2", "zb-v"], ...] = ("interleaved", "zb-h1", "zb-h2", "zb-v")
FLOWN = ("1f1b", "zb-h1")  #: that keep so many micro-batches in flight as they are told
STARTS = 3  #: chains of the methods that schedules are tried on
SHARES = (1.0, 0.4, 0.12)  #: of a first chunk, relative to the last ones
MOST_SLOTS = 6000  #: of a program whose orders are searched
MOST_DEVICES = 16  #: that serve several chunks each
NAMED_LINES = 2  #: whose cuts are moved for a named schedule, of those that are best at the beginning ...
MOST_LINES = 4  #: ... and for a searched one
STEPS = (1, 2, 4, 8)  #: states by which a cut is moved
ANNEALED = 2  #: chains whose orders are searched for longer
WALKS = 3000  #: moves of that search, where the budget lets it
JOININGS = 12  #: orders in which every backward is tried in one before
SHOP, SLOT = 900.0, 0.1  #: effort (see `bench.Effort`) of making a shop, and of walking over a slot
WALKED = 20  #: times that a program is walked over, for each chain looked at
JOINED = 150  #: backwards of a program in which each is tried in one, at every chain

Value = Callable[[Shop], float]

Orders = Mapping[str, tuple[Slot, ...]]


@dataclass(frozen=True, eq=False)
class Arranged:
    """A chain under a schedule."""

    asked: str  #: the schedule's name, "searched" of orders that were
    candidate: Candidate
    orders: Orders  #: device -> its work, of a searched one
    seconds: float  #: of a step, by the search's account

    def plan(self, bench: Bench) -> PipelinePlan:
        """Written out."""
        return replace(bench.plan(self.candidate), orders=dict(self.orders))


def arranged(task: PipelineTask) -> Iterator[Arranged]:
    """The best arrangement of each schedule that the wish allows, on the best chains evaluated before; each fits into memory.

    Nothing where those have but one device. Of programs too large to be searched, what is asked for by name, cut as it was found."""
    search = _Search(task)
    asked, known = task.wish.schedule, list[Arranged]()
    for schedule in NAMED:
        if asked in (schedule, "searched", "auto") and (task.wish.in_flight is None or schedule in FLOWN):
            known += search.fastest(search.named(schedule))
    if asked != "searched":
        yield from known
    if asked in ("searched", "auto") and task.wish.in_flight is None:
        yield from search.fastest(search.searched([a.candidate for a in known]))


def best_chains(task: PipelineTask) -> list[Candidate]:
    """The fastest candidates of several devices, one for each micro-batch size and number of devices."""
    known = [(s, c) for b in task.benches for c, s in b.known.items() if math.isfinite(s) and len(c.chain) > 1]
    tops: dict[tuple[int, int], tuple[float, Candidate]] = {}
    for seconds, c in sorted(known, key=lambda row: row[0]):
        tops.setdefault((c.sample, len(devices_of(c.chain))), (seconds, c))
    return [c for _, c in list(tops.values())[:STARTS]]


def why_none(task: PipelineTask) -> str:
    """Why no schedule was tried: no several devices, or too many slots to search; "" where some were."""
    slots = [3 * len(c.chain) * task.bench(c).costs.micro_batches for c in best_chains(task)]
    if not slots:
        return ": it takes several devices, and nothing that was found has them"
    if min(slots) <= MOST_SLOTS:
        return ""
    return f": {min(slots)} forwards and parts of backwards, and the orders of {MOST_SLOTS} at most are searched"


class _Search:
    """What the searches of one task have in common."""

    def __init__(self, task: PipelineTask) -> None:
        self.task = task
        self.starts = [c for c in best_chains(task) if self._small(c)]
        self.left = ORDERS * task.whole_effort
        self._parted = {b.number: Parted.of(task, b) for b in task.benches} if self.starts else {}

    def _small(self, c: Candidate) -> bool:
        batches = self.task.bench(c).costs.micro_batches
        return batches > 1 and 3 * len(c.chain) * batches <= MOST_SLOTS

    def fastest(self, found: Iterable[Arranged]) -> list[Arranged]:
        """The first that fits, or none: a walk counts what micro-batches keep, a plan all that a device holds."""
        for a in sorted(found, key=lambda a: a.seconds):
            bench = self.task.bench(a.candidate)
            if bench.plan_fits(a.plan(bench)):
                return [a]
        return []

    def named(self, schedule: Schedule) -> Iterator[Arranged]:
        if not self.starts and self.task.wish.schedule == schedule:
            yield from self._as_found(schedule)
        for start in self.starts:
            bench = self.task.bench(start)
            for flown in self._flights(start, bench, schedule):
                lines = list(self._lines(start, bench, schedule))
                values = [partial(_fixed_s, begun=_fixed(line, schedule, flown, bench)) for line in lines]
                for chain, seconds in self._cut_best(bench, lines, values, NAMED_LINES)[:1]:
                    yield Arranged(schedule, Candidate(start.sample, chain, flown, schedule), {}, seconds)

    def _as_found(self, schedule: Schedule) -> Iterator[Arranged]:
        """Without a search, on chains as they were found: simulated, not walked, for there may be very many slots."""
        for start in best_chains(self.task):
            bench = self.task.bench(start)
            for flown in self._flights(start, bench, schedule):
                for line in islice(self._lines(start, bench, schedule), 1):
                    candidate = Candidate(start.sample, line, flown, schedule)
                    if _runs(bench, line):
                        yield Arranged(schedule, candidate, {}, bench.simulated_s(bench.plan(candidate)))

    def searched(self, known: Sequence[Candidate]) -> Iterator[Arranged]:
        """`known`: candidates of named schedules, whose chains and orders are begun with too."""
        for start in self.starts:
            bench = self.task.bench(start)
            lines = [c.chain for c in known if c.sample == start.sample] + list(self._lines(start, bench, None))
            begun = [[_fixed(line, s, start.in_flight, bench) for s in _schedules_of(line)] for line in lines]
            values = [partial(_quick_s, begun=b) for b in begun]
            for chain, _ in self._cut_best(bench, lines, values, MOST_LINES)[:ANNEALED]:
                yield from self._annealed(start, bench, chain)

    def _cut_best(
        self, bench: Bench, lines: Sequence[Chain], values: Sequence[Value], most: int
    ) -> list[tuple[Chain, float]]:
        """The best lines with their cuts moved, and their seconds, best first; those that fit."""
        begun: list[tuple[float, int]] = []
        for k, (c, v) in enumerate(zip(lines, values, strict=True)):
            if self.left > 0 or not begun:
                begun.append((self._seconds(bench, c, v), k))
        found = [self._cut(bench, lines[k], values[k]) for s, k in sorted(begun)[:most] if math.isfinite(s)]
        return sorted(found, key=lambda f: f[1])

    def _annealed(self, start: Candidate, bench: Bench, chain: Chain) -> Iterator[Arranged]:
        begun = [_fixed(chain, s, start.in_flight, bench) for s in _schedules_of(chain)]
        shop = shop_of(bench, self._parted[bench.number], chain)
        names = [bench.cluster.devices[d].name for d in devices_of(chain)]
        walks = min(WALKS, int(self.left / _effort(shop, 1)) - JOININGS * shop.device.size)
        if walks > 0:
            self.left -= _effort(shop, walks + JOININGS * shop.device.size)
            best = searched(shop, names, begun, walks=walks, seed=self.task.wish.seed)
        else:
            self.left -= _effort(shop, WALKED)
            best = glanced(shop, names, begun)
        if best is not None:
            yield Arranged(
                "searched", Candidate(start.sample, chain, _flown(best.orders), "given"), best.orders, best.seconds
            )

    def _flights(self, start: Candidate, bench: Bench, schedule: Schedule) -> list[int]:
        if schedule not in ("zb-h1", "zb-h2"):
            return [len(start.chain)]
        asked, least = self.task.wish.in_flight, sum(len(s.devices) for s in start.chain)
        if asked is not None:
            return [asked]
        return list(dict.fromkeys(min(least + more, bench.costs.micro_batches) for more in (0, 1, 2)))

    # ---- lines and cuts ---------------------------------------------------------------------------------------------------

    def _lines(self, start: Candidate, bench: Bench, schedule: Schedule | None) -> Iterator[Chain]:
        """Chains to begin with: the one found, cut otherwise, and with several chunks a device."""
        if schedule in (None, "zb-h1", "zb-h2"):
            yield start.chain
        line = [s.devices[0] for s in start.chain]
        if any(len(s.devices) > 1 for s in start.chain) or len(set(line)) > MOST_DEVICES or self.task.wish.stages:
            return
        for order in (line, line[::-1]):
            if schedule in (None, "zb-h1", "zb-h2"):
                yield from _evenly(bench, order, [1.0] * len(order))
            for share in SHARES:
                if schedule in (None, "zb-v"):
                    yield from _evenly(bench, [*order, *order[::-1]], [share] * len(order) + [1.0] * len(order))
                if schedule in (None, "interleaved"):
                    yield from _evenly(bench, [*order, *order], [share] * len(order) + [1.0] * len(order))

    def _cut(self, bench: Bench, chain: Chain, value: Value) -> tuple[Chain, float]:
        """The chain with its cuts moved as long as that makes it faster, and its seconds."""
        best, least = chain, self._seconds(bench, chain, value)
        better = True
        while better and self.left > 0:
            tried = [(self._seconds(bench, c, value), k, c) for k, c in enumerate(cuts_moved(bench.costs, best, STEPS))]
            took, _, moved = min(tried, default=(math.inf, 0, best))
            better = took < least * (1 - 1e-9)
            if better:
                best, least = moved, took
        return best, least

    def _seconds(self, bench: Bench, chain: Chain, value: Value) -> float:
        if not _runs(bench, chain):
            return math.inf
        shop = shop_of(bench, self._parted[bench.number], chain)
        self.left -= SHOP + _effort(shop, WALKED + (shop.device.size if shop.device.size <= JOINED else 0))
        return value(shop)


def _flown(orders: Orders) -> int:
    """Micro-batches in flight on the first stage."""
    begun = [1 if s.part == "F" else -1 for order in orders.values() for s in order if s.stage == 0 and s.part in "FB"]
    return max(1, int(np.cumsum(begun).max()))


def _schedules_of(chain: Chain) -> list[Schedule]:
    """Named schedules that begin a search on a line."""
    numbers = devices_of(chain)
    if len(numbers) == len(chain) or any(len(s.devices) > 1 for s in chain):
        return ["1f1b", "zb-h1", "zb-h2"]
    places = [s.devices[0] for s in chain]
    if len(chain) == 2 * len(numbers):
        if places == [*numbers, *reversed(numbers)]:
            return ["1f1b", "zb-v"]
        if places == [*numbers, *numbers]:
            return ["1f1b", "interleaved"]
    return ["1f1b"]


def _quick_s(shop: Shop, begun: list[Found]) -> float:
    """The best of list scheduling and of known orders; in small programs, then, backwards in one wherever that costs nothing."""
    best = min([*listings(shop), *(rewalked(shop, b) for b in begun)], key=lambda f: f.seconds)
    return joined(shop, best).seconds if shop.device.size <= JOINED else best.seconds


def _effort(shop: Shop, walks: int) -> float:
    """Effort of so many walks over a program."""
    return walks * SLOT * 3 * shop.device.size


def _fixed_s(shop: Shop, begun: Found) -> float:
    return rewalked(shop, begun).seconds


def _fixed(chain: Chain, schedule: Schedule, in_flight: int, bench: Bench) -> Found:
    """The orders of a named schedule on a line of devices; they do not depend on the cuts."""
    stages = tuple(Stage((str(k),), tuple(map(str, s.devices))) for k, s in enumerate(chain))
    plan = PipelinePlan("", stages, bench.costs.micro_batches, in_flight, schedule)
    return numbered(device_orders(plan), [str(d) for d in devices_of(chain)], len(chain), plan.micro_batches)


def _runs(bench: Bench, chain: Chain) -> bool:
    """Every device can run its tasks."""
    cannot = bench.costs.cannot
    return all(cannot[s.end, bench.class_of[d]] == cannot[s.start, bench.class_of[d]] for s in chain for d in s.devices)


def _evenly(bench: Bench, line: list[int], shares: list[float]) -> Iterator[Chain]:
    """A chain along a line whose stages take these shares of their devices' time. Nothing where there are too few states for so many stages."""
    costs = bench.costs
    work = (costs.forward_s + costs.backward_s)[:, [bench.class_of[d] for d in line]]
    speed = 1.0 / np.maximum(work[-1], 1e-300)
    own = {d: sum(s for s, e in zip(shares, line, strict=True) if e == d) for d in line}
    part = np.array([s / own[d] * v for s, d, v in zip(shares, line, speed, strict=True)])
    part /= part.sum()
    done = work[:, 0] / max(float(work[-1, 0]), 1e-300)
    states = [0]
    for target in np.cumsum(part)[:-1].tolist():
        behind = np.flatnonzero(costs.states.contains[states[-1]])
        behind = behind[behind != len(costs.states) - 1]
        if not len(behind):
            return
        states.append(int(behind[np.argmin(np.abs(done[behind] - target))]))
    states.append(len(costs.states) - 1)
    if all(costs.states.contains[a, b] for a, b in pairwise(states)):
        yield tuple(Segment(a, b, (d,)) for (a, b), d in zip(pairwise(states), line, strict=True))
