"""Phases begin in the order of the plan, and no other."""

from __future__ import annotations

import itertools
import threading

import pytest

from partita.errors import InternalError
from partita.spark.plan.planner import plan_spark
from partita.spark.problem import ShopJob, ShopProblem, ShopStage
from partita.spark.run.gate import Gate, Phase, needs_of, one_by_one, orders_of, pass_through
from partita.spark.schedule import Start

TWO = ShopProblem(
    (
        ShopJob((ShopStage(0.0, 1.0), ShopStage(2.0, 1.0, (0,))), name="a"),
        ShopJob((ShopStage(1.0, 3.0), ShopStage(1.0, 1.0, (0,))), name="b"),
    )
)


def played(problem: ShopProblem, schedule: tuple[Start, ...]) -> dict[Phase, tuple[float, float]]:
    """When each phase begins and ends, with the problem's lengths, under the gate: time is counted, not waited for."""
    gate = Gate(orders_of(schedule, problem), needs_of(problem))
    now, running, found = 0.0, dict[Phase, float](), dict[Phase, tuple[float, float]]()
    while not gate.over:
        for phase in gate.begin():
            stage = problem.jobs[phase.job].stages[phase.stage]
            running[phase] = now + (stage.network_s if phase.machine == "network" else stage.cpu_s)
            found[phase] = (now, running[phase])
        first = min(running, key=lambda p: running[p])
        now = running.pop(first)
        gate.done(first)
    return found


@pytest.mark.parametrize("objective", ["makespan", "mean-completion"])
def test_the_gate_takes_as_long_as_the_plan_says(objective: str) -> None:
    file = plan_spark(TWO, objective=objective, budget_s=0.1)  # type: ignore[arg-type]
    found = played(TWO, file.schedule)
    for r in file.schedule:
        assert found[Phase(r.job, r.stage, "cpu")][0] == pytest.approx(r.cpu_start_s)
        assert found[Phase(r.job, r.stage, "network")][0] <= r.network_start_s + 1e-9
    for machine in ("network", "cpu"):
        spans = sorted(s for p, s in found.items() if p.machine == machine and s[1] > s[0])
        assert all(a[1] <= b[0] + 1e-12 for a, b in itertools.pairwise(spans))


def test_what_the_plan_lets_wait_waits() -> None:
    schedule = (Start(0, 0, 0.0, 4.5), Start(0, 1, 5.5, 7.5), Start(1, 0, 0.5, 1.5), Start(1, 1, 9.0, 10.0))
    gate = Gate(orders_of(schedule, TWO), needs_of(TWO))
    assert gate.begin() == [Phase(0, 0, "network")]
    gate.done(Phase(0, 0, "network"))
    # the CPU could compute a.0 now; the plan has b.0 first
    assert gate.begin() == [Phase(1, 0, "network")]
    gate.done(Phase(1, 0, "network"))
    assert gate.begin() == [Phase(1, 0, "cpu")]


def test_one_by_one_lets_nothing_run_beside() -> None:
    rows = [range(2), range(2)]
    schedule = tuple(Start(j, s, float(2 * j + s), float(2 * j + s)) for j in range(2) for s in range(2))
    gate = Gate(orders_of(schedule, TWO), one_by_one(TWO, rows))
    order = []
    while not gate.over:
        (phase,) = gate.begin()
        order.append(phase)
        gate.done(phase)
    assert [(p.job, p.stage) for p in order] == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1)]


def test_free_phases_need_no_machine() -> None:
    schedule = (Start(0, 0, 0.0, 0.0), Start(0, 1, 1.0, 3.0), Start(1, 0, 0.0, 1.0), Start(1, 1, 4.0, 5.0))
    gate = Gate(orders_of(schedule, TWO), needs_of(TWO), frozenset({Phase(0, 0, "network")}))
    assert set(gate.begin()) == {Phase(0, 0, "network"), Phase(1, 0, "network")}  # the second one has the machine
    gate.done(Phase(1, 0, "network"))
    assert gate.begin() == []  # a phase without a machine is under way: nothing waits for itself
    gate.done(Phase(0, 0, "network"))
    assert gate.begin() == [Phase(0, 0, "cpu")]


def test_phases_of_no_length_begin_parents_first_however_they_are_numbered() -> None:
    problem = ShopProblem((ShopJob((ShopStage(0.0, 0.0, (1,)), ShopStage(0.0, 0.0, (2,)), ShopStage(0.0, 2.0))),))
    file = plan_spark(problem, "fifo")
    found = played(problem, file.schedule)
    assert found[Phase(0, 0, "cpu")] == (2.0, 2.0)


def test_an_order_that_waits_for_itself_is_an_error() -> None:
    orders = {"network": [Phase(0, 1, "network")], "cpu": [Phase(0, 0, "cpu")]}
    needs = {Phase(0, 1, "network"): [Phase(0, 0, "cpu")], Phase(0, 0, "cpu"): [Phase(0, 1, "network")]}
    with pytest.raises(InternalError, match="waits for itself"):
        Gate(orders, needs).begin()  # type: ignore[arg-type]


def test_every_phase_has_a_thread_of_its_own_and_comes_in_order() -> None:
    file = plan_spark(TWO, "johnson")
    done, threads, lock = list[Phase](), set[int](), threading.Lock()

    def work(phase: Phase) -> None:
        with lock:
            assert all(p in done for p in needs_of(TWO)[phase])
            threads.add(threading.get_ident())
            done.append(phase)

    pass_through(Gate(orders_of(file.schedule, TWO), needs_of(TWO)), work, threading.Thread)
    for machine, order in orders_of(file.schedule, TWO).items():
        assert [p for p in done if p.machine == machine] == order
    assert threading.get_ident() not in threads


def test_a_phase_that_fails_lets_no_other_begin() -> None:
    begun: list[Phase] = []

    def work(phase: Phase) -> None:
        begun.append(phase)
        if phase == Phase(1, 0, "cpu"):
            raise ValueError("it broke")

    schedule = tuple(Start(j, s, float(2 * (1 - j) + s), float(2 * (1 - j) + s)) for j in range(2) for s in range(2))
    with pytest.raises(ValueError, match="it broke"):
        pass_through(Gate(orders_of(schedule, TWO), needs_of(TWO)), work, threading.Thread)
    assert Phase(1, 1, "network") not in begun
