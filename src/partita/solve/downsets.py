"""Augmented antichains and the state sequence (Ju et al., J. BUAA 50(9), 2024, steps 2 and 3).

A cut of a pipeline puts a *downset* before it: a set of units that holds, with every unit, all that the unit waits for.
Each downset stands for one antichain, its last units; the *augmented antichain* adds every earlier unit whose output is
still read behind the cut, and its tensors are what the cut sends. The antichain DAG has an edge from a downset to each
downset with one unit more; its topological order is the *state sequence*, over which the dynamic programs run.

    a - b - d     downsets: {} a ab ac abc abcd          state sequence: 0 1 2 3 4 5
     \\- c -/     augmented antichain of ab: {a, b}      (c still reads a)

A downset is 64 units a machine word. Each is made exactly once, from itself without its highest-numbered unit (units are
numbered topologically, so that one is always among the last), without a table of those already seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.nouns.graph import BoolArray, Csr, FloatArray, IntArray, TaskGraph, csr
from partita.solve.compiled import compiled
from partita.solve.units import Units, Words, bitset

MOST_WORDS = 1 << 23  #: 64 MiB of bits
LOOK_BACK = 64  #: states among which the one to count from is sought


@dataclass(frozen=True, eq=False)
class StateSequence:
    """Downsets in an order in which every one comes after those it contains; the first is empty, the last is all."""

    members: Words  #: [states, words] the units of each
    parent: IntArray  #: [states] an earlier state with one unit less (of a thinned sequence: that it contains)
    added: Csr  #: [states] the units it has and its parent has not
    complete: bool  #: every downset of the graph is here

    def __len__(self) -> int:
        return len(self.members)

    def totals(self, of_units: FloatArray) -> FloatArray:
        """[states, columns] quantities ([units, columns]) summed over the units of each state. O(states x columns)."""
        table = np.ascontiguousarray(of_units.reshape(len(of_units), -1))
        return np.asarray(_accumulate(self.parent, self.added.start, self.added.items, table))

    def cuts(self, spans: Spans) -> FloatArray:
        """[states] the weight of the spans that each state tears apart: what a cut behind it sends."""
        of_unit = spans.of_unit
        return np.asarray(
            _cut_weights(
                self.members, self.parent, self.added.start, self.added.items, of_unit.start, of_unit.items,
                spans.masks, spans.weight,
            )
        )  # fmt: skip

    @cached_property
    def contains(self) -> BoolArray:
        """[states, states] whether a state (row) is contained in a later one (column), and is not it."""
        n = len(self)
        inside = np.triu(np.ones((n, n), np.bool_), 1)
        for w in range(self.members.shape[1]):
            column = self.members[:, w]
            inside &= (column[:, None] & ~column[None, :]) == 0
        return inside

    def units_between(self, i: int, j: int) -> IntArray:
        """The units of state j that state i has not, ascending."""
        bits = np.unpackbits((self.members[j] & ~self.members[i]).view(np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.int64)

    def only(self, keep: IntArray) -> StateSequence:
        """The sequence of some of its states (ascending; the first and the last among them)."""
        members = self.members[keep]
        sizes = np.bitwise_count(members).sum(axis=1, dtype=np.int64)
        parent = np.zeros(len(keep), np.int64)
        added: list[list[int]] = [[]]
        for k in range(1, len(keep)):
            first = max(0, k - LOOK_BACK)  # the empty state is inside of all; a nearer one leaves less to add
            inside = np.flatnonzero(((members[first:k] & ~members[k]) == 0).all(axis=1)) + first
            parent[k] = inside[np.argmax(sizes[inside])] if len(inside) else 0
            bits = np.unpackbits((members[k] & ~members[parent[k]]).view(np.uint8), bitorder="little")
            added.append(np.flatnonzero(bits).tolist())
        return StateSequence(members, parent, csr(added), self.complete and len(keep) == len(self))


@dataclass(frozen=True, eq=False)
class Spans:
    """Weighted sets of units: a device that holds some but not all units of a set pays its weight."""

    units: Csr  #: [spans] at least two units each, ascending
    weight: FloatArray  #: [spans]
    count: int  #: of units

    @cached_property
    def masks(self) -> Words:
        """[spans, words] the sets as bits."""
        return bitset([self.units.row(k) for k in range(len(self.weight))], self.count)

    @cached_property
    def of_unit(self) -> Csr:
        """[units] the spans that a unit belongs to."""
        owner = np.repeat(np.arange(len(self.weight), dtype=np.int64), np.diff(self.units.start))
        order = np.argsort(self.units.items, kind="stable")
        start = np.zeros(self.count + 1, np.int64)
        start[1:] = np.cumsum(np.bincount(self.units.items, minlength=self.count))
        return Csr(start, owner[order])


def spans(graph: TaskGraph, units: Units, weight: FloatArray, tensors: BoolArray | None = None) -> Spans:
    """The spans of a graph's tensors (of those chosen) with their weights; equal sets become one. O(readers)."""
    chosen = np.arange(len(graph.producer)) if tensors is None else np.flatnonzero(tensors)
    found: dict[tuple[int, ...], float] = {}
    producer = units.unit_of[graph.producer].tolist()
    readers = units.unit_of[graph.readers.items].tolist()
    start, size = graph.readers.start.tolist(), weight.tolist()
    for k in chosen.tolist():
        if size[k] > 0:
            members = {producer[k], *readers[start[k] : start[k + 1]]}
            if len(members) > 1:
                key = tuple(sorted(members))
                found[key] = found.get(key, 0.0) + size[k]
    return Spans(csr(list(found)), np.array(list(found.values()), np.float64), len(units))


