"""What `partita offload measure` finds on a server, sending included, so that a plan can have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from offload.run.small_nets import net, plan_of, served

from partita.cli import main
from partita.nouns.offload import OffloadProblem
from partita.offload.plan.lower import part_times


def test_the_verb_measures_what_messages_take_of_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.onnx").write_bytes(net(side=64).data)
    out = str(tmp_path / "costs.json")
    with served(tmp_path) as (where, _):
        words = ["offload", "measure", str(tmp_path / "small.onnx"), "--server", where, "--budget-s", "0.3"]
        assert main([*words, "--cache", str(tmp_path / "kept"), "-o", out, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    problem = OffloadProblem.read(out)
    assert document["link"]["send_s"] == problem.link.send_s
    assert 1e-5 < problem.link.send_s < 0.1
    assert 0 <= problem.link.send_s_per_byte < 1e-6
    cost = document["measured"]["message_cpu_s"]
    share = document["measured"]["models"][0]["device_cpu_share"]
    assert problem.link.send_s == pytest.approx(cost["device"][0] / min(1.0, share))
    assert problem.link.receive_s > 0
    assert (
        part_times(problem, plan_of(problem, [0]))[0][0, 0] >= problem.link.send_s
    )  # of the device, before the upload
    assert problem.speeds is not None
    assert min(problem.speeds.device.probe_s, problem.speeds.server.probe_s) > 1e-6
    assert 0.05 < problem.speeds.device.share <= 1.0
    assert OffloadProblem.from_json(problem.to_json()) == problem


def test_costs_read_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.onnx").write_bytes(net(side=64).data)
    with served(tmp_path) as (where, _):
        words = ["offload", "measure", str(tmp_path / "small.onnx"), "--server", where, "--budget-s", "0.3"]
        assert main([*words, "--cache", str(tmp_path / "kept")]) == 0
    assert "sending" in capsys.readouterr().out
