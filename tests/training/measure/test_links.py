"""The link between two workers: the line through the times, and a real exchange."""

from __future__ import annotations

import math
import os
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import ClusterError
from partita.nouns.cluster import Device, Link
from partita.simulate.exchange import ring_s
from partita.spawn import Process
from partita.training.measure import links
from partita.training.measure.links import GRADIENT_BYTES, SIZES, Pace, Peer, link_between, link_from, with_sums


def rows(latency_s: float, rate: float, send_s: float = 2e-5, receive_s: float = 3e-5) -> list[dict[str, float]]:
    """Both ends are busy before and after the message is on its way."""
    way_s = [send_s + latency_s + b / rate + receive_s for b in SIZES]
    return [
        {"bytes": float(b), "way_s": w, "send_s": send_s, "receive_s": receive_s, "stream_s": b / rate}
        for b, w in zip(SIZES, way_s, strict=True)
    ]


@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11))
def test_a_line_gives_back_its_latency_and_rate(latency_s: float, rate: float) -> None:
    link = link_from("a", "b", rows(latency_s, rate))
    longest = latency_s + SIZES[-1] / rate
    assert link.latency_s == pytest.approx(latency_s, rel=1e-6, abs=1e-9 * longest)
    assert SIZES[-1] / link.rate_bytes_per_s == pytest.approx(SIZES[-1] / rate, rel=1e-6, abs=1e-9 * longest)
    assert (link.source, link.target) == ("a", "b")
    assert (link.send_s, link.message_s) == pytest.approx((2e-5, 3e-5))


@given(st.lists(st.floats(1e-6, 1.0), min_size=len(SIZES), max_size=len(SIZES)))
def test_any_times_give_a_link_that_can_be_used(ways: list[float]) -> None:
    rows = [{"bytes": float(b), "way_s": w, "send_s": w, "receive_s": w} for b, w in zip(SIZES, ways, strict=True)]
    found = link_from("a", "b", rows)
    assert found.latency_s >= 0
    assert found.rate_bytes_per_s > 0
    longest = max(ways)
    took = SIZES[-1] / found.delivered_bytes_per_s
    assert math.isfinite(took)
    assert took <= 4 * longest


def test_what_the_ends_take_of_a_byte_is_part_of_the_way_through_memory_and_beside_it_on_a_wire() -> None:
    for end, name in (("send_s", "send_s"), ("receive_s", "message_s")):
        copied = [{**r, end: 4e-6 + r["bytes"] / 5e9} for r in rows(1e-4, 1e9)]
        for wire, rate in ((False, 1.25e9), (True, 1e9)):
            link = link_from("a", "b", copied, wire=wire)
            assert getattr(link, name) == pytest.approx(4e-6)
            assert getattr(link, f"{name}_per_byte") == pytest.approx(1 / 5e9)
            assert link.rate_bytes_per_s == pytest.approx(rate)


def test_ends_take_no_more_of_a_byte_than_its_way_through_memory() -> None:
    link = link_from("a", "b", [{**r, "send_s": r["bytes"] / 5e8} for r in rows(1e-4, 1e9)])
    assert link.send_s_per_byte == pytest.approx(1e-9)
    assert link.rate_bytes_per_s > 1e12


def test_ends_take_no_more_of_a_message_than_its_way_through_memory() -> None:
    """One takes it while the other is still posting it. On a wire they work before and behind what it takes."""
    told = [{**r, "way_s": r["way_s"] - 3e-5} for r in rows(1e-5, 1e9)]
    for wire, ends in ((False, (1.2e-5, 1.8e-5)), (True, (2e-5, 3e-5))):
        link = link_from("a", "b", told, wire=wire)
        assert (link.send_s, link.message_s) == pytest.approx(ends)
        assert link.latency_s == 0


@given(st.floats(1e6, 1e11), st.floats(0, 1e-2), st.floats(0, 1e-2), st.floats(0, 1e-6))
def test_what_a_sum_takes_beyond_its_messages_is_copying_and_adding(
    rate: float, latency_s: float, each_s: float, per_byte: float
) -> None:
    link = Link("a", "b", rate, latency_s)
    sums = [{"bytes": float(b), "sum_s": each_s + ring_s(2, b, rate, latency_s) + b * per_byte} for b in GRADIENT_BYTES]
    found, longest = with_sums(link, sums), sums[-1]["sum_s"]
    for s in sums:
        took = found.sum_s + ring_s(2, s["bytes"], found.exchange_bytes_per_s, latency_s)
        assert took == pytest.approx(s["sum_s"], rel=1e-6, abs=1e-9 * longest)


