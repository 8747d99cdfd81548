"""The dynamic program over the state sequence (Ju et al., J. BUAA 50(9), 2024, step 4), and its runners-up.

The devices stand in a line, and every stage takes the next m of them, which may differ:

    A(i, d) = min over later states j and m replicas of max( T(i -> j, devices d .. d + m - 1), A(j, d + m) )

is the least cost of the worst stage over all ways to serve what lies behind state i with all devices from d on. It runs
from the end of the pipeline to its beginning, because what a stage must keep in memory under 1F1B depends on how many
devices come after it. Exact over all chains of the states given and this line; with all lines, over all pipelines. Of a
stage (head, tail: `lower_bound`)

    T = head(i) + max over its devices of turns max( compute + messages, sends(i), sends(j) ) + max( tail(i), reduce + update )
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.nouns.stage_memory import stage_bytes
from partita.solve.compiled import compiled

LOOK = 0.016  #: effort (see `bench.Effort`) that looking at one segment on one class of a team's devices costs

_stage_bytes = compiled(stage_bytes)


@dataclass(frozen=True, slots=True)
class Segment:
    """One stage of a chain: the work from state `start` to state `end` on some devices."""

    start: int
    end: int
    devices: tuple[int, ...]  #: numbers of the devices; micro-batch b runs on device b mod m
    recompute: bool = False


Chain = tuple[Segment, ...]


class StageTables(NamedTuple):
    """What the cost of a stage is made of; S states, C classes of device."""

    micro_batches: int
    contains: BoolArray  #: [S, S] whether it is a segment
    work_s: FloatArray  #: [S, C] forward and backward of one micro-batch before a state
    again_s: FloatArray  #: [S, C] what a stage that recomputes adds
    update_s: FloatArray  #: [S, C]
    cannot: FloatArray  #: [S, C] tasks that cannot run on the class
    backward_tasks: FloatArray  #: [S] before a state; a stage without any has nothing to recompute for
    head_s: FloatArray  #: [S] by the state a stage begins at
    tail_s: FloatArray  #: [S]
    enter_s: FloatArray  #: [S] that each micro-batch takes of the device, by the state the stage begins at
    leave_s: FloatArray  #: [S] and by the one it ends at
    send_s: FloatArray  #: [S] that each micro-batch takes of the link, by the cut
    gradient_bytes: FloatArray  #: [S, S] that replicas sum
    tiny_bytes: float  #: less is the rounding of a difference
    sum_rate: float  #: bytes/s at which they sum them
    sum_latency_s: float
    weights: FloatArray  #: [S, S] bytes: see `nouns.stage_memory`
    kept: FloatArray  #: [S, S]
    inputs: FloatArray  #: [S, S]
    memory_bytes: FloatArray  #: [C]


class Teams(NamedTuple):
    """The stages' devices that a line offers: team k is the k-th of a flat list, its classes a row of `start`."""

    first: IntArray  #: [teams] place in the line of its first device
    size: IntArray  #: [teams]
    held: IntArray  #: [teams] micro-batches in flight on a replica
    start: IntArray  #: [teams + 1] rows of the next two
    classes: IntArray
    turns: IntArray  #: micro-batches that the busiest device of the class runs


