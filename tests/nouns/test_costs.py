"""CostTable: where every number comes from, and what does not fit a graph."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import damaged, given_costs, graphs, refused_or, training_chain

from partita.errors import CostError
from partita.nouns.costs import CostTable, Estimate
from partita.nouns.graph import TaskGraph

CHAIN = training_chain(2)
TIMES = st.floats(0, 1e9)


@st.composite
def tables(draw: st.DrawFn) -> tuple[TaskGraph, CostTable]:
    graph = draw(graphs(most=4))
    sources = st.sampled_from(["measured", "predicted", "given"])
    interval = st.tuples(TIMES, TIMES, TIMES | st.just(math.inf)).map(sorted)
    estimate = st.builds(lambda x, source: Estimate(x[1], x[0], x[2], source), interval, sources)
    first = st.lists(estimate, min_size=2, max_size=2)
    rows = draw(st.lists(first, min_size=len(graph), max_size=len(graph)))
    rows[0][1] = Estimate(math.inf, math.inf, math.inf, "given")  # a task that runs on one kind only
    table = CostTable.of(["cpu", "gpu"], rows, len(graph.producer))
    known = draw(st.lists(TIMES | st.just(math.nan), min_size=len(table.transfer_s), max_size=len(table.transfer_s)))
    return graph, dataclasses.replace(table, transfer_s=np.array(known, np.float64))


@given(tables())
def test_json_gives_the_same_table(made: tuple[TaskGraph, CostTable]) -> None:
    graph, table = made
    again = CostTable.from_json(json.loads(json.dumps(table.to_json(), allow_nan=False)), graph)
    assert again.kinds == table.kinds
    for name in ("seconds", "low", "high", "source", "transfer_s"):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name))


def test_an_unknown_kind_is_told_with_those_known() -> None:
    with pytest.raises(CostError, match=r"of kind 'tpu'; there are costs for cpu, gpu\. hint: measure on that device"):
        given_costs(CHAIN, kinds=("cpu", "gpu")).column("tpu")


def test_scaling_changes_computing_alone() -> None:
    table = CostTable.given(["cpu"], [[1.0], [2.0], [3.0], [4.0]], [5.0, math.nan, 6.0])
    scaled = table.scaled(0.5)
    assert scaled.seconds.tolist() == [[0.5], [1.0], [1.5], [2.0]]
    assert scaled.low.tolist() == scaled.high.tolist() == scaled.seconds.tolist()
    np.testing.assert_array_equal(scaled.transfer_s, table.transfer_s)


def test_all_faults_are_told_at_once() -> None:
    seconds = [[-1.0, 1.0], [math.inf, math.inf], [math.nan, 1.0], [1.0, 1.0]]
    faults = "; ".join(CostTable.given(["cpu", "cpu"], seconds, [-2.0, math.inf, 1.0]).check(CHAIN))
    for fault in (
        "kind 'cpu' has 2 columns", "task 'f0' takes -1.0 s on 'cpu'", "task 'f1' can run on no kind", "takes nan s",
        "a tensor of 'f0' takes -2.0 s", "a tensor of 'f1' takes inf s",
    ):  # fmt: skip
        assert fault in faults
    assert given_costs(CHAIN).check(CHAIN) == []


def test_a_table_for_another_graph_is_told() -> None:
    assert "has times for 6 tasks and 1 kinds; the graph has 4 tasks" in given_costs(training_chain(3)).check(CHAIN)[0]
    short = CostTable.given(["cpu"], np.ones((4, 1)), [1.0])
    assert short.check(CHAIN) == [f"it has 1 transfer times for {len(CHAIN.producer)} tensors"]
    torn = dataclasses.replace(given_costs(CHAIN), low=np.ones((2, 1)))
    assert "have shapes (4, 1), (2, 1), (4, 1), (4, 1)" in torn.check(CHAIN)[0]


@settings(max_examples=400)
@given(damaged(given_costs(CHAIN, kinds=("cpu", "gpu")).to_json()))
def test_damage_is_refused_or_harmless(value: dict[str, Any]) -> None:
    table = refused_or(lambda: CostTable.from_json(value, CHAIN), CostError)
    assert table is None or table.check(CHAIN) == []
