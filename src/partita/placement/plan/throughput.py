"""What a planner for throughput works on: a placement problem in units, device types and spans."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from partita.errors import Infeasible
from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.nouns.placement_problem import PlacementProblem
from partita.solve.device_types import DeviceType, device_types
from partita.solve.downsets import Spans, spans
from partita.solve.units import Units, contract

Int8Array = npt.NDArray[np.int8]
Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Work:
    """A problem as arrays over units and device types."""

    problem: PlacementProblem
    units: Units
    types: tuple[DeviceType, ...]
    seconds: FloatArray  #: [units, types]; 0 where a unit cannot run
    cannot: FloatArray  #: [units, types] tasks that cannot run there
    memory_bytes: FloatArray  #: [units]
    spans: Spans  #: weights in seconds of crossing

    @staticmethod
    def of(problem: PlacementProblem, units: Units | None = None) -> Work:
        """The arrays of a problem, over its own units or over given ones. O((tasks + readers) log tasks)."""
        units = contract(problem.graph) if units is None else units
        types, costs = device_types(problem.cluster), problem.costs
        times = np.stack([costs.seconds[:, costs.column(t.kind)] / t.speed for t in types], axis=1)
        never = np.isinf(times)
        times = np.where(never, 0.0, times)
        return Work(
            problem,
            units,
            types,
            np.stack([units.total(c) for c in times.T], axis=1),
            np.stack([units.total(c.astype(np.float64)) for c in never.T], axis=1),
            units.total(problem.memory_bytes),
            spans(problem.graph, units, problem.transfer_s),
        )

    @cached_property
    def least_s(self) -> FloatArray:
        """[units] seconds on the type that is fastest for it."""
        possible = np.where(self.cannot > 0, math.inf, self.seconds).min(axis=1)
        return np.where(np.isinf(possible), 0.0, possible)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(t.names) for t in self.types)

    @property
    def pays(self) -> BoolArray:
        """[types] whether what crosses its boundary is part of its load."""
        return np.array([t.kind in self.problem.pays for t in self.types], np.bool_)

    @property
    def room(self) -> FloatArray:
        """[types] bytes of memory."""
        return np.array([t.memory_bytes for t in self.types])

    @property
    def overlap(self) -> bool:
        """Whether sending hides behind computing."""
        return self.problem.rule == "overlap"

    def absorbs(self, time_s: float) -> FloatArray:
        """[types] the most work, in seconds on the fastest type, that one device of a type can do in this time.

        A fractional knapsack: the units that the type does best first."""
        out = np.zeros(len(self.types))
        for t, (spent, done) in enumerate(self._knapsacks):
            k = int(np.searchsorted(spent, time_s, side="right"))
            before = (float(spent[k - 1]), float(done[k - 1])) if k else (0.0, 0.0)
            out[t] = before[1]
            if k < len(spent):
                share = min(1.0, (time_s - before[0]) / (float(spent[k]) - before[0]))
                out[t] += share * (float(done[k]) - before[1])
        return out

    @cached_property
    def _knapsacks(self) -> list[tuple[FloatArray, FloatArray]]:
        """[types] (time spent, work done) after each unit that a type can run, those it does best first."""
        found = []
        for t in range(len(self.types)):
            able = (self.cannot[:, t] == 0) & (self.least_s > 0)
            own, gain = self.seconds[able, t], self.least_s[able]
            with np.errstate(over="ignore"):
                order = np.argsort(own / gain, kind="stable")
            found.append((np.cumsum(own[order]), np.cumsum(gain[order])))
        return found

    @cached_property
    def share_bound_s(self) -> float:
        """No contiguous placement has a smaller largest load: the work must fit into what all devices can do in that time,
        and the longest unit somewhere."""
        total, counts = float(self.least_s.sum()), np.array(self.counts)
        low, high = 0.0, total
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if float(self.absorbs(middle) @ counts) >= total else (middle, high)
        return max(low, float(self.least_s.max()))


@dataclass(frozen=True, eq=False)
class Vectors:
    """How many devices of each type are used: 0 .. n-1, the empty one first, each after those it contains."""

    used: IntArray  #: [vectors, types]
    after: IntArray  #: [vectors, types] the vector with one more of a type; -1: there is none


def vectors(counts: Sequence[int]) -> Vectors:
    """All vectors up to `counts`.

    >>> vectors((1, 1)).after.tolist()
    [[2, 1], [3, -1], [-1, 3], [-1, -1]]
    """
    used = np.array(sorted(itertools.product(*(range(n + 1) for n in counts)), key=lambda v: (sum(v), v)), np.int64)
    place = {tuple(v): k for k, v in enumerate(used.tolist())}
    after = np.array(
        [[place.get((*v[:t], v[t] + 1, *v[t + 1 :]), -1) for t in range(len(counts))] for v in used.tolist()], np.int64
    )
    return Vectors(used, after)


@dataclass(frozen=True, slots=True)
class Part:
    """The units of one device, in pipeline order."""

    type: int
    units: IntArray


def load_of(work: Work, part: Part) -> float:
    """Seconds of compute and, where its type pays, of every span it holds some but not all of; by definition.

    Where sending hides behind computing, what comes in (made by a unit before the part) and goes out count apart.
    """
    load = float(work.seconds[part.units, part.type].sum())
    if not work.pays[part.type]:
        return load
    of_unit = work.spans.of_unit
    touched = np.concatenate([of_unit.row(int(u)) for u in part.units] or [np.zeros(0, np.int64)])
    found, times = np.unique(touched, return_counts=True)
    torn = found[times < np.diff(work.spans.units.start)[found]]
    own = np.isin(work.spans.units.items[work.spans.units.start[torn]], part.units)
    outward, inward = float(work.spans.weight[torn[own]].sum()), float(work.spans.weight[torn[~own]].sum())
    return max(load, inward, outward) if work.overlap else load + inward + outward


def fits(work: Work, part: Part) -> bool:
    """Whether a device of its type runs and holds the part."""
    held = float(work.memory_bytes[part.units].sum())
    return held <= work.room[part.type] and not work.cannot[part.units, part.type].any()


def no_contiguous_plan(work: Work) -> Infeasible:
    """The error for a problem without a feasible chain."""
    problem = work.problem
    held, room = float(work.memory_bytes.sum()), max(t.memory_bytes for t in work.types)
    return Infeasible(
        f"no contiguous placement of {len(problem.graph)} tasks ({held:.4g} bytes) on {len(problem.cluster.devices)} devices fits "
        f"into their memory (the largest has {room:.4g} bytes)",
        constraint="memory",
        relaxation="more memory or devices, or --placement free",
    )
