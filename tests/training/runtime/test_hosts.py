"""Ranks on hosts of their own: messages cross the network between them, and the run is that of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from training.runtime.helpers import plan_file, source_of
from training.runtime.runs import JOBS, alone, losses

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


def test_ranks_on_two_hosts_train_like_one_process_over_the_network_between_them(tmp_path: Path) -> None:
    file = plan_file("failing:good", stages=2)
    plan = file.write(tmp_path / "plan.json")
    out = tmp_path / "run"
    command = [
        "run",
        f"{JOBS / 'failing.py'}:good",
        "--plan",
        str(plan),
        "-o",
        str(out),
        "--steps",
        str(STEPS),
        "--json",
    ]
    with Testbed.up(2, ["100mbit"]) as bed:
        place = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": bed.address("h0"),
            "MASTER_PORT": "29577",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        ranks = [
            bed.popen(
                f"h{r}", [sys.executable, "-m", "partita", *command], env={**os.environ, **place, "RANK": str(r)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for r in range(2)
        ]  # fmt: skip
        said = [r.communicate(timeout=120) for r in ranks]
        assert [r.returncode for r in ranks] == [0, 0], said
        traffic = [sent_bytes(bed, f"h{r}") for r in range(2)]
    wanted, _ = alone(load_job(source_of("failing:good")), STEPS, 2)
    assert losses(out) == pytest.approx(wanted, rel=1e-6)
    assert (
        min(traffic) > STEPS * step_bytes(file) / 2
    )  # each way: values there, as many gradients back; meeting is a third of that
