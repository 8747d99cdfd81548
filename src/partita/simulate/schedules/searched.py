"""A searched order: list scheduling of the slots with the times that they take, then a local search for better ones.

No rule of thumb knows that one stage is slower than another, that a message takes a third of a forward, or that parting a
backward costs a call. Here every slot has its seconds, and its device runs it when what it needs has come:

    list        whoever can begin first goes next; of what a device could begin, backwards come first, then forwards as far as
                it may hold more micro-batches, and weights' parts where a wait is long enough for them
    join        a backward that was parted for nothing becomes one again, where the step does not get longer
    anneal      a slot moves to another place in the order of its device, or a backward is joined or parted; longer steps are
                accepted now and then, ever more rarely

Two equal stages, four micro-batches, a forward, the gradients of inputs (B) and of weights (W) one unit each, a message none;
`D` is a backward that was not parted:

    stage 0  F0 F1 F2 D0 D0 F3 D1 D1 .. D2 D2 D3 D3
    stage 1  .. F0 B0 F1 D1 D1 F2 D2 D2 F3 B3 W3 W0

Only the last two of the second stage are parted; 1F1B takes 15 units here, zero-bubble schedules 13, with every one parted.

What is searched is judged by `walk` below, which agrees with the simulator where every link is a queue of its own, with two
exceptions. Gradients that several stages of a device sum leave when the first one's are ready here, when the last one's are in a run.
And of messages that are ready together, the first edge's takes the link first here, in a run the one that is received first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.nouns.pipeline_plan import Part, Slot
from partita.solve.compiled import compiled

PARTS: tuple[Part, ...] = ("F", "B", "W")
FORWARD, JOINED, INPUT, WEIGHT = range(4)  #: rows of `Shop.seconds`
PATIENCE = (0.6, 1.1)  #: of a weights' part, how long a wait must be for it
WARM, COLD = 0.02, 1e-4  #: share of the step by which a longer one may be accepted, at the beginning and at the end


class Shop(NamedTuple):
    """What takes how long: K stages, M micro-batches, D devices, E messages between pairs of stages."""

    device: IntArray  #: [K, M] that runs it
    seconds: (
        FloatArray  #: [4, K, D] of a forward, a backward in one, its inputs' and its weights' part, calls among them
    )
    trains: BoolArray  #: [K] it has a backward
    source: IntArray  #: [E] stage
    target: IntArray  #: [E] stage
    back: BoolArray  #: [E] a gradient comes back
    carry_s: FloatArray  #: [2, E, D, D] of the link from device to device, there and back
    queue: IntArray  #: [D, D] the link from device to device
    lag_s: FloatArray  #: [D, D]
    post_s: FloatArray  #: [2, E, D, D] of the sender
    handle_s: FloatArray  #: [2, E, D, D] of the receiver
    begin_s: FloatArray  #: [D] before a device's first slot, if that receives no message
    update_s: FloatArray  #: [D] at the end of the step
    keep_bytes: FloatArray  #: [K] that a micro-batch keeps from its forward to the end of its backward, if it has one
    room_bytes: FloatArray  #: [D] for what is kept


class Found(NamedTuple):
    """Orders as the kernels have them."""

    order: IntArray  #: [D, slots] numbers of slots, (part x K + stage) x M + micro-batch
    lengths: IntArray  #: [D]
    joined: BoolArray  #: [K, M] the backward runs in one, its W counts for nothing
    seconds: float


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search has found."""

    orders: Mapping[str, tuple[Slot, ...]]
    seconds: float  #: of the step by the search's own account


def searched(
    shop: Shop, names: Sequence[str], starts: Sequence[Found] = (), *, walks: int = 4000, seed: int = 0
) -> Searched | None:
    """The best orders found for devices of these names; None where no order keeps within the devices' room.

    `starts` are orders to begin with (see `numbered`), besides what list scheduling makes; `walks` moves are tried. The same seed
    gives the same orders. O((walks + stages x micro-batches) x slots).
    """
    best = min([joined(shop, s) for s in (*listings(shop), *starts)], key=lambda t: t.seconds)
    if not np.isfinite(best.seconds):
        return None
    if walks:
        start = best.order.copy(), best.lengths, best.joined.copy(), best.seconds
        best = joined(shop, Found(*_annealed(shop, *start, walks, seed)))
    return Searched(_named(shop, names, best), float(best.seconds))


