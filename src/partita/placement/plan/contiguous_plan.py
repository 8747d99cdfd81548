"""Plan a contiguous placement: stages along the graph, for the largest load or for the makespan of one sample.

    problem -> units -> a few linear orders -> every downset, if there are not too many -> exact
                                            \\-> coarser units -> exact over those, bound from elsewhere

A problem of rule "sum" becomes a placement, each device a stretch of the graph; one of rule "overlap" becomes pipeline
stages with replicas.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from partita.errors import BadInput
from partita.nouns.graph import IntArray
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.plan import PlanFile, Verdict
from partita.nouns.problem import Problem
from partita.placement.plan.coarse import coarser_states
from partita.placement.plan.contiguous import exact_chain
from partita.placement.plan.latency import latency_bound, quickest_chains
from partita.placement.plan.linear_cut import best_cut, best_cut_replicated, orders
from partita.placement.plan.refine import moves, refined
from partita.placement.plan.replicated import ReplicatedStage, Replication, best_stages, best_stages_by_lattice
from partita.placement.plan.throughput import Part, Work, fits, load_of, no_contiguous_plan
from partita.simulate.lower import lower
from partita.simulate.simulator import durations, times
from partita.solve.downsets import StateSequence, every_downset, thinned
from partita.solve.units import Units

MOST_DOWNSETS = 400_000  #: enumerated
MOST_TO_COARSEN = 20_000  #: units; a larger graph is cut along linear orders only
FEW_STATES = 4_000  #: up to so many, pairs of states are looked at
THINNED = 3_000  #: of more states, these give a first value
MOVE_S, UNIT_S = 3e-7, 2e-5  #: what moving a unit and cutting an order again take on a slow core
ROUNDS = 4  #: of moving units and cutting again, where the search cannot be exact
SHARES = "equal shares of the work"


@dataclass(frozen=True, slots=True)
class Found:
    """Stages in pipeline order, and what is known of them."""

    value_s: float
    stages: tuple[tuple[IntArray, int, int], ...]  #: (tasks, device type, replicas)
    bound_s: float
    bound: str
    method: str


Method = Callable[[Problem, float], Found | None]


def plan_contiguous(
    problem: Problem,
    objective: str = "throughput",
    *,
    method: str = "auto",
    budget_s: float = 10.0,
    replicas: bool = True,
) -> PlanFile:
    """The contiguous plan with the least objective, and a lower bound of every such plan's.

    `replicas`: stages may have several devices (rule "overlap" and throughput only). The budget limits how often a chain
    that is not proven optimal is refined; the same inputs and budget give the same plan. Raises
    Infeasible where no chain of stages fits, BadInput for an unknown method or objective.
    """
    began = time.perf_counter()
    if objective not in ("throughput", "latency"):
        raise BadInput(f"a graph cannot be planned for {objective!r}", hint="known: throughput, latency")
    problem.expect_fit()
    if objective == "latency":
        return _latency_plan(problem, began)
    methods = (
        REPLICATED if problem.rule == "overlap" and replicas else METHODS if problem.rule == "sum" else UNREPLICATED
    )
    if method not in methods:
        raise BadInput(f"unknown method {method!r}", hint=f"known: {', '.join(methods)}")
    found = methods[method](problem, budget_s)
    if found is None:
        raise no_contiguous_plan(Work.of(problem))
    bound = min(found.bound_s, found.value_s)
    spent = time.perf_counter() - began
    verdict = Verdict(found.value_s, bound, found.bound, found.method, spent, "throughput")
    plan = _plan(problem, found, pipeline=problem.rule == "overlap" and replicas)
    return PlanFile(plan, verdict, problem)


def _plan(problem: Problem, found: Found, pipeline: bool) -> PipelinePlan | PlacementPlan:
    """What was found, written out."""
    graph = problem.graph
    free = [list(t.names) for t in Work.of(problem).types]
    stages = []
    for tasks, kind, m in found.stages:
        names, free[kind] = tuple(free[kind][:m]), free[kind][m:]
        stages.append(Stage(tuple(graph.tasks[i].id for i in tasks.tolist()), names))
    if pipeline:
        devices = sum(s.replicas for s in stages)
        return PipelinePlan(graph.fingerprint, tuple(stages), devices, devices, "1f1b")
    where = {t: s.devices[0] for s in stages for t in s.tasks}
    return PlacementPlan(graph.fingerprint, {t.id: where[t.id] for t in graph.tasks})


# ---------------------------------------------------------------------------------------------------------------------
# rule "sum"


def exact(problem: Problem, budget_s: float) -> Found | None:
    """The optimum over all chains of downsets where they can be enumerated; else over coarser units, with a bound."""
    work = Work.of(problem)
    start = _linear(work)
    value, parts = (start[0] * (1 + 1e-12), start[1]) if start else (math.inf, [])
    states = every_downset(work.units, MOST_DOWNSETS)
    if states is not None:
        better = exact_chain(work, states, min(value, _all_work(work)))
        best = better[1] if better else parts
        return _found(work, best, None, "exact", "antichain-dp") if best else None
    method = "linear orders"
    if len(work.units) <= MOST_TO_COARSEN:
        coarse = coarser_states(work.units, work.least_s, MOST_DOWNSETS // 4, 2 * len(problem.cluster.devices))
        better = exact_chain(Work.of(problem, coarse[0]), coarse[1], min(value, _all_work(work))) if coarse else None
        if coarse and better:
            parts, method = [_finer(work, coarse[0], p) for p in better[1]], "antichain-dp over coarser units"
    if not parts:
        return None
    moved = _improved(work, parts, budget_s)
    return _found(work, moved, work.share_bound_s, SHARES, method if moved is parts else f"{method}, refined")


def _finer(work: Work, coarse: Units, part: Part) -> Part:
    """A part of coarser units in the work's own."""
    chosen = np.isin(coarse.unit_of, part.units)
    return Part(part.type, np.unique(work.units.unit_of[chosen]))


