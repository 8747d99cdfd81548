"""Free placement against every placement there is, and against itself."""

from __future__ import annotations

import itertools
import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement.plan.placement_contract import (
    SOME,
    PlacementContract,
    faults,
    largest_load,
    makespan,
    placements,
    problems,
)

from partita.errors import BadInput, Infeasible, MissingDependency, PlanError
from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile
from partita.page.plan_rows import visits
from partita.placement.plan import exact, free
from partita.placement.plan import portfolio as rounds
from partita.placement.plan.anneal import anneal
from partita.placement.plan.bounds import pigeonhole_bound_s, work_bound_s
from partita.placement.plan.contiguous_plan import plan_contiguous
from partita.placement.plan.free import plan_free
from partita.placement.plan.from_arrays import placement_plan, simulated_s
from partita.placement.plan.line_starts import depth_first, starts
from partita.placement.plan.load import load_model
from partita.placement.plan.min_cut import anchors, apart_s, merge, network
from partita.placement.plan.whole import listed, value_of
from partita.simulate.makespan import facts_of
from partita.simulate.segments import segments
from partita.solve import constraint_solver


class TestPortfolio(PlacementContract):
    optimal = True

    def plan(self, problem: PlacementProblem) -> PlanFile:
        return plan_free(problem, budget_s=0.3, seed=1)

    @SOME
    @given(problem=problems(rules=("overlap",)))
    def test_keeps_the_contract_where_sending_hides_behind_computing(self, problem: PlacementProblem) -> None:
        self.hold(problem)


class TestAnnealing(PlacementContract):
    def plan(self, problem: PlacementProblem) -> PlanFile:
        return plan_free(problem, method="annealing", budget_s=0.05)


class TestChunks(PlacementContract):
    def plan(self, problem: PlacementProblem) -> PlanFile:
        return plan_free(problem, method="chunks", budget_s=0.05)


class TestProgram(PlacementContract):
    def plan(self, problem: PlacementProblem) -> PlanFile:
        pytest.importorskip("ortools")
        return plan_free(problem, method="program", budget_s=0.5)


class TestLatency(PlacementContract):
    def plan(self, problem: PlacementProblem) -> PlanFile:
        return plan_free(problem, "latency", budget_s=0.03)

    def value_s(self, problem, placement, order=None) -> float:  # type: ignore[no-untyped-def]
        return makespan(problem, placement, order)


def layered(tasks: int, devices: int, seed: int = 0, memory: float = math.inf) -> PlacementProblem:
    """Layers of random width, each task reading up to three of the layer before; devices acc0 .. and one slow CPU."""
    chance = random.Random(seed)
    before: list[int] = []
    readers: dict[int, list[str]] = {}
    i = 0
    while i < tasks:
        layer = list(range(i, min(tasks, i + chance.randint(1, 6))))
        for v in layer:
            for u in chance.sample(before, min(len(before), chance.randint(1, 3))):
                readers.setdefault(u, []).append(f"t{v}")
        before, i = layer, layer[-1] + 1
    graph = TaskGraph.build(
        "layers", [Task(f"t{i}") for i in range(tasks)], [(f"t{u}", 1.0, v) for u, v in readers.items()]
    )
    seconds = [[s, 10 * s] for s in (chance.expovariate(1.0) for _ in range(tasks))]
    cluster = Cluster((*(Device(f"acc{i}", "acc", memory) for i in range(devices)), Device("cpu0", "cpu")))
    transfer = [0.2 * chance.random() for _ in readers]
    costs = CostTable.given(("acc", "cpu"), seconds, transfer)
    return PlacementProblem(graph, cluster, costs, np.ones(tasks), "sum", frozenset({"acc"}))


def random_placement(problem: PlacementProblem, seed: int) -> tuple[np.ndarray, dict[str, str]]:
    model = load_model(problem)
    where = np.random.default_rng(seed).integers(0, model.devices, model.atoms)
    names = [d.name for d in problem.cluster.devices]
    return where, {t.id: names[d] for t, d in zip(problem.graph.tasks, where[model.atom_of], strict=True)}


