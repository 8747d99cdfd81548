"""Plan: what fits a graph and a cluster, and its file, which carries the whole problem."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import VERDICT, clusters, damaged, given_costs, graphs, placed, refused_or, stage_plan, training_chain

from partita.errors import BadInput, InternalError, PlanError
from partita.files import dump_json, write_whole
from partita.nouns.cluster import Cluster
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Slot, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import GraphPlan, PlanFile, Verdict, checked_bound, plan_from_json

CHAIN = training_chain(3)
PIPELINE = stage_plan(CHAIN, [2, 1, 1], 8, 4, recompute=True)
CLUSTER = Cluster.uniform(5)


def plan_file(plan: GraphPlan = PIPELINE) -> PlanFile:
    if plan.kind == "pipeline":
        return PlanFile(plan, VERDICT, PipelineProblem(CHAIN, CLUSTER, given_costs(CHAIN), "job.py:job", 64, 8))
    held = np.arange(len(CHAIN), dtype=np.float64)
    problem = PlacementProblem(CHAIN, CLUSTER, given_costs(CHAIN), held, source="chain", bandwidth_bytes_per_s=1e9)
    return PlanFile(plan, dataclasses.replace(VERDICT, objective="latency"), problem)


@pytest.mark.parametrize("plan", [PIPELINE, placed(CHAIN, ["cpu0", "cpu1", "cpu1", "cpu4", "cpu4", "cpu0"])])
def test_a_file_gives_back_the_plan_and_its_problem(tmp_path: Path, plan: GraphPlan) -> None:
    again = PlanFile.read(plan_file(plan).write(tmp_path / "plan.json"))
    assert again.plan == plan
    assert (again.graph.fingerprint, again.cluster) == (CHAIN.fingerprint, CLUSTER)
    np.testing.assert_array_equal(again.costs.seconds, given_costs(CHAIN).seconds)
    assert again.verdict == plan_file(plan).verdict
    assert again.problem.shown() == plan_file(plan).problem.shown()


def test_the_json_says_what_scripts_rely_on() -> None:
    value = json.loads(dump_json(plan_file().to_json()))
    assert {"value_s", "lower_bound_s", "bound", "method", "seconds_spent"} <= set(value)
    assert value["stages"][0] == {"tasks": ["f0"], "replicas": 2, "devices": ["cpu0", "cpu1"], "recompute": True}
    where = ["cpu0"] * 6
    assert plan_file(placed(CHAIN, where)).to_json()["placement"] == {t.id: "cpu0" for t in CHAIN.tasks}


@given(graphs(), clusters(), st.data())
def test_any_placement_comes_back(graph: TaskGraph, cluster: Cluster, data: st.DataObject) -> None:
    device = st.sampled_from([d.name for d in cluster.devices])
    one = {g: data.draw(device) for g in ("g", "h")}
    plan = placed(graph, [one[t.group] if t.group else data.draw(device) for t in graph.tasks])
    assert plan.check(graph, cluster) == []
    assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("bound", [1.1, 1.0 + 1e-8, math.inf, math.nan])
def test_a_bound_above_the_value_is_never_hidden(bound: float) -> None:
    with pytest.raises(InternalError, match=r"above a plan that takes 1\.0 s"):
        checked_bound(1.0, bound)


def test_a_bound_may_meet_the_value_up_to_rounding() -> None:
    assert [checked_bound(1.0, b) for b in (0.25, 1.0, 1.0 + 1e-12)] == [0.25, 1.0, 1.0]
    assert checked_bound(0.0, 0.0) == 0.0


def test_the_gap_is_a_share_of_the_bound() -> None:
    assert VERDICT.gap == 1.0
    assert Verdict(0.0, 0.0, "exact", "m", 0.0).gap == 0.0
    assert Verdict(1.0, 0.0, "none", "m", 0.0).gap == math.inf


def test_a_plan_knows_its_devices_in_the_order_of_ranks() -> None:
    assert PIPELINE.devices == ("cpu0", "cpu1", "cpu2", "cpu3")
    assert PIPELINE.stage_of == {"f0": 0, "f1": 1, "f2": 2}
    assert PIPELINE.stages[0].replicas == 2


def test_all_faults_of_a_pipeline_are_told_at_once() -> None:
    stages = (Stage(("f0", "f0", "x"), ("cpu0", "cpu9")), Stage(("f1",), ("cpu0",)), Stage((), ()))
    plan = PipelinePlan(CHAIN.fingerprint, stages, 0, 1, "2f2b")  # type: ignore[arg-type]
    faults = "; ".join(plan.check(CHAIN, CLUSTER))
    for fault in (
        "stage 2 has no tasks", "stage 2 has no devices", "task 'f0' is used 2 times", "unknown task 'x'",
        "task 'f2' is in no stage", "unknown device 'cpu9'",
        "0 micro-batches with 1 in flight", "unknown schedule '2f2b'",
    ):  # fmt: skip
        assert fault in faults


def test_stages_must_follow_the_edges_and_keep_groups_together() -> None:
    turned = dataclasses.replace(PIPELINE, stages=(PIPELINE.stages[1], PIPELINE.stages[0], PIPELINE.stages[2]))
    assert "edge f0 -> f1 runs from stage 1 back to 0" in turned.check(CHAIN, CLUSTER)
    graph = TaskGraph.build("g", [Task("f0", group="w"), Task("f1", group="w")], [("f0", 1.0, ["f1"])])
    assert stage_plan(graph, [1, 1], 1, 1).check(graph, CLUSTER) == [
        "colocation group 'w' is spread over cpu0 and cpu1"
    ]
    assert placed(graph, ["cpu0", "cpu1"]).check(graph, CLUSTER) == [
        "colocation group 'w' is spread over ['cpu0', 'cpu1']"
    ]


def test_a_plan_for_another_graph_is_told() -> None:
    other = training_chain(4)
    for plan in (PIPELINE, placed(CHAIN, ["cpu0"] * 6)):
        assert plan.check(other, CLUSTER) == [
            f"it was made for graph {CHAIN.fingerprint}, this is graph {other.fingerprint}"
        ]


def test_all_faults_of_a_placement_are_told_at_once() -> None:
    plan = placed(CHAIN, ["cpu0"] * 5 + ["cpu7"])
    plan = dataclasses.replace(plan, placement={**{k: v for k, v in plan.placement.items() if k != "f1"}, "x": "cpu0"})
    faults = "; ".join(plan.check(CHAIN, CLUSTER))
    for fault in ("unknown task 'x'", "'f1' is placed nowhere", "unknown device 'cpu7'"):
        assert fault in faults


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "wish"}, r"unknown kind of plan 'wish'\. hint: known: pipeline, placement"),
        ({"version": 1}, "has version 1"),
        ({"problem": None}, "is damaged: TypeError"),
        ({"stages": [{"tasks": ["f0"]}]}, r"stages\[0\].devices is missing"),
        ({"objective": "fame"}, "objective is 'fame', not one of 'throughput'"),
        ({"value_s": -1}, "value_s is -1"),
        ({"micro_batches": 0}, "0 micro-batches"),
        ({"graph": "feed"}, "it was made for graph feed"),
    ],
)
def test_a_damaged_file_is_told(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = write_whole(tmp_path / "plan.json", dump_json({**plan_file().to_json(), **change}))
    with pytest.raises(PlanError, match=says):
        PlanFile.read(path)


def test_a_file_cut_off_anywhere_is_told(tmp_path: Path) -> None:
    text = dump_json(plan_file().to_json())
    for cut in range(0, len(text) - 2, 97):
        with pytest.raises(PlanError, match="is not JSON: line"):
            PlanFile.read(write_whole(tmp_path / "plan.json", text[:cut]))


@settings(max_examples=400)
@given(st.one_of(damaged(plan_file().to_json()), damaged(plan_file(placed(CHAIN, ["cpu0"] * 6)).to_json())))
def test_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any]) -> None:
    path = write_whole(tmp_path_factory.getbasetemp() / "plan.json", json.dumps(value))
    found = refused_or(lambda: PlanFile.read(path), BadInput, str(path))
    if found is not None:
        assert found.plan.check(found.graph, found.cluster) == []
        assert found.costs.check(found.graph) == []


def test_given_orders_for_more_micro_batches_than_they_hold_are_refused_at_once() -> None:
    """A file may ask for 10^308 of them: nothing is counted by micro-batch then."""
    orders = {"cpu0": (Slot("F", 0, 0), Slot("B", 0, 0))}
    plan = PipelinePlan(CHAIN.fingerprint, (Stage(("f0", "f1", "f2"), ("cpu0",)),), 10**308, 1, "given", orders)
    assert "its orders hold 2 slots" in plan.check(CHAIN, CLUSTER)[0]