def _improved(work: Work, parts: list[Part], budget_s: float) -> list[Part]:
    """Units moved between stages, and the order that this makes cut again, in turns."""
    best, value = parts, max(load_of(work, p) for p in parts)
    a_round_s = moves(work) * MOVE_S + len(work.units) * UNIT_S
    for seed in range(max(1, min(ROUNDS, int(budget_s / a_round_s)))):  # counted, not timed: the same plan every time
        moved = refined(work, best, seed)
        again = best_cut(work, np.concatenate([np.sort(p.units) for p in moved]), value)
        moved = again[1] if again else moved
        load = max(load_of(work, p) for p in moved)
        if load < value:
            best, value = moved, load
    return best


def linear(problem: Problem, budget_s: float) -> Found | None:
    """The optimum along a few linear orders."""
    work = Work.of(problem)
    start = _linear(work)
    return _found(work, start[1], work.share_bound_s, SHARES, "linear orders") if start else None


def single(problem: Problem, budget_s: float) -> Found | None:
    """One device."""
    work = Work.of(problem)
    everything = np.arange(len(work.units), dtype=np.int64)
    parts = [p for t in range(len(work.types)) if fits(work, p := Part(t, everything))]
    best = min(parts, key=lambda p: load_of(work, p), default=None)
    return _found(work, [best], work.share_bound_s, SHARES, "single") if best else None


def _linear(work: Work) -> tuple[float, list[Part]] | None:
    """The best cut of a few orders; one device is among them."""
    best: tuple[float, list[Part]] | None = None
    for order in orders(work.units):
        found = best_cut(work, order, best[0] if best else math.inf)
        best = found or best
    return best


def _all_work(work: Work) -> float:
    """Above every load: all work on the slowest type, and every span torn."""
    return 2.0 * float(work.seconds.max(axis=1).sum() + work.spans.weight.sum()) + 1e-300


def _found(work: Work, parts: list[Part], bound_s: float | None, bound: str, method: str) -> Found:
    value = max(load_of(work, p) for p in parts)
    stages = tuple((_tasks(work, p.units), p.type, 1) for p in parts)
    return Found(value, stages, value if bound_s is None else bound_s, bound, method)


def _tasks(work: Work, units: IntArray) -> IntArray:
    """The tasks of units, in topological order."""
    chosen = np.zeros(len(work.units), np.bool_)
    chosen[units] = True
    order = work.problem.graph.order
    return order[chosen[work.units.unit_of[order]]]


# ---------------------------------------------------------------------------------------------------------------------
# rule "overlap": stages with replicas


