"""The devices as crews: what a group of them can do, how the micro-batches are shared out, and how long the step takes."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partita.nouns.graph import FloatArray
from partita.pipeline.plan.bench import Effort
from partita.pipeline.plan.groups.line import Line
from partita.pipeline.plan.groups.pipe import cut, fits, lasting
from partita.pipeline.plan.groups.sums import step_s

ALL_ORDERS = 4  #: of a group of so many devices every order is tried
SLACKS = (0, 1, 3)  #: micro-batches in flight beyond the least, for each hop behind a device
OTHER = 1.6  #: times as many micro-batches: worth another pipeline
CALL = 15.0  #: effort (see `bench.Effort`) of calling a kernel
LOOK, EVENT = 0.003, 0.05  #: of looking at a segment, and of simulating a forward or a backward

Group = tuple[int, ...]  #: numbers of devices, ascending
Grouping = tuple[Group, ...]


@dataclass(frozen=True)
class Pipe:
    """A group's pipeline."""

    order: tuple[int, ...]  #: devices, first stage first
    cuts: tuple[int, ...]  #: [devices + 1] places of the line
    slack: int
    first_s: float  #: of one micro-batch
    each_s: float  #: of every further one
    batches: int  #: of how many that was found out


@dataclass(frozen=True)
class Shared:
    """Groups with their micro-batches."""

    pipes: tuple[Pipe, ...]
    batches: tuple[int, ...]  #: [pipes] at least 1 each
    step_s: float
    splits: tuple[int, ...] = ()  #: places where stages end beside the cuts, so that their gradients are summed earlier


@dataclass(eq=False)
class Crews:
    """What has been found out about groups of a cluster's devices."""

    line: Line
    batches: int
    effort: Effort
    all_orders: int = ALL_ORDERS
    known: dict[tuple[Group, int], Pipe | None] = field(default_factory=dict)
    steps: dict[Grouping, Shared | None] = field(default_factory=dict)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        return tuple(range(len(self.line.room)))

    @cached_property
    def pace(self) -> FloatArray:
        """[devices] micro-batches a second of the whole model, memory left aside; what it cannot run is left out."""
        work = self.line.forward_s[:, -1] + self.line.backward_s[:, -1]
        return 1.0 / np.maximum(work, 1e-300)

    @cached_property
    def alike(self) -> bool:
        """All links are alike."""
        line = self.line
        tables = (line.per_byte_s, line.latency_s, line.message_s, line.post_byte_s, line.handle_byte_s)
        return all(np.ptp(a) == 0 for a in tables)

    def pipe(self, group: Group, batches: int = 0) -> Pipe | None:
        """The fastest pipeline that is found over all devices of a group, for so many micro-batches (0: its part of them by
        speed); None where none fits."""
        if not batches:
            share = float(self.pace[list(group)].sum() / self.pace.sum())
            batches = max(1, round(share * self.batches))
        if (group, batches) not in self.known:
            self.known[group, batches] = self._best(group, batches)
        return self.known[group, batches]

    def _best(self, group: Group, batches: int) -> Pipe | None:
        best: tuple[float, Pipe] | None = None
        for order in self._orders(group):
            for slack in SLACKS if len(order) > 1 else SLACKS[:1]:
                found = self._cut(order, slack, batches)
                if found is None:
                    break
                value = found.first_s + (batches - 1) * found.each_s
                if best is None or value < best[0] * (1 - 1e-9):
                    best = value, found
                elif slack:
                    break
        return best[1] if best else None

    def _cut(self, order: Sequence[int], slack: int, batches: int) -> Pipe | None:
        where = np.array(order, np.int64)
        self.effort.left -= CALL + LOOK * len(order) * len(self.line.state) ** 2
        value, cuts = cut(self.line, where, batches, slack)
        return self.timed(order, tuple(cuts.tolist()), slack, batches) if math.isfinite(value) else None

    def timed(self, order: Sequence[int], cuts: tuple[int, ...], slack: int, batches: int) -> Pipe | None:
        """A pipeline as it is cut; None where it does not fit."""
        where, at = np.array(order, np.int64), np.array(cuts, np.int64)
        if not fits(self.line, where, at, batches, slack):
            return None
        self.effort.left -= 3 * CALL + EVENT * 2 * len(order) * (batches + 1)
        first = float(lasting(self.line, where, at, 1, slack).max())
        whole = float(lasting(self.line, where, at, batches, slack).max()) if batches > 1 else first
        each = (whole - first) / (batches - 1) if batches > 1 else first
        return Pipe(tuple(order), cuts, slack, first, each, batches)

    def _orders(self, group: Group) -> Iterator[tuple[int, ...]]:
        """Every order of few devices; of more: by memory and speed, and along the fastest links from each of a few."""
        kinds = self._kinds
        if len(group) <= self.all_orders:
            seen = set()
            for order in itertools.permutations(group):
                key = tuple(kinds[d] for d in order) if self.alike else order
                if key not in seen:
                    seen.add(key)
                    yield order
            return
        pace, room = self.pace, self.line.room
        by_room = sorted(group, key=lambda d: (-room[d], -pace[d], d))
        by_pace = sorted(group, key=lambda d: (-pace[d], -room[d], d))
        found = [by_room, by_pace, by_pace[::-1]]
        if not self.alike:
            found += [self._along(d, group) for d in (*by_room[:2], by_pace[0], by_pace[-1])]
        yield from dict.fromkeys(tuple(o) for o in found)

    @cached_property
    def _kinds(self) -> dict[int, tuple[float, ...]]:
        rows = np.column_stack([self.line.forward_s[:, -1], self.line.backward_s[:, -1], self.line.room])
        return {d: (*rows[d].tolist(),) for d in self.devices}

    def _along(self, start: int, group: Group) -> list[int]:
        """From a device always on to the one with the fastest link, of equal ones the largest."""
        line, path, left = self.line, [start], set(group) - {start}
        while left:
            d = path[-1]
            e = min(left, key=lambda x: (line.per_byte_s[d, x], line.latency_s[d, x], -line.room[x], x))
            path.append(e)
            left.remove(e)
        return path

    # ---- groups together -------------------------------------------------------------------------------------------------

    def shared(self, grouping: Grouping) -> Shared | None:
        """The micro-batches shared out over the groups so that the last one ends as early as can be; groups that get none
        are left out. None where a group has no pipeline that fits."""
        if grouping not in self.steps:
            self.steps[grouping] = self._shared(grouping)
        return self.steps[grouping]

    def _shared(self, grouping: Grouping) -> Shared | None:
        """First with pipelines made for a part of the micro-batches by speed, then for as many as each group gets."""
        pipes = [self.pipe(g) for g in grouping]
        for _ in range(2):
            there = [p for p in pipes if p]
            if len(there) < len(grouping):
                return None
            numbers = shares([p.first_s for p in there], [p.each_s for p in there], self.batches)
            pipes = [self._made_for(g, p, n) for g, p, n in zip(grouping, there, numbers, strict=True)]
        used = [(p, n) for p, n in zip(pipes, numbers, strict=True) if n]
        if not all(p for p, _ in used):
            return None
        return self.with_shares([p for p, _ in used if p], [n for _, n in used])

    def _made_for(self, group: Group, p: Pipe, batches: int) -> Pipe | None:
        """The pipeline, or another one where so many micro-batches do not fit or are many more or less than it was made for."""
        if not batches or 1 / OTHER <= batches / p.batches <= OTHER:
            where, cuts = np.array(p.order, np.int64), np.array(p.cuts, np.int64)
            if batches <= p.batches or fits(self.line, where, cuts, batches, p.slack):
                return p
        return self.pipe(group, batches)

    def lacking(self, grouping: Grouping) -> float:
        """How far a grouping is from one that fits: its groups without a pipeline, and how little room they have."""
        line = self.line
        need = float(line.weights[0, -1] + line.kept[-1])
        room = [float(line.room[list(g)].sum()) for g in grouping if self.pipe(g) is None]
        return sum(1.0 + need / (need + r) for r in room)

    def with_shares(self, pipes: Sequence[Pipe], numbers: Sequence[int]) -> Shared:
        """The same with so many micro-batches each."""
        line, first = self.line, np.cumsum([0, *(len(p.order) for p in pipes)]).astype(np.int64)
        order = np.array([d for p in pipes for d in p.order], np.int64)
        cuts = np.array([c for p in pipes for c in p.cuts[:-1]], np.int64)
        ends = np.empty(len(order))
        for p, n, a in zip(pipes, numbers, first[:-1], strict=True):
            self.effort.left -= CALL + EVENT * 2 * len(p.order) * n
            ends[a : a + len(p.order)] = lasting(
                line, order[a : a + len(p.order)], np.array(p.cuts, np.int64), n, p.slack
            )
        self.effort.left -= CALL
        return Shared(tuple(pipes), tuple(numbers), float(step_s(line, order, cuts, first, ends)))


