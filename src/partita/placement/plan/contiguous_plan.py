"""Plan a contiguous placement: stages along the graph, for the largest load or for the makespan of one sample.

    problem -> units -> a few linear orders -> every downset, if there are not too many -> exact
                                            \\-> coarser units -> exact over those, bound from elsewhere

A problem of rule "sum" becomes a placement, each device a stretch of the graph; one of rule "overlap" becomes pipeline
stages with replicas, or a placement where replicas are not wanted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import numpy as np

from partita.errors import BadInput
from partita.nouns.graph import IntArray
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile, Verdict, checked_bound
from partita.placement.plan.boxes import closed_in
from partita.placement.plan.coarse import coarser_states
from partita.placement.plan.contiguous import exact_chain
from partita.placement.plan.device_limit import MOST_REPLICATING, expect_at_most, useful
from partita.placement.plan.device_line import best_line_up, eased, eased_line_ups, too_many_types
from partita.placement.plan.from_arrays import device_numbers, placement_plan, simulated_s
from partita.placement.plan.idle import without_idle
from partita.placement.plan.latency import latency_bound, quickest_chains
from partita.placement.plan.linear_cut import best_cut, best_cut_replicated, orders
from partita.placement.plan.load import load_model
from partita.placement.plan.min_cut import anchors, network
from partita.placement.plan.portfolio import ARCS_PER_S
from partita.placement.plan.refine import moves, refined
from partita.placement.plan.replicated import (
    UNITS_PER_S,
    ReplicatedStage,
    Replication,
    best_stages,
    best_stages_by_lattice,
)
from partita.placement.plan.throughput import Part, Work, fits, load_of, no_contiguous_plan
from partita.placement.plan.unequal_links import contiguous_over_unequal_links
from partita.placement.plan.whole import listed
from partita.simulate.makespan import facts_of
from partita.solve.downsets import StateSequence, every_downset, thinned
from partita.solve.units import Units

MOST_DOWNSETS = 400_000  #: enumerated
MOST_TO_COARSEN = 20_000  #: units; a larger graph is cut along linear orders only
FEW_STATES = 4_000  #: up to so many, pairs of states are looked at
THINNED = 3_000  #: of more states, these give a first value
MOVE_S, UNIT_S = 3e-7, 2e-5  #: what moving a unit and cutting an order again take on a slow core
ROUNDS = 4  #: of moving units and cutting again, where the search cannot be exact
CUT_SHARE = 0.2  #: of the budget for minimum cuts
ROUGH_SHARE, CLOSING_SHARE = 0.3, 0.6  #: of the budget: for chains over coarser units, and for boxes
BOXES = "no chain of downsets is below it"
EASED = "best of few kinds of devices, none slower"
SHARES = "equal shares of the work"


@dataclass(frozen=True, slots=True)
class Found:
    """Stages in pipeline order, and what is known of them."""

    value_s: float
    stages: tuple[tuple[IntArray, int, int], ...]  #: (tasks, device type, replicas)
    bound_s: float
    bound: str
    method: str
    line: tuple[str, ...] | None = None  #: devices in the order in which stages take them; None: by type


Method = Callable[[PlacementProblem, float], Found | None]


def plan_contiguous(
    problem: PlacementProblem,
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
    if problem.rule == "overlap" and replicas and objective == "throughput":
        expect_at_most(problem, MOST_REPLICATING, "stages with replicas", "--no-replicas")
    elif (fewer := useful(problem)) is not problem:
        file = plan_contiguous(fewer, objective, method=method, budget_s=budget_s, replicas=replicas)
        return replace(file, problem=problem)
    if objective == "latency":
        return _latency_plan(problem, budget_s, began)
    if problem.links_differ:
        alike = partial(plan_contiguous, objective=objective, method=method, budget_s=budget_s / 2, replicas=replicas)
        return contiguous_over_unequal_links(problem, alike)
    return _throughput_plan(problem, method, budget_s, replicas, began)


def _throughput_plan(problem: PlacementProblem, method: str, budget_s: float, replicas: bool, began: float) -> PlanFile:
    """The plan of least largest load over links of one rate."""
    stages = problem.rule == "overlap" and replicas
    methods = REPLICATED if stages else METHODS
    if method not in methods:
        raise BadInput(f"unknown method {method!r}", hint=f"known: {', '.join(methods)}")
    found = methods[method](problem, budget_s)
    if found is None:
        raise no_contiguous_plan(Work.of(problem))
    plan, value, bound, how = _plan(problem, found, pipeline=stages), found.value_s, found.bound_s, found.bound
    if not stages and problem.rule == "overlap" and any(t.phase == "backward" for t in problem.graph.tasks):
        # chains take what comes in from before and goes out behind, which gradients do not
        value, bound, how = _largest_load(problem, plan), Work.of(problem).share_bound_s, SHARES
    spent = time.perf_counter() - began
    verdict = Verdict(value, checked_bound(value, bound), how, found.method, spent, "throughput")
    return PlanFile(plan, verdict, problem)


def _largest_load(problem: PlacementProblem, plan: PipelinePlan | PlacementPlan) -> float:
    return float(problem.loads(device_numbers(problem, plan)).max())


def _plan(problem: PlacementProblem, found: Found, pipeline: bool) -> PipelinePlan | PlacementPlan:
    """What was found, written out."""
    graph = problem.graph
    free = [list(found.line)] if found.line else [list(t.names) for t in Work.of(problem).types]
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
# one device a stage


def exact(problem: PlacementProblem, budget_s: float) -> Found | None:
    """The optimum over all chains of downsets where they can be enumerated; else over coarser units, with a bound."""
    work = without_idle(Work.of(problem))
    start = _linear(work, budget_s)
    value, parts = (start[0] * (1 + 1e-12), start[1]) if start else (math.inf, [])
    states = every_downset(work.units, MOST_DOWNSETS)
    if too_many_types(work):
        return _over_line_ups(work, start[1], states, budget_s) if start else None
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
    return _found(work, moved, *_at_least(work, budget_s), method if moved is parts else f"{method}, refined")


def _over_line_ups(work: Work, parts: list[Part], states: StateSequence | None, budget_s: float) -> Found:
    """Better parts than these for devices in a line, and a bound."""
    moved, at_least, how = refined(work, parts), *_at_least(work, budget_s)
    if states is not None:
        _, moved, alike = eased_line_ups(work, moved, states, budget_s)
        at_least, how = (alike, EASED) if alike > at_least else (at_least, how)
    return _found(work, moved, at_least, how, "device line-ups")


def _at_least(work: Work, budget_s: float) -> tuple[float, str]:
    """A bound on the largest load of any placement, and how it is obtained: shares of the work, or minimum cuts (which
    know the rule "sum" only)."""
    if work.overlap:
        return work.share_bound_s, SHARES
    share, model = work.share_bound_s, load_model(work.problem)
    unit_of = np.zeros(model.atoms, np.int64)
    unit_of[model.atom_of] = work.units.unit_of
    model = model.merged(unit_of).eased()
    networks = {c: network(model, c) for c in np.flatnonzero(model.class_pays).tolist()}
    cut = anchors(model, networks, most_arcs=CUT_SHARE * budget_s * ARCS_PER_S).bound_s if networks else 0.0
    return (cut, "minimum cut") if cut > share else (share, SHARES)


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


def linear(problem: PlacementProblem, budget_s: float) -> Found | None:
    """The optimum along a few linear orders."""
    work = Work.of(problem)
    start = _linear(work, budget_s)
    return _found(work, start[1], work.share_bound_s, SHARES, "linear orders") if start else None


def single(problem: PlacementProblem, budget_s: float) -> Found | None:
    """One device."""
    work = Work.of(problem)
    everything = np.arange(len(work.units), dtype=np.int64)
    parts = [p for t in range(len(work.types)) if fits(work, p := Part(t, everything))]
    best = min(parts, key=lambda p: load_of(work, p), default=None)
    return _found(work, [best], work.share_bound_s, SHARES, "single") if best else None


def _linear(work: Work, budget_s: float) -> tuple[float, list[Part]] | None:
    """The best cut of a few orders; one device is among them."""
    if too_many_types(work):
        return best_line_up(work, budget_s)
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


def exact_replicated(problem: PlacementProblem, budget_s: float) -> Found | None:
    """The least bottleneck over all chains of downsets and replicas; over coarser units where they are too many."""
    work = without_idle(Work.of(problem))
    replication = Replication.of(work)
    if not replication.equal:
        return _over_unlike(work, budget_s)
    start = _linear_replicated(work, replication)
    share = float(work.least_s.sum()) / len(problem.cluster.devices)
    upper = start[0] * (1 + 1e-12) if start else _all_work(work)
    states = every_downset(work.units, MOST_DOWNSETS)
    if states is not None:
        better, bound, done = _over_states(work, replication, states, upper, budget_s)
        stages = better or (start[1] if start else [])
        if not stages:
            return None
        how, at_least = ("exact", None) if done else (BOXES, max(bound, share))
        return _found_replicated(work, replication, stages, at_least, how, "antichain-dp")
    stages, method = (start[1] if start else []), "linear orders"
    coarse = (
        coarser_states(work.units, work.least_s, MOST_DOWNSETS // 4, 2 * len(problem.cluster.devices))
        if len(work.units) <= MOST_TO_COARSEN
        else None
    )
    if coarse is not None:
        coarse_work = Work.of(problem, coarse[0])
        better, _, _ = _over_states(coarse_work, Replication.of(coarse_work), coarse[1], upper, ROUGH_SHARE * budget_s)
        if better:
            stages = [_finer_stage(work, coarse[0], s) for s in better]
            method = "antichain-dp over coarser units"
    if not stages:
        return None
    rough = _found_replicated(work, replication, stages, share, SHARES, method)
    value, best, bound = closed_in(work, replication, stages, rough.value_s, CLOSING_SHARE * budget_s)
    if value >= rough.value_s:
        best = stages
    else:
        method = f"{method}, then cuts that send little"
    how = BOXES if bound > share else SHARES
    return _found_replicated(work, replication, best, bound, how, method)


def _over_unlike(work: Work, budget_s: float) -> Found | None:
    """The best along linear orders, and the bound of devices that are all as fast and as large as the best of them."""
    found, alike = _lined_up(work), exact_replicated(eased(work.problem), budget_s)
    if found is None or alike is None or alike.bound_s <= found.bound_s:
        return found
    return replace(found, bound_s=alike.bound_s, bound=EASED)


def _finer_stage(work: Work, coarse: Units, stage: ReplicatedStage) -> ReplicatedStage:
    """A stage of coarser units in the work's own."""
    return ReplicatedStage(_finer(work, coarse, Part(0, stage.units)).units, stage.replicas)


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
        work, replication, states, first[0] if first else upper, budget_s * UNITS_PER_S
    )
    return stages or (first[1] if first else None), bound, bound >= value * (1 - 1e-9)


