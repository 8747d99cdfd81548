"""A job measured inside torchrun: every rank is a device, on its own host; then planned for, and run there."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training.runtime.helpers import source_of
from training.runtime.runs import JOBS, Run, alone, losses, ranks_on, start
from training.runtime.test_torchrun import free_port

from partita.cli import main
from partita.errors import BadInput, ClusterError
from partita.nouns.cluster import SECONDS_OF_A_DEVICE, Device, Link
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.probe import Readings
from partita.nouns.profile import Profile
from partita.pipeline.plan.planner import plan_pipeline
from partita.testbed.hosts import Testbed, unavailable
from partita.training.job import load_job
from partita.training.measure.hosts import Place, host_names, own_device
from partita.training.measure.speeds import speeds_by_steps
from partita.training.measure.together import Found, expect_alike, on_cable

REASON = unavailable()
needs_hosts = pytest.mark.skipif(bool(REASON), reason=REASON)
JOB = f"{JOBS / 'failing.py'}:good"
FEW = ["--micro-batch-sizes", "2,4", "--budget-s", "1.5"]


# ---- what is made of what was measured ----------------------------------------------------------------------------------


def test_the_fastest_device_sets_the_speed_and_equal_ones_are_equal() -> None:
    steps = [{4: 5.0, 8: 4.0}, {4: 1.0, 8: 0.8}, {4: 1.01, 8: 0.81}, {4: 2.0, 8: 1.6}]
    fastest, speeds = speeds_by_steps(steps)
    assert fastest == 1
    assert speeds == pytest.approx((0.2, 1.0, 1.0, 0.5))
    assert speeds_by_steps([{4: 1.0}]) == (0, (1.0,))
    assert speeds_by_steps([{4: 1.0, 8: 0.5, 16: 0.4}, {4: 3.0}])[1] == pytest.approx((1.0, 1 / 3))


def test_sizes_that_contradict_each_other_tell_no_speed() -> None:
    assert speeds_by_steps([{1: 1.0, 2: 1.0, 4: 1.0}, {1: 0.5, 2: 2.0, 4: 1.1}])[1] == (1.0, 1.0)


def test_what_is_stored_of_a_slow_device_is_as_at_speed_1() -> None:
    given = Device("b", host="b", instruction_s=4e-4, step_s=2e-3, update_s=8e-4, cold_s=5e-4)
    device = Found(given, (2,), (1.0,), 0.25).at_speed(0.25)
    own = [getattr(device, w) / device.speed for w in SECONDS_OF_A_DEVICE]
    assert own == pytest.approx([4e-4, 2e-3, 8e-4, 5e-4])


def test_links_within_a_host_share_no_cable() -> None:
    a, b, c = Device("x:cpu0", host="x"), Device("x:cpu1", host="x"), Device("y:cpu0", host="y")
    assert on_cable(Link(a.name, b.name, 1e9), a, b) == Link(a.name, b.name, 1e9)
    there, back = (on_cable(Link(s.name, t.name, 1e6), a, c) for s, t in ((a, c), (c, a)))
    assert (there.medium, there.fair, back.medium) == ("cable of x", True, "cable of y")


def test_hosts_are_told_apart_by_name_or_by_address() -> None:
    one, other = Place(1, 1, "box", "10.0.0.1"), Place(2, 1, "box", "10.0.0.2")
    assert host_names([one, Place(2, 2, "crate", "")]) == ("box", "crate")
    assert host_names([one, other, other]) == ("10.0.0.1", "10.0.0.2", "10.0.0.2")
    with pytest.raises(ClusterError, match="told apart"):
        host_names([one, Place(2, 1, "box", "10.0.0.1")])


def test_devices_are_those_of_this_machine_unless_hosts_share_it() -> None:
    here = Place(1, 1, "box", "10.0.0.1")
    assert own_device([here, here], 1).name == "cpu1"
    assert own_device([here, here], 1).cores
    there = Place(2, 2, "crate", "10.0.0.2")
    device = own_device([there, here, here], 2)
    assert (device.name, device.host) == ("box:cpu1", "box")
    assert device.cores
    beside = own_device([Place(2, 1, "crate", "10.0.0.2"), here], 1)
    assert (beside.name, beside.cores) == ("box:cpu0", ())


def test_ranks_that_do_not_measure_the_same_are_named() -> None:
    with pytest.raises(BadInput, match="batch size 8 on rank 0, 16 on rank 2"):
        expect_alike([{"batch size": n} for n in (8, 8, 16)])


# ---- ranks by hand, on this machine -------------------------------------------------------------------------------------


def ranks_of(folder: Path, jobs: Sequence[str], *options: str, world: int = 0) -> list[Run]:
    """`partita measure` as one rank after the other, each with a job."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world or len(jobs))}
    return [
        start(
            folder / f"rank{r}",
            ["measure", f"{JOBS / 'failing.py'}:{job}", "-o", folder / "profile.json", "--json", *FEW, *options],
            {**env, "RANK": str(r)},
        )
        for r, job in enumerate(jobs)
    ]