def shares(first_s: Sequence[float], each_s: Sequence[float], batches: int) -> list[int]:
    """Micro-batches of each group, where n of them take first + (n - 1) each: no other numbers let the last group end earlier.

    Most are given at once; each of the others goes to the group that would end first with it. O(groups^2).

    >>> shares([1.0, 2.0], [1.0, 2.0], 9)
    [6, 3]
    >>> shares([1.0, 50.0], [1.0, 2.0], 9)
    [9, 0]
    >>> shares([7.5, 8.75, 8.75], [0.21875, 1.0, 1.0], 8)
    [6, 1, 1]
    """
    groups = range(len(first_s))
    # so that a first time times a rate is known to less than a micro-batch
    least = 1e-12 * max(x for x in (1e-280, *first_s, *each_s) if math.isfinite(x))
    rate = [1.0 / max(e, least) for e in each_s]
    used, limit = list(groups), math.inf
    # when all would end if micro-batches could be parted: who could not do any part of one until then gets none
    while True:
        limit = (batches + sum(first_s[g] * rate[g] - 1.0 for g in used)) / sum(rate[g] for g in used)
        left = [g for g in used if first_s[g] - each_s[g] < limit]
        if len(left) in (0, len(used)):
            break
        used = left
    numbers = [0] * len(first_s)
    for g in used:
        numbers[g] = int(min(batches, 1 + (limit - first_s[g]) * rate[g] * (1 - 1e-12))) if first_s[g] <= limit else 0
    queue = [(first_s[g] + numbers[g] * each_s[g], g) for g in groups]
    heapq.heapify(queue)
    for _ in range(batches - sum(numbers)):
        end, g = heapq.heappop(queue)
        numbers[g] += 1
        heapq.heappush(queue, (end + each_s[g], g))
    return numbers