def exact_replicated(problem: Problem, budget_s: float, most: int | None = None) -> Found | None:
    """The least bottleneck over all chains of downsets and replicas; over coarser units where they are too many."""
    work = Work.of(problem)
    replication = Replication.of(work, most)
    start = _linear_replicated(work, replication)
    share = float(work.least_s.sum()) / len(problem.cluster.devices)
    upper = start[0] * (1 + 1e-12) if start else _all_work(work)
    states = every_downset(work.units, MOST_DOWNSETS)
    if states is not None:
        better, bound, done = _over_states(work, replication, states, upper, budget_s)
        stages = better or (start[1] if start else [])
        if not stages:
            return None
        how, at_least = ("exact", None) if done else ("no chain of downsets is below it", max(bound, share))
        return _found_replicated(work, stages, at_least, how, "antichain-dp")
    if len(work.units) <= MOST_TO_COARSEN:
        coarse = coarser_states(work.units, work.least_s, MOST_DOWNSETS // 4, 2 * len(problem.cluster.devices))
        if coarse is not None:
            coarse_work = Work.of(problem, coarse[0])
            better, _, _ = _over_states(coarse_work, Replication.of(coarse_work, most), coarse[1], upper, budget_s)
            if better:
                return _found_replicated(coarse_work, better, share, SHARES, "antichain-dp over coarser units")
    return _found_replicated(work, start[1], share, SHARES, "linear orders") if start else None


def _over_states(
    work: Work, replication: Replication, states: StateSequence, upper: float, budget_s: float
) -> tuple[list[ReplicatedStage] | None, float, bool]:
    """(stages below `upper` if there are any, bound, whether it came to its end)."""
    roomy = float(work.memory_bytes.sum()) <= work.room[0] and not work.cannot.any()
    if len(states) <= FEW_STATES or not roomy:
        found = best_stages(work, replication, states, upper)
        return (found[1] if found else None), math.inf, True
    few = thinned(states, states.totals(work.least_s)[:, 0], states.cuts(work.spans), THINNED)
    first = best_stages(work, replication, few, upper)
    value, stages, bound = best_stages_by_lattice(
        work, replication, states, first[0] if first else upper, time.monotonic() + budget_s
    )
    return stages or (first[1] if first else None), bound, bound >= value * (1 - 1e-9)


def linear_replicated(problem: Problem, budget_s: float) -> Found | None:
    """The least bottleneck along a few linear orders."""
    work = Work.of(problem)
    start = _linear_replicated(work, Replication.of(work))
    share = float(work.least_s.sum()) / len(problem.cluster.devices)
    return _found_replicated(work, start[1], share, SHARES, "linear orders") if start else None


def _linear_replicated(work: Work, replication: Replication) -> tuple[float, list[ReplicatedStage]] | None:
    """The best cut of a few orders; one stage with all devices is among them."""
    best: tuple[float, list[ReplicatedStage]] | None = None
    for order in orders(work.units):
        best = best_cut_replicated(work, replication, order, best[0] if best else _all_work(work)) or best
    return best


def _found_replicated(
    work: Work, stages: list[ReplicatedStage], bound_s: float | None, bound: str, method: str
) -> Found:
    replication, torn = Replication.of(work), _torn(work, stages)
    value = max(replication.stage_s(work, s.units, s.replicas, (torn[k], torn[k + 1])) for k, s in enumerate(stages))
    rows = tuple((_tasks(work, s.units), 0, s.replicas) for s in stages)
    return Found(value, rows, value if bound_s is None else bound_s, bound, method)


def _torn(work: Work, stages: list[ReplicatedStage]) -> list[float]:
    """[stages + 1] seconds of what every cut sends, by definition."""
    at = np.zeros(len(work.units), np.int64)
    for k, s in enumerate(stages):
        at[s.units] = k
    spans = work.spans
    first = np.minimum.reduceat(at[spans.units.items], spans.units.start[:-1]) if len(spans.weight) else np.zeros(0)
    last = np.maximum.reduceat(at[spans.units.items], spans.units.start[:-1]) if len(spans.weight) else np.zeros(0)
    return [float(spans.weight[(first < k) & (last >= k)].sum()) for k in range(len(stages) + 1)]


# ---------------------------------------------------------------------------------------------------------------------
# latency


def _latency_plan(problem: Problem, began: float) -> PlanFile:
    """The quickest of a few chains by simulation."""
    work = Work.of(problem)
    best, value = None, math.inf
    for name, parts in quickest_chains(work):
        found = Found(math.nan, tuple((_tasks(work, p.units), p.type, 1) for p in parts), 0.0, "", name)
        program = lower(problem.graph, problem.cluster, _plan(problem, found, pipeline=False))
        seconds = float(times(program, durations(program, problem.graph, problem.costs, problem.cluster))[1].max())
        if seconds < value * (1 - 1e-9):  # of equals the first, with fewer devices
            best, value = found, seconds
    if best is None:
        raise no_contiguous_plan(work)
    bound, how = latency_bound(work)
    verdict = Verdict(value, min(bound, value), how, best.method, time.perf_counter() - began, "latency")
    return PlanFile(_plan(problem, best, pipeline=False), verdict, problem)


METHODS: Mapping[str, Method] = MappingProxyType({"auto": exact, "exact": exact, "linear": linear, "single": single})
REPLICATED: Mapping[str, Method] = MappingProxyType(
    {"auto": exact_replicated, "exact": exact_replicated, "linear": linear_replicated}
)
UNREPLICATED: Mapping[str, Method] = MappingProxyType({"auto": lambda problem, end: exact_replicated(problem, end, 1)})
