"""Schedules against their drawings, and that every one of them runs through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_drawings import chunks, drawings
from schedule_drawings import drawn as drawn_by_device
from small_worlds import given_costs, stage_plan, training_chain

from partita.errors import PlanError
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Schedule, Slot, Stage
from partita.nouns.program import Op
from partita.simulate.lower import lower
from partita.simulate.schedules import (
    device_orders,
    gpipe,
    held_of,
    in_flight_of,
    interleaved,
    one_forward_one_backward,
    slots,
    unit_ends,
    zb_h1,
    zb_h2,
    zb_v,
)
from partita.simulate.simulator import durations, simulate

schedules = st.sampled_from(["1f1b", "gpipe"])
by_stage = st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-h2"])
pipelines = st.tuples(schedules, st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 16))  # fmt: skip


def drawn(
    schedule: Schedule, replicas: Sequence[int], units: Sequence[int], micro_batches: int, in_flight: int, message: int
) -> str:
    """The timeline of a lowered and simulated chain, drawn as the docstrings draw it; units: [stages] per computation."""
    graph = training_chain(len(replicas))
    plan = stage_plan(graph, replicas, micro_batches, in_flight, schedule)
    stage_of = [k for k, m in enumerate(replicas) for _ in range(m)]
    cluster = Cluster(
        tuple(Device(f"cpu{i}", speed=1 / units[k]) for i, k in enumerate(stage_of)),
        (),
        Link("", "", latency_s=message),
    )
    program = lower(graph, cluster, plan)
    timeline = simulate(program, durations(program, graph, given_costs(graph), cluster))
    rows = [[".."] * round(timeline.duration_s) for _ in stage_of]
    for span in (timeline[i] for i in range(len(timeline)) if timeline.queue[i] < timeline.devices):
        for t in range(round(span.start_s), round(span.end_s)):
            rows[timeline.queues.index(span.queue)][t] = f"{span.label[0]}{span.micro_batch}"
    return "\n".join(f"    stage {k}  {' '.join(row)}" for k, row in zip(stage_of, rows, strict=True))


def test_gpipe_runs_as_it_is_drawn() -> None:
    assert drawings(gpipe.__doc__) == [drawn("gpipe", [1, 1, 1], [1, 1, 1], 4, 4, 0)]


def test_1f1b_runs_as_it_is_drawn() -> None:
    assert drawings(one_forward_one_backward.__doc__) == [
        drawn("1f1b", [1, 1, 1], [1, 1, 1], 4, 3, 0),
        drawn("1f1b", [1, 1], [1, 1], 4, 2, 1),
        drawn("1f1b", [1, 1], [1, 1], 4, 4, 1),
        drawn("1f1b", [2, 1], [2, 1], 6, 3, 0),
    ]


def test_the_schedules_of_parts_and_chunks_run_as_they_are_drawn() -> None:
    for module, plans in (
        (zb_h1, [chunks([0, 1, 2], 4, "zb-h1", 3), chunks([0, 1, 2], 4, "1f1b", 3)]),
        (zb_h2, [chunks([0, 1, 2], 6, "zb-h2", 3)]),
        (zb_v, [chunks([0, 1, 1, 0], 4, "zb-v")]),
        (interleaved, [chunks([0, 1, 0, 1], 4, "interleaved")]),
    ):
        whole = ["B" if p.schedule in ("1f1b", "interleaved") else "D" for p in plans]
        assert drawings(module.__doc__) == [drawn_by_device(p, w) for p, w in zip(plans, whole, strict=True)]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 20))
def test_chunks_run_to_their_end_with_any_number_of_micro_batches(devices: int, each: int, micro_batches: int) -> None:
    round_and_round = chunks([*range(devices)] * each, micro_batches, "interleaved")
    there_and_back = chunks([*range(devices), *reversed(range(devices))], micro_batches, "zb-v")
    for plan, parts in ((round_and_round, 2), (there_and_back, 3)):
        assert plan.check(training_chain(len(plan.stages)), Cluster.uniform(devices)) == []
        orders = device_orders(plan)
        assert held_of(replace(plan, schedule="given", orders=orders)) == held_of(plan)
        assert len(unit_ends(orders)) == parts * len(plan.stages) * micro_batches
        for d, order in orders.items():
            assert len(set(order)) == len(order)
            assert {s.stage for s in order} == set(plan.stages_of(d))


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 8))
def test_zero_bubble_holds_what_its_windows_say(devices: int, micro_batches: int, in_flight: int) -> None:
    """ZB-H1 no more than the first stage of 1F1B; ZB-H2 2 K - 1; both counted until the weights' part."""
    for schedule in ("zb-h1", "zb-h2"):
        plan = chunks([*range(devices)], micro_batches, schedule, in_flight)  # type: ignore[arg-type]
        given = replace(plan, schedule="given", orders=device_orders(plan))
        assert held_of(given) == held_of(plan)
        most = in_flight_of("1f1b", [1] * devices, micro_batches, in_flight)[0]
        wide = in_flight_of("1f1b", [1] * devices, micro_batches, max(in_flight, 2 * devices - 1))[0]
        assert max(held_of(plan)) == (most if schedule == "zb-h1" else wide)


