"""The contract of a placement planner: what every planner's tests inherit.

A planner is tested by a class of a few lines:

    class TestMine(PlacementContract):
        def plan(self, problem: PlacementProblem) -> PlanFile:
            return my_planner(problem)

It must return feasible plans of the value it claims, the same plan for the same problem, no plan above one device alone,
bounds that hold against every placement there is, and, where `optimal` is set, the best of them. Loads are counted here by
definition, with dictionaries and loops, without any of the planners' code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.errors import Infeasible
from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile
from partita.simulate.lower import lower
from partita.simulate.simulator import durations, times

SOME = settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
SECONDS = st.one_of(st.just(0.0), st.floats(0.01, 3.0), st.sampled_from([1.0, 2.0]))


Order = Mapping[str, tuple[str, ...]]


def largest_load(problem: PlacementProblem, placement: Mapping[str, str]) -> float:
    """The largest load in seconds, by the problem's rule."""
    compute = {d.name: 0.0 for d in problem.cluster.devices}
    coming, going = dict(compute), dict(compute)
    device = problem.cluster.by_name
    for i, t in enumerate(problem.graph.tasks):
        d = device[placement[t.id]]
        compute[d.name] += problem.costs.seconds[i, problem.costs.column(d.kind)] / d.speed
    for k, u in enumerate(problem.graph.producer.tolist()):
        home = placement[problem.graph.tasks[u].id]
        others = {placement[problem.graph.tasks[v].id] for v in problem.graph.readers.row(k).tolist()} - {home}
        if others:
            going[home] += float(problem.transfer_s[k])
        for other in others:
            coming[other] += float(problem.transfer_s[k])
    loads = []
    for name in compute:
        pays = device[name].kind in problem.pays
        inward, outward = (coming[name], going[name]) if pays else (0.0, 0.0)
        both = compute[name] + inward + outward
        loads.append(both if problem.rule == "sum" else max(compute[name], inward, outward))
    return max(loads)


def makespan(problem: PlacementProblem, placement: Mapping[str, str], order: Order | None = None) -> float:
    """One sample's makespan in seconds, by the simulator."""
    plan = PlacementPlan(problem.graph.fingerprint, placement, order or {})
    program = lower(problem.graph, problem.cluster, plan)
    return float(times(program, durations(program, problem.graph, problem.costs, problem.cluster))[1].max())


def faults(problem: PlacementProblem, placement: Mapping[str, str]) -> list[str]:
    """Why a placement is not feasible; empty when it is."""
    plan = PlacementPlan(problem.graph.fingerprint, placement)
    found = plan.check(problem.graph, problem.cluster)
    if found:
        return found
    held = {d.name: 0.0 for d in problem.cluster.devices}
    for i, t in enumerate(problem.graph.tasks):
        d = problem.cluster.by_name[placement[t.id]]
        held[d.name] += float(problem.memory_bytes[i])
        if math.isinf(problem.costs.seconds[i, problem.costs.column(d.kind)]):
            found.append(f"{t.id} cannot run on {d.name}")
        if t.of is not None and placement[t.of] != d.name:
            found.append(f"{t.id} is not with {t.of}")
    return found + [
        f"{d.name} holds {held[d.name]} of {d.memory_bytes} bytes"
        for d in problem.cluster.devices
        if held[d.name] > d.memory_bytes
    ]


def placements(problem: PlacementProblem) -> Iterator[dict[str, str]]:
    """Every feasible placement. devices^tasks of them are looked at."""
    ids = [t.id for t in problem.graph.tasks]
    for devices in itertools.product([d.name for d in problem.cluster.devices], repeat=len(ids)):
        placement = dict(zip(ids, devices, strict=True))
        if not faults(problem, placement):
            yield placement