def linear_replicated(problem: PlacementProblem, budget_s: float) -> Found | None:
    """The least bottleneck along a few linear orders."""
    return _lined_up(Work.of(problem))


def _lined_up(work: Work) -> Found | None:
    """The best along linear orders with the devices in a line: the fastest first, or the slowest."""
    best: Found | None = None
    for slowest_first in (False, True) if len(work.types) > 1 else (False,):
        replication = Replication.of(work, None, slowest_first)
        share = float(work.seconds[:, 0].sum()) / replication.seconds_a_second
        start = _linear_replicated(work, replication)
        if start and (best is None or start[0] < best.value_s):
            best = _found_replicated(work, replication, start[1], share, SHARES, "linear orders")
    return best


def _linear_replicated(work: Work, replication: Replication) -> tuple[float, list[ReplicatedStage]] | None:
    """The best cut of a few orders; one stage with all devices is among them."""
    best: tuple[float, list[ReplicatedStage]] | None = None
    for order in orders(work.units):
        best = best_cut_replicated(work, replication, order, best[0] if best else _all_work(work)) or best
    return best


def _found_replicated(
    work: Work, replication: Replication, stages: list[ReplicatedStage], bound_s: float | None, bound: str, method: str
) -> Found:
    torn, first = _torn(work, stages), np.cumsum([0, *(s.replicas for s in stages)]).tolist()
    value = max(
        replication.stage_s(work, s.units, s.replicas, (torn[k], torn[k + 1]), first[k]) for k, s in enumerate(stages)
    )
    rows = tuple((_tasks(work, s.units), 0, s.replicas) for s in stages)
    return Found(value, rows, value if bound_s is None else bound_s, bound, method, replication.line)


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