def every_downset(units: Units, most: int) -> StateSequence | None:
    """All downsets, smallest first, or None where there are more than `most` or than fit into MOST_WORDS.

    O(states x (units added next + words)).

    >>> from partita.nouns.graph import Task, TaskGraph
    >>> from partita.solve.units import contract
    >>> g = TaskGraph.build("diamond", [Task(c) for c in "abcd"], [("a", 1, "bc"), ("b", 1, "d"), ("c", 1, "d")])
    >>> len(every_downset(contract(g), 100))
    6
    """
    words = max(1, -(-len(units) // 64))
    most = min(most, MOST_WORDS // words)
    if most < len(units) + 1:  # there is at least one state for each unit
        return None
    room = min(most, 1 << 12)
    while True:
        members, parent, last, count = _downsets(
            units.before.start, units.before.items, units.after.start, units.after.items, words, room
        )
        if count <= room:
            break
        if room >= most:
            return None
        room = min(most, room * 8)
    added = Csr(np.concatenate([[0], np.arange(count)]).astype(np.int64), last[1:count].copy())
    return StateSequence(members[:count].copy(), parent[:count].copy(), added, True)


def linear_states(units: Units, orders: Sequence[IntArray]) -> StateSequence:
    """The states that some linear orders of the units pass through: at most orders x units + 1."""
    words = max(1, -(-len(units) // 64))
    empty = np.zeros(words, np.uint64)
    found: dict[bytes, tuple[int, Words, bytes, int]] = {
        empty.tobytes(): (0, empty, b"", -1)
    }  # size, state, parent, unit
    for order in orders:
        state = empty
        for size, unit in enumerate(order.tolist(), 1):
            before, state = state.tobytes(), state.copy()
            state[unit >> 6] |= np.uint64(1) << np.uint64(unit & 63)
            found.setdefault(state.tobytes(), (size, state, before, unit))
    rows = sorted(found.values(), key=lambda row: row[0])
    place = {row[1].tobytes(): k for k, row in enumerate(rows)}
    return StateSequence(
        np.array([row[1] for row in rows], np.uint64).reshape(-1, words),
        np.array([place.get(row[2], 0) for row in rows], np.int64),
        csr([[row[3]] if row[3] >= 0 else [] for row in rows]),
        False,
    )


def thinned(states: StateSequence, done: FloatArray, sent: FloatArray, most: int) -> StateSequence:
    """About `most` of the states: in equal steps of the work `done`, those that send least, and prefixes of the order."""
    size = np.bitwise_count(states.members).sum(axis=1, dtype=np.int64)
    prefix = states.totals(np.arange(states.members.shape[1] * 64, dtype=np.float64))[:, 0] == size * (size - 1) / 2
    bins = np.floor(done / max(float(done[-1]), 1e-300) * (most // 3)).astype(np.int64)
    keep = np.zeros(len(states), np.bool_)
    keep[[0, -1]] = True
    for first in (np.lexsort((sent, bins)), np.lexsort((sent, ~prefix, bins))):
        starts = np.flatnonzero(np.diff(bins[first], prepend=-1))
        keep[first[starts]] = True
        again = starts[np.diff(starts, append=len(first)) > 1] + 1
        keep[first[again]] = True
    return states.only(np.flatnonzero(keep))


@compiled
def contains(members: Words, i: int, j: int) -> bool:
    """Whether state j contains state i."""
    more = np.uint64(0)
    for w in range(members.shape[1]):
        more |= members[i, w] & ~members[j, w]
    return bool(more == np.uint64(0))


@compiled
def _downsets(
    before: IntArray, before_items: IntArray, after: IntArray, after_items: IntArray, words: int, most: int
) -> tuple[Words, IntArray, IntArray, int]:
    """(members, parent, last unit added, how many); gives up with most + 1."""
    members = np.zeros((most, words), np.uint64)
    free = np.zeros((most, words), np.uint64)  # units above the last one that may be added
    parent = np.zeros(most, np.int64)
    last = np.full(most, -1, np.int64)
    one, zero = np.uint64(1), np.uint64(0)
    for u in range(len(before) - 1):
        if before[u] == before[u + 1]:
            free[0, u >> 6] |= one << np.uint64(u & 63)
    count, k = 1, 0
    while k < count:
        for first in range(max(0, last[k]) >> 6, words):
            rest = free[k, first]
            while rest != zero:
                lowest = rest & (~rest + one)
                rest ^= lowest
                v = first * 64
                while lowest > one:
                    lowest >>= one
                    v += 1
                if count >= most:
                    return members, parent, last, most + 1
                for w in range(words):
                    members[count, w] = members[k, w]
                members[count, first] |= one << np.uint64(v & 63)
                free[count, first] = rest
                for w in range(first + 1, words):
                    free[count, w] = free[k, w]
                for e in range(after[v], after[v + 1]):
                    s = after_items[e]
                    whole = True
                    for f in range(before[s], before[s + 1]):
                        u = before_items[f]
                        if (members[count, u >> 6] >> np.uint64(u & 63)) & one == zero:
                            whole = False
                            break
                    if whole:
                        free[count, s >> 6] |= one << np.uint64(s & 63)
                parent[count] = k
                last[count] = v
                count += 1
        k += 1
    return members, parent, last, count


@compiled
def _accumulate(parent: IntArray, start: IntArray, items: IntArray, table: FloatArray) -> FloatArray:
    out = np.zeros((len(parent), table.shape[1]))
    for k in range(1, len(parent)):
        for c in range(table.shape[1]):
            value = out[parent[k], c]
            for e in range(start[k], start[k + 1]):
                value += table[items[e], c]
            out[k, c] = value
    return out


@compiled
def _cut_weights(
    members: Words, parent: IntArray, start: IntArray, items: IntArray,
    of_start: IntArray, of_items: IntArray, masks: Words, weight: FloatArray,
) -> FloatArray:  # fmt: skip
    """Each state's cut from its parent's: only the spans of the units added change."""
    out = np.zeros(len(parent))
    touched = np.full(len(weight), -1, np.int64)
    words = members.shape[1]
    zero = np.uint64(0)
    for k in range(1, len(parent)):
        p = parent[k]
        value = out[p]
        for e in range(start[k], start[k + 1]):
            unit = items[e]
            for f in range(of_start[unit], of_start[unit + 1]):
                s = of_items[f]
                if touched[s] == k:
                    continue
                touched[s] = k
                inside = False
                outside_now = False
                outside_then = False
                for w in range(words):
                    inside |= (masks[s, w] & members[p, w]) != zero
                    outside_then |= (masks[s, w] & ~members[p, w]) != zero
                    outside_now |= (masks[s, w] & ~members[k, w]) != zero
                if inside and outside_then:
                    value -= weight[s]
                if outside_now:
                    value += weight[s]
        out[k] = value
    return out
