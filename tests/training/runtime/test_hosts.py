"""Ranks on hosts of their own: messages cross the network between them, and the run is that of one process, also where a host slows down
in the middle; where one disappears, the others say so and end."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from training.runtime.helpers import plan_file, source_of
from training.runtime.runs import alone, losses, metrics, ranks_on

from partita.cli import main
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.program import Op
from partita.simulate.lower import program_of
from partita.testbed.hosts import Testbed, unavailable
from partita.training.job import load_job

REASON = unavailable()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
STEPS = 200


def sent_bytes(bed: Testbed, host: str) -> int:
    """By a host's cable so far."""
    words = ["cat", "/sys/class/net/eth0/statistics/tx_bytes"]
    return int(bed.exec(host, words).stdout)


def step_bytes(file: PlanFile) -> float:
    """Of all messages of a step."""
    assert isinstance(file.plan, PipelinePlan)
    program = program_of(file.problem, file.plan)
    return float(program.size_bytes[program.op == Op.SEND].sum())


def until(true: Callable[[], bool], ranks: Sequence[subprocess.Popen[str]], patience_s: float = 90.0) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert all(r.poll() is None for r in ranks), [r.communicate() for r in ranks if r.poll() is not None]
        assert time.monotonic() < end
        time.sleep(0.02)


def words(plan: Path, job: str, out: Path, *options: str) -> list[str]:
    return ["run", job, "--plan", str(plan), "-o", str(out), *options]


def test_ranks_on_two_hosts_train_like_one_process_over_the_network_between_them(tmp_path: Path) -> None:
    file = plan_file("failing:good", stages=2)
    plan, out = file.write(tmp_path / "plan.json"), tmp_path / "run"
    with Testbed.up(2, ["100mbit"]) as bed:
        ranks = ranks_on(bed, words(plan, source_of("failing:good"), out, "--steps", str(STEPS)))
        said = [r.communicate(timeout=120) for r in ranks]
        assert [r.returncode for r in ranks] == [0, 0], said
        traffic = [sent_bytes(bed, f"h{r}") for r in range(2)]
    wanted, _ = alone(load_job(source_of("failing:good")), STEPS, 2)
    assert losses(out) == pytest.approx(wanted, rel=1e-6)
    assert (
        min(traffic) > STEPS * step_bytes(file) / 2
    )  # each way: values there, as many gradients back; meeting is a third of that


@pytest.mark.slow
def test_a_host_that_gets_less_of_its_core_in_the_middle_of_a_run_is_named(tmp_path: Path) -> None:
    job, steps = source_of("vit"), 60
    profile, plan, out = tmp_path / "profile.json", tmp_path / "plan.json", tmp_path / "run"
    assert (
        main(["measure", job, "--devices", "2", "--micro-batch-sizes", "2", "--budget-s", "2", "-o", str(profile)]) == 0
    )
    assert main(["plan", str(profile), "--micro-batches", "4", "--stages", "2", "-o", str(plan)]) == 0
    with Testbed.up(2, ["1gbit"], [100, 100]) as bed:
        ranks = ranks_on(bed, words(plan, job, out, "--steps", str(steps)))
        until(lambda: len(metrics(out)) >= 10, ranks)
        bed.cpu("h1", 25)
        said = [r.communicate(timeout=120) for r in ranks]
        assert [r.returncode for r in ranks] == [0, 0], said
    document = json.loads(said[0][0])
    assert document["steps"] == steps
    ran = {d["device"]: d["ran"] / d["planned"] for d in document["devices_ran"]}
    made = PlanFile.read(plan).plan
    assert isinstance(made, PipelinePlan)
    kept, cut = made.devices  # rank by rank
    assert ran[cut] < 0.6 * ran[kept], document
    assert document["predicted_at_run_speed_s"] > 1.3 * document["predicted_step_s"]
    assert any(f"{cut} ran at" in line for line in document["machine"]), document["machine"]
    assert any("no number here can be trusted" in line for line in document["machine"]), document["machine"]


@pytest.mark.slow
def test_a_host_that_disappears_is_given_up(tmp_path: Path) -> None:
    """Its cable is cut: nothing says so, as nothing did when it was killed."""
    plan = plan_file("failing:good", stages=2).write(tmp_path / "plan.json")
    out, job = tmp_path / "run", source_of("failing:good")
    with Testbed.up(2, ["100mbit"]) as bed:
        ranks = ranks_on(bed, words(plan, job, out, "--steps", "1000000", "--timeout-s", "5"))
        until(lambda: len(metrics(out)) >= 5, ranks)
        bed.exec("h1", ["ip", "link", "set", "eth0", "down"])
        said = [r.communicate(timeout=40) for r in ranks]
        assert [r.returncode for r in ranks] == [1, 1], said
    for _, told in said:
        assert "Traceback" not in told
        assert re.search(r"^partita: .*(lost|is gone)", told, re.MULTILINE), said
