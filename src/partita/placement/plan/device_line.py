"""Many types of devices: they stand in a line, and the stages take them in turn.

A chain's program counts how many devices of each type are used; the number of such counts is the product of the types'
sizes, 2^60 for 60 devices no two of which are alike. For a given line-up there is one count a device. So the line-up is
searched for: cut along the best known one, deal the devices to these stages anew (an assignment), cut again; between
whiles two devices change places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from partita.nouns.cluster import Device
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.plan.contiguous import exact_chain
from partita.placement.plan.linear_cut import best_cut, orders
from partita.placement.plan.throughput import Part, Vectors, Work, load_of, vectors
from partita.solve.downsets import StateSequence

MOST_VECTORS = 5_000  #: counts of used devices up to which a chain's program looks at all of them
POSITION_S = 3e-6  #: what cutting takes on a slow core for each position and device
SWAPS = 1_500  #: line-ups tried at most
POWER = 8
EASED = (
    (),
    *(((k / 8,)) for k in (4, 2, 6, 3, 5, 1, 7)),
    (1 / 4, 1 / 2),
    (1 / 2, 3 / 4),
    (1 / 8, 1 / 2),
)  #: ends of groups
EASED_SHARE, PAIRS_PER_S = 0.4, 1e9  #: of the budget; pairs of states x counts of devices x groups


def too_many_types(work: Work) -> bool:
    """Whether there are more counts of used devices than can be looked at."""
    return math.prod(n + 1 for n in work.counts) > MOST_VECTORS


def line_up(types: Sequence[int], count: int) -> Vectors:
    """The counts of used devices along a line of device types, of which there are `count`.

    >>> line_up([1, 0], 2).after.tolist()
    [[-1, 1], [2, -1], [-1, -1]]
    """
    n = len(types)
    used, after = np.zeros((n + 1, count), np.int64), np.full((n + 1, count), -1, np.int64)
    for k, t in enumerate(types):
        used[k + 1] = used[k]
        used[k + 1, t] += 1
        after[k, t] = k + 1
    return Vectors(used, after)


def by_speed(work: Work) -> list[int]:
    """The types of all devices, those first that finish all work soonest."""
    total = work.seconds.sum(axis=0) + np.where(work.cannot.any(axis=0), np.inf, 0.0)
    return [int(t) for t in np.argsort(total, kind="stable") for _ in range(work.counts[int(t)])]


def counts_of(work: Work) -> Vectors:
    """All counts of used devices; those along one line-up, the fastest devices first, where they are too many."""
    return line_up(by_speed(work), len(work.types)) if too_many_types(work) else vectors(work.counts)


def best_line_up(work: Work, budget_s: float, seed: int = 0) -> tuple[float, list[Part]] | None:
    """(value, parts): the least largest load found over line-ups and a few linear orders of the units; None: nothing fits.

    How many line-ups are tried depends on the budget and the sizes, not on the clock. Deterministic for a seed.
    """
    fastest, random = by_speed(work), np.random.default_rng(seed)
    best: tuple[float, list[Part]] | None = None
    order, line = np.zeros(0, np.int64), fastest
    for units in orders(work.units):
        for types in (fastest, fastest[::-1]):
            found = best_cut(work, units, best[0] if best else math.inf, line_up(types, len(work.types)))
            best, order, line = (found, units, types) if found else (best, order, line)
    if best is None:
        return None
    for k in range(min(SWAPS, int(budget_s / (POSITION_S * len(order) * len(line))))):
        types = _dealt(work, best[1], line) if k % 8 == 0 else _swapped(line, len(best[1]), random)
        found = best_cut(work, order, best[0], line_up(types, len(work.types)))
        best, line = (found, types) if found else (best, line)
    return best


def eased_line_ups(
    work: Work, parts: Sequence[Part], states: StateSequence, budget_s: float
) -> tuple[float, list[Part], float]:
    """(value, parts, bound): parts as good as the given ones or better, and a bound on every chain's largest load.

    The devices of a kind are sorted by speed and taken as a few groups, each as fast and as large as its best member: of
    these there are few counts, so that the chain of least largest load is found exactly, and none on the true devices is
    better. Its cuts are then dealt to these. Groupings are tried from coarse to fine, as many as the budget allows.
    """
    value, best, bound, left = (
        max(load_of(work, p) for p in parts),
        list(parts),
        0.0,
        EASED_SHARE * budget_s * PAIRS_PER_S,
    )
    met: set[tuple[int, ...]] = set()
    for ends in EASED:
        easy = Work.of(eased(work.problem, ends), work.units)
        if easy.counts in met:
            continue
        met.add(easy.counts)
        left -= math.prod(n + 1 for n in easy.counts) * len(easy.counts) * float(len(states)) ** 2
        if left < 0 or bound >= value * (1 - 1e-9):
            break
        found = exact_chain(easy, states, value * (1 - 1e-9))
        bound = max(bound, found[0] if found else value * (1 - 1e-9))
        order = np.concatenate([np.sort(p.units) for p in found[1]]) if found else None
        for line in (_dealt(work, found[1], by_speed(work)), by_speed(work)) if found else ():
            better = best_cut(work, order, value, line_up(line, len(work.types))) if order is not None else None
            value, best = better or (value, best)
    return value, best, bound


def eased(problem: PlacementProblem, ends: Sequence[float] = ()) -> PlacementProblem:
    """The problem with the devices of a kind in groups, which end at these shares of them: each member the best of them."""
    devices: list[Device] = []
    for kind in sorted({d.kind for d in problem.cluster.devices}):
        row = sorted((d for d in problem.cluster.devices if d.kind == kind), key=lambda d: -d.speed)
        cuts = sorted({0, len(row), *(round(e * len(row)) for e in ends)})
        for group in (row[i:j] for i, j in itertools.pairwise(cuts)):
            speed, room = max(d.speed for d in group), max(d.memory_bytes for d in group)
            devices += [replace(d, speed=speed, memory_bytes=room) for d in group]
    return problem.on(replace(problem.cluster, devices=tuple(devices)))


def _dealt(work: Work, parts: Sequence[Part], line: Sequence[int]) -> list[int]:
    """The line-up that suits these parts: the sum of the loads' POWER-th powers is least, which the largest dominates."""
    rows = [_loads(work, p.units) for p in parts]
    loads = np.stack(rows)[:, np.array(line)]
    cost = np.where(np.isfinite(loads), (loads / (loads[np.isfinite(loads)].max() or 1.0)) ** POWER, len(line) + 1.0)
    chosen = linear_sum_assignment(cost)[1].tolist()
    spare = np.delete(np.array(line), chosen).tolist()
    return [line[k] for k in chosen] + spare


def _loads(work: Work, units: IntArray) -> FloatArray:
    """[types] the load of a device of each type that holds these units; inf where it cannot."""
    pays = int(work.pays.argmax())
    boundary = load_of(work, Part(pays, units)) - float(work.seconds[units, pays].sum()) if work.pays[pays] else 0.0
    able = (float(work.memory_bytes[units].sum()) <= work.room) & ~work.cannot[units].any(axis=0)
    return np.where(able, work.seconds[units].sum(axis=0) + np.where(work.pays, boundary, 0.0), np.inf)


def _swapped(line: Sequence[int], used: int, random: np.random.Generator) -> list[int]:
    """Two devices of different types change places, at least one of them among those used."""
    swapped = list(line)
    a, b = int(random.integers(used)), int(random.integers(len(line)))
    swapped[a], swapped[b] = swapped[b], swapped[a]
    return swapped
