"""Cluster: its links, its TOML and JSON, and every fault at once."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from small_worlds import clusters, damaged, refused_or

from partita.errors import ClusterError
from partita.files import write_whole
from partita.nouns import cluster as module
from partita.nouns.cluster import SECONDS_OF_A_DEVICE, Cluster, Device, Link

PAIR = Cluster(
    (Device("cpu0", memory_bytes=8e9, cores=(0,)), Device("gpu0", "gpu", speed=2.0)),
    (Link("cpu0", "gpu0", 1e9, 1e-3, "bus", True, 1e-6),),
    Link("", "", 1e8),
)


@given(clusters())
def test_json_gives_the_same_cluster(cluster: Cluster) -> None:
    assert Cluster.from_json(json.loads(json.dumps(cluster.to_json(), allow_nan=False))) == cluster


def test_the_file_in_the_documentation_is_read(tmp_path: Path) -> None:
    assert module.__doc__ is not None
    text = '[[device]]\nname = "cpu1"\n' + module.__doc__[module.__doc__.index("[[device]]") :]
    cluster = Cluster.read(write_whole(tmp_path / "c.toml", text))
    assert cluster.by_name["cpu0"] == Device("cpu0", "cpu", 8e9, cores=(0,))
    assert cluster.link("cpu0", "cpu1") == Link("cpu0", "cpu1", 1.25e8, 0.001, "bus", True)
    assert cluster.link("cpu1", "cpu0") == Link("cpu1", "cpu0", 1.2e9, 60e-6)


def test_a_link_without_a_medium_is_its_own_queue_in_each_direction() -> None:
    cluster = Cluster.uniform(3, rate_bytes_per_s=10.0, latency_s=0.5)
    assert {cluster.link(a, b).queue for a in cluster.by_name for b in cluster.by_name if a != b} == {
        f"cpu{i}->cpu{j}" for i in range(3) for j in range(3) if i != j
    }
    assert cluster.link("cpu0", "cpu2").transfer_s(25.0) == 2.5
    assert Cluster.uniform(2).link("cpu0", "cpu1").transfer_s(1e9) == 0.0
    assert PAIR.link("cpu0", "gpu0").queue == "bus"


def test_seconds_of_a_device_are_those_of_its_fields() -> None:
    """Checked, scaled and measured by these names."""
    assert tuple(f.name for f in fields(Device) if f.name.endswith("_s")) == SECONDS_OF_A_DEVICE


def test_the_first_devices_keep_their_links() -> None:
    assert PAIR.first(1) == Cluster(PAIR.devices[:1], (), PAIR.default_link)
    assert PAIR.first(2) == PAIR
    assert PAIR.kinds == ("cpu", "gpu")
    for n in (0, 3):
        with pytest.raises(ClusterError, match=rf"{n} devices asked for, 2 are there\. hint: choose 1 to 2"):
            PAIR.first(n)


def test_all_faults_are_told_at_once() -> None:
    devices = (Device("a", speed=0.0), Device("a", memory_bytes=math.nan), Device("b", speed=math.inf))
    links = (
        Link("a", "x", rate_bytes_per_s=0.0, medium="m"),
        Link("a", "b", latency_s=-1.0, message_s=math.nan, medium="b"),
        Link("a", "b", medium="m", fair=True, sum_s_per_byte=-1.0),
    )
    faults = "; ".join(Cluster(devices, links, Link("", "", latency_s=math.inf)).check())
    for fault in (
        "device name 'a' is used twice", "'a' has speed = 0", "'a' has memory_bytes = nan", "'b' has speed = inf",
        "link a->x names the unknown device 'x'", "link a->x has rate_bytes_per_s = 0", "link a->b has latency_s = -1",
        "link a->b has message_s = nan", "link a->b has sum_s_per_byte = -1", "the default link has latency_s = inf", "link a->b is given twice",
        "medium 'b', which is the name of a device", "medium 'm' is fair for some",
    ):  # fmt: skip
        assert fault in faults
    assert Cluster(()).check() == ["it has no devices"]
    assert PAIR.check() == []


@pytest.mark.parametrize(
    ("device", "sound"),
    [
        ({"speed": 1e18, "step_s": 1e15}, True),
        ({"speed": 1e-18}, True),
        ({"speed": 1e19}, False),
        ({"speed": 1e-19}, False),
        *(({w: 1.1e15}, False) for w in SECONDS_OF_A_DEVICE),
    ],
)
def test_speeds_and_seconds_beyond_reason_are_damage(device: dict[str, float], sound: bool) -> None:
    faults = Cluster((Device("a", **device),)).check()  # type: ignore[arg-type]
    assert faults == [] if sound else "device 'a' has" in faults[0]
    assert Cluster((Device("a"),), (), Link(rate_bytes_per_s=9e-16)).check() == [
        "the default link has rate_bytes_per_s = 9e-16"
    ]
    assert Cluster((Device("a"),), (), Link(latency_s=1.1e15)).check() == [
        "the default link has latency_s = 1100000000000000.0"
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("colour = 1", r"colour is unknown \(known: device, links, link, source\)"),
        ("[[device]]\nkind = 'cpu'", r"device\[0\].name is missing"),
        ("[[device]]\nname = 'a'\nspeed = 'fast'", r"device\[0\].speed is 'fast', not a number"),
        ("[[device]]\nname = 'a'\nsped = 1", r"device\[0\].sped is unknown \(known: name, kind"),
        ("[[device]]\nname = 'a'\ncores = ['0']", r"cores\[0\] is '0', not a whole number"),
        ("[[device]]\nname = 'a'\n[link]\nfair = 1", "link.fair is 1, not true or false"),
        ("[device]\nname = 'a'", "device is {'name': 'a'}, not a list"),
        ("device = [1]", r"device\[0\] is 1, not a table"),
        ("link = 3\n[[device]]\nname = 'a'", "link is 3, not a table"),
        ("", "it has no devices"),
        ("[[device]]\nname = 'a'\n[[links]]\nsource = 'a'", "link a-> names the unknown device ''"),
        ("[[device]]\nname = ", "is not TOML: Invalid value"),
    ],
)
def test_a_damaged_file_is_told_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    path = write_whole(tmp_path / "c.toml", text)
    with pytest.raises(ClusterError, match=says) as caught:
        Cluster.read(path)
    assert str(path) in str(caught.value)


@settings(max_examples=400)
@given(damaged(PAIR.to_json()))
def test_damage_is_refused_or_harmless(value: dict[str, Any]) -> None:
    cluster = refused_or(lambda: Cluster.from_json(value), ClusterError)
    assert cluster is None or cluster.check() == []
