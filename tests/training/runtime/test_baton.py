"""Comparisons that take turns: one at a time, all the rounds, and none is left waiting when another one fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from training.runtime.helpers import plan_file, source_of

from partita.errors import PartitaError
from partita.pipeline.run.loop import Comparison, compare_engines
from partita.training.runtime.baton import Baton, Ring


def rounds(baton: Baton, name: str, seen: list[str]) -> None:
    for _ in range(4):
        baton.wait()
        seen += [name, name]
        baton.give()


@pytest.mark.parametrize("members", [1, 2, 5])
def test_who_has_the_baton_is_alone_and_all_come_to_their_turn(members: int, tmp_path: Path) -> None:
    seen: list[str] = []
    with Ring.started(tmp_path, members) as ring, ThreadPoolExecutor(members) as pool:
        done = [pool.submit(rounds, Baton.of(ring.place(k), 0), str(k), seen) for k in range(members)]
        for d in done:
            d.result(10)
    assert seen == [name for _ in range(4) for name in map(str, range(members)) for _ in range(2)]


def test_nobody_begins_before_all_are_ready(tmp_path: Path) -> None:
    seen: list[str] = []

    def member(baton: Baton, name: str, builds_s: float) -> None:
        time.sleep(builds_s)
        seen.append(f"{name} is ready")
        baton.ready()
        rounds(baton, name, seen)

    with Ring.started(tmp_path, 3) as ring, ThreadPoolExecutor(3) as pool:
        done = [pool.submit(member, Baton.of(ring.place(k), 0), str(k), 0.1 * k) for k in range(3)]
        for d in done:
            d.result(10)
    assert sorted(seen[:3]) == [f"{k} is ready" for k in range(3)]


def test_without_others_nobody_waits() -> None:
    assert list(Baton.of((), 0).rounds("abc")) == ["a", "b", "c"]


def test_ranks_but_the_first_leave_the_pipes_alone(tmp_path: Path) -> None:
    with Ring.started(tmp_path, 2) as ring:
        other = Baton.of(ring.place(0), 1)
        other.wait()
        other.give()
        Baton.of(ring.place(0), 0).wait()


def test_all_who_wait_are_told_of_the_end(tmp_path: Path) -> None:
    with Ring.started(tmp_path, 3) as ring, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(Baton.of(ring.place(k), 0).wait) for k in (1, 2)]
        time.sleep(0.1)
        ring.end()
        for w in waiting:
            with pytest.raises(PartitaError, match="takes turns with this one has failed"):
                w.result(5)
        with pytest.raises(PartitaError, match="takes turns with this one has failed"):
            Baton.of(ring.place(1), 0).wait()  # also who comes later, e.g. started again


def compared(pool: ThreadPoolExecutor, ring: Ring, k: int, name: str, folder: Path, steps: int) -> Future[Comparison]:
    engines: Sequence[str] = ("single", "pipeline")
    return pool.submit(
        compare_engines, plan_file(name, stages=2), source_of(name), {}, folder / str(k), engines=engines, rounds=steps,
        ring=ring.place(k),
    )  # fmt: skip


@pytest.mark.machine
def test_two_comparisons_at_once_step_as_if_each_were_alone(tmp_path: Path) -> None:
    with Ring.started(tmp_path, 2) as ring, ThreadPoolExecutor(2) as pool:
        runs = [compared(pool, ring, k, "failing:good", tmp_path, 6) for k in range(2)]
        one, other = (r.result(120) for r in runs)
    assert one.losses == other.losses
    assert len(one.step_s["pipeline"]) == len(other.step_s["pipeline"]) == 4
    assert one.largest_loss_error < 1e-5


@pytest.mark.machine
def test_one_that_fails_ends_the_other(tmp_path: Path) -> None:
    names = ("failing:good", "failing:batches_fail")
    with Ring.started(tmp_path, 2) as ring, ThreadPoolExecutor(2) as pool:
        good, bad = (compared(pool, ring, k, n, tmp_path, 500) for k, n in enumerate(names))
        try:
            with pytest.raises(PartitaError, match="disk on fire"):
                bad.result(120)
        finally:
            ring.end()
        with pytest.raises(PartitaError, match="takes turns with this one has failed"):
            good.result(30)
