"""Free placement for latency: any task on any device, so that one sample is through as early as possible.

The makespan is the simulator's for the program that a placement is lowered to: every device runs its tasks in the graph's
topological order, a tensor is sent once to each device that reads it, a link serves its transfers in order. `_Times` says
the same in one pass over the tasks, some hundred times faster than lowering; the plan's value is the simulator's. (Where a
link is shared fairly, the pass serves it in order, so the search is guided by an estimate.)

Start: the earliest finish for every task in topological order (the second half of HEFT). Then simulated annealing over
single atoms and stretches of the order, on both cores, from the best start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from partita.errors import BadInput
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.plan import PlanFile, Verdict
from partita.nouns.problem import Problem
from partita.placement.plan.anneal import FlagArray
from partita.placement.plan.bounds import work_bound_s
from partita.placement.plan.chunks import line
from partita.placement.plan.load import LoadModel, load_model
from partita.placement.plan.placing import Start, candidates, nothing_fits, plan_file
from partita.simulate.lower import lower
from partita.simulate.simulator import durations, times
from partita.solve.compiled import compiled
from partita.solve.random import between, seeded, uniform

UNITS_PER_S = 1e8  # tasks and tensors looked at in a second, on the machine of anneal.UNITS_PER_S
CLOSED = 1e-9  # a gap, as a share, at which there is nothing left to find
METHODS = ("auto", "annealing", "earliest finish")


class _Times(NamedTuple):
    """All that the makespan of a placement depends on."""

    order: IntArray  #: [tasks] topological
    atom_of: IntArray  #: [tasks]
    incoming_start: IntArray  #: [tasks + 1]
    incoming: IntArray  #: tensors a task reads
    producer: IntArray  #: [tensors]
    seconds: FloatArray  #: [tasks, devices]
    given: FloatArray  #: [tensors] seconds a transfer takes, nan where the link decides
    size: FloatArray  #: [tensors] bytes
    rate: FloatArray  #: [devices, devices]
    latency: FloatArray  #: [devices, devices]
    message: FloatArray  #: [devices, devices] seconds of the receiving device
    queue: IntArray  #: [devices, devices] what transfers wait for
    queues: int


def plan_makespan(
    problem: Problem, *, method: str = "auto", budget_s: float = 10.0, seed: int = 0, start: Start | None = None
) -> PlanFile:
    """A placement of least makespan, with a lower bound: the critical path, or all the work shared out evenly.

    Deterministic as `plan_free` is. Raises as it does.
    """
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r} for latency", hint=f"known: {', '.join(METHODS)}")
    problem.expect_fit()
    model = load_model(problem)
    facts = _facts(problem, model)
    _anneal(facts, np.zeros(model.atoms, np.int64), *_limits(model), line(model, facts.order), 1, 0, 0.1, _FREE.copy())
    began = time.monotonic()
    found = [
        (makespan_s(facts, w), k, w, n)
        for k, (w, n) in enumerate(_starts(problem, model, facts, start))
        if model.fits(w)
    ]
    if not found:
        raise nothing_fits(model)
    value, _, where, name = min(found)[:4]
    bound, how = bound_s(problem, model, facts)
    if method != "earliest finish" and value > bound * (1 + CLOSED):
        where, reached = _annealed(model, facts, where, value, seed, began, budget_s)
        name = "annealing" if reached < value else name
    value = _simulated_s(problem, where[model.atom_of])
    spent = time.monotonic() - began
    verdict = Verdict(value, min(bound, value), how, f"free ({name})", spent, "latency")
    return plan_file(problem, where[model.atom_of], verdict)


_FREE: FlagArray = np.zeros(1, np.uint8)  # never set: only copies of it are handed out


def makespan_s(facts: _Times, where: IntArray) -> float:
    """Seconds from the first start to the last end of one sample; `where` is [atoms]. O(tasks + tensors)."""
    devices = facts.seconds.shape[1]
    return float(_makespan(facts, where, np.zeros((len(facts.producer), devices)), np.zeros(len(facts.order))))


def bound_s(problem: Problem, model: LoadModel, facts: _Times) -> tuple[float, str]:
    """(bound, how it was obtained). Every task at its fastest; transfers are left out: they may all be avoided."""
    fastest = facts.seconds.min(axis=1)
    done = np.zeros(len(fastest))
    graph = problem.graph
    start, items = graph.predecessors.start.tolist(), graph.predecessors.items
    for i in facts.order.tolist():
        before = items[start[i] : start[i + 1]]
        done[i] = fastest[i] + (done[before].max() if len(before) else 0.0)
    path, share = float(done.max()), work_bound_s(model)
    return (path, "critical path") if path >= share else (share, "linear relaxation")


def _simulated_s(problem: Problem, device_of: IntArray) -> float:
    names = [d.name for d in problem.cluster.devices]
    placement = {t.id: names[d] for t, d in zip(problem.graph.tasks, device_of.tolist(), strict=True)}
    program = lower(problem.graph, problem.cluster, PlacementPlan(problem.graph.fingerprint, placement))
    return float(times(program, durations(program, problem.graph, problem.costs, problem.cluster))[1].max())


def _facts(problem: Problem, model: LoadModel) -> _Times:
    graph, cluster = problem.graph, problem.cluster
    n = len(cluster.devices)
    reader = graph.readers.items
    tensor = np.repeat(np.arange(len(graph.producer)), np.diff(graph.readers.start))
    by_reader = np.lexsort((tensor, reader))
    start = np.zeros(len(graph) + 1, np.int64)
    start[1:] = np.cumsum(np.bincount(reader, minlength=len(graph)))
    links = [[cluster.link(a.name, b.name) for b in cluster.devices] for a in cluster.devices]
    queues: dict[str, int] = {}
    return _Times(
        graph.order, model.atom_of, start, tensor[by_reader].astype(np.int64), graph.producer,
        np.stack([problem.costs.seconds[:, problem.costs.column(d.kind)] / d.speed for d in cluster.devices], axis=1),
        problem.costs.transfer_s, graph.size_bytes,
        np.array([[k.rate_bytes_per_s for k in row] for row in links]),
        np.array([[k.latency_s for k in row] for row in links]),
        np.array([[k.message_s for k in row] for row in links]),
        np.array([[queues.setdefault(k.queue, len(queues)) for k in row] for row in links], np.int64).reshape(n, n),
        len(queues),
    )  # fmt: skip


def _limits(model: LoadModel) -> tuple[FloatArray, FloatArray]:
    """[atoms] bytes, [devices] room: what the kernel respects."""
    return model.memory_bytes, np.where(np.isfinite(model.room_bytes), model.room_bytes, 1e300)


def _starts(
    problem: Problem, model: LoadModel, facts: _Times, start: Mapping[str, str] | None
) -> Iterator[tuple[IntArray, str]]:
    yield from candidates(problem, model, start, objective="latency")
    held, room = _limits(model)
    yield _earliest_finish(facts, held, room, model.atoms), "earliest finish"


def _annealed(
    model: LoadModel, facts: _Times, where: IntArray, value: float, seed: int, began: float, budget_s: float
) -> tuple[IntArray, float]:
    """Two rounds of annealing on two threads, the second colder and from the best of the first."""
    stop = np.zeros(1, np.uint8)
    alarm = threading.Timer(max(0.0, began + budget_s - time.monotonic()), stop.fill, [1])
    alarm.daemon = True
    alarm.start()
    held, room = _limits(model)
    by_place = line(model, facts.order)
    try:
        for turn, (share, hot) in enumerate(((0.5, 0.03), (0.3, 0.003))):
            units = int(share * budget_s * UNITS_PER_S)

            def run(
                side: int, base: IntArray = where, turn: int = turn, units: int = units, hot: float = hot
            ) -> IntArray:
                heat, number = hot / (1 + 4 * side), (seed & 0x7FFFFFFF) * 1000 + 2 * turn + side
                return _anneal(facts, base, held, room, by_place, units, number, heat, stop)

            with ThreadPoolExecutor(2) as pool:
                for found in pool.map(run, range(2)):
                    if (reached := makespan_s(facts, found)) < value and model.fits(found):
                        where, value = found, reached
    finally:
        alarm.cancel()
    return where, value


@compiled
def _makespan(f: _Times, where: IntArray, arrived: FloatArray, done: FloatArray) -> float:
    """One pass over the tasks. arrived [tensors, devices] and done [tasks] are scratch, arrived all zero before and after."""
    devices = f.seconds.shape[1]
    free = np.zeros(devices)
    link_free = np.zeros(f.queues)
    last = 0.0
    for i in f.order:
        d = where[f.atom_of[i]]
        at = free[d]
        for j in range(f.incoming_start[i], f.incoming_start[i + 1]):
            k = f.incoming[j]
            u = f.producer[k]
            p = where[f.atom_of[u]]
            if p == d:
                continue
            if arrived[k, d] == 0.0:
                busy = f.size[k] / f.rate[p, d] if np.isnan(f.given[k]) else f.given[k]
                q = f.queue[p, d]
                link_free[q] = max(link_free[q], done[u]) + busy
                at = max(at, link_free[q] + f.latency[p, d]) + f.message[p, d]
                arrived[k, d] = 1.0
        free[d] = at + f.seconds[i, d]
        done[i] = free[d]
        last = max(last, done[i])
    for i in f.order:
        d = where[f.atom_of[i]]
        for j in range(f.incoming_start[i], f.incoming_start[i + 1]):
            arrived[f.incoming[j], d] = 0.0
    return last


@compiled
def _earliest_finish(f: _Times, held: FloatArray, room: FloatArray, atoms: int) -> IntArray:
    """[atoms] every atom where its first task ends first, links taken to be free; memory respected where possible."""
    devices = f.seconds.shape[1]
    where = np.full(atoms, -1, np.int64)
    free = np.zeros(devices)
    left = room.copy()
    done = np.zeros(len(f.order))
    end = np.zeros(devices)
    for i in f.order:
        a = f.atom_of[i]
        best = where[a]
        for d in range(devices):
            at = free[d]
            for j in range(f.incoming_start[i], f.incoming_start[i + 1]):
                k = f.incoming[j]
                u = f.producer[k]
                p = where[f.atom_of[u]]
                came = done[u]
                if p != d:
                    busy = f.size[k] / f.rate[p, d] if np.isnan(f.given[k]) else f.given[k]
                    came += busy + f.latency[p, d] + f.message[p, d]
                at = max(at, came)
            end[d] = at + f.seconds[i, d]
        if best < 0:
            for d in range(devices):
                fits = np.isfinite(end[d]) and held[a] <= left[d]
                if fits and (best < 0 or end[d] < end[best]):
                    best = d
            if best < 0:
                best = int(np.argmin(end))
            where[a] = best
            left[best] -= held[a]
        free[best] = end[best]
        done[i] = end[best]
    return where


@compiled
def _anneal(
    f: _Times,
    base: IntArray,
    held: FloatArray,
    room: FloatArray,
    by_place: IntArray,
    units: int,
    seed: int,
    hot: float,
    stop: FlagArray,
) -> IntArray:
    """The best placement met from `base`: an atom, or a stretch of the atoms in order that are on one device, moves."""
    random = seeded(seed)
    n, devices = len(base), f.seconds.shape[1]
    where, best_where = base.copy(), base.copy()
    runs = np.ones((n, devices), np.bool_)
    for i in range(len(f.order)):
        for d in range(devices):
            runs[f.atom_of[i], d] = runs[f.atom_of[i], d] and np.isfinite(f.seconds[i, d])
    left = room.copy()
    for a in range(n):
        left[where[a]] -= held[a]
    arrived, done = np.zeros((len(f.producer), devices)), np.zeros(len(f.order))
    now = _makespan(f, where, arrived, done)
    best = now
    moved = np.empty(n, np.int64)
    cost = len(f.order) + 2 * len(f.incoming) + 100
    spent = 0
    while spent < units and stop[0] == 0 and devices > 1 and best > 0:
        share = spent / (0.9 * units)
        heat = hot * 1e-3**share if share < 1.0 else 0.0
        first = between(random, 0, n)
        p = where[by_place[first]]
        q = where[by_place[max(0, first - 1)]] if uniform(random) < 0.3 else between(random, 0, devices)
        if q == p:
            q = (p + 1 + between(random, 0, devices - 1)) % devices
        span = 1 if uniform(random) < 0.5 else 1 + int(n ** uniform(random))
        k = 0
        need = 0.0
        allowed = True
        for i in range(first, min(n, first + span)):
            a = by_place[i]
            if where[a] == p:
                moved[k] = a
                k += 1
                need += held[a]
                allowed = allowed and runs[a, q]
        spent += 10 + k
        if not allowed or need > left[q]:
            continue
        for i in range(k):
            where[moved[i]] = q
        then = _makespan(f, where, arrived, done)
        spent += cost
        change = (then - now) / best
        if change <= 0.0 or (heat > 0.0 and uniform(random) < np.exp(-change / heat)):
            now = then
            left[p] += need
            left[q] -= need
            if now < best:
                best = now
                best_where[:] = where
        else:
            for i in range(k):
                where[moved[i]] = p
    return best_where
