"""Mappings as plans: known figures, waists, the same inputs, what is refused."""

from __future__ import annotations

import math
import os
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mapping.large import large_problem
from mapping.plan.events import of_profile
from mapping.plan.worlds import LAYERS, branches, problem_of, random_mapping

from partita.errors import BadInput, Infeasible
from partita.mapping.plan import bayes, cp_sat
from partita.mapping.plan.coarse import groups
from partita.mapping.plan.decode import priorities_of, prioritised
from partita.mapping.plan.genetic import genetic
from partita.mapping.plan.heft import heft
from partita.mapping.plan.intuitive import intuitive, single
from partita.mapping.plan.jobs import as_placement, candidates
from partita.mapping.plan.live import live
from partita.mapping.plan.planner import METHODS, plan_mapping
from partita.mapping.plan.polish import polished
from partita.mapping.plan.question import Question, best_of
from partita.mapping.plan.waists import pieces, waists
from partita.nouns.cluster import Device, Link
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.capture.pipedream import read

FAST = Device("x", "a"), Device("y", "a")
DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
PROFILES = DATA / "graphs" / "pipedream"


@pytest.mark.parametrize("method", METHODS)
def test_a_profile_takes_what_the_independent_simulator_says(method: str, tmp_path: Path) -> None:
    path = tmp_path / "layers.txt"
    path.write_text(LAYERS)
    for rate in (1e6, 1e7):
        file = plan_mapping(read(path, 2, rate), method=method, budget_s=0.2, seed=1)
        assert of_profile(path, file.plan.to_json(), rate) == pytest.approx(file.verdict.value_s, rel=1e-12)
        assert sum(map(len, file.plan.to_json()["order"].values())) == 11


@pytest.mark.parametrize("method", METHODS)
def test_the_same_inputs_and_seed_give_the_same_plan(method: str) -> None:
    one, other = (plan_mapping(branches(2), method=method, budget_s=0.1, seed=5) for _ in range(2))
    assert one.plan == other.plan


@pytest.mark.parametrize("method", METHODS)
def test_graphs_of_every_kind(method: str) -> None:
    """One device, one task, no times, no edges, wide, no bytes, a rate without end."""
    wide = [(0, i) for i in range(1, 13)] + [(i, 13) for i in range(1, 13)]
    link = Link("", "", 1.0)
    worlds = {
        "one device": problem_of([[1.0]] * 3, [(0, 1), (1, 2)], [1.0] * 3, FAST[:1], link),
        "one task": problem_of([[1.0]], [], [0.0], FAST, link),
        "no times": problem_of([[0.0]] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)], [1.0] * 4, FAST, link),
        "no edges": problem_of([[1.0]] * 6, [], [1.0] * 6, FAST, link),
        "wide": problem_of([[1.0]] * 14, wide, [0.1] * 14, FAST, link),
        "no bytes": problem_of([[1.0]] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)], [0.0] * 4, FAST, link),
        "free links": problem_of([[1.0]] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)], [9.0] * 4, FAST, Link()),
    }
    expected = {
        "one device": 3.0,
        "one task": 1.0,
        "no times": 0.0,
        "no edges": 3.0,
        "wide": None,
        "no bytes": 3.0,
        "free links": 3.0,
    }
    for name, problem in worlds.items():
        said = plan_mapping(problem, method=method, budget_s=0.05).verdict
        assert said.lower_bound_s <= said.value_s
        if method in ("cp-sat", "polish", "hybrid", "auto") and expected[name] is not None:
            assert said.value_s == pytest.approx(expected[name]), name


def test_pieces_between_waists_are_the_whole() -> None:
    problem = branches(2, 2)
    assert len(pieces(problem)) == 3  # the first waist alone, and two blocks
    assert waists(problem.graph) == [0, 5, 10]
    found = plan_mapping(problem, method="cp-sat", budget_s=4.0).verdict
    whole = Question.of(problem)
    judged = cp_sat.cp_sat(whole, [*single(whole), heft(whole)], 20.0, 0)
    assert found.gap < 1e-6
    assert judged.bound_s > found.value_s * (1 - 1e-6)
    assert found.value_s == pytest.approx(judged.best.value_s, rel=1e-6)