@given(st.integers(1, 5), st.integers(1, 20))
def test_zb_v_holds_no_more_than_the_first_stage_of_1f1b(devices: int, micro_batches: int) -> None:
    """Counted in chunks, each half of a stage."""
    plan = chunks([*range(devices), *reversed(range(devices))], micro_batches, "zb-v")
    for order in device_orders(plan).values():
        held = most = 0
        for s in order:
            held += {"F": 1, "B": 0, "W": -1}[s.part]
            most = max(most, held)
        assert most <= 2 * devices


def test_chunks_elsewhere_are_refused() -> None:
    cluster = Cluster.uniform(2)
    for where, schedule, word in (
        ([0, 1, 0, 1], "zb-v", "there and back"),
        ([0, 1, 1, 0], "interleaved", "round and round"),
    ):
        plan = chunks(where, 2, schedule)  # type: ignore[arg-type]
        assert any(word in fault for fault in plan.check(training_chain(4), cluster))


def test_more_is_kept_and_less_is_waited_from_1f1b_to_zb_h2() -> None:
    took = [drawn_by_device(chunks([0, 1, 2], 8, s, 3)).index("\n") for s in ("1f1b", "zb-h1", "zb-h2")]  # type: ignore[arg-type]
    assert took == sorted(took, reverse=True)
    assert took[0] > took[1] >= took[2]


@given(pipelines)
def test_every_micro_batch_goes_forward_and_then_backward_once(made: tuple[Schedule, list[int], int, int]) -> None:
    schedule, replicas, micro_batches, in_flight = made
    for order in slots(schedule, replicas, micro_batches, in_flight):
        assert sorted(order) == sorted((p, m) for p in "FB" for m in range(micro_batches))
        assert all(order.index(("F", m)) < order.index(("B", m)) for m in range(micro_batches))
        for phase in "FB":
            assert [m for p, m in order if p == phase] == list(range(micro_batches))


def most_in_flight(order: Sequence[tuple[str, int]]) -> int:
    held = most = 0
    for phase, _ in order:
        held += 1 if phase == "F" else -1
        most = max(most, held)
    return most


