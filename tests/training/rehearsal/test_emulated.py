"""What a rehearsal is made of: waits, links, sums and the account of memory, each without processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline.plan.planning_worlds import chain_profile

from partita.nouns.program import Builder, Op, Piece
from partita.nouns.stage_memory import StageMemory
from partita.training.rehearsal.emulated import EmulatedModel, EmulatedStage, Ledger
from partita.training.rehearsal.pacer import Pacer
from partita.training.rehearsal.wires import Buckets, EmulatedSum


class Clock:
    """A clock that moves by what is slept, and a little more: the system is late."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.at, self.late = 100.0, late_s

    def now(self) -> float:
        self.at += 1e-9  # looking takes time, or nobody would ever come out of a spin
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds + self.late


def pacer(late_s: float = 0.0) -> tuple[Clock, Pacer]:
    clock = Clock(late_s)
    return clock, Pacer(clock.now, clock.sleep)


def test_what_a_wait_is_late_by_is_made_up_for_by_the_next() -> None:
    clock, p = pacer(late_s=0.003)
    began = clock.at
    for _ in range(10):
        p.until(p.now_s + 0.01)
    assert clock.at - began == pytest.approx(0.1 + 0.003, abs=2e-4)
    assert p.late_s == pytest.approx(10 * 0.003, abs=1e-3)


def test_what_is_no_wait_takes_time() -> None:
    clock, p = pacer()
    p.until(p.now_s + 0.01)
    before = p.now_s
    clock.at += 0.5
    assert p.now_s - before == pytest.approx(0.5, abs=1e-4)
    p.until(before + 0.1)
    assert p.now_s - before == pytest.approx(0.5, abs=1e-4)


def test_late_by_more_than_the_next_wait_is_not_forgotten() -> None:
    clock, p = pacer(late_s=0.05)
    began = p.now_s
    for _ in range(3):
        p.until(p.now_s + 0.01)
    assert p.now_s - began == pytest.approx(0.03, abs=1e-4)
    assert p.debt_s == pytest.approx(clock.at - began - 0.03, abs=1e-4)


def two_senders(medium: str) -> Buckets:
    build = Builder(["a", "b", "c"])
    for source in ("a", "b"):
        made = build.add(Op.COMPUTE, source, Piece("F0", "forward", 0))
        piece = Piece(f"{source}>c", "values", 0, 1, (), (0,), (source, "c"))
        sent = build.add(Op.SEND, medium or f"{source}->c", piece, 0, [made], 8.0)
        build.add(Op.RECV, "c", piece, 0, [sent])
    return Buckets.of(build.program(), Path())


def test_a_link_serves_one_message_after_another() -> None:
    buckets = two_senders("")
    assert buckets.shared == frozenset()
    assert buckets.take("a->c", 1.0, 2.0) == 3.0
    assert buckets.take("a->c", 1.5, 2.0) == 5.0
    assert buckets.take("a->c", 9.0, 2.0) == 11.0
    assert buckets.take("b->c", 1.0, 2.0) == 3.0


def test_a_medium_may_have_any_name(tmp_path: Path) -> None:
    names = ["x" * 300, "a/b", "a_47_b", "\0", "\udc80"]
    buckets = Buckets(tmp_path, frozenset(names))
    assert [buckets.take(n, 0.0, k + 1.0) for k, n in enumerate(names)] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_devices_on_one_medium_share_its_bucket(tmp_path: Path) -> None:
    one, other = two_senders("bus"), two_senders("bus")
    assert one.shared == frozenset({"bus"})
    one.folder = other.folder = tmp_path
    assert one.take("bus", 1.0, 2.0) == 3.0
    assert other.take("bus", 1.5, 2.0) == 5.0
    assert one.free_at("bus") == 5.0


def test_a_sum_begins_when_all_are_ready_and_takes_turns_on_a_medium() -> None:
    apart = EmulatedSum(0, (0, 1), (("a->b", 2.0), ("b->a", 3.0)), 0.5, 8)
    assert apart.end_s(10.0, [0.0, 11.0]) == {"a->b": 12.0, "b->a": 14.0}
    shared = EmulatedSum(0, (0, 1), (("bus", 2.0), ("bus", 3.0)), 0.5, 8)
    assert shared.end_s(10.0, [0.0, 11.0]) == {"bus": 16.0}


@pytest.mark.parametrize(("recompute", "peak"), [(False, 100.0 + 3 * 10.0), (True, 100.0 + 3 * 2.0 + 10.0)])
def test_the_account_of_memory_is_the_formula_of_the_planner(recompute: bool, peak: float) -> None:
    _, p = pacer()
    memory, ledger = StageMemory(100.0, 10.0, 2.0), Ledger(100.0)
    model = EmulatedModel.of(chain_profile(2).samples[0].graph, 4)
    seconds = {(kind, 0, m): 0.0 for kind in ("forward", "backward") for m in range(4)}
    stage = EmulatedStage(0, ("t0",), (), model, seconds, memory, recompute, p, ledger)  # type: ignore[arg-type]
    for m in range(3):
        (given,) = stage.forward(m, (), {}, 0)
        assert given.numel() == 1
    stage.backward(0, [None], 1.0)
    stage.forward(3, (), {}, 0)
    assert ledger.peak_bytes == peak == memory.need_bytes(3, recompute)
    for m in (1, 2, 3):
        stage.backward(m, [None], 1.0)
    assert ledger.kept == {}


def test_a_tensor_is_no_longer_than_the_cap() -> None:
    graph = chain_profile(3).samples[0].graph
    assert {m.size_bytes for m in EmulatedModel.of(graph, 1).meta.values()} == {1}
