"""Rounds: two searches side by side, which then share what they found; and the searches for a free placement.

A job is a function that brings back a placement, a bound, or both. What it does depends on what was known when its round
began and on its seed, never on how far the other thread has come: that keeps the portfolio deterministic.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from partita.nouns.graph import IntArray
from partita.nouns.plan import checked_bound
from partita.placement.plan import exact, set_prices
from partita.placement.plan.alarm import THREADS, FlagArray, alarm, processor_limit_s
from partita.placement.plan.anneal import UNITS_PER_S, anneal
from partita.placement.plan.bounds import pigeonhole_bound_s
from partita.placement.plan.load import LoadModel
from partita.placement.plan.min_cut import Network, anchors, merge, network
from partita.placement.plan.set_prices import CELLS_PER_S, SetPrices
from partita.solve import constraint_solver

CLOSED = 1e-9  # a gap, as a share, at which there is nothing left to find
PROVEN = 1e-5  # the same where the constraint program says so, which counts in whole numbers
MERGED = 1 - 1e-7  # atoms are merged that share a device in every placement below this share of the value
HARD = 5.0  # wall-clock seconds a processor second at which CP-SAT is cut off, should its own count not end it
LARGEST_PROGRAM = 40_000  # variables; a larger constraint program has not got going within a minute
LARGEST_PART = 150  # atoms re-optimised at a time
ARCS_PER_S = 1e8  # of minimum cuts: 0.1e8 (tiny graphs) to 2.7e8, measured together with UNITS_PER_S
PROGRAM_UNITS_PER_S = 0.6  # deterministic time of CP-SAT in a second, cautiously: 0.4 to 1.1 were seen
PART_UNITS = 0.005  # what setting up a part costs, in the same units


@dataclass(frozen=True, eq=False)
class Finding:
    """What a job brings back: a placement, a bound, or both."""

    where: IntArray | None  #: [atoms]
    method: str
    bound_s: float = 0.0
    closes: bool = False  #: nothing better exists: the other thread need not go on, and its result is not looked at


Job = Callable[[], Finding]


@dataclass
class Search:
    """The best placement and the best bound so far, and what the jobs share."""

    model: LoadModel
    seed: int
    budget_s: float
    began: float = field(default_factory=time.monotonic)
    began_processor_s: float = field(default_factory=time.process_time)
    stop: FlagArray = field(default_factory=lambda: np.zeros(1, np.uint8))
    best: IntArray | None = None  #: [atoms]
    value_s: float = np.inf
    method: str = ""
    bound_s: float = 0.0
    bound: str = "none"
    proven: bool = False  #: nothing better exists, up to a share of PROVEN
    networks: dict[int, Network] = field(default_factory=dict)
    prices: SetPrices | None = None
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def left_s(self) -> float:
        """Processor seconds until the search is ended."""
        return self.began_processor_s + processor_limit_s(self.budget_s) - time.process_time()

    @property
    def closed(self) -> bool:
        """Whether there is nothing left to find."""
        return self.proven or self.value_s <= self.bound_s * (1 + CLOSED)

    @property
    def base(self) -> IntArray:
        """[atoms] where to search from."""
        return self.best if self.best is not None else roomy(self.model)

    def offer(self, where: IntArray, method: str) -> None:
        """Keep a placement that is feasible and better."""
        value = self.model.value(where)
        if value < self.value_s:
            self.best, self.value_s, self.method = where, value, method

    def raise_bound(self, bound_s: float, name: str) -> None:
        """Keep a bound that is better. Raises InternalError for one above a known value."""
        bound_s = checked_bound(self.value_s, bound_s)
        if bound_s > self.bound_s:
            self.bound_s, self.bound = bound_s, name

    def round(self, one: Sequence[Job], other: Sequence[Job] = ()) -> None:
        """Run two lists of jobs side by side, then take what they found, in a fixed order."""
        self.stop[0] = 0
        with alarm(self.left_s, self.stop), ThreadPoolExecutor(THREADS) as pool:
            futures = [pool.submit(_run, jobs, self.stop) for jobs in (one, other)]
            found = [f.result() for f in futures]
        closing = [f for fs in found for f in fs if f.closes]
        self.proven = self.proven or bool(closing)
        for f in closing or [f for fs in found for f in fs]:
            if f.where is not None:
                self.offer(f.where, f.method)
            self.raise_bound(f.bound_s, f.method)
        self.raise_bound(pigeonhole_bound_s(self.model, self.value_s), "pigeonhole")


def _run(jobs: Sequence[Job], stop: FlagArray) -> list[Finding]:
    found: list[Finding] = []
    for job in jobs:
        if stop[0] and found:
            break
        found.append(job())
        if found[-1].closes:
            stop[0] = 1
    return found


def roomy(model: LoadModel) -> IntArray:
    """[atoms] a start where memory is scarce: the largest atoms first, each where most room is left."""
    left = model.room_bytes.copy()
    where = np.zeros(model.atoms, np.int64)
    for a in np.argsort(-model.memory_bytes, kind="stable").tolist():
        runs = np.isfinite(model.work_s[a, model.class_of])
        d = int(np.where(runs, left, -np.inf).argmax())
        where[a] = d
        left[d] -= model.memory_bytes[a]
    return where


def annealed(search: Search, where: IntArray, share: float, hot: float = 0.1) -> Job:
    """A job: annealing for a share of the budget."""
    units, seed = share * search.budget_s * UNITS_PER_S, search.seed * 1000 + next(search.numbers)
    return lambda: Finding(anneal(search.model, where, units=units, seed=seed, hot=hot, stop=search.stop), "annealing")


def anchored(search: Search, share: float) -> Job:
    """A job: the anchor bound, then annealing from the set of atoms that shows it."""
    model, rest = search.model, search.base
    if model.rule != "sum" or not model.class_pays.any():
        return annealed(search, rest, share)
    search.networks = {c: network(model, c) for c in range(model.work_s.shape[1]) if model.class_pays[c]}
    units, seed = share * search.budget_s * UNITS_PER_S, search.seed * 1000 + next(search.numbers)

    def job() -> Finding:
        found = anchors(model, search.networks, most_arcs=share * search.budget_s * ARCS_PER_S)
        device = int(np.flatnonzero(model.class_of == min(search.networks))[0])
        spare = int(rest[found.seed].max()) if found.seed.any() else 0
        where = np.where(found.seed, device, np.where(rest == device, spare, rest))
        if not np.isfinite(model.work_s[np.arange(model.atoms), model.class_of[where]]).all():
            where = rest
        return Finding(anneal(model, where, units=units, seed=seed, stop=search.stop), "minimum cut", found.bound_s)

    return job


def fitted(search: Search, share: float) -> Job:
    """A job: the constraint program finds any placement that fits, where no other search met one."""
    model, seed, units = search.model, search.seed, share * search.budget_s * PROGRAM_UNITS_PER_S
    most = float(np.where(np.isfinite(model.work_s), model.work_s, 0.0).max(axis=1).sum() + model.cost_s.sum())

    def job() -> Finding:
        limit = HARD * search.left_s
        out = exact.improve(
            model,
            roomy(model),
            range(model.devices),
            limit_units=units,
            limit_s=limit,
            seed=seed,
            known_s=2 * most or 1.0,
        )
        return Finding(out.where, "constraint program")

    return job


def provable(search: Search) -> bool:
    """Whether the whole can be written as a constraint program that has a chance."""
    known = search.best is not None and search.value_s > 0 and search.model.devices > 1
    return known and constraint_solver.available() and exact.size(search.model) <= LARGEST_PROGRAM


def proven(search: Search, share: float) -> Job:
    """A job: find better than the best known, or prove that there is none."""
    model, best, value = search.model, search.base, search.value_s
    units = share * search.budget_s * PROGRAM_UNITS_PER_S
    label = np.arange(model.atoms)
    if search.networks:
        arcs = search.networks[min(search.networks)].spent[0] + 0.02 * search.budget_s * ARCS_PER_S
        label = merge(model, search.networks, value * MERGED, most_arcs=float(arcs))
    small = model.merged(label)
    where = np.zeros(small.atoms, np.int64)
    where[label] = best

    def job() -> Finding:
        out = exact.improve(
            small,
            where,
            range(model.devices),
            limit_units=units,
            limit_s=HARD * search.left_s,
            seed=search.seed,
            known_s=value,
        )
        found = None if out.where is None else out.where[label]
        now = value if found is None else model.value(found)
        bound = min(out.bound_s, value * MERGED)  # what is merged need not be in placements between that and the value
        return Finding(found, "constraint program", bound, bound >= now * (1 - PROVEN))

    return job


def narrow(search: Search) -> bool:
    """Whether the graph is narrow enough for prices, and there is a gap left for them to close."""
    if search.best is None or search.value_s <= search.bound_s * (1 + set_prices.WIDE):
        return False
    if search.prices is None:
        search.prices = SetPrices.of(search.model, search.value_s)
    return search.prices is not None


def priced(search: Search, share: float) -> Job:
    """A job: the bound of priced sets."""
    prices, bound, value = search.prices, search.bound_s, search.value_s
    assert prices is not None
    most = share * search.budget_s * CELLS_PER_S
    return lambda: Finding(None, "priced sets", prices.raised(bound, value, most, search.stop))


def filled(search: Search, share: float) -> Job:
    """A job: placements of the sets that are worth most by the prices known, then annealing from the best of them."""
    prices, best, bound, value = search.prices, search.base, search.bound_s, search.value_s
    assert prices is not None
    price, seed = prices.price, search.seed * 1000 + next(search.numbers)
    cells, units = 0.7 * share * search.budget_s * CELLS_PER_S, 0.3 * share * search.budget_s * UNITS_PER_S

    def job() -> Finding:
        where = prices.filled(best, price, bound, value, cells, seed, search.stop)
        return Finding(anneal(search.model, where, units=units, seed=seed, hot=1e-2, stop=search.stop), "priced sets")

    return job


def parts(search: Search, share: float) -> Job:
    """A job: re-optimise the fullest device together with one to three others, again and again."""
    model, best = search.model, search.base
    seed = search.seed * 1000 + next(search.numbers)
    total = share * search.budget_s * PROGRAM_UNITS_PER_S

    def job() -> Finding:
        random = np.random.default_rng(seed)
        where, spent = best, 0.0
        while spent < total and not search.stop[0]:
            top = int(model.loads(where).argmax())
            others = np.delete(np.arange(model.devices), top)
            chosen = [top, *random.choice(others, min(len(others), int(random.integers(1, 4))), replace=False).tolist()]
            atoms = _near(model, where, chosen, random)
            limit = min(0.2, total - spent)
            out = exact.improve(model, where, chosen, atoms, limit_units=limit, limit_s=HARD * search.left_s, seed=seed)
            where = where if out.where is None else out.where
            spent += out.units + PART_UNITS
        return Finding(where, "parts")

    return job


def _near(model: LoadModel, where: IntArray, devices: Sequence[int], random: np.random.Generator) -> IntArray:
    """Up to LARGEST_PART atoms on some devices: a few of the first device's and what hangs together with them."""
    here = np.isin(where, devices)
    if here.sum() <= LARGEST_PART:
        return np.flatnonzero(here)
    own = np.flatnonzero(where == devices[0])
    queue = random.permutation(own)[: LARGEST_PART // 10].tolist()
    chosen = dict.fromkeys(queue)
    for a in queue:
        for e in model.nets_of.row(a).tolist():
            for b in model.nets.row(e).tolist():
                if len(chosen) >= LARGEST_PART:
                    return np.array(list(chosen), np.int64)
                if here[b] and b not in chosen:
                    chosen[b] = None
                    queue.append(b)
    return np.array(list(chosen), np.int64)
