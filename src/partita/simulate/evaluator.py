"""Evaluator: how long plans of one problem take, thousands a second, for whoever searches among them.

    evaluator = Evaluator(problem)
    evaluator.estimate(plan)              what simulating the lowered plan gives, with its interval
    evaluator.placed_s(where, order)      a placement as arrays, without the detour over names

Pipelines of one shape (which devices serve which stages, what crosses, schedule, micro-batches) share a compiled program
(`template`); placements are evaluated in one pass without any (`makespan`), or simulated where links are shared.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable, Estimate
from partita.nouns.graph import BoolArray, FloatArray, IntArray, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import GraphPlan
from partita.simulate.boundaries import device_numbers, gradient_sums
from partita.simulate.cold_caches import cold_s
from partita.simulate.lower import lower
from partita.simulate.lower_placement import task_order
from partita.simulate.makespan import Facts, Scratch, facts_of, makespan, scratch
from partita.simulate.overheads import begin_s, call_s, update_s
from partita.simulate.predicted import predicted
from partita.simulate.readings import (
    Crossings,
    Readings,
    brought,
    carried,
    crossings,
    forward_readings,
    messages,
)
from partita.simulate.simulator import durations
from partita.simulate.template import Key, Template

PARTS = ("forward", "backward", "input", "weight", "update")  #: of what a stage computes


class Evaluator:
    """Keeps what evaluations of one problem have in common; grows with the shapes of pipelines that it meets.

    Plans are believed to be sound (`Plan.check`); what a mistaken one gives is not defined.

    >>> from partita.nouns.graph import Task
    >>> graph = TaskGraph.build("two", [Task("a"), Task("b")], [("a", 2.0, ["b"])])
    >>> costs = CostTable.given(("cpu",), [[1.0], [3.0]], [np.nan])
    >>> problem = PlacementProblem(graph, Cluster.uniform(2, rate_bytes_per_s=4.0), costs, np.zeros(2))
    >>> evaluator = Evaluator(problem)
    >>> evaluator.estimate(PlacementPlan(graph.fingerprint, {"a": "cpu0", "b": "cpu1"})).seconds
    4.5
    >>> evaluator.placed_s(np.array([0, 1]), graph.order)
    4.5
    """

    def __init__(self, problem: PipelineProblem | PlacementProblem) -> None:
        costs = problem.costs
        certain = bool(((costs.low == costs.high) | np.isinf(costs.seconds)).all())
        tables = [costs.seconds] if certain else [costs.seconds, costs.low, costs.high]
        self._each = [_evaluates(replace(problem, costs=replace(costs, seconds=t))) for t in tables]

    def estimate(self, plan: GraphPlan) -> Estimate:
        """Seconds of a training step, or of one sample through a placement; infinite where a task cannot run.

        `low` and `high` are with every task at its low and high: but for what waits cost, a makespan never falls where a duration
        grows. Raises
        PlanError for a plan of another graph or of another kind than the problem asks for.
        """
        seconds = [e.seconds(plan) for e in self._each]
        return Estimate(seconds[0], min(seconds), max(seconds), "predicted")

    def placed_s(self, where: IntArray, order: IntArray) -> float:
        """Seconds of a placement: task i on device where[i], the tasks in a topological order. Raises PlanError for the
        problem of a pipeline. O(tasks + readers)."""
        first = self._each[0]
        if not isinstance(first, _Placements):
            raise PlanError("a placement is asked of a pipeline's problem", hint="give a PlacementProblem")
        return first.placed_s(where, order)


def _evaluates(problem: PipelineProblem | PlacementProblem) -> _Placements | _Pipelines:
    if isinstance(problem, PlacementProblem):
        return _Placements(problem)
    return _Pipelines(problem)


def _expect(plan: GraphPlan, kind: str, graph: TaskGraph) -> None:
    if plan.kind != kind or plan.graph != graph.fingerprint:
        raise PlanError(
            f"a {plan.kind} plan for graph {plan.graph}; the problem asks for a {kind} of graph {graph.fingerprint}",
            hint="evaluate it with the problem that it answers",
        )


@dataclass(frozen=True, eq=False)
class _Placements:
    problem: PlacementProblem

    @cached_property
    def _facts(self) -> Facts:
        facts = facts_of(self.problem, "latency")
        return facts._replace(atom_of=np.arange(len(facts.topological)))  # a plan may part the tasks of an atom

    @cached_property
    def _scratch(self) -> Scratch:
        return scratch(self._facts)

    @cached_property
    def _shared(self) -> bool:
        """Transfers between different devices wait for each other, or share a rate."""
        links = [*self.problem.cluster.links, self.problem.cluster.default_link]
        return any(k.fair or k.medium for k in links)

    def seconds(self, plan: GraphPlan) -> float:
        graph = self.problem.graph
        _expect(plan, "placement", graph)
        assert isinstance(plan, PlacementPlan)
        number = {d.name: i for i, d in enumerate(self.problem.cluster.devices)}
        where = np.array([number[plan.placement[t.id]] for t in graph.tasks], np.int64)
        return self.placed_s(where, np.array(task_order(graph, plan), np.int64))

    def placed_s(self, where: IntArray, order: IntArray) -> float:
        if not self._shared:
            return float(makespan(self._facts, where, order, self._scratch))
        if np.isinf(self._facts.seconds[np.arange(len(where)), self._facts.class_of[where]]).any():
            return math.inf
        graph, devices = self.problem.graph, self.problem.cluster.devices
        orders: dict[str, list[str]] = {}
        for i in order.tolist():
            orders.setdefault(devices[where[i]].name, []).append(graph.tasks[i].id)
        placement = {graph.tasks[i].id: devices[d].name for i, d in enumerate(where.tolist())}
        plan = PlacementPlan(graph.fingerprint, placement, {d: tuple(ts) for d, ts in orders.items()})
        return predicted(self.problem, plan).duration_s


@dataclass(frozen=True, eq=False)
class _Pipelines:
    problem: PipelineProblem
    templates: dict[Hashable, Template] = field(default_factory=dict)

    @property
    def graph(self) -> TaskGraph:
        return self.problem.graph

    @property
    def cluster(self) -> Cluster:
        return self.problem.cluster

    @property
    def costs(self) -> CostTable:
        return self.problem.costs

    @cached_property
    def _forward_of(self) -> IntArray:
        """[tasks] the forward task that a task belongs to, or itself."""
        return np.array(
            [i if t.of is None else self.graph.index[t.of] for i, t in enumerate(self.graph.tasks)], np.int64
        )

    @cached_property
    def _readings(self) -> Readings:
        return forward_readings(self.graph)

    @cached_property
    def _parts_s(self) -> FloatArray:
        """[parts, kinds, tasks] seconds that a task adds to a part of its stage."""
        seconds, share = self.costs.seconds.T, self.costs.shares_of_weights.T
        phase = np.array([t.phase for t in self.graph.tasks])
        backward = np.where(phase == "backward", seconds, 0.0)
        weight = np.multiply(backward, share, out=backward.copy(), where=np.isfinite(backward))
        rest = np.subtract(backward, weight, out=backward.copy(), where=np.isfinite(backward))
        rest += self.costs.partings_s.T * (phase == "backward")
        forward = np.where((phase == "forward") | (phase == "stage"), seconds, 0.0)
        return np.stack([forward, backward, rest, weight, np.where(phase == "update", seconds, 0.0)])

    @cached_property
    def _trains(self) -> IntArray:
        """[tasks] 1 for a backward."""
        return np.array([t.phase == "backward" for t in self.graph.tasks], np.int64)

    def seconds(self, plan: GraphPlan) -> float:
        _expect(plan, "pipeline", self.graph)
        assert isinstance(plan, PipelinePlan)
        at = np.array([plan.stage_of.get(t.id, -1) for t in self.graph.tasks], np.int64)[self._forward_of]
        crossing = self._crossings(at)
        by = brought(crossing, device_numbers([s.devices for s in plan.stages]))
        moves = dict(self._moves(plan, carried(crossing, by)))
        trains = np.bincount(at + 1, self._trains, len(plan.stages) + 1)[1:] > 0
        computes = dict(self._computes(plan, at, trains))
        shape = self._shape(plan, tuple(moves), trains, _rides(crossing, by))
        template = self.templates.get(shape)
        if template is None:
            template = self.templates[shape] = self._template(plan, [*computes, *moves])
        return template.makespan_s(np.array([*computes.values(), *moves.values(), (0.0, 0.0)]))

    def _shape(self, plan: PipelinePlan, moves: tuple[Key, ...], trains: BoolArray, rides: Hashable) -> Hashable:
        """All that the order of a plan's instructions depends on. Where all links are alike, names of devices do not matter."""
        rank: dict[str, object] = {d: (r, d) if self.cluster.links else r for r, d in enumerate(plan.devices)}
        stages = tuple((tuple(rank[d] for d in s.devices), s.shares, s.recompute) for s in plan.stages)
        orders = tuple((rank[d], slots) for d, slots in plan.orders.items())
        return stages, plan.micro_batches, plan.in_flight, plan.schedule, orders, moves, trains.tobytes(), rides

    def _template(self, plan: PipelinePlan, keys: list[Key]) -> Template:
        program = lower(self.graph, self.cluster, plan, clips=self.problem.clips)
        able = np.where(np.isfinite(self.costs.seconds), self.costs.seconds, 0.0)  # what computing takes is left open
        known = durations(program, self.graph, replace(self.costs, seconds=able, low=able, high=able), self.cluster)
        return Template.of(program, known, self.cluster, keys)

    def _computes(
        self, plan: PipelinePlan, at: IntArray, trains: BoolArray
    ) -> Iterator[tuple[Key, tuple[float, float]]]:
        """What every device computes of its stages, by part; updates of all its stages together, and what begins a step."""
        stages = len(plan.stages)
        total = np.array([[np.bincount(at + 1, row, stages + 1)[1:] for row in part] for part in self._parts_s])
        again = np.array([s.recompute for s in plan.stages]) & trains
        total[1:3, :, again] += total[0, :, again].T
        cluster = self.problem.cluster_of(plan)
        for r, name in enumerate(plan.devices):
            device = cluster.by_name[name]
            own, call = total[:, self.costs.column(device.kind)] / device.speed, call_s(device, stages)
            for k in plan.stages_of(name):
                for part, seconds in zip(PARTS[:-1], own[:-1, k].tolist(), strict=True):
                    yield (part, k, r), (seconds + call, 0.0)
            update = float(own[-1, list(plan.stages_of(name))].sum())
            yield ("update", -1, r), (update + update_s(device), 0.0)
            yield ("begin", -1, r), (begin_s(device), 0.0)
            yield ("cold", -1, r), (cold_s(device), 0.0)

    def _moves(self, plan: PipelinePlan, sent: Crossings) -> Iterator[tuple[Key, tuple[float, float]]]:
        """Messages from stage to stage, and sums of gradients."""
        for (i, j), amount in messages(sent, self.costs.transfer_s, self.graph.size_bytes).items():
            yield ("send", i, j), amount
        if self._trains.any() and (self.graph.shared or any(s.replicas > 1 for s in plan.stages)):
            for s in gradient_sums(self.graph, plan):
                yield (s.name, -1, -1), (0.0, s.size_bytes)

    def _crossings(self, at: IntArray) -> Crossings:
        read = self._readings
        return crossings(read.tensor, at[read.producer], at[read.reader], read.back)


def _rides(crossing: Crossings, by: IntArray) -> Hashable:
    """Of messages to a device that several of its stages read: which ones, and which of them return gradients with it."""
    keys = crossing.source * (int(by.max(initial=0)) + 1) + by
    at = np.flatnonzero(np.isin(keys, keys[by != crossing.target]))
    columns = (crossing.source[at], crossing.target[at], by[at], crossing.back[at])
    return frozenset(zip(*(c.tolist() for c in columns), strict=True))