@given(pipelines)
def test_in_flight_is_what_the_replicas_hold(made: tuple[Schedule, list[int], int, int]) -> None:
    schedule, replicas, micro_batches, in_flight = made
    held = in_flight_of(schedule, replicas, micro_batches, in_flight)
    for order, m, number in zip(slots(*made), replicas, held, strict=True):
        assert most_in_flight(order) == number
        mine = [most_in_flight([s for s in order if s[1] % m == r]) for r in range(m)]
        assert sum(mine) == number  # replicas do not wait for each other, so that each may hold its most at once
        assert max(mine) == -(-number // m)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 40), st.integers(1, 40))
def test_1f1b_holds_no_more_than_asked_rounded_up_to_whole_replicas(
    replicas: list[int], micro_batches: int, in_flight: int
) -> None:
    held = in_flight_of("1f1b", replicas, micro_batches, in_flight)
    asked = -(-in_flight // replicas[0]) * replicas[0]
    assert held[0] <= min(asked if len(replicas) > 1 else replicas[0], micro_batches)
    if in_flight >= sum(replicas) and micro_batches >= 2 * sum(replicas) + in_flight:
        for k, m in enumerate(replicas):  # enough to keep every device from here to the end busy
            assert sum(replicas[k:]) <= held[k]
            assert held[k] % m == 0


@settings(max_examples=300)
@given(pipelines, st.lists(st.floats(0.01, 10), min_size=5, max_size=5), st.floats(0, 3), st.data())
def test_every_program_runs_through(
    made: tuple[Schedule, list[int], int, int], speeds: list[float], latency: float, data: st.DataObject
) -> None:
    """Also with skips, and where all messages pass one medium in order."""
    schedule, replicas, micro_batches, in_flight = made
    stages = len(replicas)
    skips = [(i, j) for i in range(stages) for j in range(i + 2, stages)]
    chosen = data.draw(st.lists(st.sampled_from(skips), unique=True)) if skips else []
    graph = training_chain(stages, skips=chosen)
    medium, fair = data.draw(st.sampled_from([("", False), ("bus", False), ("bus", True)]))
    devices = tuple(Device(f"cpu{i}", speed=speeds[i % 5]) for i in range(sum(replicas)))
    cluster = Cluster(devices, (), Link("", "", 10.0, latency, medium, fair))
    program = lower(graph, cluster, stage_plan(graph, replicas, micro_batches, in_flight, schedule))
    timeline = simulate(program, durations(program, graph, given_costs(graph), cluster))
    assert timeline.check() == []


def in_stages(
    replicas: list[int], micro_batches: int, in_flight: int, schedule: Schedule, **given: Any
) -> PipelinePlan:
    """A plan of stages whose tasks nobody looks at."""
    names = (f"cpu{i}" for i in range(sum(replicas)))
    stages = tuple(Stage((f"f{k}",), tuple(next(names) for _ in range(m))) for k, m in enumerate(replicas))
    return PipelinePlan("", stages, micro_batches, in_flight, schedule, **given)


@given(pipelines)
def test_unit_ends_follow_the_pipeline(made: tuple[Schedule, list[int], int, int]) -> None:
    schedule, replicas, micro_batches, in_flight = made
    orders = device_orders(in_stages(replicas, micro_batches, in_flight, schedule))
    ends = unit_ends(orders)
    for k in range(len(replicas)):
        for x in range(micro_batches):
            assert k == 0 or ends[Slot("F", k, x)] >= ends[Slot("F", k - 1, x)] + 1
            assert k == len(replicas) - 1 or ends[Slot("B", k, x)] >= ends[Slot("B", k + 1, x)] + 2
    for order in orders.values():
        own = [ends[s] for s in order]
        assert own == sorted(set(own))


def test_orders_that_wait_for_each_other_are_told() -> None:
    first = [Slot("F", 0, 0), Slot("B", 0, 0), Slot("F", 0, 1), Slot("B", 0, 1)]
    second = [Slot("F", 1, 0), Slot("F", 1, 1), Slot("B", 1, 0), Slot("B", 1, 1)]
    with pytest.raises(PlanError, match="the stages wait for each other"):
        unit_ends({"a": first, "b": second})


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(1, 8),
    by_stage,
    st.data(),
)
def test_any_devices_for_any_stages_and_any_shares_run_through(
    where: list[list[int]], micro_batches: int, in_flight: int, schedule: Schedule, data: st.DataObject
) -> None:
    shares = [tuple(data.draw(st.integers(1, 4)) for _ in ds) if data.draw(st.booleans()) else () for ds in where]
    graph = training_chain(len(where))
    stages = tuple(
        Stage((f"f{k}",), tuple(f"cpu{d}" for d in ds), False, s)
        for k, (ds, s) in enumerate(zip(where, shares, strict=True))
    )
    plan = PipelinePlan(graph.fingerprint, stages, micro_batches, in_flight, schedule)
    cluster = Cluster.uniform(4, rate_bytes_per_s=10.0, latency_s=0.5)
    program = lower(graph, cluster, plan)
    timeline = simulate(program, durations(program, graph, given_costs(graph), cluster))
    assert timeline.check() == []
    work = [i for i in program if i.op == Op.COMPUTE]
    assert (
        len({(i.piece.kind == "forward", i.piece.stage, i.micro_batch) for i in work}) == 2 * len(where) * micro_batches
    )
    for i in work:
        assert i.queue == stages[i.piece.stage].device_of(i.micro_batch)


def test_an_unknown_schedule_is_told() -> None:
    with pytest.raises(
        PlanError, match=r"schedule '2f2b' does not say what a stage does\. hint: known: 1f1b, gpipe, zb-h1, zb-h2"
    ):
        slots("2f2b", [1], 1, 1)  # type: ignore[arg-type]


def test_what_given_orders_hold_is_counted() -> None:
    """What a backward keeps for the weights stays until their part; a stage without a backward holds one."""
    a = tuple(Slot(part, 0, m) for part, m in (("F", 0), ("F", 1), ("B", 0), ("F", 2), ("W", 0), ("B", 1), ("B", 2)))
    b = tuple(Slot("F", 1, m) for m in range(3))
    plan = PipelinePlan("", (Stage(("a",), ("x",)), Stage(("b",), ("y",))), 3, 1, "given", {"x": a, "y": b})
    assert held_of(plan) == (3, 1)
    assert held_of(PipelinePlan("", (Stage(("a",), ("x", "y")), Stage(("b",), ("z",))), 8, 3, "1f1b")) == (2, 1)


def test_over_a_shared_medium_a_stage_that_trains_nothing_leaves_no_hole_in_the_order_of_messages() -> None:
    tasks = [Task(t) for t in "abc"] + [Task(f"{t}'", phase="backward", of=t) for t in "ca"]
    tensors = [("a", 1.0, ["b", "c", "a'"]), ("b", 1.0, ["c"]), ("c", 1.0, ["c'"]), ("c'", 1.0, ["a'"])]
    graph = TaskGraph.build("hole", tasks, tensors)
    cluster = Cluster(tuple(Device(f"d{i}") for i in range(3)), (), Link("", "", 1.0, medium="bus"))
    stages = tuple(Stage((t,), (f"d{i}",)) for i, t in enumerate("abc"))
    orders = device_orders(PipelinePlan(graph.fingerprint, stages, 2, 1, "1f1b"))
    own = {d: tuple(s for s in order if s.stage != 1 or s.part == "F") for d, order in orders.items()}
    for plan in (
        PipelinePlan(graph.fingerprint, stages, 2, 1, "1f1b"),
        PipelinePlan(graph.fingerprint, stages, 2, 1, "given", own),
    ):
        program = lower(graph, cluster, plan)
        assert simulate(program, durations(program, graph, given_costs(graph), cluster)).duration_s > 0