def ended(ranks: Sequence[Run], timeout_s: float = 60) -> list[int]:
    try:
        return [r.wait(timeout_s) for r in ranks]
    finally:
        for r in ranks:
            r.end()


def test_ranks_of_one_host_measure_themselves_and_what_is_between_them(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, ["good", "good"])
    assert ended(ranks) == [0, 0], [r.stderr for r in ranks]
    assert json.loads(ranks[1].stdout) == {"rank": 1}
    profile, told = Profile.read(tmp_path / "profile.json"), json.loads(ranks[0].stdout)
    assert told["devices"] == [d.name for d in profile.cluster.devices] == ["cpu0", "cpu1"]
    assert max(told["speeds"].values()) == 1.0
    assert {(k.source, k.target) for k in profile.cluster.links} == {("cpu0", "cpu1"), ("cpu1", "cpu0")}
    assert not any(k.medium for k in profile.cluster.links)


def test_one_rank_is_one_device(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, ["good"])
    assert ended(ranks) == [0], ranks[0].stderr
    cluster = Profile.read(tmp_path / "profile.json").cluster
    assert (len(cluster.devices), cluster.links) == (1, ())


@pytest.mark.parametrize(
    ("jobs", "codes", "sentence"),
    [
        (("good", "wider"), [2, 2], "ranks do not measure the same"),
        (("good", "raises_on"), [1, 2], "rank 1 failed while loading the job: "),
    ],
)
def test_what_goes_wrong_on_one_rank_ends_all_with_a_sentence(
    jobs: Sequence[str], codes: list[int], sentence: str, tmp_path: Path
) -> None:
    ranks = ranks_of(tmp_path, jobs)
    assert ended(ranks) == codes, [r.stderr for r in ranks]
    assert ranks[0].error().startswith(sentence)
    assert ranks[1].error()
    assert not (tmp_path / "profile.json").exists()


def test_a_rank_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, ["good", "good"])
    try:
        ranks[0].wait_until(lambda: "measuring tasks" in ranks[0].stderr, "the job")
        ranks[1].process.kill()
        began = time.monotonic()
        assert ranks[0].wait(20) == 1
        assert time.monotonic() - began < 20
        assert "onnection" in ranks[0].error()
        assert "pair.cc" not in ranks[0].error()
    finally:
        for r in ranks:
            r.end()