# ---------------------------------------------------------------------------------------------------------------------
# loads and their bounds


@SOME
@given(problem=problems(rules=("sum", "overlap")), seed=st.integers(0, 99))
def test_the_model_counts_loads_by_definition(problem: PlacementProblem, seed: int) -> None:
    model = load_model(problem)
    where, placement = random_placement(problem, seed)
    bad = faults(problem, placement)
    assert model.fits(where) == (not bad)
    if not bad:
        assert model.value(where) == pytest.approx(largest_load(problem, placement), rel=1e-12)


@SOME
@given(problem=problems(rules=("sum", "overlap")))
def test_no_placement_is_below_the_bounds(problem: PlacementProblem) -> None:
    best = min((largest_load(problem, p) for p in placements(problem)), default=math.inf)
    model = load_model(problem)
    if best == math.inf:
        return
    assert work_bound_s(model) <= best * (1 + 1e-9)
    assert pigeonhole_bound_s(model, best * 1.01) <= best * 1.01
    better = [p for p in placements(problem) if largest_load(problem, p) < best * 1.01]
    assert all(pigeonhole_bound_s(model, best * 1.01) <= largest_load(problem, p) * (1 + 1e-9) for p in better)
    if problem.rule == "sum" and model.class_pays.any():
        networks = {c: network(model, c) for c in range(model.work_s.shape[1]) if model.class_pays[c]}
        assert anchors(model, networks).bound_s <= best * (1 + 1e-9)


@SOME
@given(problem=problems(), data=st.data())
def test_a_minimum_cut_is_the_least_load_of_a_set(problem: PlacementProblem, data: st.DataObject) -> None:
    model = load_model(problem)
    if not model.pays[0]:
        return
    u, v = data.draw(st.integers(0, model.atoms - 1)), data.draw(st.integers(0, model.atoms - 1))
    c = int(model.class_of[0])
    least = math.inf
    for chosen in itertools.product([False, True], repeat=model.atoms):
        inside = np.array(chosen)
        if not inside[u] or (u != v and inside[v]) or not np.isfinite(model.work_s[inside, c]).all():
            continue
        cut = [
            inside[row].any() and not inside[row].all() for row in np.split(model.nets.items, model.nets.start[1:-1])
        ]
        crossing = model.cost_s[np.array(cut, bool)].sum() if len(model.cost_s) else 0.0
        least = min(least, float(model.work_s[inside, c].sum() + crossing))
    value, side = network(model, c).least([u], [] if u == v else [v])
    if least == math.inf:
        assert value > 1e3 * np.nan_to_num(model.work_s, posinf=0.0).sum()
    else:
        assert value == pytest.approx(least, rel=1e-9, abs=1e-9)
        assert side[u]