def test_a_tensor_that_passes_a_task_by_makes_it_no_waist() -> None:
    skip = problem_of([[1.0]] * 3, [(0, 1), (1, 2), (0, 2)], [1.0] * 3, FAST, Link("", "", 1.0))
    assert waists(skip.graph) == [0, 2]
    dead_end = problem_of([[1.0]] * 4, [(0, 1), (0, 2), (2, 3)], [1.0] * 4, FAST, Link("", "", 1.0))
    assert waists(dead_end.graph) == [0]


def test_unlike_devices_are_not_cut() -> None:
    uneven = problem_of(
        [[1.0]] * 3, [(0, 1), (1, 2)], [1.0] * 3, (Device("x", "a"), Device("y", "a", speed=2.0)), Link("", "", 1.0)
    )
    assert len(pieces(uneven)) == 1
    assert plan_mapping(uneven, method="hybrid", budget_s=0.1).verdict.value_s == pytest.approx(1.5)


def test_heft_may_be_worse_than_one_device_and_says_so() -> None:
    problem = branches(rate=0.2)
    said = plan_mapping(problem, method="heft").verdict
    assert said.value_s > said.compared_s["single"]
    assert plan_mapping(problem, method="hybrid", budget_s=0.2).verdict.value_s <= said.compared_s["single"]


def test_hybrid_comes_close_to_the_judge() -> None:
    for devices in (2, 3):
        problem = branches(4, 3, 2.0, devices)
        judged = plan_mapping(problem, method="cp-sat", budget_s=4.0).verdict
        assert plan_mapping(problem, method="hybrid", budget_s=1.0).verdict.value_s <= 1.02 * judged.value_s


@pytest.mark.parametrize("search", [genetic, polished, bayes.with_sampler("random"), bayes.with_sampler("gp")])
def test_searches_are_never_worse_than_what_they_begin_with(search: object) -> None:
    for seed in (1, 2, 3):
        question = Question.of(random_mapping(seed))
        known = [*single(question), *intuitive(question), heft(question)]
        with bayes.silenced():
            assert search(question, known, 0.02, 0).best.value_s <= best_of(known).value_s  # type: ignore[operator]


