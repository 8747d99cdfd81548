"""Which device a rank stands for, and whether it is where that device is."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training.runtime.helpers import plan_file

from partita.errors import BadInput, JobError, PlanError, WorkerFailed
from partita.nouns.plan import PlanFile
from partita.training.measure.together import _own_gpu
from partita.training.runtime import join
from partita.training.runtime.folder import held
from partita.training.runtime.interpreter import is_lost_peer
from partita.training.runtime.join import check_ranks, expect_host, own_address, world
from partita.training.runtime.mailbox import PeerGone


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


@pytest.mark.parametrize("port", ["x", "\u00b2\u00b2", "0", "65536", ""])
def test_a_port_that_is_none(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(BadInput, match="MASTER_PORT"):
        own_address()


def test_a_name_that_is_no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a label of a name may be: Python refuses to encode it."""
    monkeypatch.setenv("MASTER_ADDR", "a" * 70)
    monkeypatch.setenv("MASTER_PORT", "12345")
    assert own_address() == ""
    with pytest.raises(BadInput, match="rank 0 cannot listen"):
        join._listener("a" * 70, 12345)


@pytest.mark.parametrize(("name", "value"), [("LOCAL_RANK", "x"), ("LOCAL_WORLD_SIZE", ""), ("LOCAL_RANK", "\u00b2")])
def test_local_numbers_that_are_none(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=name):
        _own_gpu()


def test_a_folder_that_cannot_be_written_any_more_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    def run() -> None:
        with held(tmp_path):
            monkeypatch.setattr(Path, "unlink", refuses)
            raise ArithmeticError("the real reason")

    with pytest.raises(ArithmeticError, match="the real reason"):
        run()


@pytest.mark.parametrize(
    ("module", "kind", "lost"),
    [
        ("torch.distributed.distributed_c10d", RuntimeError, True),
        ("partita.training.runtime.interpreter", RuntimeError, True),
        ("partita.training.runtime.interpreter", OSError, False),
        ("my_job", RuntimeError, False),
        ("torch.utils.data.dataloader", RuntimeError, False),
    ],
)
def test_words_count_as_a_lost_peer_where_messages_come_from(module: str, kind: type[Exception], lost: bool) -> None:
    """gloo and NCCL say so in words only; a job may use the same."""
    fails = "def fails(kind): raise kind('Connection closed by peer [127.0.0.1]:8621')"
    room: dict[str, Any] = {"__name__": module}
    exec(fails, room)
    with pytest.raises(kind) as found:
        room["fails"](kind)
    assert is_lost_peer(found.value) is lost


def test_errors_that_name_a_lost_peer_count_always() -> None:
    assert is_lost_peer(WorkerFailed("gone", rank=1, doing="x"))
    assert is_lost_peer(PeerGone("gone"))
    assert not is_lost_peer(JobError("connection to the data server timed out", hint=""))
