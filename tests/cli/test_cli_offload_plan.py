"""partita offload plan, simulate and explain, from costs on disk to what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from offload.plan.offload_brute import instance, of_plan

from partita.cli import main

Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_plan_simulate_and_explain_agree(tmp_path: Path, capsys: Capture) -> None:
    problem = instance("dag", 4)
    costs, plan, trace = (tmp_path / n for n in ("costs.json", "plan.json", "trace.json"))
    costs.write_text(json.dumps(problem))
    found = printed(capsys, "offload", "plan", "--costs", str(costs), "-o", str(plan))
    value = of_plan(problem, found["order"], found["cuts"])
    assert found["makespan_s"] == pytest.approx(value, rel=1e-9)
    assert found["lower_bound_s"] <= value
    assert sum(row["jobs"] for row in found["cuts_by_model"]) == len(problem["jobs"])
    seen = printed(capsys, "offload", "simulate", str(plan), "-o", str(trace))
    assert seen["makespan_s"] == pytest.approx(value, rel=1e-9)
    assert json.loads(trace.read_text())["traceEvents"]
    why = printed(capsys, "offload", "explain", str(plan), "--budget-s", "0.1")
    assert all(row["makespan_s"] >= value * (1 - 1e-9) for row in why["baselines"])
    assert main(["offload", "explain", str(plan), "--budget-s", "0.1"]) == 0
    assert why["bottleneck"] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"jobs": []}, "no jobs"),
        ({"link": {"up_bytes_per_s": 0, "down_bytes_per_s": 1}}, "up_bytes_per_s = 0"),
        ({"server_threads": 0}, "0 threads"),
        ({"server_threads": 10**18}, "1 to 4096 are possible"),
        ({"server_threads": float("inf")}, "server_threads is inf, not a whole number"),
        ({"link": {"up_bytes_per_s": 1e300, "down_bytes_per_s": 1}}, "up_bytes_per_s = 1e+300"),
        ({"link": {"up_bytes_per_s": 1e-300, "down_bytes_per_s": 1}}, "1e-15 to 1e+15 are possible"),
        ({"link": {"up_bytes_per_s": 1, "down_bytes_per_s": 10**400}}, "beyond 64 bits"),
        ({"link": {"up_bytes_per_s": 1, "down_bytes_per_s": 1, "round_trip_s": 1e30}}, "round_trip_s = 1e+30"),
    ],
)
def test_bad_costs_are_refused_with_a_sentence(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "costs.json").write_text(json.dumps({**instance("chain", 1), **change}))
    assert main(["offload", "plan", "--costs", str(tmp_path / "costs.json")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "value"),
    [("device_s", 1e300), ("server_s", 10**18), ("output_bytes", 1e16)],
)
def test_huge_numbers_of_a_task_are_refused(what: str, value: float, tmp_path: Path, capsys: Capture) -> None:
    problem = instance("chain", 1)
    problem["jobs"][0]["tasks"][0][what] = value
    (tmp_path / "costs.json").write_text(json.dumps(problem))
    assert main(["offload", "plan", "--costs", str(tmp_path / "costs.json")]) == 2
    assert f"has {what} = {value:g}; 0 to 1e+15 are possible" in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["-1", str(1 << 63)])
@pytest.mark.parametrize("verb", ["plan", "simulate"])
def test_seeds_that_are_none_are_refused(verb: str, seed: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(instance("chain", 1)))
    assert main(["offload", verb, *(["--costs"] if verb == "plan" else []), str(file), "--seed", seed]) == 2
    assert f"a seed of {seed}" in capsys.readouterr().err


def test_more_threads_than_jobs_change_nothing(tmp_path: Path, capsys: Capture) -> None:
    problem = instance("dag", 4)
    found = []
    for threads in (len(problem["jobs"]), 4096):
        (tmp_path / "costs.json").write_text(json.dumps({**problem, "server_threads": threads}))
        found.append(printed(capsys, "offload", "plan", "--costs", str(tmp_path / "costs.json")))
    assert found[0]["cuts"] == found[1]["cuts"]
    assert found[0]["makespan_s"] == found[1]["makespan_s"]


def test_too_many_arrivals_are_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "costs.json").write_text(json.dumps(instance("chain", 1)))
    plan = str(tmp_path / "plan.json")
    printed(capsys, "offload", "plan", "--costs", str(tmp_path / "costs.json"), "-o", plan)
    assert main(["offload", "simulate", plan, "--arrivals", "poisson:1", "--count", str(10**12)]) == 2
    assert "at most 1000000 arrivals" in capsys.readouterr().err
