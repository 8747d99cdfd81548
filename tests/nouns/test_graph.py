"""TaskGraph: its rows against brute force, its order, its file."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import damaged, graphs, refused_or, training_chain

from partita.errors import GraphError
from partita.nouns.graph import SharedParameter, Task, TaskGraph, csr

CHAIN = training_chain(3, skips=[(0, 2)], shared=[SharedParameter("w", 8.0, ("f0", "f2"))])


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6))
def test_csr_rows_are_the_rows(rows: list[list[int]]) -> None:
    made = csr(rows)
    assert [made.row(i).tolist() for i in range(len(rows))] == rows


@given(graphs())
def test_rows_say_who_reads_whom(graph: TaskGraph) -> None:
    pairs = {(int(graph.producer[k]), int(v)) for k in range(len(graph.producer)) for v in graph.readers.row(k)}
    n = range(len(graph))
    assert [tuple(e) for e in graph.edges.tolist()] == sorted(pairs)
    assert [graph.successors.row(i).tolist() for i in n] == [sorted(v for u, v in pairs if u == i) for i in n]
    assert [graph.predecessors.row(i).tolist() for i in n] == [sorted(u for u, v in pairs if v == i) for i in n]
    assert [graph.tensors_of.row(i).tolist() for i in n] == [np.flatnonzero(graph.producer == i).tolist() for i in n]


@given(graphs())
def test_the_order_is_the_smallest_topological_one(graph: TaskGraph) -> None:
    before = {v: {int(u) for u in graph.predecessors.row(v)} for v in range(len(graph))}
    expected: list[int] = []
    while len(expected) < len(graph):
        expected.append(min(v for v in before if v not in expected and before[v] <= set(expected)))
    assert graph.order.tolist() == expected


@given(graphs())
def test_json_gives_the_same_graph(graph: TaskGraph) -> None:
    again = TaskGraph.from_json(json.loads(json.dumps(graph.to_json(), allow_nan=False)))
    assert (again.name, again.tasks, again.shared) == (graph.name, graph.tasks, graph.shared)
    assert again.producer.tolist() == graph.producer.tolist()
    assert again.size_bytes.tolist() == graph.size_bytes.tolist()
    assert again.readers.start.tolist() == graph.readers.start.tolist()
    assert again.readers.items.tolist() == graph.readers.items.tolist()
    assert again.fingerprint == graph.fingerprint


def test_the_fingerprint_is_of_the_structure_alone() -> None:
    def made(size: float = 1.0, phase: Any = "forward", to: str = "b") -> str:
        tasks = [Task("a", parameter_bytes=size), Task("b", phase=phase), Task("c")]
        return TaskGraph.build("g", tasks, [("a", size, [to])]).fingerprint

    assert made() == made(size=2.0)
    assert len({made(), made(phase="backward"), made(to="c")}) == 3


def test_all_unknown_names_are_told_at_once() -> None:
    with pytest.raises(GraphError) as caught:
        TaskGraph.build("g", [Task("a")], [("a", 1.0, ["x"]), ("y", 1.0, ["a"])])
    assert "unknown task 'x'" in str(caught.value)
    assert "unknown task 'y'" in str(caught.value)


def test_all_faults_are_told_at_once() -> None:
    tasks = [Task("a"), Task("a"), Task("b", phase="sideways", parameter_bytes=-1.0), Task("c", of="x")]  # type: ignore[arg-type]
    tasks.append(Task("d", activation_bytes=math.nan, group=7))  # type: ignore[arg-type]
    shared = [SharedParameter("w", math.inf, ("a", "z"))]
    with pytest.raises(GraphError) as caught:
        TaskGraph.build("g", tasks, [("a", math.nan, ["b"])], shared)
    for fault in (
        "task id 'a' is used twice", "unknown phase 'sideways'", "'b' has parameter_bytes = -1", "unknown task 'x'",
        "'d' has activation_bytes = nan", "'d' has group = 7", "a tensor of task 'a' has nan bytes", "'w' names 'z', which is no forward task",
        "shared parameter 'w' has inf bytes",
    ):  # fmt: skip
        assert fault in str(caught.value)


def test_a_circle_is_named() -> None:
    tasks = [Task(i) for i in "abcde"]
    with pytest.raises(GraphError, match=r"circle: (b -> c -> d -> b|c -> d -> b -> c|d -> b -> c -> d)\. hint"):
        TaskGraph.build("g", tasks, [("a", 1, ["b"]), ("b", 1, ["c"]), ("c", 1, ["d"]), ("d", 1, ["b", "e"])])


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(GraphError, match="it has no tasks"):
        TaskGraph.build("g", [], [])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "x"}, "is 'x', not 'partita-graph'"),
        ({"version": 2}, "has version 2"),
        ({"tasks": [{"id": "a", "colour": "red"}]}, r"tasks\[0\].colour is unknown \(known: id, name"),
        ({"tasks": [{"name": "a"}]}, r"tasks\[0\].id is missing"),
        ({"tasks": None}, "tasks is None, not a list"),
        ({"tensors": [{"from": "f0", "bytes": "many", "to": []}]}, r"tensors\[0\].bytes is 'many', not a number"),
        ({"tensors": [{"from": "f0", "bytes": 10**400, "to": []}]}, "digits', not a number"),
    ],
)
def test_a_damaged_file_is_told(change: dict[str, Any], says: str) -> None:
    with pytest.raises(GraphError, match=says):
        TaskGraph.from_json({**CHAIN.to_json(), **change}, "g.json")


@settings(max_examples=400)
@given(damaged(CHAIN.to_json()))
def test_damage_is_refused_or_harmless(value: dict[str, Any]) -> None:
    graph = refused_or(lambda: TaskGraph.from_json(value, "g.json"), GraphError, "g.json")
    assert graph is None or graph.check() == []
