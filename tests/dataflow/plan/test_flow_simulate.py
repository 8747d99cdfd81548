"""A flow that is simulated keeps its workers busy, as a run does."""

from __future__ import annotations

import pytest
from dataflow.run.flow_samples import some_flow

from partita.dataflow import choose, explore, first_over, step
from partita.dataflow.graph import FlowGraph, unfold
from partita.dataflow.plan.simulate import simulate


@step
def prepare(x: int) -> int:
    return x


@step
def train(x: int, y: int) -> int:
    return x + y


@step
def score(x: int) -> float:
    return float(x)


def _longest_path(graph: FlowGraph) -> int:
    """In calls."""
    length: list[int] = []
    for node in graph.nodes:
        length.append((node.kind == "call") + max((length[n] for n in node.needs), default=0))
    return max(length)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_idle_while_there_is_something_to_do(seed: int, workers: int) -> None:
    """Graham's bound for list scheduling."""
    graph = unfold(some_flow(seed))
    found = simulate(graph, lambda node: (1.0, 8.0), workers)
    assert found.tasks <= graph.tasks
    assert found.tasks / workers <= found.seconds <= found.tasks / workers + _longest_path(graph)


def test_what_waits_ahead_does_not_keep_others_from_what_comes_later() -> None:
    """Twelve branches of a long task that all others of the branch wait for: two workers take one each."""
    data = prepare(explore("a", list(range(12))))
    best = choose(train(data, explore("b", list(range(20)))), by=score, over="b")
    graph = unfold(choose(best, by=score, over="a"))
    seconds = {"prepare": 1.0, "train": 0.01, "score": 0.01}
    found = simulate(graph, lambda node: (seconds[graph.nodes[node].label], 8.0), 2)
    assert found.seconds <= 1.05 * (12 * 1.0 + 240 * 0.02) / 2


def test_a_score_that_is_a_choose_is_guessed_too() -> None:
    """A threshold is crossed in the middle, whatever gives the scores."""
    model = train(prepare(1), explore("lr", list(range(20))))
    fold = score(train(model, explore("fold", [1, 2, 3])))
    graph = unfold(choose(model, by=choose(fold, by=fold, over="fold"), over="lr", select=first_over(0.5)))
    assert graph.tasks == 1 + 20 * 7
    assert simulate(graph, lambda node: (1.0, 8.0), 1).tasks < 1 + 13 * 7
