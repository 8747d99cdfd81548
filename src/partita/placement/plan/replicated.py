"""Pipeline stages with replicas, for the bottleneck stage: PipeDream's objective, exact over chains of downsets.

    A(j, n) = min over i < j, m of max( A(i, n - m), T(i -> j, m), act(i) / m, act(j) / m )
    T(i -> j, m) = ( C + 4 (m - 1) W / (B m) ) / m

C seconds and W weight bytes of the segment, act(i) the seconds that what is read across cut i takes there and, as
gradients, back (the problem's transfer times), B the rate of the links, m replicas that share the micro-batches. A stage
computes while it sends, so the slower of the two counts (Narayanan et al., "PipeDream", SOSP 2019, with act(j) at both of
its ends; Ju et al., J. BUAA 50(9), 2024).

As in `contiguous`, the program runs along a few linear orders first, and their value narrows the bands of states that the
exact one looks at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.errors import BadInput
from partita.nouns.graph import FloatArray, IntArray
from partita.placement.plan.throughput import Int32Array, Work
from partita.solve.compiled import compiled
from partita.solve.downsets import StateSequence, contains
from partita.solve.units import Units, Words, bitset


@dataclass(frozen=True, slots=True)
class ReplicatedStage:
    """The units of one stage and how many devices share its micro-batches."""

    units: IntArray
    replicas: int


@dataclass(frozen=True, eq=False)
class Replication:
    """What replicating costs: bytes of weights of every unit, and the rate at which gradients are summed.

    The devices stand in a line, by speed, and the stages take them in turn; the replicas of a stage do equal shares, so
    the slowest of them counts. For equal devices that is no limit."""

    weight_bytes: FloatArray  #: [units]
    rate_bytes_per_s: float
    devices: int
    most: int  #: replicas of a stage
    line: tuple[str, ...]  #: [devices] names
    pace: FloatArray  #: [devices] seconds of a device for a second of work, as the first column of a work's seconds says it
    room: FloatArray  #: [devices] bytes

    @staticmethod
    def of(work: Work, most: int | None = None, slowest_first: bool = False) -> Replication:
        """The replication of a problem. Raises BadInput where its devices are of several kinds."""
        kinds = sorted({t.kind for t in work.types})
        if len(kinds) != 1:
            raise BadInput(
                f"stages with replicas need devices of one kind; there are {', '.join(kinds)}",
                hint="give devices of one kind; their speeds and memories may differ",
            )
        graph, cluster = work.problem.graph, work.problem.cluster
        weights = np.array([t.parameter_bytes for t in graph.tasks], np.float64)
        line = sorted(cluster.devices, key=lambda d: d.speed if slowest_first else -d.speed)
        return Replication(
            work.units.total(weights),
            cluster.best_rate_bytes_per_s,
            len(line),
            min(most or len(line), len(line)),
            tuple(d.name for d in line),
            work.types[0].speed / np.array([d.speed for d in line]),
            np.array([d.memory_bytes for d in line]),
        )

    @property
    def equal(self) -> bool:
        """Whether the devices need not be told apart."""
        return bool((self.pace == self.pace[0]).all() and (self.room == self.room[0]).all())

    @property
    def seconds_a_second(self) -> float:
        """The work that all devices do in a second."""
        return float((1.0 / self.pace).sum())

    def stage_s(self, work: Work, units: IntArray, replicas: int, torn_s: tuple[float, float], first: int = 0) -> float:
        """Seconds of a stage between cuts that take `torn_s`, on `replicas` devices from the first on; by definition."""
        m = replicas
        compute, weights = float(work.seconds[units, 0].sum()), float(self.weight_bytes[units].sum())
        compute *= float(self.pace[first : first + m].max())
        return max((compute + 4 * (m - 1) * weights / (self.rate_bytes_per_s * m)) / m, *(a / m for a in torn_s))

    def _runs(self) -> tuple[FloatArray, FloatArray]:
        """(pace, room) of m devices from the d-th on, [devices, devices + 1] each."""
        n = self.devices
        pace, room = np.full((n, n + 1), np.inf), np.zeros((n, n + 1))
        for d in range(n):
            pace[d, 1 : n - d + 1] = np.maximum.accumulate(self.pace[d:])
            room[d, 1 : n - d + 1] = np.minimum.accumulate(self.room[d:])
        return pace, room

    def cheapest(
        self, members: Words, compute: FloatArray, weights: FloatArray, memory: FloatArray, torn: FloatArray,
        upper_s: float,
    ) -> tuple[float, list[tuple[int, int, int]]] | None:  # fmt: skip
        """The least bottleneck below `upper_s` over chains of states that ascend in compute: (value, [(start, end,
        replicas)]). All columns are totals over states; states without words contain each other in order."""
        n, done = self.devices, np.concatenate([[0.0], np.cumsum(1.0 / self.pace)])
        slack = 1e-9 * compute[-1]
        low = np.searchsorted(compute, compute[-1] - (done[-1] - done) * upper_s - slack, side="left")
        high = np.searchsorted(compute, done * upper_s + slack, side="right") - 1
        value, came, replicas = _least_worst(
            members, compute, 4.0 * weights / self.rate_bytes_per_s, memory, np.maximum(torn, 0.0), *self._runs(), low,
            high, n, self.most, upper_s,
        )  # fmt: skip
        best = int(value[:, -1].argmin())
        if not value[best, -1] < upper_s:
            return None
        links: list[tuple[int, int, int]] = []
        at, d = len(compute) - 1, best
        while at > 0:
            i, m = int(came[d, at]), int(replicas[d, at])
            links.append((i, at, m))
            at, d = i, d - m
        return float(value[best, -1]), links[::-1]


def best_stages(
    work: Work, replication: Replication, states: StateSequence, upper_s: float
) -> tuple[float, list[ReplicatedStage]] | None:
    """The least bottleneck below `upper_s` over all chains of the states, and its stages; None: there is none below.

    O(band^2 x devices) for the pairs of states in the bands.
    """
    if work.cannot.any():
        return None
    totals = states.totals(np.column_stack([work.seconds[:, 0], replication.weight_bytes, work.memory_bytes]))
    order = np.argsort(totals[:, 0], kind="stable")
    compute, weights, memory = (np.ascontiguousarray(c) for c in totals[order].T)
    torn, members = states.cuts(work.spans)[order], np.ascontiguousarray(states.members[order])
    found = replication.cheapest(members, compute, weights, memory, torn, upper_s)
    if found is None:
        return None
    stages = [ReplicatedStage(states.units_between(int(order[i]), int(order[j])), m) for i, j, m in found[1]]
    return found[0], stages


@compiled
def _least_worst(
    members: Words, compute: FloatArray, sync: FloatArray, memory: FloatArray, torn: FloatArray, paces: FloatArray,
    rooms: FloatArray, low: IntArray, high: IntArray, devices: int, most: int, upper: float,
) -> tuple[FloatArray, Int32Array, Int32Array]:  # fmt: skip
    """(value, state before, replicas), [devices + 1, states] each; states ascend in compute."""
    states = len(members)
    value = np.full((devices + 1, states), np.inf)
    came = np.full((devices + 1, states), -1, np.int32)
    share = np.zeros((devices + 1, states), np.int32)
    value[0, 0] = 0.0
    seen = np.full(states, -1, np.int64)
    holds = np.zeros(states, np.bool_)
    for i in range(states - 1):
        least = upper
        for d in range(devices):
            here = value[d, i]
            if here >= least:  # with fewer devices the state is reached as well
                continue
            least = here
            if i < low[d] or i > high[d]:
                continue
            for m in range(1, min(most, devices - d) + 1):
                if torn[i] >= upper * m:
                    continue
                e = d + m
                pace, room = paces[d, m], rooms[d, m]
                for j in range(max(i + 1, low[e]), high[e] + 1):
                    work = pace * (compute[j] - compute[i])
                    if work >= upper * m:
                        break
                    have = min(value[e, j], upper)
                    if here >= have or torn[j] >= have * m or torn[i] >= have * m:
                        continue
                    cost = (work + (m - 1) * (sync[j] - sync[i]) / m) / m
                    if cost >= have or memory[j] - memory[i] > room:
                        continue
                    if seen[j] != i:
                        seen[j] = i
                        holds[j] = contains(members, i, j)
                    if not holds[j]:
                        continue
                    worst = max(max(here, cost), max(torn[i], torn[j]) / m)
                    if worst < have:
                        value[e, j] = worst
                        came[e, j] = i
                        share[e, j] = m
    return value, came, share


# ---------------------------------------------------------------------------------------------------------------------
# Many states: without looking at pairs

FIRST_STEP = 4e-3  #: how far below the first value the search looks first, as a share
CLOSE = 5e-4  #: a bracket narrower than that is not halved again
UNITS_PER_S = 5e8  #: edges of the lattice x (replicas, devices); 1e9 to 5e9 on one of 2 Xeon cores, 2026-11-21
NEAR = 1_000  #: states around a cut among which a better one is sought


@dataclass(frozen=True, eq=False)
class Lattice:
    """The antichain DAG, backwards: the states with one unit less."""

    start: IntArray  #: [states + 1]
    items: IntArray

    @staticmethod
    def of(states: StateSequence, units: Units) -> Lattice:
        """For all downsets of the units. O(states x (last units + words))."""
        before = bitset([units.before.row(u) for u in range(len(units))], len(units))
        start, items = _one_less(states.members, states.parent, states.added.items, before)
        return Lattice(start, items)


def best_stages_by_lattice(
    work: Work, replication: Replication, states: StateSequence, upper_s: float, units: float
) -> tuple[float, list[ReplicatedStage] | None, float]:
    """(value, stages or None where nothing is below `upper_s`, bound): bound == value where the search came to its end.

    Asks for the fewest devices D(j) that reach state j with no stage above tau, for one tau after another:

        D(j) = min over m of m + min { D(i) : i < j, cost(i -> j, m) <= tau }

    For given m and e, a stage with cost <= tau ends at j iff f(j) - m tau <= max { f(i) : i < j, D(i) <= e - m }, where
    f = C + 4 (m - 1) W / (B m) only grows along the DAG; so the maximum over all i inside j is carried along its edges,
    and no pair is looked at. O(edges x devices^2) for each tau. Needs devices with room for everything. `units` bounds the
    work (about UNITS_PER_S a second), so that the same inputs give the same plan on every machine.
    """
    asked = _Asked.of(work, replication, states)
    value, best, bound = upper_s, None, float(asked.compute[-1]) / replication.devices
    step, a_question = FIRST_STEP, asked.units
    while units > 0 and bound < value * (1 - 1e-12):
        units -= a_question
        tau = max(value * (1 - step), (bound + value) / 2)
        if tau > value * (1 - CLOSE):  # nothing far below: is there anything below?
            tau = value * (1 - 1e-12)
        found = asked.below(tau)
        if found is None:
            bound, step = (tau if tau < value * (1 - 2e-12) else value), step / 4
        else:
            value, best = asked.polished(*found)
            step *= 2
    stages = [ReplicatedStage(states.units_between(i, j), m) for i, j, m in best] if best is not None else None
    return value, stages, bound


_Links = list[tuple[int, int, int]]  # (start, end, replicas) of each stage


@dataclass(frozen=True, eq=False)
class _Asked:
    """The columns that every question looks at."""

    replication: Replication
    members: Words
    compute: FloatArray
    weights: FloatArray
    torn: FloatArray
    lattice: Lattice
    layers: IntArray  #: first state of each size, and the end

    @staticmethod
    def of(work: Work, replication: Replication, states: StateSequence) -> _Asked:
        totals = states.totals(np.column_stack([work.seconds[:, 0], replication.weight_bytes]))
        size = np.bitwise_count(states.members).sum(axis=1, dtype=np.int64)
        layers = np.append(np.flatnonzero(np.diff(size, prepend=-1)), len(size))
        return _Asked(
            replication, states.members, np.ascontiguousarray(totals[:, 0]), np.ascontiguousarray(totals[:, 1]),
            np.maximum(states.cuts(work.spans), 0.0), Lattice.of(states, work.units), layers,
        )  # fmt: skip

    @property
    def units(self) -> float:
        """The work of one question."""
        r = self.replication
        return float((len(self.lattice.items) + len(self.compute)) * r.most * (2 * r.devices - r.most + 1) / 2)

    @property
    def sync(self) -> FloatArray:
        return 4.0 * self.weights / self.replication.rate_bytes_per_s

    def below(self, tau: float) -> tuple[float, _Links] | None:
        """(bottleneck, stages) of a chain with no stage above tau; None: there is none."""
        r, sync = self.replication, self.sync
        fewest, share = _fewest(
            self.lattice.start, self.lattice.items, self.layers, self.compute, sync, self.torn, r.devices, r.most, tau
        )
        if fewest[-1] > r.devices:
            return None
        links: _Links = []
        value, at = 0.0, len(self.compute) - 1
        while at > 0:
            m = int(share[at])
            f = self.compute + (m - 1) / m * sync
            good = np.flatnonzero(
                (fewest[:at] <= fewest[at] - m) & (self.torn[:at] <= m * tau) & (f[at] - f[:at] <= m * tau)
            )
            inside = good[((self.members[good] & ~self.members[at]) == 0).all(axis=1)]
            i = int(inside[np.argmax(f[inside])])
            value = max(value, float(f[at] - f[i]) / m, float(self.torn[i]) / m, float(self.torn[at]) / m)
            links.append((i, at, m))
            at = i
        return value, links[::-1]

    def polished(self, value: float, links: _Links) -> tuple[float, _Links]:
        """The best chain through states that do nearly the same work as the cuts, again and again."""
        while True:
            near = [_nearest(self.compute, j) for _, j, _ in links[:-1]]
            keep = np.unique(np.concatenate([[0, len(self.compute) - 1], *near]))
            keep = keep[np.argsort(self.compute[keep], kind="stable")]
            found = self.replication.cheapest(
                np.ascontiguousarray(self.members[keep]), self.compute[keep], self.weights[keep],
                np.zeros(len(keep)), self.torn[keep], value,
            )  # fmt: skip
            if found is None:
                return value, links
            value, links = found[0], [(int(keep[i]), int(keep[j]), m) for i, j, m in found[1]]


def _nearest(compute: FloatArray, j: int) -> IntArray:
    """The NEAR states whose work is nearest to that of state j, of equals the first."""
    distance = np.abs(compute - compute[j])
    if len(compute) <= NEAR:
        return np.arange(len(compute), dtype=np.int64)
    reach = np.partition(distance, NEAR)[NEAR]
    return np.flatnonzero(distance <= reach)[: 2 * NEAR]


@compiled
def _fewest(
    start: IntArray, items: IntArray, layers: IntArray, compute: FloatArray, sync: FloatArray, torn: FloatArray,
    devices: int, most: int, tau: float,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """([states] fewest devices, replicas of the last stage); devices + 1: not with so many.

    reach[m, d], kept for one layer of states of equal size at a time: the largest f inside a state among those that d
    devices reach and that a stage of m replicas may begin at."""
    states = len(compute)
    fewest = np.full(states, devices + 1, np.int64)
    share = np.zeros(states, np.int64)
    fewest[0] = 0
    offset = np.zeros(most + 2, np.int64)  # of row m: d runs from 0 to devices - m
    for m in range(1, most + 1):
        offset[m + 1] = offset[m] + devices - m + 1
    width = offset[most + 1]
    widest = 0
    for k in range(len(layers) - 1):
        widest = max(widest, layers[k + 1] - layers[k])
    before = np.full((widest, width), -np.inf)
    here = np.full((widest, width), -np.inf)
    for k in range(len(layers) - 1):
        origin = layers[k - 1] if k > 0 else 0
        for j in range(layers[k], layers[k + 1]):
            row = here[j - layers[k]]
            row[:] = -np.inf
            for e in range(start[j], start[j + 1]):
                other = before[items[e] - origin]
                for x in range(width):
                    row[x] = max(row[x], other[x])
            best, with_m = fewest[j], 0
            for m in range(1, most + 1):
                if torn[j] > m * tau:
                    continue
                own = compute[j] + (m - 1) / m * sync[j] - m * tau
                for d in range(min(devices - m + 1, best - m)):
                    if own <= row[offset[m] + d]:
                        best = d + m
                        with_m = m
                        break
            if best > devices or compute[-1] - compute[j] > (devices - best) * tau * (1 + 1e-12):
                continue
            fewest[j] = best
            share[j] = with_m
            for m in range(1, min(most, devices - best) + 1):
                if torn[j] <= m * tau:
                    own = compute[j] + (m - 1) / m * sync[j]
                    for d in range(best, devices - m + 1):
                        row[offset[m] + d] = max(row[offset[m] + d], own)
        before, here = here, before
    return fewest, share


@compiled
def _one_less(members: Words, parent: IntArray, added: IntArray, before: Words) -> tuple[IntArray, IntArray]:
    """For each state the states with one unit less, found through a table of all states by their bits.

    State k > 0 is its parent and the unit added[k - 1]; what is before that unit is no longer last."""
    states, words = members.shape
    one, zero = np.uint64(1), np.uint64(0)
    size = 16
    while size < 2 * states:
        size *= 2
    table = np.full(size, -1, np.int32)
    mask = np.uint64(size - 1)
    factor = np.uint64(0x9E3779B97F4A7C15)
    for j in range(states):
        h = zero
        for w in range(words):
            h = (h ^ members[j, w]) * factor
            h ^= h >> np.uint64(29)
        slot = h & mask
        while table[slot] >= 0:
            slot = (slot + one) & mask
        table[slot] = j
    last = np.zeros((states, words), np.uint64)  # units that no other unit of the state waits for
    start = np.zeros(states + 1, np.int64)
    items = np.empty(states * 4, np.int64)
    count = 0
    less = np.empty(words, np.uint64)
    for j in range(1, states):
        v, p = added[j - 1], parent[j]
        for w in range(words):
            last[j, w] = last[p, w] & ~before[v, w]
            less[w] = members[j, w]
        last[j, v >> 6] |= one << np.uint64(v & 63)
        for b in range(words):
            rest = last[j, b]
            while rest != zero:
                lowest = rest & (~rest + one)
                rest ^= lowest
                less[b] ^= lowest
                h = zero
                for w in range(words):
                    h = (h ^ less[w]) * factor
                    h ^= h >> np.uint64(29)
                slot = h & mask
                k = table[slot]
                while True:
                    same = True
                    for w in range(words):
                        if members[k, w] != less[w]:
                            same = False
                            break
                    if same:
                        break
                    slot = (slot + one) & mask
                    k = table[slot]
                less[b] ^= lowest
                if count == len(items):
                    more = np.empty(2 * len(items), np.int64)
                    more[:count] = items
                    items = more
                items[count] = k
                count += 1
        start[j + 1] = count
    return start, items[:count].copy()
