"""Simulated annealing over placements, with incremental load updates.

State: a device for every atom. Energy: sum over devices of (load / reference)^64, a smooth stand-in for the largest
load; the reference is the best value so far. A step moves one atom, or a block of atoms that hang together on one device
(grown along nets, at random or along all that cost more than some amount), to a device that a neighbour is on or to any device; up to three such moves are tried as one step,
each ejecting something from the device the last one went to: swaps and ejection chains. A step costs the degree of the
atoms it moves. Memory is a penalty that no feasible load reaches.

The amount of work is counted, not timed (one unit: one net of one moved atom looked at), so that the same inputs, seed and
units give the same placement on every machine. Kernel: numba, without the interpreter's lock.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.placement.plan.alarm import FlagArray
from partita.placement.plan.load import LoadModel
from partita.solve.compiled import compiled
from partita.solve.random import Words, between, seeded, uniform

UNITS_PER_S = 1.2e7  # cautiously: 1.35e7 to 2.2e7 on one of 2 Xeon cores, 2026-11-21, benchmarks/planner.py --calibrate
STEP_UNITS = 10  # what a step costs besides its nets
REBUILD = 1 << 18  # steps after which sums are taken anew, against rounding


class Net(NamedTuple):
    """The model as the kernels see it."""

    work: FloatArray  #: [atoms, classes]
    memory: FloatArray  #: [atoms]
    start: IntArray  #: [nets + 1]
    pins: IntArray
    cost: FloatArray  #: [nets]
    atom_start: IntArray  #: [atoms + 1]
    atom_nets: IntArray
    class_of: IntArray  #: [devices]
    pays: BoolArray  #: [devices]
    room: FloatArray  #: [devices]
    overlap: bool
    penalty: float  #: seconds a device that is full twice over counts as more


class State(NamedTuple):
    """A placement and its sums."""

    where: IntArray  #: [atoms]
    here: npt.NDArray[np.int32]  #: [nets, devices] atoms of a net on a device
    spread: npt.NDArray[np.int32]  #: [nets] devices it touches
    sums: FloatArray  #: [4, devices] compute, in, out, bytes
    load: FloatArray  #: [devices]


def anneal(
    model: LoadModel,
    where: IntArray,
    *,
    units: float,
    seed: int,
    hot: float = 0.1,
    cold: float = 1e-5,
    stop: FlagArray | None = None,
) -> IntArray:
    """[atoms] the best placement met, starting from `where`; never worse than it.

    `units` bounds the work (about UNITS_PER_S a second). The temperature falls geometrically from `hot` to `cold`; the
    last tenth of the work accepts improvements only. Setting stop[0] ends the run early. Deterministic for a seed unless
    stopped. No guarantee.
    """
    if model.devices == 1 or units < 1 or model.value(where) <= 0:
        return where.copy()
    net = _net(model)
    state = _state(model, where)
    flag = np.zeros(1, np.uint8) if stop is None else stop
    most = max(4, min(model.atoms // 2, 2048))
    best = _anneal(net, state, int(units), seed & 0x7FFFFFFF, hot, cold, most, flag)
    return best if _better(model, best, where) else where.copy()


def _better(model: LoadModel, a: IntArray, b: IntArray) -> bool:
    """Whether a is at least as good as b; where neither is feasible, whether less memory is missing."""
    over = [float(np.maximum(model.held(x) - model.room_bytes, 0).sum()) for x in (a, b)]
    return (over[0], model.loads(a).max()) <= (over[1], model.loads(b).max())


def _net(model: LoadModel) -> Net:
    room = np.where(np.isfinite(model.room_bytes), model.room_bytes, 1e300)
    finite = np.where(np.isfinite(model.work_s), model.work_s, 0.0)
    return Net(
        np.ascontiguousarray(model.work_s), model.memory_bytes, model.nets.start, model.nets.items, model.cost_s,
        model.nets_of.start, model.nets_of.items, model.class_of, model.pays, room,
        model.rule == "overlap", float(finite.max(axis=1).sum() + 2 * model.cost_s.sum()) + 1e-300,
    )  # fmt: skip


def _state(model: LoadModel, where: IntArray) -> State:
    n = model.devices
    return State(
        where.astype(np.int64).copy(),
        np.zeros((len(model.cost_s), n), np.int32),
        np.zeros(len(model.cost_s), np.int32),
        np.zeros((4, n)),
        np.zeros(n),
    )


@compiled
def _rebuild(net: Net, s: State) -> None:
    s.here[:] = 0
    s.spread[:] = 0
    s.sums[:] = 0.0
    for a in range(len(s.where)):
        d = s.where[a]
        s.sums[0, d] += net.work[a, net.class_of[d]]
        s.sums[3, d] += net.memory[a]
    for e in range(len(net.cost)):
        for j in range(net.start[e], net.start[e + 1]):
            d = s.where[net.pins[j]]
            if s.here[e, d] == 0:
                s.spread[e] += 1
            s.here[e, d] += 1
        if s.spread[e] > 1:
            maker = s.where[net.pins[net.start[e]]]
            for d in range(s.here.shape[1]):
                if s.here[e, d] > 0:
                    s.sums[2 if d == maker else 1, d] += net.cost[e]
    for d in range(len(s.load)):
        s.load[d] = _load(net, s, d)


@compiled
def _load(net: Net, s: State, d: int) -> float:
    load = float(s.sums[0, d])
    if net.pays[d]:
        if net.overlap:
            load = float(max(load, s.sums[1, d], s.sums[2, d]))
        else:
            load += s.sums[1, d] + s.sums[2, d]
    if s.sums[3, d] > net.room[d]:
        load += net.penalty * (s.sums[3, d] / net.room[d] - 0.99)
    return load


@compiled
def _power64(x: float) -> float:
    """x^64; a load one percent below the largest weighs about half as much."""
    y: float = x if x < 1e4 else 1e4
    for _ in range(6):
        y *= y
    return float(y)


@compiled
def _move(net: Net, s: State, a: int, q: int) -> None:
    """Move atom a to device q: the sums of its old device and of q change, no others."""
    p = s.where[a]
    s.sums[0, p] -= net.work[a, net.class_of[p]]
    s.sums[0, q] += net.work[a, net.class_of[q]]
    s.sums[3, p] -= net.memory[a]
    s.sums[3, q] += net.memory[a]
    for j in range(net.atom_start[a], net.atom_start[a + 1]):
        e = net.atom_nets[j]
        cost = net.cost[e]
        maker = net.pins[net.start[e]]
        at = s.where[maker]
        if s.spread[e] > 1:
            s.sums[2 if at == p else 1, p] -= cost
            if s.here[e, q] > 0:
                s.sums[2 if at == q else 1, q] -= cost
        s.here[e, p] -= 1
        if s.here[e, p] == 0:
            s.spread[e] -= 1
        if s.here[e, q] == 0:
            s.spread[e] += 1
        s.here[e, q] += 1
        if maker == a:
            at = q
        if s.spread[e] > 1:
            s.sums[2 if at == q else 1, q] += cost
            if s.here[e, p] > 0:
                s.sums[2 if at == p else 1, p] += cost
    s.where[a] = q


@compiled
def _grow(
    net: Net,
    s: State,
    size: int,
    least: float,
    chance: float,
    mark: IntArray,
    stamp: int,
    block: IntArray,
    random: Words,
) -> int:
    """Grow the block from block[0] along nets within its device that cost at least `least`, each atom met joining with a
    chance, to `size` atoms at most; returns how many it has."""
    p = s.where[block[0]]
    mark[block[0]] = stamp
    head, tail = 0, 1
    while head < tail < size:
        x = block[head]
        head += 1
        for j in range(net.atom_start[x], net.atom_start[x + 1]):
            e = net.atom_nets[j]
            if s.here[e, p] < 2 or net.cost[e] < least:
                continue
            for i in range(net.start[e], net.start[e + 1]):
                y = net.pins[i]
                if tail < size and mark[y] != stamp and s.where[y] == p and uniform(random) < chance:
                    mark[y] = stamp
                    block[tail] = y
                    tail += 1
    return tail


@compiled
def _target(net: Net, s: State, a: int, random: Words) -> int:
    """A device for atom a: where a neighbour is, or any other."""
    n = len(s.load)
    p = s.where[a]
    if uniform(random) < 0.7 and net.atom_start[a + 1] > net.atom_start[a]:
        e = net.atom_nets[between(random, net.atom_start[a], net.atom_start[a + 1])]
        if s.spread[e] > 1:
            q = s.where[net.pins[between(random, net.start[e], net.start[e + 1])]]
            if q != p:
                return int(q)
    q = between(random, 0, n - 1)
    return int(q + 1 if q >= p else q)


@compiled
def _atom_on(s: State, d: int, tries: int, random: Words) -> int:
    """A random atom on device d, or -1."""
    for _ in range(tries):
        a = between(random, 0, len(s.where))
        if s.where[a] == d:
            return int(a)
    return -1


@compiled
def _anneal(net: Net, s: State, units: int, seed: int, hot: float, cold: float, most: int, stop: FlagArray) -> IntArray:
    random = seeded(seed)
    n, devices = len(s.where), len(s.load)
    _rebuild(net, s)
    best = s.load.max()
    best_where = s.where.copy()
    saved = best
    grain = 0.0 if n <= 2000 else min(1e-3, 1e-8 * n)  # large placements are not copied for every small step
    mark = np.zeros(n, np.int64)
    block = np.zeros(most, np.int64)
    moved = np.zeros(3 * most, np.int64)
    origin = np.zeros(3 * most, np.int64)
    touched = np.zeros(6, np.int64)
    before = np.zeros(6)
    tries = 4 * devices + 16
    spent, step, stamp = 0, 0, 0
    while spent < units and stop[0] == 0 and best > 0.0:
        step += 1
        spent += STEP_UNITS
        if step % REBUILD == 0:
            _rebuild(net, s)
        share = spent / (0.9 * units)
        heat = hot * (cold / hot) ** share if share < 1.0 else 0.0
        r = uniform(random)
        parts = 2 if r < 0.3 else (3 if r < 0.4 else 1)
        k, nt = 0, 0
        first, last = -1, -1
        for part in range(parts):
            if part == 0:
                a = -1
                if uniform(random) < 0.3:
                    a = _atom_on(s, int(np.argmax(s.load)), tries, random)
                if a < 0:
                    a = between(random, 0, n)
            else:
                a = _atom_on(s, last, tries, random)
                if a < 0 or mark[a] == stamp:
                    break
            p = s.where[a]
            q = first if part == 1 and parts == 2 and uniform(random) < 0.7 else _target(net, s, a, random)
            if part == 0:
                stamp += 1
                first = p
            size, least, chance = 1, 0.0, 0.8
            r = uniform(random)
            if r < 0.25:
                size = min(most, 1 + int(most ** uniform(random)))
            elif r < 0.5 and len(net.cost) > 0:
                size, least, chance = most, net.cost[between(random, 0, len(net.cost))], 1.0
            block[0] = a
            size = _grow(net, s, size, least, chance, mark, stamp, block, random)
            runs = True
            for i in range(size):
                runs = runs and np.isfinite(net.work[block[i], net.class_of[q]])
            if not runs:
                break
            for d in (p, q):
                known = False
                for i in range(nt):
                    known = known or touched[i] == d
                if not known:
                    touched[nt] = d
                    before[nt] = s.load[d]
                    nt += 1
            for i in range(size):
                moved[k] = block[i]
                origin[k] = p
                k += 1
                _move(net, s, block[i], q)
                spent += net.atom_start[block[i] + 1] - net.atom_start[block[i]] + 1
            last = q
        if k == 0:
            continue
        change = 0.0
        for i in range(nt):
            d = touched[i]
            s.load[d] = _load(net, s, d)
            change += _power64(s.load[d] / best) - _power64(before[i] / best)
        if change <= 0.0 or (heat > 0.0 and uniform(random) < np.exp(-change / heat)):
            top = s.load.max()
            best = min(best, top)
            if top < saved * (1.0 - grain):
                saved = top
                best_where[:] = s.where
        else:
            for i in range(k - 1, -1, -1):
                _move(net, s, moved[i], origin[i])
            for i in range(nt):
                s.load[touched[i]] = before[i]
    return s.where if s.load.max() < saved else best_where
