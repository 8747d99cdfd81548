"""Contiguous plans of given graphs: against every plan, by definitions written a second time here."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.plan.planning_worlds import FEW, MANY, pairs_of

from partita.errors import BadInput, Infeasible
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile
from partita.placement.plan.coarse import coarser_states, joined
from partita.placement.plan.contiguous_plan import METHODS, REPLICATED, plan_contiguous
from partita.placement.plan.linear_cut import orders
from partita.placement.plan.refine import refined
from partita.placement.plan.replicated import Replication, best_stages, best_stages_by_lattice
from partita.placement.plan.throughput import Part, Work, fits, load_of
from partita.solve.downsets import every_downset


@st.composite
def problems(
    draw: st.DrawFn, most: int = 6, rule: str = "sum", training: bool = False, tight: bool = False
) -> PlacementProblem:
    """A small problem: accelerators and perhaps a CPU that does not pay; groups; forward and backward where asked."""
    n = draw(st.integers(1, most))
    pairs = draw(pairs_of(n))
    amount = st.integers(0, 24).map(lambda k: k / 8)
    tasks = [
        Task(f"f{i}", group=f"c{i}" if training or draw(st.integers(0, 5)) == 0 else None, parameter_bytes=draw(amount))
        for i in range(n)
    ]
    tensors = [(f"f{u}", draw(amount), [f"f{v}" for a, v in pairs if a == u]) for u in range(n)]
    if not training and n > 2 and draw(st.booleans()):
        tasks[0], tasks[-1] = Task("f0", group="g"), Task(f"f{n - 1}", group="g")
    if training:
        tasks += [Task(f"b{i}", phase="backward", group=f"c{i}") for i in range(n)]
        tensors += [(f"b{v}", draw(amount), [f"b{u}" for u, b in pairs if b == v]) for v in range(n)]
        tensors += [(f"f{i}", draw(amount), [f"b{i}"]) for i in range(n)]
    graph = TaskGraph.build("small", tasks, tensors)
    accelerators, cpus = draw(st.integers(1, 3)), draw(st.integers(0, 1)) if rule == "sum" else 0
    memory = draw(st.floats(2.0, 9.0)) if tight else math.inf
    cluster = Cluster(
        tuple(Device(f"acc{i}", "acc", memory) for i in range(accelerators)) + tuple(Device(f"cpu{i}", "cpu") for i in range(cpus)),
        (),
        Link("", "", draw(st.floats(0.5, 4.0))),
    )  # fmt: skip
    seconds = [[draw(amount) for _ in cluster.kinds] for _ in tasks]
    if cpus and draw(st.booleans()):
        seconds[draw(st.integers(0, len(tasks) - 1))][0] = math.inf
    costs = CostTable.given(cluster.kinds, seconds, [draw(amount) for _ in tensors])
    held = np.array([draw(amount) for _ in tasks])
    return PlacementProblem(graph, cluster, costs, held, rule, frozenset({"acc"}), bandwidth_bytes_per_s=1.0)


def load_by_definition(problem: PlacementProblem, where: dict[str, str], device: str) -> float:
    """Compute, and once per tensor that crosses the device's boundary its cost, where its kind pays."""
    graph, kind = problem.graph, problem.cluster.by_name[device].kind
    mine = [i for i, t in enumerate(graph.tasks) if where[t.id] == device]
    load = sum(problem.costs.seconds[i, problem.costs.column(kind)] for i in mine)
    if kind not in problem.pays:
        return load
    for k, u in enumerate(graph.producer.tolist()):
        ends = [where[graph.tasks[i].id] for i in (u, *graph.readers.row(k).tolist())]
        made, read = ends[0] == device, [e == device for e in ends[1:]]
        if (made and not all(read)) or (not made and any(read)):
            load += problem.transfer_s[k]
    return load


def stages_by_definition(problem: PlacementProblem, most: int):
    """[task -> stage] of every chain: forward edges run forth, backward edges back, groups stay together."""
    graph = problem.graph
    back = [t.phase == "backward" for t in graph.tasks]
    edges = [(u, v) if not back[u] else (v, u) for u, v in graph.edges.tolist() if back[u] == back[v]]
    groups: dict[str, list[int]] = {}
    for i, t in enumerate(graph.tasks):
        groups.setdefault(t.group or f"alone {i}", []).append(i)
    members = list(groups.values())
    for at in itertools.product(range(most), repeat=len(members)):
        stage = [0] * len(graph)
        for k, tasks in zip(at, members, strict=True):
            for i in tasks:
                stage[i] = k
        if all(stage[u] <= stage[v] for u, v in edges):
            yield stage


