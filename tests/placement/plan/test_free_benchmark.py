"""The planner benchmark: its evaluators against the planners' claims, on graphs it makes itself."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from benchmark_scripts import loaded
from placement.plan.placement_contract import largest_load

from partita.placement.capture.formats import read_problem


@pytest.fixture(scope="module")
def planner() -> ModuleType:
    return loaded("planner")


@pytest.fixture
def folder(tmp_path: Path, planner: ModuleType) -> Path:
    """A graph, a profile, their best values, and files that are neither."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "layers.json").write_text(json.dumps(planner.layered(12, 2)))
    times = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=[1e6; 1e6], parameter_size=1e6"
    lines = [f"node{i} -- Conv -- {times}\n" for i in range(1, 5)] + [
        f"\tnode{i} -- node{i + 1}\n" for i in range(1, 4)
    ]
    (tmp_path / "chain.txt").write_text("".join(lines))
    best = {
        "pipedream": {"chain": {"2": {"bottleneck_s": "0.5"}}},
        "dnn-partitioning": {"layers": {"accelerators": 2, "best_free": 1e3}},
    }
    (tmp_path / "best_known.json").write_text(json.dumps(best))
    (tmp_path / "note.txt").write_text("not a graph\n")
    return tmp_path


def test_placements_are_scored_as_the_format_says(folder: Path, planner: ModuleType) -> None:
    path = folder / "deep" / "layers.json"
    problem = read_problem(path)
    names = {d.name for d in problem.cluster.devices}
    placement = {t.id: ("acc0", "acc1", "cpu0")[i % 3] for i, t in enumerate(problem.graph.tasks)}
    found = planner.score(path, {"placement": placement, "devices": names})
    assert found["feasible"]
    assert found["value"] == pytest.approx(1e3 * largest_load(problem, placement), rel=1e-12)
    del placement["0"]
    assert not planner.score(path, {"placement": placement, "devices": names})["feasible"]


def test_stages_are_scored_as_pipedream_does(folder: Path, planner: ModuleType) -> None:
    stages = [{"tasks": ["node1", "node2"], "replicas": 2}, {"tasks": ["node3", "node4"], "replicas": 1}]
    found = planner.score(folder / "chain.txt", {"stages": stages, "bandwidth_bytes_per_s": 1e9})
    assert found == {"value": pytest.approx(0.006), "feasible": True, "faults": [], "devices": 3}
    slow = planner.score(folder / "chain.txt", {"stages": stages, "bandwidth_bytes_per_s": 1e8})
    assert slow["value"] == pytest.approx(max((0.006 + 4 * 2e6 / 2e8) / 2, 2 * 2e6 / 1e8))
    back = planner.score(folder / "chain.txt", {"stages": stages[::-1], "bandwidth_bytes_per_s": 1e9})
    assert not back["feasible"]


@pytest.mark.slow
def test_every_graph_is_planned_scored_and_compared(
    folder: Path, planner: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    options = argparse.Namespace(
        folder=folder, placement="both", devices=[2], budgets=[0.2], seed=0, rounds=1, scorer=None, synthetic=None
    )
    rows = {
        (r["graph"], r["placement"]): r for r in planner._rows(options, SimpleNamespace(look_again=lambda **_: None))
    }
    assert set(rows) == {("layers", "contiguous"), ("layers", "free"), ("chain", "contiguous")}
    for r in rows.values():
        assert r["feasible"], r
        assert r["value"] == pytest.approx(r["claimed"], rel=1e-9)
        assert r["lower_bound"] <= r["value"] * (1 + 1e-9)
    assert rows["layers", "free"]["value"] <= rows["layers", "contiguous"]["value"] * (1 + 1e-9)
    assert rows["layers", "free"]["best_known"] == 1e3
    assert rows["chain", "contiguous"]["best_known"] == 0.5
    assert "layers" in planner.table(list(rows.values()))


def test_layered_graphs_are_the_same_for_a_seed(planner: ModuleType) -> None:
    assert planner.layered(50, 2, seed=3) == planner.layered(50, 2, seed=3)
    assert planner.layered(50, 2, seed=3) != planner.layered(50, 2, seed=4)