def test_no_thread_changes_which_warnings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that put back what another had changed would leave it changed for good."""
    changed: list[str] = []

    def caught() -> Any:
        changed.append(threading.current_thread().name)
        return kept()

    kept = warnings.catch_warnings
    monkeypatch.setattr(bayes.warnings, "catch_warnings", caught)
    before = list(warnings.filters)
    plan_mapping(branches(4, 3), method="bayes-tpe", budget_s=0.2)
    assert set(changed) <= {threading.current_thread().name}
    assert list(warnings.filters) == before


def test_priorities_give_every_order() -> None:
    question = Question.of(branches(2))
    order = heft(question).order
    assert (prioritised(question.facts, priorities_of(order)) == order).all()


def test_what_is_ready_is_taken_by_priority_then_by_number() -> None:
    """Against a look at all that is ready, each time."""
    for seed in range(60):
        question, chance = Question.of(random_mapping(seed, 12)), np.random.default_rng(seed)
        priority = chance.integers(0, 4, question.tasks).astype(np.float64)
        before = {i: set() for i in range(question.tasks)}
        for u, v in question.problem.graph.edges.tolist():
            before[v].add(u)
        expected: list[int] = []
        while len(expected) < question.tasks:
            ready = [i for i in before if i not in expected and before[i] <= set(expected)]
            expected.append(min(ready, key=lambda i: (-priority[i], i)))
        assert prioritised(question.facts, priority).tolist() == expected


def test_a_program_that_would_not_get_going_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before its search is not in its own count, and takes ten seconds of a graph of two thousand tasks."""
    n = 2000
    large = problem_of([[1.0]] * n, [(i // 2, i) for i in range(1, n)], [0.1] * n, FAST, Link("", "", 1.0))
    question, asked = Question.of(large), list[float]()
    monkeypatch.setattr(
        cp_sat.constraint_solver, "solved", lambda *_, limit_units, **__: asked.append(limit_units) or 1 / 0
    )
    assert cp_sat.cp_sat(question, [*single(question)], 1.0, 0).bound_s == 0.0
    assert asked == []
    with pytest.raises(ZeroDivisionError):
        cp_sat.cp_sat(question, [*single(question)], 30.0, 0)
    assert 0 < asked[0] < 30.0 * cp_sat.UNITS_PER_S


def test_groups_are_few_and_hold_all() -> None:
    question = Question.of(branches(6))
    found = groups(question, 5)
    assert len(found) == question.model.atoms
    assert set(found.tolist()) == set(range(int(found.max()) + 1))
    assert found.max() < 5


def test_an_encoding_says_what_is_known() -> None:
    question = Question.of(branches(2))
    encoding = bayes.Encoding.of(question)
    for mapped in single(question):
        assert (encoding.mapped(encoding.numbers(mapped)).where == mapped.where).all()


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(BadInput, match="known: single"):
        plan_mapping(branches(), method="magic")


@pytest.mark.skipif(not PROFILES.is_dir(), reason="no public graphs here: set PARTITA_DATA")
@pytest.mark.parametrize(
    ("name", "devices", "rate", "input_s", "optimum_s"),
    [("resnet50", 2, 12e9, 0.018962, 0.4585), ("inception_v3", 4, 50e9, 0.0217, 0.4376)],
)
def test_known_optima_of_published_graphs(
    name: str, devices: int, rate: float, input_s: float, optimum_s: float
) -> None:
    """Figures found elsewhere count the input's task too, before everything."""
    problem = read(PROFILES / f"{name}.txt", devices, rate)
    file = plan_mapping(problem, method="auto", budget_s=10.0)
    assert file.verdict.value_s + input_s == pytest.approx(optimum_s, abs=6e-5)
    assert of_profile(PROFILES / f"{name}.txt", file.plan.to_json(), rate) == pytest.approx(file.verdict.value_s)
    assert file.verdict.gap < 5e-3


def tight(bytes_each: float) -> PlacementProblem:
    """Three tasks of 6, 6 and 4 bytes in a row on two devices with so much room."""
    devices = tuple(replace(d, memory_bytes=bytes_each) for d in FAST)
    made = problem_of([[1.0]] * 3, [(0, 1), (1, 2)], [1.0] * 3, devices, Link("", "", 1.0))
    return replace(made, memory_bytes=np.array([6.0, 6.0, 4.0]))


@pytest.mark.parametrize("method", METHODS)
def test_what_has_no_room_is_infeasible_and_says_why(method: str) -> None:
    """Of 6, 6 and 4 bytes: neither two devices of 7 nor two of 9 hold them; two of 12 do, but no one of them."""
    for room in (7.0, 9.0):
        with pytest.raises(Infeasible) as refused:
            plan_mapping(tight(room), method=method, budget_s=0.05)
        assert refused.value.constraint == "memory"
    if method == "single":
        with pytest.raises(Infeasible, match="hold 16 B; the largest device that runs all of them has 12 B"):
            plan_mapping(tight(12.0), method=method)
    else:
        assert plan_mapping(tight(12.0), method=method, budget_s=0.05).verdict.value_s == pytest.approx(4.0)


def test_a_job_without_room_is_infeasible_too() -> None:
    """Of a job's candidates there were none, and the least of none was asked for."""
    problem = large_problem(12)
    need = float(as_placement(problem).memory_bytes.sum())
    for room, refuse in ((0.3, METHODS), (0.7, ("single",))):
        devices = tuple(replace(d, memory_bytes=room * need) for d in problem.cluster.devices)
        small = problem.on(replace(problem.cluster, devices=devices))
        for method in refuse:
            with pytest.raises(Infeasible) as refused:
                list(candidates(small, method, 0.05, 0))
            assert (refused.value.exit_code, refused.value.constraint) == (3, "memory")
        if room == 0.7:
            assert list(candidates(small, "polish", 0.05, 0))
            assert next(live(small, 1.0, 0, lambda: 0.0)).phase == "seeds"


def test_a_task_of_another_kind_leaves_no_single_device() -> None:
    devices = (Device("x", "a"), Device("y", "b"))
    split = problem_of([[1.0, math.inf], [math.inf, 1.0]], [(0, 1)], [1.0, 1.0], devices, Link("", "", 1.0))
    with pytest.raises(Infeasible) as refused:
        plan_mapping(split, method="single")
    assert refused.value.constraint == "supported devices"
    assert plan_mapping(split, method="hybrid", budget_s=0.05).verdict.value_s == pytest.approx(3.0)