def feasible(problem: PlacementProblem, where: dict[str, str]) -> bool:
    for d in problem.cluster.devices:
        mine = [i for i, t in enumerate(problem.graph.tasks) if where[t.id] == d.name]
        if sum(problem.memory_bytes[i] for i in mine) > d.memory_bytes:
            return False
        if any(math.isinf(problem.costs.seconds[i, problem.costs.column(d.kind)]) for i in mine):
            return False
    return True


def least_by_definition(problem: PlacementProblem) -> float:
    """The least largest load over all contiguous placements."""
    names = [d.name for d in problem.cluster.devices]
    deals = (
        {t.id: devices[k] for t, k in zip(problem.graph.tasks, stage, strict=True)}
        for stage in stages_by_definition(problem, len(names))
        for devices in dealt(problem.cluster)
    )
    return min(
        (max(load_by_definition(problem, w, d) for d in names) for w in deals if feasible(problem, w)), default=math.inf
    )


def dealt(cluster: Cluster) -> list[tuple[str, ...]]:
    """Orders of the devices that differ in the order of their kinds."""
    names = [d.name for d in cluster.devices]
    return list({tuple(cluster.by_name[d].kind for d in p): p for p in itertools.permutations(names)}.values())


def planned(problem: PlacementProblem, **wish) -> PlanFile | None:
    try:
        return plan_contiguous(problem, **wish)
    except Infeasible:
        return None


@MANY
@given(st.data())
def test_the_plan_is_the_optimum_over_all_chains(data):
    training = data.draw(st.booleans())
    problem = data.draw(problems(3 if training else 5, training=training, tight=data.draw(st.booleans())))
    least = least_by_definition(problem)
    file = planned(problem)
    if file is None:
        assert math.isinf(least)
        return
    plan = file.plan
    assert isinstance(plan, PlacementPlan)
    assert plan.check(problem.graph, problem.cluster) == []
    assert feasible(problem, dict(plan.placement))
    loads = [load_by_definition(problem, dict(plan.placement), d.name) for d in problem.cluster.devices]
    assert file.verdict.value_s == pytest.approx(max(loads), abs=1e-12)
    assert file.verdict.value_s == pytest.approx(least, abs=1e-12)
    assert file.verdict.bound == "exact"


@pytest.mark.parametrize("method", METHODS)
@FEW
@given(data=st.data())
def test_every_method_is_feasible_deterministic_and_its_bound_holds(method, data):
    problem = data.draw(problems(5, tight=data.draw(st.booleans())))
    file = planned(problem, method=method)
    if file is None:
        return
    verdict = file.verdict
    assert feasible(problem, dict(file.plan.placement))
    assert verdict.lower_bound_s <= verdict.value_s
    assert verdict.lower_bound_s <= least_by_definition(problem) * (1 + 1e-9) + 1e-12
    assert Work.of(problem).share_bound_s <= least_by_definition(problem) * (1 + 1e-9) + 1e-12
    assert planned(problem, method=method).plan.placement == file.plan.placement
    alone = planned(problem, method="single")
    assert alone is None or verdict.value_s <= alone.verdict.value_s * (1 + 1e-12)


@MANY
@given(problems(6), st.data())
def test_a_part_pays_what_the_definition_says(problem, data):
    work = Work.of(problem)
    chosen = np.array([u for u in range(len(work.units)) if data.draw(st.booleans())], np.int64)
    inside = {t.id for i, t in enumerate(problem.graph.tasks) if work.units.unit_of[i] in chosen}
    where = {t.id: "acc0" if t.id in inside else "elsewhere" for t in problem.graph.tasks}
    expected = load_by_definition(problem, where, "acc0")
    if math.isfinite(expected):
        assert load_of(work, Part(0, chosen)) == pytest.approx(expected, abs=1e-12)


# ------------------------------------------------------------------------------------------------- stages with replicas


def bottleneck_by_definition(problem: PlacementProblem, stages: list[tuple[set[int], int]]) -> float:
    """PipeDream's stage: max of compute and gradient sums over replicas, and of what the cuts on both sides send."""
    graph, rate = problem.graph, problem.cluster.default_link.rate_bytes_per_s
    at = {i: k for k, (tasks, _) in enumerate(stages) for i in tasks}
    cut = [0.0]
    for k in range(len(stages) - 1):
        cut.append(
            sum(
                problem.transfer_s[x]
                for x, u in enumerate(graph.producer.tolist())
                if at[u] <= k and any(at[v] > k for v in graph.readers.row(x).tolist())
            )
        )
    cut.append(0.0)
    worst = 0.0
    for k, (tasks, m) in enumerate(stages):
        compute = sum(problem.costs.seconds[i, 0] for i in tasks)
        weights = sum(graph.tasks[i].parameter_bytes for i in tasks)
        worst = max(worst, (compute + 4 * (m - 1) * weights / (rate * m)) / m, cut[k] / m, cut[k + 1] / m)
    return worst