def _latency_plan(problem: PlacementProblem, budget_s: float, began: float) -> PlanFile:
    """The quickest of a few chains and orders by simulation."""
    work, model = Work.of(problem), load_model(problem)
    facts, value = facts_of(problem, "latency"), math.inf
    best: tuple[str, IntArray, IntArray] | None = None
    for found in _chains(work, budget_s):
        device_of = device_numbers(problem, _plan(problem, found, pipeline=False))
        where = np.zeros(model.atoms, np.int64)
        where[model.atom_of] = device_of
        for order in (problem.graph.order, listed(facts, where)):
            seconds = simulated_s(problem, placement_plan(problem, device_of, order))
            if seconds < value * (1 - 1e-9):  # of equals the first, with fewer devices
                best, value = (found.method, device_of, order), seconds
    if best is None:
        raise no_contiguous_plan(work)
    name, device_of, order = best
    bound, how = latency_bound(problem, model)
    verdict = Verdict(value, checked_bound(value, bound), how, name, time.perf_counter() - began, "latency")
    return PlanFile(placement_plan(problem, device_of, order), verdict, problem)


def _chains(work: Work, budget_s: float) -> Iterator[Found]:
    """Chains worth a simulation; where memory leaves none along a few orders, the one of least load among all."""
    none = True
    for name, parts in quickest_chains(work):
        none = False
        yield Found(math.nan, tuple((_tasks(work, p.units), p.type, 1) for p in parts), 0.0, "", name)
    found = exact(work.problem, budget_s) if none else None
    if found is not None:
        yield found


METHODS: Mapping[str, Method] = MappingProxyType({"auto": exact, "exact": exact, "linear": linear, "single": single})
REPLICATED: Mapping[str, Method] = MappingProxyType(
    {"auto": exact_replicated, "exact": exact_replicated, "linear": linear_replicated}
)
