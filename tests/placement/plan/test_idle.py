"""Idle units: joining them to others changes no optimum, and leaves few downsets."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.plan.contiguous import exact_chain
from partita.placement.plan.contiguous_plan import plan_contiguous
from partita.placement.plan.idle import without_idle
from partita.placement.plan.replicated import Replication, best_stages
from partita.placement.plan.throughput import Work
from partita.solve.downsets import every_downset

SOME = settings(
    max_examples=300, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def idle_problems(draw: st.DrawFn, rule: str) -> PlacementProblem:
    """Up to 8 tasks, most of them idle; groups, tight memory, two types of device, transfers of all sizes."""
    n = draw(st.integers(1, 8))
    amount = st.integers(0, 8).map(float)
    idle = [draw(st.integers(0, 2)) > 0 for _ in range(n)]
    tasks = [
        Task(
            f"t{i}",
            group=draw(st.sampled_from([None, None, None, "g"])),
            parameter_bytes=0.0 if idle[i] else draw(amount),
        )
        for i in range(n)
    ]
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    tensors = [(f"t{u}", draw(amount), [f"t{v}" for w, v in edges if w == u]) for u in sorted({u for u, _ in edges})]
    graph = TaskGraph.build("idle", tasks, tensors)
    memory = draw(st.sampled_from([math.inf, 12.0, 6.0]))
    devices = [Device(f"acc{i}", "acc", memory) for i in range(draw(st.integers(1, 3)))]
    devices += [Device("cpu0", "cpu")] if rule == "sum" and draw(st.booleans()) else []
    seconds = [[0.0, 0.0] if idle[i] else [draw(amount), 2 * draw(amount)] for i in range(n)]
    held = np.array([draw(st.sampled_from([0.0, 0.0, 1.0, 2.0])) for _ in range(n)])
    return PlacementProblem(
        graph, Cluster(tuple(devices), (), Link("", "", 2.0)), CostTable.given(("acc", "cpu"), seconds, [draw(amount) for _ in tensors]),
        held, rule, frozenset({"acc"}),
    )  # fmt: skip


@SOME
@given(idle_problems("sum"))
def test_joining_keeps_the_optimum_of_placements(problem):
    work = Work.of(problem)
    joined = without_idle(work)
    everything = 4 * float(work.seconds.sum() + work.spans.weight.sum()) + 1.0
    values = [exact_chain(w, every_downset(w.units, 1000), everything) for w in (work, joined)]
    assert (values[0] is None) == (values[1] is None)
    if values[0] and values[1]:
        assert values[1][0] == pytest.approx(values[0][0], rel=1e-9, abs=1e-12)


@SOME
@given(idle_problems("overlap"))
def test_joining_keeps_the_optimum_of_stages_with_replicas(problem):
    work = Work.of(problem)
    joined = without_idle(work)
    everything = 1e6
    values = [best_stages(w, Replication.of(w), every_downset(w.units, 1000), everything) for w in (work, joined)]
    assert (values[0] is None) == (values[1] is None)
    if values[0] and values[1]:
        assert values[1][0] == pytest.approx(values[0][0], rel=1e-9, abs=1e-12)


def layers_with_dangling_outputs(layers: int) -> PlacementProblem:
    """A chain of layers like an LSTM's: each has an entry nobody reads, and all read a constant: 2^layers downsets."""
    tasks, tensors = [Task("constant")], []
    for k in range(layers):
        tasks += [Task(f"lstm{k}", parameter_bytes=1e6), Task(f"out{k}"), Task(f"state{k}"), Task(f"hidden{k}")]
        tensors.append((f"lstm{k}", 1e6, [f"out{k}", f"state{k}"]))
        tensors.append((f"hidden{k}", 0.0, [f"lstm{k}"]))
        if k + 1 < layers:
            tensors.append((f"out{k}", 9e5, [f"lstm{k + 1}"]))
    tensors.append(("constant", 0.0, [f"hidden{k}" for k in range(layers)]))
    graph = TaskGraph.build("lstm", tasks, tensors)
    seconds = [[3e-3 + 1e-4 * (i % 7) if t.id.startswith("lstm") else 0.0] for i, t in enumerate(graph.tasks)]
    held = np.array([1e6 if t.id.startswith("state") else 0.0 for t in graph.tasks])
    transfer = graph.size_bytes * 2 / 1e9
    return PlacementProblem(
        graph, Cluster(tuple(Device(f"acc{i}", "acc", 1e9) for i in range(8)), (), Link("", "", 1e9)),
        CostTable.given(("acc",), seconds, transfer), held, "overlap", frozenset({"acc"}),
    )  # fmt: skip


@pytest.mark.parametrize("rule", ["sum", "overlap"])
def test_dangling_outputs_do_not_hide_the_optimum(rule):
    problem = dataclasses.replace(layers_with_dangling_outputs(40), rule=rule)
    assert every_downset(Work.of(problem).units, 400_000) is None
    assert len(every_downset(without_idle(Work.of(problem)).units, 1000)) <= 100
    verdict = plan_contiguous(problem).verdict
    assert verdict.bound == "exact"
    assert verdict.lower_bound_s == verdict.value_s