def every_replicated(problem: PlacementProblem):
    devices = len(problem.cluster.devices)
    for stage in stages_by_definition(problem, devices):
        used = sorted(set(stage))
        if used != list(range(len(used))):
            continue
        for m in itertools.product(range(1, devices + 1), repeat=len(used)):
            if sum(m) <= devices:
                yield [({i for i, k in enumerate(stage) if k == s}, m[s]) for s in used]


@MANY
@given(problems(5, rule="overlap"))
def test_stages_with_replicas_are_the_optimum_over_all(problem):
    least = min(bottleneck_by_definition(problem, stages) for stages in every_replicated(problem))
    file = plan_contiguous(problem)
    assert isinstance(file.plan, PipelinePlan)
    assert file.plan.check(problem.graph, problem.cluster) == []
    index = problem.graph.index
    stages = [({index[t] for t in s.tasks}, s.replicas) for s in file.plan.stages]
    assert file.verdict.value_s == pytest.approx(bottleneck_by_definition(problem, stages), abs=1e-12)
    assert file.verdict.value_s == pytest.approx(least, abs=1e-12)
    for method in REPLICATED:
        verdict = plan_contiguous(problem, method=method).verdict
        assert verdict.lower_bound_s <= least * (1 + 1e-9) + 1e-12
        assert verdict.value_s >= least * (1 - 1e-9) - 1e-12


@MANY
@given(problems(6, rule="overlap"))
def test_the_lattice_gives_what_the_pairs_give(problem):
    """The two exact programs have nothing in common but their states."""
    work = Work.of(problem)
    replication, states = Replication.of(work), every_downset(work.units, 1000)
    upper = (
        float(
            work.seconds.sum()
            + 4 * replication.weight_bytes.sum() / replication.rate_bytes_per_s
            + work.spans.weight.sum()
        )
        + 1.0
    )
    pairs = best_stages(work, replication, states, upper)
    value, stages, bound = best_stages_by_lattice(work, replication, states, upper, math.inf)
    assert value == pytest.approx(pairs[0], rel=1e-9, abs=1e-12)
    assert bound == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert sorted(int(u) for s in stages for u in s.units) == list(range(len(work.units)))


# ------------------------------------------------------------------------------------------------------ larger graphs