@SOME
@given(problem=problems())
def test_merged_atoms_share_a_device_in_every_better_placement(problem: PlacementProblem) -> None:
    model = load_model(problem)
    values = {tuple(p.values()): largest_load(problem, p) for p in placements(problem)}
    if not values or not model.class_pays.any():
        return
    known = sorted(values.values())[len(values) // 2]
    networks = {c: network(model, c) for c in range(model.work_s.shape[1]) if model.class_pays[c]}
    label = merge(model, networks, known)[model.atom_of]
    for devices, value in values.items():
        if value < known * (1 - 1e-9):
            homes: dict[int, str] = {}
            assert all(homes.setdefault(k, d) == d for k, d in zip(label.tolist(), devices, strict=True))


def test_keeping_apart_what_talks_costs_what_it_says() -> None:
    graph = TaskGraph.build("pair", [Task("a"), Task("b")], [("a", 1.0, ["b"])])
    cluster = Cluster((Device("acc0", "acc"), Device("acc1", "acc")))
    problem = PlacementProblem(
        graph, cluster, CostTable.given(("acc",), [[1.0], [2.0]], [5.0]), np.zeros(2), pays=frozenset({"acc"})
    )
    model = load_model(problem)
    assert apart_s(model, {0: network(model, 0)}, 0, 1, math.inf) == pytest.approx(7.0)
    assert plan_free(problem, budget_s=0.2).verdict.value_s == pytest.approx(3.0)


def test_pigeonhole_sees_that_three_equal_tasks_do_not_share_two_devices() -> None:
    problem = layered(3, 2)
    problem = replace(problem, costs=CostTable.given(("acc", "cpu"), [[1.0, 10.0]] * 3, problem.costs.transfer_s * 0))
    model = load_model(problem)
    assert work_bound_s(model) < 1.5
    assert pigeonhole_bound_s(model, 2.5) == pytest.approx(2.0)
    assert pigeonhole_bound_s(model, 100.0) == 0.0  # then the CPU may help


# ---------------------------------------------------------------------------------------------------------------------
# the searches


@pytest.mark.parametrize("rule", ["sum", "overlap"])
def test_annealing_never_worsens_and_counts_rightly(rule: str) -> None:
    problem = replace(layered(60, 4, seed=3), rule=rule)
    model = load_model(problem)
    start, _ = random_placement(problem, 0)
    found = anneal(model, start, units=3e5, seed=5)
    assert model.value(found) < 0.8 * model.value(start)
    assert model.value(anneal(model, found, units=1e4, seed=6, hot=10.0)) <= model.value(found)
    assert (anneal(model, start, units=3e5, seed=5) == found).all()
    assert (anneal(model, start, units=3e5, seed=6) != found).any()


def test_annealing_finds_room_where_the_start_has_none() -> None:
    problem = layered(30, 3, seed=4, memory=10.0)
    model = load_model(problem)
    start = np.zeros(model.atoms, np.int64)
    assert not model.fits(start)
    assert model.fits(anneal(model, start, units=1e5, seed=0))


def test_annealing_ends_where_nothing_is_left_to_do() -> None:
    """A task that takes no time on one device: the value reaches zero, by which nothing may be divided."""
    graph = TaskGraph.build("one", [Task("a")], [])
    costs = CostTable.given(("acc", "cpu"), [[1.0, 0.0]], [])
    problem = PlacementProblem(
        graph, Cluster((Device("x", "acc"), Device("y", "cpu"))), costs, np.zeros(1), "sum", frozenset({"acc"})
    )
    assert plan_free(problem, budget_s=0.1).verdict.value_s == 0.0


def test_annealing_stops_when_told_to() -> None:
    problem = layered(60, 4)
    model = load_model(problem)
    start, _ = random_placement(problem, 0)
    assert (anneal(model, start, units=1e12, seed=0, stop=np.ones(1, np.uint8)) == start).all()


@SOME
@given(problem=problems(rules=("sum", "overlap")), seed=st.integers(0, 99), data=st.data())
def test_the_program_finds_the_best_that_some_atoms_can_do(
    problem: PlacementProblem, seed: int, data: st.DataObject
) -> None:
    pytest.importorskip("ortools")
    model = load_model(problem)
    where, _ = random_placement(problem, seed)
    if not model.fits(where) or model.devices < 2 or model.value(where) == 0:
        return
    devices = data.draw(st.lists(st.integers(0, model.devices - 1), min_size=1, unique=True))
    atoms = np.array(data.draw(st.lists(st.integers(0, model.atoms - 1), unique=True)), np.int64)
    movable = [a for a in atoms.tolist() if where[a] in devices]
    best = math.inf
    for choice in itertools.product(devices, repeat=len(movable)):
        trial = where.copy()
        trial[movable] = choice
        if model.fits(trial):
            best = min(best, float(model.loads(trial)[devices].max()))
    now = float(model.loads(where)[devices].max())
    if now == 0:
        return
    out = exact.improve(model, where, devices, atoms, limit_units=5.0)
    reached = now if out.where is None else float(model.loads(out.where)[devices].max())
    assert reached == pytest.approx(best, rel=1e-5)
    assert out.bound_s <= best * (1 + 1e-9)
    assert out.bound_s == pytest.approx(best, rel=1e-5)
    if out.where is not None:
        still = np.delete(np.arange(model.atoms), movable)
        assert (out.where[still] == where[still]).all()


def test_chunks_are_feasible_and_balanced() -> None:
    problem = layered(200, 4)
    model = load_model(problem)
    found = list(starts(model, problem.graph))
    assert len(found) == 3
    for where in found:
        assert model.fits(where)
        assert model.value(where) < 0.4 * model.work_s[:, 0].sum()


def test_depth_first_is_topological() -> None:
    graph = layered(100, 2).graph
    place = np.empty(len(graph), np.int64)
    for order in (
        depth_first(graph.successors, graph.predecessors),
        depth_first(graph.predecessors, graph.successors)[::-1],
    ):
        place[order] = np.arange(len(graph))
        assert sorted(order.tolist()) == list(range(len(graph)))
        assert (place[graph.edges[:, 0]] < place[graph.edges[:, 1]]).all()


# ---------------------------------------------------------------------------------------------------------------------
# the whole


def test_is_not_above_the_contiguous_optimum() -> None:
    problem = layered(40, 4, seed=1)
    contiguous = plan_contiguous(problem).verdict
    free_one = plan_free(problem, budget_s=0.3).verdict
    assert free_one.value_s <= contiguous.value_s * (1 + 1e-12)
    assert free_one.lower_bound_s <= contiguous.value_s


def test_a_start_is_among_the_candidates_and_must_fit() -> None:
    problem = layered(40, 4, seed=1)
    good = plan_free(problem, budget_s=0.5)
    assert isinstance(good.plan, PlacementPlan)
    again = plan_free(problem, budget_s=0.01, method="chunks", start=good.plan.placement)
    assert again.verdict.value_s == good.verdict.value_s
    with pytest.raises(PlanError, match="unknown device 'elsewhere'"):
        plan_free(problem, budget_s=0.01, start=dict.fromkeys(good.plan.placement, "elsewhere"))


def test_more_devices_never_worsen_the_bound_or_the_proven_optimum() -> None:
    values = [plan_free(layered(12, d, seed=2), budget_s=20.0).verdict for d in (1, 2, 3)]
    assert all(v.gap < 2e-5 for v in values)
    assert values[0].value_s >= values[1].value_s >= values[2].value_s


def test_without_ortools_it_still_plans_with_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_solver, "available", lambda: False)
    problem = layered(40, 4, seed=1)
    verdict = plan_free(problem, budget_s=0.3).verdict
    assert 0 < verdict.lower_bound_s <= verdict.value_s < 1.2 * verdict.lower_bound_s
    assert verdict.bound in ("linear relaxation", "pigeonhole", "minimum cut", "priced sets")
    with pytest.raises(MissingDependency, match="OR-tools"):
        plan_free(problem, method="program", budget_s=0.1)


