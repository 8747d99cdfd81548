"""`partita rehearse`: real processes and messages on emulated devices, and what it refuses before it starts any."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from pipeline.plan.planning_worlds import chain_profile

from partita.cli import main
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile, Verdict
from partita.nouns.stage_memory import stage_memory
from partita.nouns.timeline import Timeline
from partita.simulate.predicted import predicted
from partita.simulate.schedules import device_orders
from partita.training.rehearsal.rehearse import on_cluster, rehearse


def file_of(memory: float = math.inf, stages: tuple[tuple[str, ...], ...] = (("cpu0", "cpu1"), ("cpu2",))) -> PlanFile:
    """The chain of six tasks (1 s forward, 2 s backward each) in two halves, the first one on two devices; 8 micro-batches."""
    names = sorted({d for s in stages for d in s})
    profile = chain_profile(6, len(names))
    sample = profile.samples[0]
    cluster = Cluster(tuple(Device(n, "cpu", memory) for n in names), (), Link("", "", 4.0, 0.25))
    tasks = [f"t{i}" for i in range(6)]
    parts = tuple(Stage(tuple(tasks[6 * k // len(stages) : 6 * (k + 1) // len(stages)]), s) for k, s in enumerate(stages))  # fmt: skip
    plan = PipelinePlan(sample.graph.fingerprint, parts, 8, 4, "1f1b")
    problem = PipelineProblem(sample.graph, cluster, sample.costs, "job.py:job", 8, 1)
    value = predicted(problem, plan).duration_s
    return PlanFile(plan, Verdict(value, 0.0, "none", "by hand", 0.0), problem)


def test_a_rehearsal_sends_what_the_plan_sends_and_counts_what_it_holds(tmp_path: Path) -> None:
    file = file_of(memory=30.0)
    found = rehearse(file, tmp_path, steps=2, pace=0.01, cap_bytes=1)
    assert len(found.steps_s) == 2
    assert found.messages.number == 16  # there and back for each micro-batch
    assert found.messages.size_bytes == 16.0
    assert found.rehearsed.source == "rehearsed"
    assert len(found.rehearsed) == len(found.simulated)
    assert Timeline.read(tmp_path / "rehearsed.json").duration_s == pytest.approx(found.rehearsed.duration_s)
    plan = file.plan
    assert isinstance(plan, PipelinePlan)
    held = {"cpu0": 2, "cpu1": 2, "cpu2": 1}  # 4 in flight over two replicas, and the last stage
    for peak in found.peaks:
        (k,) = plan.stages_of(peak.device)
        assert peak.peak_bytes == stage_memory(file.graph, plan.stages[k].tasks, 0.0).need_bytes(
            held[peak.device], False
        )
        assert peak.fits == (peak.peak_bytes <= 30.0)
    assert found.step_s >= 0.9 * found.simulated.duration_s  # nothing is faster than its waits
    assert found.single_s == pytest.approx(8 * 18.0)


@pytest.mark.machine
def test_a_rehearsal_takes_as_long_as_the_simulation(tmp_path: Path) -> None:
    found = rehearse(file_of(), tmp_path, steps=3, pace=0.02)
    assert (
        0.95 <= min(found.steps_s) / found.simulated.duration_s <= 1.15
    )  # waits are kept; a neighbour may add to them


def test_a_device_that_does_not_hold_its_stage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    file_of(memory=10.0, stages=(("cpu0",), ("cpu1",))).write(plan)
    assert main(["rehearse", str(plan), "--steps", "1", "--pace", "0.005", "-o", str(tmp_path / "out")]) == 0
    out, _ = capsys.readouterr()
    assert "DOES NOT FIT: cpu0 needs 24 B, it has 10 B, stage 0 keeps 12 B" in out
    said = json.loads((tmp_path / "out" / "rehearsal.json").read_text())
    assert len(said["ranks"]) == 2


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--steps", "0"], "0 steps"),
        (["--pace", "0"], "a pace of 0.0"),
        (["--pace", "nan"], "a pace of nan"),
        (["--cap-bytes", "0"], "a cap of 0 bytes"),
        (["--cap-bytes", str(10**30)], f"a cap of {10**30} bytes"),
        (["-o", "{plan}"], "cannot be made"),
        (["--micro-batches", "0"], "0 micro-batches"),
        (["--timeout-s", "-1"], "--timeout-s -1"),
        (["--cluster", "{gone}"], "the plan uses cpu2; the cluster has cpu0, cpu1"),
        (["--cluster", "{slow}"], "device 'cpu0' has speed = -1.0"),
        (["--cluster", "{links}"], "link cpu0->cpu9 names the unknown device 'cpu9'"),
        (["--cluster", "{kind}"], "no costs for devices of kind 'tpu'"),
        (["--cluster", "{unlinked}"], "nothing is known of the link cpu"),
        (["--cluster", "{missing}"], "cannot be read"),
    ],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], fact: str) -> None:
    plan = tmp_path / "plan.json"
    file_of().write(plan)
    device = "[[device]]\nname = '{}'\nkind = '{}'\nspeed = {}\n"
    clusters = {
        "gone": [("cpu0", "cpu", 1.0), ("cpu1", "cpu", 1.0)],
        "slow": [("cpu0", "cpu", -1.0), ("cpu1", "cpu", 1.0), ("cpu2", "cpu", 1.0)],
        "links": [("cpu0", "cpu", 1.0), ("cpu1", "cpu", 1.0), ("cpu2", "cpu", 1.0)],
        "kind": [("cpu0", "tpu", 1.0), ("cpu1", "cpu", 1.0), ("cpu2", "cpu", 1.0)],
    }
    clusters["unlinked"] = clusters["links"]
    places = {"missing": tmp_path / "no such file", "plan": plan}
    for name, rows in clusters.items():
        places[name] = tmp_path / f"{name}.toml"
        places[name].write_text("".join(device.format(*row) for row in rows))
    with places["links"].open("a") as file:
        file.write("[[links]]\nsource = 'cpu0'\ntarget = 'cpu9'\n")
    words = [w.format(**places) for w in words]
    assert main(["rehearse", str(plan), "-o", str(tmp_path / "out"), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert fact in err
    assert "hint:" in err


def test_orders_that_are_given_are_not_exchanged_for_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of(stages=(("cpu0",), ("cpu1",)))
    orders = device_orders(file.plan)  # type: ignore[arg-type]
    replace(file, plan=replace(file.plan, schedule="given", orders=orders)).write(tmp_path / "plan.json")  # type: ignore[arg-type]
    assert main(["rehearse", str(tmp_path / "plan.json"), "--micro-batches", "9"]) == 2
    assert "9 micro-batches: the plan gives every device its order for 8. hint: say 1 to 8" in capsys.readouterr().err


def test_a_further_device_of_another_kind_does_not_matter(tmp_path: Path) -> None:
    file = file_of(stages=(("cpu0",), ("cpu1",)))
    cluster = replace(file.cluster, devices=(*file.cluster.devices, Device("tpu0", "tpu")))
    found = rehearse(on_cluster(file, cluster), tmp_path, steps=1, pace=0.001)
    assert found.single_s == pytest.approx(8 * 18.0)


def test_a_placement_is_not_rehearsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=4.0"
    source, plan = tmp_path / "net.txt", tmp_path / "plan.json"
    source.write_text(f"node1 -- A -- {layer}\nnode2 -- B -- {layer}\n\tnode1 -- node2\n")
    assert main(["plan", str(source), "--devices", "2", "--no-replicas", "-o", str(plan)]) == 0
    assert main(["rehearse", str(plan)]) == 2
    assert "stages are rehearsed" in capsys.readouterr().err


def test_a_pipedream_profile_is_planned_as_a_training_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=4.0"
    source = tmp_path / "net.txt"
    source.write_text(f"node1 -- A -- {layer}\nnode2 -- B -- {layer}\n\tnode1 -- node2\n")
    words = ["plan", str(source), "--devices", "2", "--bandwidth", "1e6", "--objective", "step"]
    assert main(words) == 2
    assert "say --micro-batches M" in capsys.readouterr().err
    assert main([*words, "--micro-batches", "4", "--json"]) == 0
    d = json.loads(capsys.readouterr().out)
    assert d["micro_batches"] == 4
    assert d["compared_s"]["single"] == pytest.approx(4 * 6e-3)
    assert d["value_s"] == pytest.approx(
        2 * 6e-3 + 8e-6, rel=0.01
    )  # two replicas, and the sum of 8 bytes over both links


@pytest.mark.slow
def test_micro_batches_of_a_rehearsal_may_be_others(tmp_path: Path) -> None:
    file = file_of(stages=(("cpu0",), ("cpu1",)))
    plan = file.plan
    assert isinstance(plan, PipelinePlan)
    fewer = replace(file, plan=plan.of_micro_batches(3))
    found = rehearse(fewer, tmp_path, steps=1, pace=0.005)
    assert found.messages.number == 6
