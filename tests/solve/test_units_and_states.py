"""Contraction to units, downsets, augmented antichains and cuts, against plain definitions."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pipeline.plan.planning_worlds import MANY, pairs_of, profiles, training_graph

from partita.nouns.graph import Task, TaskGraph
from partita.solve.downsets import contains, every_downset, linear_states, spans, thinned
from partita.solve.units import bitset, contract


def plain(n: int, pairs: list[tuple[int, int]]) -> TaskGraph:
    tensors = [(f"{u}", float(u + 1), [f"{v}" for a, v in pairs if a == u]) for u in range(n)]
    return TaskGraph.build("plain", [Task(f"{i}") for i in range(n)], tensors)


def downsets_of(n: int, pairs: list[tuple[int, int]]) -> set[frozenset[int]]:
    """By definition: the subsets that hold every predecessor of their members."""
    subsets = (frozenset(c) for k in range(n + 1) for c in itertools.combinations(range(n), k))
    return {s for s in subsets if all(u in s for u, v in pairs if v in s)}


worlds = st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), pairs_of(n)))


@given(worlds)
@MANY
def test_states_are_exactly_the_downsets_each_once_in_topological_order(world):
    n, pairs = world
    graph = plain(n, pairs)
    units = contract(graph)
    states = every_downset(units, 10_000)
    found = [frozenset(units.tasks.items[states.units_between(0, k)].tolist()) for k in range(len(states))]
    assert len(found) == len(set(found))
    assert set(found) == downsets_of(n, pairs)
    place = {s: k for k, s in enumerate(found)}
    assert all(place[a] < place[b] for a in found for b in found if a < b)
    inside = {(i, j) for i, j in np.argwhere(states.contains).tolist()}
    assert inside == {(place[a], place[b]) for a in found for b in found if a < b}


@given(worlds)
@MANY
def test_totals_cuts_and_what_contains_what_follow_their_definitions(world):
    n, pairs = world
    graph = plain(n, pairs)
    units = contract(graph)
    states = every_downset(units, 10_000)
    weight = np.arange(1.0, len(units) + 1)
    cut = states.cuts(spans(graph, units, graph.size_bytes))
    totals = states.totals(weight)[:, 0]
    for k in range(len(states)):
        inside = set(states.units_between(0, k).tolist())
        assert totals[k] == sum(weight[list(inside)])
        tasks = {int(units.tasks.row(u)[0]) for u in inside}
        read_behind = {u for u, v in pairs if u in tasks and v not in tasks}
        assert np.isclose(cut[k], sum(u + 1.0 for u in read_behind))
    for i, j in itertools.product(range(min(len(states), 20)), repeat=2):
        assert contains(states.members, i, j) == ((states.members[i] & ~states.members[j]) == 0).all()


def test_more_downsets_than_asked_for_is_none_and_a_line_has_n_plus_one():
    free = contract(plain(6, []))
    assert every_downset(free, 63) is None
    assert len(every_downset(free, 64)) == 64
    line = linear_states(free, [np.arange(6), np.arange(6)[::-1]])
    assert len(line) == 12  # two orders share the empty and the full state
    assert not line.complete


@given(profiles(most_tasks=5))
@MANY
def test_a_backward_its_update_and_a_group_are_one_unit_and_edges_run_forth(profile):
    graph = profile.samples[0].graph
    units = contract(graph)
    for t in graph.tasks:
        if t.of is not None:
            assert units.unit_of[graph.index[t.id]] == units.unit_of[graph.index[t.of]]
    members = {units.unit_of[i] for i, t in enumerate(graph.tasks) if t.group is not None}
    assert len(members) <= 1
    for u in range(len(units)):
        assert all(v > u for v in units.after.row(u))
        assert all(u in units.before.row(int(v)) for v in units.after.row(u))


def test_a_group_around_a_task_swallows_it():
    graph = training_graph(3, [(0, 1), (1, 2)], [1.0] * 3, [1.0] * 3, [1.0] * 3, {0: "g", 2: "g"})
    assert len(contract(graph)) == 1


def test_backward_edges_that_run_forth_are_understood_too():
    tasks = [Task(f"f{i}", group=f"{i}") for i in range(3)] + [
        Task(f"b{i}", phase="backward", group=f"{i}") for i in range(3)
    ]
    forth = [(f"{p}{i}", 1.0, [f"{p}{i + 1}"]) for p in "fb" for i in range(2)]
    back = [(f"f{i}", 1.0, [f"f{i + 1}"]) for i in range(2)] + [(f"b{i + 1}", 1.0, [f"b{i}"]) for i in range(2)]
    for tensors in (forth, back):
        assert len(contract(TaskGraph.build("g", tasks, tensors))) == 3


@given(st.integers(3, 9))
@MANY
def test_thinning_keeps_the_ends_and_a_sound_sequence(n):
    units = contract(plain(n, [(0, n - 1)]))
    states = every_downset(units, 10_000)
    done = states.totals(np.ones(len(units)))[:, 0]
    fewer = thinned(states, done, done, 9)
    assert len(fewer) < len(states) or len(states) < 20
    assert not fewer.complete or len(fewer) == len(states)
    assert fewer.members[0].sum() == 0
    assert (fewer.members[-1] == states.members[-1]).all()
    assert np.allclose(fewer.totals(np.ones(len(units)))[:, 0], np.bitwise_count(fewer.members).sum(axis=1))


def test_a_bitset_holds_its_members_across_words():
    bits = bitset([np.array([0, 63, 64, 130])], 131)
    assert [w for w in range(131) if bits[0, w >> 6] >> np.uint64(w & 63) & np.uint64(1)] == [0, 63, 64, 130]