def test_a_place_where_nothing_can_be_written_ends_all(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, ["good", "good"], "-o", str(tmp_path / "nowhere" / "profile.json"))
    assert ended(ranks) == [2, 1], [r.stderr for r in ranks]
    assert ranks[1].error().startswith("rank 0 failed while getting ready: ")


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, ["good"], "--timeout-s", "2", world=2)
    assert ended(ranks) == [1]
    assert ranks[0].error().startswith("rank 0 of 2 could not join the others within 2 s: ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([JOB, "--devices", "2"], "--devices inside torchrun"),
        (["--campaign", "c.toml"], "--campaign inside torchrun"),
        ([JOB, "--split", "auto"], "--split auto inside torchrun"),
        ([JOB, "--timeout-s", "0"], "--timeout-s 0"),
        ([JOB, "--timeout-s", "1e300"], "--timeout-s 1e+300"),
    ],
)
def test_settings_that_make_no_sense_there_are_refused(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as code:
        sys.exit(main(["measure", *words, "-o", str(tmp_path / "p.json")]))
    assert code.value.code == 2
    assert f"partita: {sentence}" in capfd.readouterr().err


# ---- hosts of their own -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    """The first host has less than half of a core, the other one a whole one."""
    with Testbed.up(2, ["200mbit"], [40, 100]) as bed:
        yield bed


def on_hosts(bed: Testbed, words: Sequence[str], hosts: Sequence[str] = ("h0", "h1")) -> list[tuple[int, str, str]]:
    """(code, stdout, stderr) of `partita WORDS` on each host, a rank on each in this order."""
    ranks = ranks_on(bed, words, hosts)
    said = [r.communicate(timeout=60) for r in ranks]
    return [(r.returncode, *s) for r, s in zip(ranks, said, strict=True)]


@pytest.fixture(scope="module")
def profile(bed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hosts") / "profile.json"
    found = on_hosts(bed, ["measure", JOB, *FEW, "-o", str(path)])
    assert [code for code, *_ in found] == [0, 0], found
    return path


@needs_hosts
def test_unequal_hosts_and_the_cables_between_them_are_measured(bed: Testbed, profile: Path) -> None:
    cluster = Profile.read(profile).cluster
    hosts = [bed.address("h0"), bed.address("h1")]
    assert [d.host for d in cluster.devices] == hosts
    assert [d.name for d in cluster.devices] == [f"{h}:cpu0" for h in hosts]
    assert not any(d.cores for d in cluster.devices)
    slow, fast = cluster.devices
    assert fast.speed == 1.0
    # a plain loop says 0.37; twelve measurements said 0.20 to 0.39, with four times the budget, too
    assert 0.12 < slow.speed < 0.8
    for a, b in ((slow, fast), (fast, slow)):
        link = cluster.link(a.name, b.name)
        assert (link.medium, link.fair) == (f"cable of {a.host}", True)
        assert 0.7 * 25e6 < link.rate_bytes_per_s < 1.2 * 25e6
        assert link.send_s > 0
        assert link.message_s + 1e4 * link.message_s_per_byte > 0  # short ones are taken several at once


@pytest.mark.slow
@needs_hosts
def test_every_pair_is_measured_where_some_have_measured_others_before(bed: Testbed, tmp_path: Path) -> None:
    """The two ranks of a host have met when each meets the one of the other host."""
    out = tmp_path / "profile.json"
    words = ["measure", JOB, *FEW, "--timeout-s", "20", "-o", str(out)]
    found = on_hosts(bed, words, ("h0", "h1", "h1"))
    assert [code for code, *_ in found] == [0] * 3, found
    cluster = Profile.read(out).cluster
    names = [d.name for d in cluster.devices]
    assert {(k.source, k.target) for k in cluster.links} == set(itertools.permutations(names, 2))
    assert sum(bool(k.medium) for k in cluster.links) == 4


@pytest.fixture(scope="module")
def turned(profile: Path) -> PlanFile:
    """A plan with the first stage on the second host."""
    file = plan_pipeline(Profile.read(profile), method="even", stages=2, allow_replicas=False)
    assert isinstance(file.plan, PipelinePlan)
    names = reversed([d.name for d in file.cluster.devices])
    stages = tuple(replace(s, devices=(n,)) for s, n in zip(file.plan.stages, names, strict=True))
    return replace(file, plan=replace(file.plan, stages=stages))


@needs_hosts
def test_a_rank_is_the_device_that_was_measured_whatever_the_plans_order(
    bed: Testbed, turned: PlanFile, tmp_path: Path
) -> None:
    assert isinstance(turned.problem, PipelineProblem)
    plan, out = turned.write(tmp_path / "plan.json"), tmp_path / "run"
    found = on_hosts(bed, ["run", JOB, "--plan", str(plan), "-o", str(out), "--steps", "5"])
    assert [code for code, *_ in found] == [0, 0], found
    wanted, _ = alone(load_job(source_of("failing:good")), 5, turned.problem.micro_batch_size)
    assert losses(out) == pytest.approx(wanted, rel=1e-5)
    readings = Readings.read(out / "readings.json")
    assert readings.devices == tuple(d.name for d in turned.cluster.devices)
    assert np.isfinite(readings.worked_s).all()
    assert (readings.worked_s > 0).all()


@needs_hosts
def test_a_rank_on_another_host_than_it_was_measured_on_says_so(bed: Testbed, turned: PlanFile, tmp_path: Path) -> None:
    plan = turned.write(tmp_path / "plan.json")
    words = ["run", JOB, "--plan", str(plan), "-o", str(tmp_path / "run"), "--timeout-s", "3"]
    swapped = on_hosts(bed, words, ("h1", "h0"))
    assert [code for code, *_ in swapped] == [2, 2], swapped
    for r, (_, _, stderr) in enumerate(swapped):
        assert f"rank {r} stands for " in stderr
        assert "--node-rank" in stderr