@st.composite
def problems(
    draw: st.DrawFn, most_tasks: int = 6, most_devices: int = 3, rules: tuple[str, ...] = ("sum",)
) -> PlacementProblem:
    """A small random problem: a directed graph with branches, groups, two kinds of device, memory; maybe infeasible."""
    n, m = draw(st.integers(1, most_tasks)), draw(st.integers(1, most_devices))
    tasks = [
        Task(f"t{i}", phase="forward", group=draw(st.sampled_from([None, None, None, "red", "blue"]))) for i in range(n)
    ]
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    tensors = [(f"t{u}", 1.0, [f"t{v}" for w, v in edges if w == u]) for u in sorted({u for u, _ in edges})]
    graph = TaskGraph.build("small", tasks, tensors)
    memory = draw(st.sampled_from([math.inf, 8.0, 4.0]))
    slow = draw(st.sampled_from([0, 1]))
    devices = [Device(f"acc{i}", "acc", memory, speed=draw(st.sampled_from([1.0, 1.0, 2.0]))) for i in range(m - slow)]
    devices += [Device("cpu0", "cpu")] if slow or not devices else []
    seconds = [[math.inf if draw(st.integers(0, 9)) == 0 else draw(SECONDS), draw(SECONDS) * 3] for _ in range(n)]
    transfer = [draw(SECONDS) for _ in tensors]
    return PlacementProblem(
        graph,
        Cluster(tuple(devices)),
        CostTable.given(("acc", "cpu"), seconds, transfer),
        np.array([float(draw(st.integers(0, 3))) for _ in range(n)]),
        rule=draw(st.sampled_from(rules)),
        pays=frozenset({"acc"}),
    )


class PlacementContract:
    """Inherit, and say how to plan."""

    optimal: ClassVar[bool] = False  #: whether it finds the best placement of every small problem
    tolerance: ClassVar[float] = 1e-5  #: and up to which share

    def plan(self, problem: PlacementProblem) -> PlanFile:
        """The planner. Raises Infeasible."""
        raise NotImplementedError

    def value_s(self, problem: PlacementProblem, placement: Mapping[str, str], order: Order | None = None) -> float:
        """The objective, by definition; devices run their tasks in `order`, or as the graph has them."""
        return largest_load(problem, placement)

    def allowed(self, problem: PlacementProblem, placement: Mapping[str, str]) -> bool:
        """Whether a feasible placement belongs to the family the planner searches."""
        return True

    def best_s(self, problem: PlacementProblem) -> float:
        """The least objective over all allowed placements; inf where there are none."""
        every = (p for p in placements(problem) if self.allowed(problem, p))
        return min((self.value_s(problem, p) for p in every), default=math.inf)

    def hold(self, problem: PlacementProblem) -> None:
        """Every promise, on one problem."""
        best = self.best_s(problem)
        try:
            file = self.plan(problem)
        except Infeasible:
            assert best == math.inf or not self.optimal, f"there is a placement of {best} s"
            return
        assert isinstance(file.plan, PlacementPlan)
        placement, verdict = file.plan.placement, file.verdict
        assert faults(problem, placement) == []
        assert math.isclose(
            verdict.value_s, self.value_s(problem, placement, file.plan.order), rel_tol=1e-9, abs_tol=1e-15
        )
        assert verdict.lower_bound_s <= best * (1 + 1e-9) + 1e-15, "the bound is above a placement"
        assert verdict.lower_bound_s <= verdict.value_s * (1 + 1e-12)
        for name in (d.name for d in problem.cluster.devices):
            alone = dict.fromkeys(placement, name)
            if not faults(problem, alone) and self.allowed(problem, alone):
                assert verdict.value_s <= self.value_s(problem, alone) * (1 + 1e-9) + 1e-15, "one device is better"
        if self.optimal:
            assert verdict.value_s <= best * (1 + self.tolerance) + 1e-15
        again = self.plan(problem).plan
        assert isinstance(again, PlacementPlan)
        assert dict(again.placement) == dict(placement), "not deterministic"

    @SOME
    @given(problem=problems())
    def test_keeps_the_contract(self, problem: PlacementProblem) -> None:
        self.hold(problem)
