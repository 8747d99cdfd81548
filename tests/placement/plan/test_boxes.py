"""Boxes of downsets: the bound is below every chain of stages, and what is found is a chain."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.plan.boxes import Cover, closed_in
from partita.placement.plan.contiguous_plan import BOXES, plan_contiguous
from partita.placement.plan.cut_pool import CutPool
from partita.placement.plan.replicated import ReplicatedStage, Replication, best_stages
from partita.placement.plan.throughput import Work
from partita.solve.downsets import every_downset

MANY = settings(
    max_examples=400, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def worlds(draw: st.DrawFn) -> PlacementProblem:
    """Up to 9 tasks on up to 5 equal devices; sending that matters, weights, memory sometimes tight."""
    n = draw(st.integers(1, 9))
    amount = st.integers(0, 16).map(lambda k: k / 4)
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=14)) if pairs else []
    tensors = [(f"t{u}", 1.0, [f"t{v}" for w, v in edges if w == u]) for u in sorted({u for u, _ in edges})]
    tasks = [
        Task(f"t{i}", group=draw(st.sampled_from([None] * 5 + ["g"])), parameter_bytes=draw(amount)) for i in range(n)
    ]
    graph = TaskGraph.build("world", tasks, tensors)
    memory = draw(st.sampled_from([math.inf, math.inf, 8.0]))
    cluster = Cluster(
        tuple(Device(f"acc{i}", "acc", memory) for i in range(draw(st.integers(1, 5)))), (), Link("", "", draw(st.sampled_from([1.0, 4.0])))
    )  # fmt: skip
    costs = CostTable.given(("acc",), [[draw(amount)] for _ in range(n)], [draw(amount) for _ in tensors])
    return PlacementProblem(
        graph, cluster, costs, np.array([draw(amount) for _ in range(n)]), "overlap", frozenset({"acc"})
    )


@pytest.mark.slow
@MANY
@given(worlds(), st.sampled_from([None, 1, 2]), st.floats(1.0, 3.0))
def test_the_bound_is_below_every_chain(problem, most, loose):
    """Raw: the value handed in is far above the optimum, and nothing is clamped to it."""
    work = Work.of(dataclasses.replace(problem, memory_bytes=np.zeros(len(problem.graph))))
    replication = Replication.of(work, most)
    best = best_stages(work, replication, every_downset(work.units, 5000), 1e9)
    assert best is not None
    everything = [ReplicatedStage(np.arange(len(work.units)), 1)]
    alone = replication.stage_s(work, everything[0].units, 1, (0.0, 0.0))
    value, stages, bound = closed_in(work, replication, everything, alone * loose, 0.05)
    assert bound <= best[0] * (1 + 1e-9) + 1e-12
    assert value >= best[0] * (1 - 1e-9) - 1e-12
    assert sorted(int(u) for s in stages for u in s.units) == list(range(len(work.units)))


@MANY
@given(worlds(), st.data())
def test_a_box_says_what_its_downsets_do(problem, data):
    work = Work.of(problem)
    replication, n = Replication.of(work), len(work.units)
    value = data.draw(st.floats(0.1, 4.0))
    states = every_downset(work.units, 5000)
    rows = np.unpackbits(states.members.view(np.uint8), axis=1, bitorder="little")[:, :n].astype(bool)
    sent = states.cuts(work.spans)
    cover = Cover.of(work, replication, value, CutPool.of(work, replication, []))
    box = cover.boxes[2]
    for _ in range(data.draw(st.integers(0, 4))):
        free = np.flatnonzero(box.free)
        if not len(free):
            break
        u = data.draw(st.sampled_from(free.tolist()))
        with_u = data.draw(st.booleans())
        inside, outside = (
            (box.inside | cover.down[u], box.outside) if with_u else (box.inside, box.outside | cover.up[u])
        )
        box = cover.box(inside, outside, box)
    cover.boxes[2] = box
    level = data.draw(st.integers(1, replication.most))
    cover._tighten(2, level)
    box = cover.boxes[2]
    mine = (rows >= box.inside).all(axis=1) & ~(rows & box.outside).any(axis=1)
    assert mine.any()
    assert box.sent_s <= sent[mine].min() + 1e-9
    done = rows @ work.seconds[:, 0]
    for k in range(replication.most + 1):
        chosen = mine & (sent <= k * value) if k else mine
        if chosen.any():
            assert box.low[k] <= done[chosen].min() + 1e-9
            assert box.high[k] >= done[chosen].max() - 1e-9


def cells(count: int, branches: int, depth: int, devices: int) -> PlacementProblem:
    """Cells of parallel branches, as NASNet has them: (depth + 1)^branches downsets in each."""
    rng = np.random.default_rng(3)
    tasks, tensors, last = [Task("start", parameter_bytes=1e4)], [], "start"
    for c in range(count):
        readers = [f"c{c}b{b}t0" for b in range(branches)]
        tensors.append((last, 1e6, readers))
        for b in range(branches):
            names = [f"c{c}b{b}t{k}" for k in range(depth)]
            tasks += [Task(x, parameter_bytes=1e4 * (c + 1)) for x in names]
            tensors += [(x, 1e6, [y]) for x, y in zip(names, [*names[1:], f"end{c}"], strict=True)]
        last = f"end{c}"
        tasks.append(Task(last))
    graph = TaskGraph.build("cells", tasks, tensors)
    cluster = Cluster(tuple(Device(f"acc{i}", "acc") for i in range(devices)), (), Link("", "", 1e9))
    seconds = rng.uniform(4e-4, 6e-4, (len(tasks), 1))
    return PlacementProblem(
        graph,
        cluster,
        CostTable.given(("acc",), seconds, graph.size_bytes * 2 / 1e9),
        np.zeros(len(tasks)),
        "overlap",
        frozenset({"acc"}),
    )


@pytest.mark.parametrize("devices", [4, 8])
def test_cells_too_many_to_enumerate_are_closed_in(devices):
    problem = cells(8, 6, 6, devices)
    assert every_downset(Work.of(problem).units, 400_000) is None
    verdict = plan_contiguous(problem, budget_s=30.0).verdict  # it ends when the gap is closed
    share = float(problem.costs.seconds.sum()) / devices
    assert share * (1 - 1e-9) <= verdict.lower_bound_s <= verdict.value_s <= 1.002 * verdict.lower_bound_s


def test_the_clock_does_not_choose_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = cells(8, 6, 6, 8)
    first = plan_contiguous(problem, budget_s=0.5)
    late = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 * next(late))
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0 * next(late))
    again = plan_contiguous(problem, budget_s=0.5)
    assert again.plan == first.plan
    assert again.verdict.lower_bound_s == first.verdict.lower_bound_s
    assert first.verdict.bound == BOXES
