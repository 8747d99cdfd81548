"""The dynamic program over the state sequence (Ju et al., J. BUAA 50(9), 2024, step 4), and its runners-up.

    A(i, c) = min over later states j, a device type t and m replicas of max( T(i -> j, t, m), A(j, c - m t) )

is the least cost of the worst stage over all ways to serve what lies behind state i with the devices c (how many of each
type). It runs from the end of the pipeline to its beginning, because what a stage must keep in memory under 1F1B depends
on how many devices come after it. Exact over all chains of the states given.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled


@dataclass(frozen=True, slots=True)
class Link:
    """One stage of a chain: the segment from state `start` to state `end` on m devices of a type."""

    start: int
    end: int
    type: int
    replicas: int
    recompute: bool = False


Chain = tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A way to run a stage."""

    replicas: int
    recompute: bool = False


@dataclass(frozen=True, eq=False)
class ChainProblem:
    """Costs of every segment; `held` says how many micro-batches a replica keeps, by devices from its stage to the end."""

    options: tuple[Option, ...]
    cost: FloatArray  #: [types, options, states, states] of a stage; inf: not allowed
    fixed_bytes: FloatArray  #: [without / with recompute, states, states] held whatever is in flight
    kept_bytes: FloatArray  #: [without / with recompute, states, states] held for each micro-batch in flight
    memory_bytes: FloatArray  #: [types]
    held: IntArray  #: [devices + 1, options] micro-batches in flight on a replica
    counts: tuple[int, ...]  #: [types] devices there are
    stages: int = 0  #: exactly so many stages; 0: any number

    @cached_property
    def vectors(self) -> IntArray:
        """[count vectors, types] how many devices of each type are used; the first uses none."""
        grids = np.indices([n + 1 for n in self.counts]).reshape(len(self.counts), -1).T
        return grids[np.argsort(grids.sum(axis=1), kind="stable")].astype(np.int64)

    @cached_property
    def place(self) -> dict[tuple[int, ...], int]:
        return {tuple(v): k for k, v in enumerate(self.vectors.tolist())}

    @cached_property
    def previous(self) -> IntArray:
        """[count vectors, types, options] the vector with so many fewer of a type; -1: there is none."""
        table = np.full((len(self.vectors), len(self.counts), len(self.options)), -1, np.int64)
        for k, v in enumerate(self.vectors.tolist()):
            for t in range(len(self.counts)):
                for o, option in enumerate(self.options):
                    before = (*v[:t], v[t] - option.replicas, *v[t + 1 :])
                    table[k, t, o] = self.place.get(before, -1)
        return table


@dataclass(frozen=True, eq=False)
class ChainTable:
    """A(i, c), for every state and every vector of devices."""

    problem: ChainProblem
    value: FloatArray  #: [stages left or 1, count vectors, states]

    def best(self, vector: int) -> float:
        """The least cost with exactly these devices; inf: impossible."""
        return float(self.value[self.problem.stages or 0, vector, 0])

    def chains(self, vector: int, most: int, spread: float = 1.25) -> Iterator[tuple[float, Chain]]:
        """The cheapest chains with exactly these devices, cheapest first, at most `most`, none above spread x the best.

        Best-first search with A as the cost to go, so that every partial chain is worth exactly its best completion.
        """
        p = self.problem
        if not math.isfinite(self.best(vector)):
            return
        limit = self.best(vector) * spread if spread < math.inf else math.nextafter(math.inf, 0)
        last = self.value.shape[2] - 1
        queue: list[tuple[float, int, int, Chain, int, float]] = [(self.best(vector), 0, 0, (), vector, 0.0)]
        pushed = found = 0
        while queue and found < most and pushed < 400 * most:
            bound, _, _, chain, left, so_far = heapq.heappop(queue)
            at = chain[-1].end if chain else 0
            if at == last and left == 0:
                found += 1
                yield bound, chain
                continue
            for t in range(len(p.counts)):
                for o, option in enumerate(p.options):
                    rest = int(p.previous[left, t, o])
                    if rest < 0:
                        continue
                    cost = np.maximum(np.maximum(self._stage(at, t, o, left), self._to_go(rest, len(chain))), so_far)
                    good = np.flatnonzero(cost <= limit)
                    for j in good[np.argsort(cost[good], kind="stable")][: 2 * most].tolist():
                        pushed += 1
                        link = Link(at, j, t, option.replicas, option.recompute)
                        reached = max(so_far, float(p.cost[t, o, at, j]))
                        heapq.heappush(queue, (float(cost[j]), -len(chain), pushed, (*chain, link), rest, reached))

    def _stage(self, at: int, t: int, o: int, left: int) -> FloatArray:
        """[states] the cost of a stage from `at`; inf where its memory does not suffice."""
        p = self.problem
        mode = int(p.options[o].recompute)
        need = p.fixed_bytes[mode, at] + p.held[int(p.vectors[left].sum()), o] * p.kept_bytes[mode, at]
        return np.asarray(np.where(need <= p.memory_bytes[t], p.cost[t, o, at], math.inf))

    def _to_go(self, rest: int, used: int) -> FloatArray:
        layer = self.problem.stages - used - 1 if self.problem.stages else 0
        return np.asarray(self.value[layer, rest])


def solve(problem: ChainProblem) -> ChainTable:
    """A(i, c) for all i and c. O(stages x vectors x types x options x states^2), in machine code.

    Where the number of stages is left open, one layer holds them all: a vector is only ever reached from a smaller one.
    """
    mode = np.array([o.recompute for o in problem.options], np.int64)
    value = _minimax(
        np.ascontiguousarray(problem.cost), mode, problem.fixed_bytes, problem.kept_bytes, problem.memory_bytes,
        problem.held, problem.previous, problem.vectors.sum(axis=1), problem.stages,
    )  # fmt: skip
    return ChainTable(problem, value)


@compiled
def _minimax(
    cost: FloatArray, mode: IntArray, fixed: FloatArray, kept: FloatArray, memory: FloatArray,
    held: IntArray, previous: IntArray, used: IntArray, stages: int,
) -> FloatArray:  # fmt: skip
    types, most, states, _ = cost.shape
    vectors = len(used)
    layers = stages + 1 if stages > 0 else 1
    value = np.full((layers, vectors, states), np.inf)
    value[0, 0, states - 1] = 0.0
    for layer in range(1 if stages > 0 else 0, layers):
        before = layer - 1 if stages > 0 else 0
        for c in range(1, vectors):
            for t in range(types):
                for m in range(most):
                    rest = previous[c, t, m]
                    if rest < 0:
                        continue
                    r, flight = mode[m], held[used[c], m]
                    to_go = value[before, rest]
                    for i in range(states - 1):
                        best = value[layer, c, i]
                        for j in range(i + 1, states):
                            worst = cost[t, m, i, j]
                            if worst >= best or to_go[j] >= best:
                                continue
                            if fixed[r, i, j] + flight * kept[r, i, j] > memory[t]:
                                continue
                            best = max(worst, to_go[j])
                        value[layer, c, i] = best
    return value


def devices_of(chain: Sequence[Link], names: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """[stages] device names: each stage takes the next free ones of its type.

    >>> devices_of([Link(0, 1, 0, 2), Link(1, 2, 0, 1)], [["a", "b", "c"]])
    [('a', 'b'), ('c',)]
    """
    taken = [0] * len(names)
    result = []
    for link in chain:
        first = taken[link.type]
        taken[link.type] += link.replicas
        result.append(tuple(names[link.type][first : taken[link.type]]))
    return result
