"""Orders given slot by slot: they end whatever they are, and the search's account of them is the simulator's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lots import order_by_lot
from schedule_drawings import chunks, drawings, drawn
from small_worlds import training_chain

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.pipeline_plan import PipelinePlan, Slot
from partita.simulate.lower import lower
from partita.simulate.overheads import overheads
from partita.simulate.schedules import device_orders, held_of, searched, unit_ends
from partita.simulate.schedules.searched import Found, Shop, listings, numbered, rewalked
from partita.simulate.schedules.searched import searched as search
from partita.simulate.simulator import durations, simulate


def shop(
    plan: PipelinePlan, seconds: np.ndarray[tuple[int, ...], np.dtype[np.float64]], *, carry_s: float = 0.0, lag_s: float = 0.0,
    keep: float = 1.0, room: float = np.inf, begin: Sequence[float] = (),
) -> Shop:  # fmt: skip
    """Of a chain of stages; seconds [2, stages] of forward and backward, the half of which can wait where someone waits for the
    other half."""
    names, stages = plan.devices, len(plan.stages)
    place = [names.index(s.devices[0]) for s in plan.stages]
    forward, backward = seconds
    rest = np.where(np.arange(stages) > 0, backward / 2, 0.0)
    each = np.stack([forward, backward, backward - rest, rest])[:, :, None]
    apart = 1.0 - np.eye(len(names))
    messages = np.full((2, stages - 1, len(names), len(names)), 1.0)
    return Shop(
        np.repeat(np.array(place, np.int64)[:, None], plan.micro_batches, 1), np.repeat(each, len(names), 2),
        np.ones(stages, np.bool_), np.arange(stages - 1), np.arange(1, stages), np.ones(stages - 1, np.bool_),
        carry_s * messages, np.arange(len(names) ** 2).reshape(len(names), -1),
        lag_s * apart, 0.0 * messages, 0.0 * messages, np.array(begin) if len(begin) else np.zeros(len(names)), np.zeros(len(names)),
        np.full(stages, keep), np.full(len(names), room),
    )  # fmt: skip


def simulated(
    plan: PipelinePlan, seconds: np.ndarray[tuple[int, ...], np.dtype[np.float64]], carry_s: float, lag_s: float, begin: Sequence[float] = (),
) -> float:  # fmt: skip
    graph = training_chain(len(plan.stages))
    took = [[seconds[int(t.phase == "backward"), int(t.id[1:])]] for t in graph.tasks]
    costs = CostTable.given(("cpu",), took, np.full(len(graph.producer), carry_s))
    devices = (Device(d, step_s=s) for d, s in zip(plan.devices, begin or [0.0] * len(plan.devices), strict=True))
    cluster = Cluster(tuple(devices), (), Link("", "", 1.0, lag_s))
    program = lower(graph, cluster, plan)
    known = durations(program, graph, costs, cluster)
    timeline = simulate(program, replace(known, busy_s=known.busy_s + overheads(program, graph, costs, cluster)))
    assert timeline.check() == []
    return timeline.duration_s


def walked(plan: PipelinePlan, world: Shop) -> Found:
    return rewalked(world, numbered(device_orders(plan), plan.devices, len(plan.stages), plan.micro_batches))


worlds = st.tuples(
    st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 6), st.integers(0, 10**6), st.floats(0, 2), st.floats(0, 2)
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(worlds)
def test_any_order_ends_and_the_search_counts_as_the_simulator_does(
    made: tuple[list[int], int, int, float, float],
) -> None:
    where, micro_batches, seed, carry_s, lag_s = made
    lots = random.Random(seed)
    plan = chunks(where, micro_batches, "1f1b")
    plan = replace(plan, schedule="given", orders=order_by_lot(plan, lots))
    assert len(unit_ends(plan.orders)) == sum(map(len, plan.orders.values()))
    draw = np.random.default_rng(seed)
    seconds, begin = draw.uniform(0.1, 3, (2, len(where))), draw.uniform(0, 9, len(plan.devices)).tolist()
    assert walked(plan, shop(plan, seconds, carry_s=carry_s, lag_s=lag_s, begin=begin)).seconds == pytest.approx(
        simulated(plan, seconds, carry_s, lag_s, begin), rel=1e-9
    )


@settings(max_examples=60, deadline=None)
@given(worlds, st.integers(1, 4))
def test_what_is_found_is_sound_keeps_to_memory_and_is_no_worse_than_list_scheduling(
    made: tuple[list[int], int, int, float, float], most: int
) -> None:
    where, micro_batches, seed, carry_s, lag_s = made
    plan = chunks(where, micro_batches, "1f1b")
    own = max(len(plan.stages_of(d)) for d in plan.devices)
    seconds = np.random.default_rng(seed).uniform(0.1, 3, (2, len(where)))
    begin = [0.7 * d for d in range(len(plan.devices))]
    world = shop(plan, seconds, carry_s=carry_s, lag_s=lag_s, room=float(own * most), begin=begin)
    found = search(world, plan.devices, walks=300, seed=seed)
    assert found is not None
    given = replace(plan, schedule="given", orders=found.orders)
    assert given.check(training_chain(len(where)), Cluster.uniform(3)) == []
    assert found.seconds == pytest.approx(simulated(given, seconds, carry_s, lag_s, begin), rel=1e-9)
    assert found.seconds <= min(t.seconds for t in listings(world)) * (1 + 1e-12)
    held = held_of(given)
    for d in plan.devices:
        assert max(held[k] for k in plan.stages_of(d)) <= own * most
    again = search(world, plan.devices, walks=300, seed=seed)
    assert again == found


def test_without_room_for_one_micro_batch_nothing_is_found() -> None:
    plan = chunks([0, 1], 3, "1f1b")
    assert search(shop(plan, np.ones((2, 2)), room=0.5), plan.devices) is None


def test_a_searched_order_is_drawn_as_it_runs() -> None:
    plan = chunks([0, 1], 4, "1f1b")
    found = search(shop(plan, np.array([[1.0, 1.0], [2.0, 2.0]])), plan.devices)
    assert found is not None
    assert found.seconds == 13.0
    assert drawings(searched.__doc__) == [drawn(replace(plan, schedule="given", orders=found.orders))]


def test_a_backward_is_parted_only_where_that_pays() -> None:
    """One device waits for nobody; and where parting takes as long as it saves, nothing is parted."""
    alone = chunks([0], 3, "1f1b")
    found = search(shop(alone, np.ones((2, 1))), alone.devices)
    assert found is not None
    assert not any(s.part == "W" for s in found.orders["cpu0"])
    pair = chunks([0, 1], 4, "1f1b")
    world = shop(pair, np.array([[1.0, 1.0], [2.0, 2.0]]))
    dear = world._replace(seconds=np.concatenate([world.seconds[:2], world.seconds[2:3] + 1.0, world.seconds[3:]]))
    found = search(dear, pair.devices)
    assert found is not None
    assert not any(s.part == "W" for order in found.orders.values() for s in order)


def test_a_message_is_waited_for_with_weights_gradients() -> None:
    """Where a message takes long, the gradients of weights fill the wait for it."""
    plan = chunks([0, 1], 2, "1f1b")
    world = shop(plan, np.array([[1.0, 1.0], [2.0, 2.0]]), lag_s=1.0)
    found = search(world, plan.devices)
    assert found is not None
    named = walked(replace(plan, in_flight=2), world).seconds
    assert found.seconds < named
    assert Slot("W", 1, 1) in found.orders["cpu1"]
