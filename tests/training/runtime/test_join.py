"""Which device a rank stands for, and whether it is where that device is."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
from training.runtime.helpers import plan_file

from partita.errors import JobError, PlanError
from partita.nouns.plan import PlanFile
from partita.training.runtime import join
from partita.training.runtime.join import check_ranks, expect_host, own_address, world


def on_hosts(*hosts: str, source: str = "measured") -> PlanFile:
    """A plan of two stages, the first on the cluster's last device, the second on its first."""
    file = plan_file("failing:good", stages=2)
    plan, first = file.plan, file.cluster.devices[0]
    devices = tuple(replace(first, name=f"d{k}", host=h) for k, h in enumerate(hosts))
    used = devices[-1].name, devices[0].name
    stages = tuple(replace(s, devices=(d,)) for s, d in zip(plan.stages, used, strict=True))  # type: ignore[union-attr]
    problem = file.problem.on(replace(file.cluster, devices=devices, source=source))
    return replace(file, plan=replace(plan, stages=stages), problem=problem)  # type: ignore[arg-type]


def test_ranks_on_one_machine_stand_for_the_plans_devices_in_its_order() -> None:
    file = on_hosts("a", "a", "a")
    for launched in (True, False):
        assert world(file, 2, launched=launched) == ("d2", "d0")
        assert world(file, 3, launched=launched) == ("d2", "d0", "d1")
        check_ranks(file, 2, launched=launched)


def test_ranks_on_several_hosts_stand_for_the_clusters_devices_in_its_order() -> None:
    file = on_hosts("a", "b", "c")
    assert world(file, 3, launched=False) == ("d0", "d1", "d2")
    assert world(file, 2) == ("d2", "d0")
    check_ranks(file, 3, launched=False)
    with pytest.raises(JobError, match="the plan uses d2, which rank 2 stands for; 2 workers were started"):
        check_ranks(file, 2, launched=False)


def test_a_rank_on_another_host_than_its_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "own_address", lambda: "10.0.0.7")
    here = socket.gethostname()
    for name in (here, "10.0.0.7"):
        expect_host(on_hosts("elsewhere", name), 1, 2)
    with pytest.raises(PlanError, match=f"rank 0 stands for d0 on elsewhere, and was started on {here} at 10.0.0.7"):
        expect_host(on_hosts("elsewhere", here), 0, 2)
    expect_host(on_hosts("elsewhere", "there", source="given"), 0, 2)  # a name that somebody gave
    expect_host(on_hosts("elsewhere", "elsewhere"), 0, 2)  # one host, whatever it is called today


def test_the_own_address_is_that_on_the_way_to_the_meeting_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert own_address() == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "no.such.host.invalid")
    assert own_address() == ""