def glanced(shop: Shop, names: Sequence[str], starts: Sequence[Found] = ()) -> Searched | None:
    """The best of `starts` and of what list scheduling makes, as it is: for programs too large to be searched. O(slots)."""
    best = min([*listings(shop), *(rewalked(shop, s) for s in starts)], key=lambda f: f.seconds)
    return Searched(_named(shop, names, best), float(best.seconds)) if np.isfinite(best.seconds) else None


def listings(shop: Shop) -> list[Found]:
    """What list scheduling makes, with more and with less patience and memory."""
    return [listed(shop, admit, patience) for admit in _admissions(shop) for patience in PATIENCE]


def _admissions(shop: Shop) -> list[IntArray]:
    """[ways][devices] how many micro-batches a device may have begun and not ended: all that it has room for, and fewer."""
    stages, batches = shop.device.shape
    own = np.zeros(len(shop.update_s))
    for k in range(stages):
        own[np.unique(shop.device[k])] += shop.keep_bytes[k]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        most = np.where(own > 0, shop.room_bytes // np.where(own > 0, own, 1.0), np.inf)
    room = np.clip(np.where(np.isfinite(most), most, batches), 1, batches).astype(np.int64)
    wanted = sorted({min(batches, n) for n in (stages, stages + 1, 2 * stages, batches)}, reverse=True)
    return list({tuple(w): w for w in (np.minimum(room, n) for n in wanted)}.values())


def listed(shop: Shop, admit: IntArray, patience: float) -> Found:
    """What list scheduling makes, every backward parted. O(slots x devices x stages)."""
    order, count = _listed(shop, admit, patience)
    return rewalked(shop, Found(order, count, np.zeros(shop.device.shape, np.bool_), np.inf))


def rewalked(shop: Shop, found: Found) -> Found:
    """The same orders with their seconds in this shop."""
    return found._replace(seconds=float(walk(shop, found.order, found.lengths, found.joined)))


def joined(shop: Shop, found: Found) -> Found:
    """With every backward in one that was parted for nothing."""
    whole = found.joined.copy()
    seconds = _join(shop, found.order, found.lengths, whole)
    return Found(found.order, found.lengths, whole, float(seconds))


def numbered(orders: Mapping[str, Sequence[Slot]], names: Sequence[str], stages: int, batches: int) -> Found:
    """Orders of slots as numbers, not walked yet; a backward without a W is joined, and its W stands behind it."""
    parted = {(s.stage, s.micro_batch) for slots in orders.values() for s in slots if s.part == "W"}
    whole = np.zeros((stages, batches), np.bool_)
    rows: list[list[int]] = []
    for name in names:
        row: list[int] = []
        for s in orders.get(name, ()):
            row.append((PARTS.index(s.part) * stages + s.stage) * batches + s.micro_batch)
            if s.part == "B" and (s.stage, s.micro_batch) not in parted:
                whole[s.stage, s.micro_batch] = True
                row.append((2 * stages + s.stage) * batches + s.micro_batch)
        rows.append(row)
    order = np.zeros((len(names), max(map(len, rows), default=0)), np.int64)
    for d, row in enumerate(rows):
        order[d, : len(row)] = row
    return Found(order, np.array([len(r) for r in rows], np.int64), whole, np.inf)


def _named(shop: Shop, names: Sequence[str], found: Found) -> dict[str, tuple[Slot, ...]]:
    stages, batches = shop.device.shape
    orders: dict[str, tuple[Slot, ...]] = {}
    for d, name in enumerate(names):
        row = [divmod(s, batches) for s in found.order[d, : found.lengths[d]].tolist()]
        slots = [Slot(PARTS[pk // stages], pk % stages, m) for pk, m in row if shop.trains[pk % stages] or pk < stages]
        orders[name] = tuple(s for s in slots if s.part != "W" or not found.joined[s.stage, s.micro_batch])
    return {name: slots for name, slots in orders.items() if slots}


@compiled
def walk(shop: Shop, order: IntArray, count: IntArray, joined: BoolArray) -> float:
    """Seconds of the step; inf where the orders wait for each other, or a device keeps more than it has room for.

    O(slots x messages of a stage)."""
    stages, batches = shop.device.shape
    devices = len(count)
    for d in range(devices):
        held = 0.0
        for i in range(count[d]):
            pk, m = divmod(order[d, i], batches)
            p, k = divmod(pk, stages)
            if p == 0:
                held += shop.keep_bytes[k]
                if held > shop.room_bytes[d] * (1 + 1e-9):
                    return np.inf
            if (p == 0 and not shop.trains[k]) or (p > 0 and shop.trains[k] and (p == 2) != joined[k, m]):
                held -= shop.keep_bytes[k]
    edges = len(shop.source)
    end = np.full((2, stages, batches), -1.0)
    arrives = np.full((2, edges, batches), -1.0)
    link = np.zeros(devices * devices)
    head, free = np.zeros(devices, np.int64), np.zeros(devices)
    left = 0
    for d in range(devices):
        left += count[d]
    moved = True
    while left > 0 and moved:
        moved = False
        for d in range(devices):
            while head[d] < count[d]:
                pk, m = divmod(order[d, head[d]], batches)
                p, k = divmod(pk, stages)
                at = free[d]
                if p == 2:
                    if end[1, k, m] < 0.0:
                        return np.inf
                    if not joined[k, m]:
                        at += shop.seconds[3, k, d]
                else:
                    ready, told = True, False
                    if p == 1 and end[0, k, m] < 0.0:
                        return np.inf
                    for e in range(edges):
                        if p == 0:
                            mine, other = shop.target[e], shop.source[e]
                        else:
                            mine, other = shop.source[e], shop.target[e]
                        if mine != k or (p == 1 and not shop.back[e]):
                            continue
                        f = shop.device[other, m]
                        if f == d:
                            if end[p, other, m] < 0.0:
                                ready = False
                                break
                        elif arrives[p, e, m] < 0.0:
                            ready = False
                            break
                        else:
                            at = max(at, arrives[p, e, m]) + shop.handle_s[p, e, f, d]
                            told = True
                    if not ready:
                        break
                    if head[d] == 0 and not told:
                        at += shop.begin_s[d]
                    if p == 0:
                        at += shop.seconds[0, k, d]
                    elif joined[k, m]:
                        at += shop.seconds[1, k, d]
                    else:
                        at += shop.seconds[2, k, d]
                    for e in range(edges):
                        mine, other = (shop.source[e], shop.target[e]) if p == 0 else (shop.target[e], shop.source[e])
                        if mine == k and (p == 0 or shop.back[e]):
                            f = shop.device[other, m]
                            if f != d:
                                at += shop.post_s[p, e, d, f]
                    end[p, k, m] = at
                    for e in range(edges):
                        mine, other = (shop.source[e], shop.target[e]) if p == 0 else (shop.target[e], shop.source[e])
                        if mine == k and (p == 0 or shop.back[e]):
                            f = shop.device[other, m]
                            if f != d:
                                q = shop.queue[d, f]
                                link[q] = max(link[q], at) + shop.carry_s[p, e, d, f]
                                arrives[p, e, m] = link[q] + shop.lag_s[d, f]
                free[d] = at
                head[d] += 1
                left -= 1
                moved = True
    if left > 0:
        return np.inf
    last = 0.0
    for d in range(devices):
        last = max(last, free[d] + shop.update_s[d])
    return last


@compiled
def _listed(shop: Shop, admit: IntArray, patience: float) -> tuple[IntArray, IntArray]:
    """(order, count) by list scheduling with every backward parted."""
    stages, batches = shop.device.shape
    devices, edges = len(admit), len(shop.source)
    serves = np.zeros((stages, devices), np.bool_)
    for k in range(stages):
        for m in range(batches):
            serves[k, shop.device[k, m]] = True
    first = np.full(devices, -1, np.int64)  # of a device's stages, where micro-batches come in ...
    for d in range(devices):
        for k in range(stages - 1, -1, -1):
            if serves[k, d]:
                first[d] = k
    order = np.zeros((devices, 3 * stages * batches), np.int64)
    count = np.zeros(devices, np.int64)
    at = np.zeros((3, stages, devices), np.int64)  # the next micro-batch of each part
    end = np.full((3, stages, batches), -1.0)
    arrives = np.full((2, edges, batches), -1.0)
    link, free = np.zeros(devices * devices), np.zeros(devices)
    within = np.zeros(devices, np.int64)  # micro-batches begun and not ended
    rest = np.zeros((devices, batches), np.int64)  # backwards of a micro-batch that are still to come on a device
    for k in range(stages):
        for m in range(batches):
            if shop.trains[k]:
                rest[shop.device[k, m], m] += 1
    for d in range(devices):
        for k in range(stages):
            for p in range(3):
                while at[p, k, d] < batches and shop.device[k, at[p, k, d]] != d:
                    at[p, k, d] += 1
    while True:
        chosen_d, chosen_p, chosen_k, chosen_start = -1, -1, -1, np.inf
        for d in range(devices):
            # the earliest of what is no weights' part
            best_p, best_k, best_start = -1, -1, np.inf
            for p in (1, 0):
                for kk in range(stages):
                    k = stages - 1 - kk if p == 0 else kk
                    m = at[p, k, d]
                    if not serves[k, d] or m >= batches or (p == 1 and (not shop.trains[k] or end[0, k, m] < 0.0)):
                        continue
                    if p == 0 and k == first[d] and rest[d, m] > 0 and within[d] >= admit[d]:
                        continue
                    start, ready = free[d], True
                    for e in range(edges):
                        mine, other = (shop.target[e], shop.source[e]) if p == 0 else (shop.source[e], shop.target[e])
                        if mine != k or (p == 1 and not shop.back[e]):
                            continue
                        f = shop.device[other, m]
                        when = end[p, other, m] if f == d else arrives[p, e, m]
                        if when < 0.0:
                            ready = False
                            break
                        start = max(start, when)
                    if ready and start < best_start - 1e-12:
                        best_p, best_k, best_start = p, k, start
            for k in range(stages):
                m = at[2, k, d]
                waiting = serves[k, d] and m < batches and shop.trains[k] and end[1, k, m] >= 0.0
                if waiting and best_start - free[d] >= patience * shop.seconds[3, k, d]:
                    best_p, best_k, best_start = 2, k, free[d]
                    break
            if best_p >= 0 and best_start < chosen_start - 1e-12:
                chosen_d, chosen_p, chosen_k, chosen_start = d, best_p, best_k, best_start
        if chosen_d < 0:
            break
        d, p, k = chosen_d, chosen_p, chosen_k
        m = at[p, k, d]
        done, told = chosen_start, False
        if p < 2:
            for e in range(edges):
                mine, other = (shop.target[e], shop.source[e]) if p == 0 else (shop.source[e], shop.target[e])
                if mine == k and (p == 0 or shop.back[e]) and shop.device[other, m] != d:
                    done += shop.handle_s[p, e, shop.device[other, m], d]
                    told = True
        done += shop.seconds[0 if p == 0 else p + 1, k, d] + (shop.begin_s[d] if count[d] == 0 and not told else 0.0)
        if p < 2:
            for e in range(edges):
                mine, other = (shop.source[e], shop.target[e]) if p == 0 else (shop.target[e], shop.source[e])
                if mine == k and (p == 0 or shop.back[e]) and shop.device[other, m] != d:
                    done += shop.post_s[p, e, d, shop.device[other, m]]
        end[p, k, m] = free[d] = done
        if p < 2:
            for e in range(edges):
                mine, other = (shop.source[e], shop.target[e]) if p == 0 else (shop.target[e], shop.source[e])
                if mine == k and (p == 0 or shop.back[e]) and shop.device[other, m] != d:
                    f = shop.device[other, m]
                    q = shop.queue[d, f]
                    link[q] = max(link[q], done) + shop.carry_s[p, e, d, f]
                    arrives[p, e, m] = link[q] + shop.lag_s[d, f]
        if p == 0 and k == first[d] and rest[d, m] > 0:
            within[d] += 1
        if p == 2:
            rest[d, m] -= 1
            if rest[d, m] == 0:
                within[d] -= 1
        order[d, count[d]] = (p * stages + k) * batches + m
        count[d] += 1
        at[p, k, d] += 1
        while at[p, k, d] < batches and shop.device[k, at[p, k, d]] != d:
            at[p, k, d] += 1
    return order, count


@compiled
def _join(shop: Shop, order: IntArray, count: IntArray, joined: BoolArray) -> float:
    """Every backward in one again that is parted for nothing; the seconds then. Changes `joined`. O(stages micro-batches slots)."""
    stages, batches = joined.shape
    best = walk(shop, order, count, joined)
    for k in range(stages):
        for m in range(batches):
            if shop.trains[k] and not joined[k, m]:
                joined[k, m] = True
                seconds = walk(shop, order, count, joined)
                if seconds <= best:
                    best = seconds
                else:
                    joined[k, m] = False
    return best


@compiled
def _annealed(
    shop: Shop, order: IntArray, count: IntArray, joined: BoolArray, seconds: float, walks: int, seed: int
) -> tuple[IntArray, IntArray, BoolArray, float]:
    """The best of `walks` moves from an order. O(walks x slots)."""
    stages, batches = joined.shape
    devices = len(count)
    now = seconds
    best, best_order, best_joined = seconds, order.copy(), joined.copy()
    lot = np.uint64(seed * 2654435761 + 88172645463325252)
    for step in range(walks):
        lot ^= lot << np.uint64(13)
        lot ^= lot >> np.uint64(7)
        lot ^= lot << np.uint64(17)
        heat = seconds * WARM * (COLD / WARM) ** (step / walks)
        d = np.int64(lot % np.uint64(devices))
        draw = np.int64((lot >> np.uint64(8)) & np.uint64(0xFFFFF))
        if count[d] < 2:
            continue
        i = draw % count[d]
        s = order[d, i]
        pk, m = divmod(s, batches)
        p, k = divmod(pk, stages)
        toggles = p > 0 and (lot >> np.uint64(30)) & np.uint64(3) == np.uint64(0)
        j = i
        if toggles:
            if not shop.trains[k]:
                continue
            joined[k, m] = not joined[k, m]
        else:
            if p == 2 and joined[k, m]:
                continue
            reach = np.int64((lot >> np.uint64(34)) % np.uint64(6)) + 1
            j = i + reach if (lot >> np.uint64(33)) & np.uint64(1) else i - reach
            j = min(max(j, 0), count[d] - 1)
            if j == i:
                continue
            _move(order, d, i, j)
        tried = walk(shop, order, count, joined)
        margin = -np.log(1.0 - np.float64((lot >> np.uint64(40)) & np.uint64(0xFFFFF)) / 1048576.0) * heat
        if tried <= now + margin:
            now = tried
            if now < best - 1e-12:
                best, best_order, best_joined = now, order.copy(), joined.copy()
        elif toggles:
            joined[k, m] = not joined[k, m]
        else:
            _move(order, d, j, i)
    return best_order, count, best_joined, best


@compiled
def _move(order: IntArray, d: int | np.int64, i: int | np.int64, j: int | np.int64) -> None:
    """The slot at place i goes to place j, those between move up."""
    s = order[d, i]
    if i < j:
        for x in range(i, j):
            order[d, x] = order[d, x + 1]
    else:
        for x in range(i, j, -1):
            order[d, x] = order[d, x - 1]
    order[d, j] = s