def test_sums_that_are_faster_than_their_messages_take_those() -> None:
    found = with_sums(Link("a", "b", 1e9, 1e-4), [{"bytes": 1e6, "sum_s": 0.0}])
    assert (found.sum_s, found.sum_s_per_byte) == (0, 0)


def test_two_processes_of_this_machine_exchange_messages() -> None:
    cores = sorted(os.sched_getaffinity(0))
    a, b = (Device(f"cpu{i}", cores=(cores[i % len(cores)],)) for i in range(2))
    link = link_between(a, b, Pace(repeats=5))
    assert 1e6 < link.delivered_bytes_per_s < 1e12
    assert link.send_s_per_byte > 0
    assert link.message_s_per_byte > 0
    assert 0 <= link.latency_s < 0.1
    assert 0 < link.message_s < 0.1
    assert 0 < link.send_s < 0.1
    assert 0 <= link.sum_s_per_byte < 1e-6
    assert (link.source, link.target) == ("cpu0", "cpu1")


@pytest.mark.parametrize(("job_s", "rounds"), [(0.0, 1), (1e-4, 1), (8e-4, 2), (2e-3, 5), (0.5, 10)])
def test_a_side_works_as_long_as_a_stage_does_before_it_sends(
    monkeypatch: pytest.MonkeyPatch, job_s: float, rounds: int
) -> None:
    """Messages of a job with short micro-batches find their code in caches; of others they do not."""
    now, made = [0.0], [0]

    def train(batch: torch.Tensor) -> torch.Tensor:
        now[0] += 1.001e-4
        made[0] += 1
        return torch.ones(1, requires_grad=True)

    monkeypatch.setattr(links, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    work = links._Work(1 << 10, Pace(job_bytes=4.0, job_s=job_s), torch.device("cpu"))
    monkeypatch.setattr(work, "_model", train)
    took_s = work()
    assert made[0] == rounds
    assert took_s == pytest.approx(1.001e-4 * rounds)


@pytest.mark.parametrize(("turn_s", "turns"), [(0.1, 5), (1.9, 4), (2.1, 4), (3.1, 3), (5.1, 1), (30.0, 1)])
def test_what_is_measured_while_the_machine_stands_still_does_not_count(
    monkeypatch: pytest.MonkeyPatch, turn_s: float, turns: int
) -> None:
    """Of several turns; a slow link has one."""
    now, made = [0.0], list[float]()

    def turn(peer: Peer, pace: Pace) -> dict[bool, list[dict[str, float]]]:
        now[0] += turn_s if made or turn_s > 3 else turn_s + 1.0  # the first one is stopped
        made.append(1e-4 if made or turns == 1 else 5e-3)
        assert (pace.repeats, pace.piece_s) == (8, 0.4)
        return {way: [{"bytes": float(size), "way_s": made[-1] * (1 + way)} for size in SIZES] for way in (True, False)}

    monkeypatch.setattr(links, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(links, "_turn", turn)
    monkeypatch.setattr(links, "_sum_time", lambda *_: 0.0)
    peer = cast(Peer, SimpleNamespace(led=int, wire=False))
    found = links.exchange(peer, Pace())
    assert len(made) == turns
    assert [r["way_s"] for r in found["there"]] == [2e-4] * len(SIZES)
    assert [r["way_s"] for r in found["back"]] == [1e-4] * len(SIZES)
    assert [r["bytes"] for r in found["back"]] == [*SIZES]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_measurement_at_once(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Its peer would wait for it as long as it may."""

    def start(*what: Any) -> Process:
        process = started(*what)
        if what[1] == rank:
            process.kill()
        return process

    started, began = links._start, time.monotonic()
    monkeypatch.setattr(links, "_start", start)
    with pytest.raises(ClusterError, match=rf"cpu0 -> cpu1 .*: the process on cpu{rank} was killed by SIGKILL\."):
        link_between(Device("cpu0"), Device("cpu1"), Pace(), timeout_s=300.0)
    assert time.monotonic() - began < 60.0


def test_a_measurement_ends_when_its_time_is_up() -> None:
    with pytest.raises(ClusterError, match=r"its processes have not ended in 0 s"):
        link_between(Device("cpu0"), Device("cpu1"), Pace(), timeout_s=0.0)