def layered(layers: int, width: int, devices: int, seed: int) -> PlacementProblem:
    rng = np.random.default_rng(seed)
    n = layers * width
    tensors = [
        (
            f"{u}",
            1.0,
            [f"{v}" for v in sorted(set(rng.integers((u // width + 1) * width, (u // width + 2) * width, 3).tolist()))],
        )
        for u in range(n - width)
    ]
    graph = TaskGraph.build("layered", [Task(f"{i}") for i in range(n)], tensors)
    costs = CostTable.given(("acc",), rng.lognormal(0, 1, (n, 1)), rng.lognormal(-3, 1, len(tensors)))
    return PlacementProblem(
        graph,
        Cluster(tuple(Device(f"acc{i}", "acc") for i in range(devices))),
        costs,
        np.ones(n),
        "sum",
        frozenset({"acc"}),
    )


@pytest.mark.parametrize("rule", ["sum", "overlap"])
def test_too_many_downsets_give_a_plan_with_an_honest_bound(rule):
    import dataclasses

    problem = dataclasses.replace(layered(120, 12, 8, 0), rule=rule)
    assert every_downset(Work.of(problem).units, 1000) is None
    began = time.process_time()
    file = plan_contiguous(problem)
    assert time.process_time() - began < 30
    verdict = file.verdict
    assert verdict.bound != "exact"
    assert float(problem.costs.seconds.sum()) / 8 <= verdict.lower_bound_s * (1 + 1e-9)
    assert verdict.lower_bound_s <= verdict.value_s <= 1.5 * verdict.lower_bound_s


def test_coarser_units_are_units_of_the_same_tasks_and_keep_the_order():
    problem = layered(30, 4, 2, 1)
    work = Work.of(problem)
    for wanted in (60, 20, 1):
        coarse = joined(work.units, work.least_s, wanted)
        assert len(coarse) >= wanted
        assert len(coarse.unit_of) == len(problem.graph)
        for u in range(len(coarse)):
            assert all(v > u for v in coarse.after.row(u))
        fine = {tuple(sorted(np.flatnonzero(work.units.unit_of == u))) for u in range(len(work.units))}
        for group in fine:
            assert len({int(coarse.unit_of[i]) for i in group}) == 1
    found = coarser_states(work.units, work.least_s, 3000, 2)
    assert found is None or len(found[1]) <= 3000


@MANY
@given(problems(6, tight=True), st.integers(0, 3))
def test_refining_keeps_a_chain_and_never_worsens_it(problem, seed):
    file = planned(problem, method="linear")
    if file is None:
        return
    work = Work.of(problem)
    where = dict(file.plan.placement)
    order = list(dict.fromkeys(where[problem.graph.tasks[i].id] for i in problem.graph.order.tolist()))
    units = {
        d: sorted({int(work.units.unit_of[i]) for i, t in enumerate(problem.graph.tasks) if where[t.id] == d})
        for d in order
    }
    kinds = [t.kind for t in work.types]
    by_first = sorted(order, key=lambda d: _place(work, units, d))
    parts = [Part(kinds.index(problem.cluster.by_name[d].kind), np.array(units[d], np.int64)) for d in by_first]
    better = refined(work, parts, seed)
    assert all(fits(work, p) for p in better)
    assert max(load_of(work, p) for p in better) <= max(load_of(work, p) for p in parts)
    at = {int(u): k for k, p in enumerate(better) for u in p.units}
    assert sorted(at) == list(range(len(work.units)))
    assert all(at[u] <= at[int(v)] for u in at for v in work.units.after.row(u))


def _place(work: Work, units: dict[str, list[int]], device: str) -> int:
    """The devices before one in the chain: those that it waits for, directly or not."""
    reached, front = {device}, [device]
    while front:
        d = front.pop()
        for other in units:
            if other not in reached and any(int(p) in units[other] for u in units[d] for p in work.units.before.row(u)):
                reached.add(other)
                front.append(other)
    return len(reached)


@FEW
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), pairs_of(n))))
def test_linear_orders_are_topological(world):
    n, pairs = world
    graph = TaskGraph.build("g", [Task(f"{i}") for i in range(n)], [(f"{u}", 1.0, [f"{v}"]) for u, v in pairs])
    units = Work.of(
        PlacementProblem(
            graph, Cluster.uniform(1), CostTable.given(("cpu",), [[1.0]] * n, [1.0] * len(pairs)), np.ones(n)
        )
    ).units
    for order in orders(units):
        place = {int(u): k for k, u in enumerate(order)}
        assert len(place) == len(units)
        assert all(place[u] < place[int(v)] for u in range(len(units)) for v in units.after.row(u))


# ------------------------------------------------------------------------------------------------------------ latency


@FEW
@given(st.data())
def test_latency_is_simulated_and_never_below_its_bound(data):
    problem = data.draw(problems(5, tight=data.draw(st.booleans())))
    file = planned(problem, objective="latency")
    if file is None:
        return
    verdict = file.verdict
    assert verdict.objective == "latency"
    assert feasible(problem, dict(file.plan.placement))
    assert verdict.lower_bound_s <= verdict.value_s
    alone = planned(problem, method="single")
    if alone is not None:
        least = min(
            sum(problem.costs.seconds[:, problem.costs.column(d.kind)])
            for d in problem.cluster.devices
            if feasible(problem, {t.id: d.name for t in problem.graph.tasks})
        )
        assert verdict.value_s <= least * (1 + 1e-9)


# ---------------------------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_planned_is_said():
    problem = layered(3, 2, 2, 0)
    with pytest.raises(BadInput, match=r"unknown method 'magic'.*known: auto, exact"):
        plan_contiguous(problem, method="magic")
    with pytest.raises(BadInput, match="cannot be planned for 'step'"):
        plan_contiguous(problem, "step")


def test_memory_that_no_chain_respects_is_infeasible():
    tasks = [Task(f"{i}") for i in range(3)]
    graph = TaskGraph.build("g", tasks, [("0", 1.0, ["1"]), ("1", 1.0, ["2"])])
    costs = CostTable.given(("acc",), [[1.0]] * 3, [0.0] * 2)
    cluster = Cluster((Device("a", "acc", 4.0), Device("b", "acc", 4.0)))
    with pytest.raises(Infeasible, match="no contiguous placement of 3 tasks") as error:
        plan_contiguous(PlacementProblem(graph, cluster, costs, np.array([2.0, 3.0, 2.0]), "sum", frozenset({"acc"})))
    assert "memory" in error.value.constraint
