"""What a device of a pipeline stage holds in memory: the one formula, for planner, pages and reports.

    plain       weights + held x kept
    recompute   weights + held x inputs + kept

    weights     parameters, their gradients and the optimizer's state; a parameter shared inside the stage once
    kept        activations that one micro-batch keeps from its forward until its backward
    inputs      tensors that the stage's own forwards read and an earlier stage made; what only passes by is not there
    held        micro-batches of one replica whose forward has run and whose backward has not

A stage that recomputes keeps the inputs of every micro-batch in flight, and everything of the one it is at. Buffers are not counted, nor
that it keeps those which its forward writes as each micro-batch in flight found them: a BatchNorm's are small, a queue's are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import TaskGraph


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The three quantities of a stage, in bytes."""

    weights: float
    kept: float
    inputs: float

    def need_bytes(self, held: int, recompute: bool) -> float:
        """Bytes that each device of the stage holds with so many micro-batches in flight on it."""
        return stage_bytes(self.weights, self.kept, self.inputs, held, recompute)


def stage_bytes(weights: float, kept: float, inputs: float, held: float, recompute: bool) -> float:
    """The formula, for numbers; the planner's kernels compile this very function.

    >>> stage_bytes(100.0, 10.0, 2.0, 3, False), stage_bytes(100.0, 10.0, 2.0, 3, True)
    (130.0, 116.0)
    """
    return weights + held * inputs + kept if recompute else weights + held * kept


def bytes_per_parameter_byte(graph: TaskGraph, optimizer_bytes: float) -> float:
    """Bytes held per byte of parameters: themselves; in training also gradients and the optimizer's state."""
    return 2.0 + optimizer_bytes if any(t.phase == "backward" for t in graph.tasks) else 1.0


def stage_memory(graph: TaskGraph, tasks: Sequence[str], optimizer_bytes: float) -> StageMemory:
    """The memory of a stage of these forward tasks. `optimizer_bytes`: per parameter byte. O(graph).

    >>> from partita.nouns.graph import Task
    >>> a, b = Task("a", parameter_bytes=5.0), Task("b", parameter_bytes=7.0, activation_bytes=2.0)
    >>> g = TaskGraph.build("chain", [a, b], [("a", 4.0, ["b"])])
    >>> stage_memory(g, ["b"], 0.0)
    StageMemory(weights=7.0, kept=2.0, inputs=4.0)
    """
    mine = set(tasks)
    members = [graph.tasks[graph.index[t]] for t in tasks]
    weights = sum(t.parameter_bytes for t in members)
    weights -= sum(s.size_bytes * max(0, sum(t in mine for t in s.tasks) - 1) for s in graph.shared)
    inside = np.array([t.id in mine for t in graph.tasks], np.bool_)
    forward = np.array([t.phase not in ("backward", "update") for t in graph.tasks], np.bool_)
    owner = graph.tensor_read
    read = np.bincount(owner[inside[graph.readers.items]], minlength=len(graph.producer)) > 0
    comes = read & forward[graph.producer] & ~inside[graph.producer]
    return StageMemory(
        max(0.0, weights) * bytes_per_parameter_byte(graph, optimizer_bytes),
        float(sum(t.activation_bytes for t in members)),
        float(graph.size_bytes[comes].sum()),
    )
