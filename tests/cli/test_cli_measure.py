"""partita measure, through the door that a script uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training.runtime.helpers import MODELS

from partita.cli import main
from partita.cli.measure import sizes_of
from partita.errors import BadInput
from partita.nouns.profile import Profile


def test_a_small_job_gives_a_profile_that_can_be_planned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "profile.json"
    words = ["measure", f"{MODELS}:two_inputs", "--set", "batch=8", "--devices", "2", "--micro-batch-sizes", "2,4"]
    assert main([*words, "--budget-s", "4", "-o", str(out), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    profile = Profile.read(out)
    assert told["profile"] == str(out)
    assert told["fingerprint"] == profile.fingerprint
    assert told["batch_size"] == profile.batch_size == 8
    assert told["devices"] == [d.name for d in profile.cluster.devices]
    assert {int(n): s for n, s in told["single_step_s"].items()} == {
        s.micro_batch_size: s.single_step_s for s in profile.samples
    }
    parameters = 4 * (4 * (16 * 16 + 16) + (8 * 16 + 16) + (16 * 4 + 4))  # float32: body, gate, head
    assert told["parameter_bytes"] == parameters
    assert told["facts"]["settings"] == {"batch": "8"}

    assert main(["plan", str(out), "--json"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert 0 < plan["lower_bound_s"] <= plan["value_s"]


def test_text_has_a_row_a_size(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["measure", f"{MODELS}:two_inputs", "--devices", "1", "--micro-batch-sizes", "2", "--budget-s", "0.1"]
    assert main([*words, "-o", str(tmp_path / "p.json")]) == 0
    out, err = capfd.readouterr()
    assert "one process, a step" in out
    assert out.rstrip().endswith("p.json")
    assert "measuring" in err


@pytest.mark.parametrize(("text", "sizes"), [(None, ()), ("", ()), ("4", (4,)), ("4,8", (4, 8)), (" 4 , 8 ", (4, 8))])
def test_lists_of_sizes(text: str | None, sizes: tuple[int, ...]) -> None:
    assert sizes_of(text) == sizes


@pytest.mark.parametrize("text", ["4;8", "a", "4,,8", "4.5"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(BadInput, match="list of sizes"):
        sizes_of(text)