def test_the_clock_ends_what_the_units_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_free(layered(300, 4, seed=1), budget_s=0.01)  # compiled
    monkeypatch.setattr(rounds, "UNITS_PER_S", 1e12)
    began = time.process_time()
    plan_free(layered(300, 4, seed=1), budget_s=0.5)
    assert time.process_time() - began < 6.0  # twice the budget on two threads, and the candidates


def test_unknown_names_are_refused() -> None:
    problem = layered(5, 2)
    with pytest.raises(BadInput, match="known: auto"):
        plan_free(problem, method="magic")
    with pytest.raises(BadInput, match="known: throughput, latency"):
        plan_free(problem, "step")
    with pytest.raises(BadInput, match="earliest finish"):
        plan_free(problem, "latency", method="magic")


def test_what_fits_nowhere_together_is_infeasible() -> None:
    problem = layered(3, 2, memory=3.0)
    cluster = Cluster(problem.cluster.devices[:2])
    problem = replace(problem, cluster=cluster, memory_bytes=np.array([2.0, 2.0, 2.0]), costs=problem.costs)
    with pytest.raises(Infeasible, match="6 bytes, the devices 6") as caught:
        plan_free(problem, budget_s=0.2)
    assert caught.value.constraint == "memory"


def test_the_file_says_how_often_each_device_is_visited() -> None:
    problem = layered(40, 3, seed=5)
    file = plan_free(problem, budget_s=0.3)
    assert isinstance(file.plan, PlacementPlan)
    found = visits(file)
    assert set(found["virtual_stages"]) == set(file.plan.placement.values())
    assert found["quotient"] == ("cyclic" if max(found["virtual_stages"].values()) > 1 else "acyclic")
    assert file.problem.rule == "sum"
    assert free.plan_free(problem, budget_s=0.3).to_json()["placement"] == file.to_json()["placement"]