@dataclass(frozen=True, eq=False)
class ChainProblem:
    """A line of devices and how stages may take them."""

    tables: StageTables
    line: tuple[int, ...]  #: the class of each device
    sizes: tuple[int, ...]  #: numbers of replicas a stage may have
    modes: tuple[bool, ...]  #: recompute or not
    window: IntArray  #: [devices from a stage to the end + 1] micro-batches in flight on all replicas of a stage
    stages: int = 0  #: exactly so many stages; 0: any number

    @cached_property
    def teams(self) -> Teams:
        m_batches, n = self.tables.micro_batches, len(self.line)
        first, size, held, start = list[int](), list[int](), list[int](), [0]
        classes, turns = list[int](), list[int]()
        for d in range(n - 1, -1, -1):
            for m in (m for m in self.sizes if d + m <= n):
                most = busiest(self.line[d : d + m], m_batches)
                first.append(d)
                size.append(m)
                held.append(-(-min(int(self.window[n - d]), m_batches) // m))
                classes += most.keys()
                turns += most.values()
                start.append(len(classes))
        columns = (first, size, held, start, classes, turns)
        return Teams(*(np.array(c, np.int64) for c in columns))

    @property
    def effort(self) -> float:
        """What solving it costs."""
        return LOOK * len(self.teams.classes) * len(self.modes) * len(self.tables.head_s) ** 2 / 2 * max(1, self.stages)


def busiest(classes: Sequence[int], micro_batches: int) -> dict[int, int]:
    """Class -> the most micro-batches that one of its devices runs when replicas take turns.

    >>> busiest([0, 0, 1], 8)
    {0: 3, 1: 2}
    """
    most: dict[int, int] = {}
    for r, c in enumerate(classes):
        most[c] = max(most.get(c, 0), -(-(micro_batches - r) // len(classes)) if r < micro_batches else 0)
    return most


@compiled
def stage_s(t: StageTables, teams: Teams, k: int, i: int, j: int, again: bool) -> float:
    """The cost of the segment (i, j) on team k; inf where it does not run there or does not fit."""
    if not t.contains[i, j]:
        return np.inf
    need = _stage_bytes(t.weights[i, j], t.kept[i, j], t.inputs[i, j], teams.held[k], again)
    redo = again and t.backward_tasks[j] > t.backward_tasks[i]
    m, worst, update = teams.size[k], 0.0, 0.0
    for e in range(teams.start[k], teams.start[k + 1]):
        c = teams.classes[e]
        if t.cannot[j, c] > t.cannot[i, c] or need > t.memory_bytes[c]:
            return np.inf
        each = t.work_s[j, c] - t.work_s[i, c] + t.enter_s[i] + t.leave_s[j]
        if redo:
            each += t.again_s[j, c] - t.again_s[i, c]
        worst = max(worst, teams.turns[e] * max(each, t.send_s[i], t.send_s[j]))
        update = max(update, t.update_s[j, c] - t.update_s[i, c])
    if m > 1 and t.gradient_bytes[i, j] > t.tiny_bytes:
        update += 2 * (m - 1) * (t.gradient_bytes[i, j] / m / t.sum_rate + t.sum_latency_s)
    return float(t.head_s[i] + worst + max(t.tail_s[i], update))


def segment_s(tables: StageTables, classes: Sequence[int], held: int, segment: Segment) -> float:
    """The cost of one stage whose devices are of these classes."""
    most = busiest(classes, tables.micro_batches)
    columns = ([0], [len(classes)], [held], [0, len(most)], [*most], [*most.values()])
    team = Teams(*(np.array(c, np.int64) for c in columns))
    return float(stage_s(tables, team, 0, segment.start, segment.end, segment.recompute))


@dataclass(frozen=True, eq=False)
class ChainTable:
    """A(i, d), for every state and every place in the line."""

    problem: ChainProblem
    value: FloatArray  #: [stages left or 1, devices + 1, states]

    def best(self, first: int) -> float:
        """The least cost with exactly the devices from `first` on; inf: impossible."""
        return float(self.value[self.problem.stages or 0, first, 0])

    def chains(self, first: int, most: int, spread: float = 1.25) -> Iterator[tuple[float, Chain]]:
        """The cheapest chains with exactly the devices from `first` on, cheapest first, at most `most`, none above
        spread x the best; devices are numbered by their places in the line.

        Best-first search with A as the cost to go, so that every partial chain is worth exactly its best completion.
        """
        if not math.isfinite(self.best(first)):
            return
        teams = self.problem.teams
        limit = self.best(first) * spread if spread < math.inf else math.nextafter(math.inf, 0)
        last, end = self.value.shape[2] - 1, len(self.problem.line)
        queue: list[tuple[float, int, int, Chain, int, float]] = [(self.best(first), 0, 0, (), first, 0.0)]
        pushed = found = 0
        while queue and found < most and pushed < 400 * (most + end):
            bound, _, _, chain, at, so_far = heapq.heappop(queue)
            state = chain[-1].end if chain else 0
            if state == last and at == end:
                found += 1
                yield bound, chain
                continue
            for k in np.flatnonzero(teams.first == at).tolist():
                after = at + int(teams.size[k])
                layer = self.problem.stages - len(chain) - 1 if self.problem.stages else 0
                for again in self.problem.modes:
                    own = _row(self.problem.tables, teams, k, state, again)
                    cost = np.maximum(np.maximum(own, self.value[layer, after]), so_far)
                    good = np.flatnonzero(cost <= limit)
                    for j in good[np.argsort(cost[good], kind="stable")][: 2 * most].tolist():
                        pushed += 1
                        segment = Segment(state, j, tuple(range(at, after)), again)
                        reached = max(so_far, float(own[j]))
                        heapq.heappush(queue, (float(cost[j]), -len(chain), pushed, (*chain, segment), after, reached))


def on_devices(chain: Chain, devices: Sequence[int]) -> Chain:
    """A chain over places in a line as one over the devices that stand there."""
    return tuple(replace(s, devices=tuple(devices[d] for d in s.devices)) for s in chain)


def solve(problem: ChainProblem) -> ChainTable:
    """A(i, d) for all i and d. O(stages x devices x sizes x modes x states^2), in machine code.

    Where the number of stages is left open, one layer holds them all: a place is only ever reached from a later one.
    """
    modes = np.array(problem.modes, np.bool_)
    value = _minimax(problem.tables, problem.teams, modes, len(problem.line), problem.stages)
    return ChainTable(problem, value)


@compiled
def _row(t: StageTables, teams: Teams, k: int, i: int, again: bool) -> FloatArray:
    """[states] the costs of the segments from i on team k."""
    out = np.full(len(t.head_s), np.inf)
    for j in range(i + 1, len(out)):
        out[j] = stage_s(t, teams, k, i, j, again)
    return out


@compiled
def _minimax(t: StageTables, teams: Teams, modes: BoolArray, devices: int, stages: int) -> FloatArray:
    states = len(t.head_s)
    layers = stages + 1 if stages > 0 else 1
    value = np.full((layers, devices + 1, states), np.inf)
    value[0, devices, states - 1] = 0.0
    for layer in range(1 if stages > 0 else 0, layers):
        before = layer - 1 if stages > 0 else 0
        for k in range(len(teams.first)):
            d = teams.first[k]
            to_go = value[before, d + teams.size[k]]
            slow = teams.start[k]  # the class that has most to do: no segment costs less than its work there
            for e in range(teams.start[k], teams.start[k + 1]):
                if (
                    teams.turns[e] * t.work_s[-1, teams.classes[e]]
                    > teams.turns[slow] * t.work_s[-1, teams.classes[slow]]
                ):
                    slow = e
            work_s, turns = t.work_s[:, teams.classes[slow]].copy(), teams.turns[slow]
            for again in modes:
                for i in range(states - 1):
                    best = value[layer, d, i]
                    head, done = t.head_s[i], work_s[i]
                    for j in range(i + 1, states):
                        if to_go[j] < best and head + turns * (work_s[j] - done) < best:
                            best = min(best, max(stage_s(t, teams, k, i, j, again), to_go[j]))
                    value[layer, d, i] = best
    return value