@SOME
@given(problem=problems(), seed=st.integers(0, 99))
def test_virtual_stages_run_everything_once_in_order(problem: PlacementProblem, seed: int) -> None:
    _, placement = random_placement(problem, seed)
    device = [sorted(set(placement.values())).index(placement[t.id]) for t in problem.graph.tasks]
    stages = segments(problem.graph, device)
    assert all(device[i] == d for d, tasks in stages for i in tasks)
    order = [i for _, tasks in stages for i in tasks]
    assert sorted(order) == list(range(len(problem.graph)))
    place = {i: k for k, i in enumerate(order)}
    assert all(place[u] < place[v] for u, v in problem.graph.edges.tolist())
    assert all(a[0] != b[0] for a, b in itertools.pairwise(stages))


def test_an_acyclic_quotient_has_one_stage_a_device() -> None:
    problem = layered(60, 4, seed=9)
    place = np.empty(60, np.int64)
    place[problem.graph.order] = np.arange(60)
    stages = segments(problem.graph, place // 15)
    assert [d for d, _ in stages] == [0, 1, 2, 3]


@SOME
@given(problem=problems(), seed=st.integers(0, 99))
def test_the_fast_makespan_is_the_simulators(problem: PlacementProblem, seed: int) -> None:
    where, placement = random_placement(problem, seed)
    if any("cannot run" in f for f in faults(problem, placement)):
        return
    model = load_model(problem)
    facts = facts_of(problem, "latency")
    for order in (problem.graph.order, listed(facts, where)):
        plan = placement_plan(problem, where[model.atom_of], order)
        assert value_of(facts, where, order) == pytest.approx(simulated_s(problem, plan), rel=1e-12, abs=1e-15)


def packed(held: list[float], room: float, devices: int) -> PlacementProblem:
    """Tasks in a chain that all but fill the devices' memory."""
    graph = TaskGraph.build(
        "packed",
        [Task(f"t{i}") for i in range(len(held))],
        [(f"t{i}", 1.0, [f"t{i + 1}"]) for i in range(len(held) - 1)],
    )
    cluster = Cluster(tuple(Device(f"d{i}", "acc", room) for i in range(devices)))
    costs = CostTable.given(("acc",), [[1.0]] * len(held), [0.1] * (len(held) - 1))
    return PlacementProblem(graph, cluster, costs, np.array(held), "sum", frozenset({"acc"}))


@pytest.mark.skipif(not constraint_solver.available(), reason="needs OR-tools")
def test_what_fits_in_one_way_only_is_found() -> None:
    file = plan_free(packed([9.0, 3.0, 9.0, 32.0, 7.0, 1.0, 24.0, 15.0, 9.0, 8.0, 2.0, 31.0], 50.0, 3), budget_s=0.1)
    assert file.verdict.lower_bound_s > 0
    with pytest.raises(Infeasible, match="no placement was found that fits"):
        plan_free(packed([5.0, 5.0, 4.0], 7.0, 2), budget_s=0.1)


@pytest.mark.skipif(not constraint_solver.available(), reason="needs OR-tools")
def test_the_program_counts_fractions_of_a_byte() -> None:
    """Rounded down to whole bytes, 2.5 beside 2.5 fits into 4: the program found that, and then nothing else."""
    problem = packed([0.5, 2.5, 2.5, 0.5, 1.5], 4.0, 2)
    model = load_model(problem)
    best = min(model.value(np.array(w)) for w in itertools.product(range(2), repeat=5))
    found = exact.improve(model, np.zeros(5, np.int64), range(2), limit_units=1.0, known_s=100.0).where
    assert found is not None
    assert model.value(found) == pytest.approx(best)
