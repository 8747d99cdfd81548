"""What a task will take, from those of its kind that have run: seconds and bytes.

For each step, the logarithms are the sum of a level and of an effect of every option that the task is on, estimated with a
pull towards no effect (ridge): what was never seen with an option gets the level of the step. Sums of predictions are what
counts, so the mean of exp(residual) corrects for taking logarithms (Duan's smearing, 1983). A step that has never run gets
the mean of all tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from partita.dataflow.graph import FlowGraph
from partita.nouns.graph import FloatArray

LEAST_S, LEAST_BYTES = 1e-5, 16.0
PULL = 0.3  #: of a sample: how strongly effects are pulled to zero
MOST_ROWS = 2000  #: the latest of a step that are used


@dataclass
class Costs:
    """Samples of what ran, and what follows for the others."""

    graph: FlowGraph
    rows: dict[int, list[tuple[Mapping[str, str], float, float]]] = field(
        default_factory=dict
    )  #: step -> (options, seconds, bytes)
    fitted: dict[int, tuple[int, _Fit]] = field(default_factory=dict)  #: step -> (samples it was made of, fit)
    total: tuple[int, float, float] = (0, 0.0, 0.0)  #: tasks, seconds, bytes
    sums: dict[int, tuple[int, float, float]] = field(default_factory=dict)  #: of each step

    def add(self, step: int, options: Mapping[str, str], seconds: float, size_bytes: float) -> None:
        """A task of a step has run, on these options."""
        rows = self.rows.setdefault(step, [])
        rows.append((options, max(seconds, LEAST_S), max(size_bytes, LEAST_BYTES)))
        n, s, b = self.total
        self.total = (n + 1, s + seconds, b + size_bytes)
        n, s, b = self.sums.get(step, (0, 0.0, 0.0))
        self.sums[step] = (n + 1, s + seconds, b + size_bytes)

    def mean(self, step: int) -> tuple[float, float]:
        """(seconds, bytes) of a step's tasks so far on average; zeros before the first."""
        n, s, b = self.sums.get(step, (0, 0.0, 0.0))
        return (s / n, b / n) if n else (0.0, 0.0)

    def worth(self, node: int) -> tuple[float, float]:
        """(seconds, bytes) expected of a task. O(options), and now and then a fit of its step."""
        step = self.graph.nodes[node].step
        rows = self.rows.get(step)
        if not rows:
            n, s, b = self.total
            return (s / n, b / n) if n else (0.0, 0.0)
        count, fit = self.fitted.get(step, (0, None))
        if fit is None or len(rows) > 1.25 * count:
            fit = _fit(rows[-MOST_ROWS:])
            self.fitted[step] = (len(rows), fit)
        return fit.predict(self.graph.nodes[node].options)


def measured_before(graph: FlowGraph, rows: Iterable[tuple[str, Mapping[str, str], float, float]]) -> Costs:
    """Costs by an earlier run's tasks (label, options, seconds, bytes); those of steps that the flow no longer has do not count."""
    costs = Costs(graph)
    step = {s.name: k for k, s in enumerate(graph.steps)}
    for label, options, seconds, size_bytes in rows:
        if label in step:
            costs.add(step[label], options, seconds, size_bytes)
    return costs


@dataclass(frozen=True)
class _Fit:
    """Levels and effects of (log seconds, log bytes)."""

    level: FloatArray  #: [2]
    effect: Mapping[tuple[str, str], FloatArray]  #: (name, option) -> [2]
    smear: FloatArray  #: [2]

    def predict(self, options: Mapping[str, str]) -> tuple[float, float]:
        total = self.level.copy()
        for pair in options.items():
            if pair in self.effect:
                total += self.effect[pair]
        found = np.exp(total) * self.smear
        return float(found[0]), float(found[1])


def _fit(rows: Sequence[tuple[Mapping[str, str], float, float]]) -> _Fit:
    """Ridge regression on one column an option; O(rows x options^2)."""
    pairs = {p: k for k, p in enumerate(dict.fromkeys(p for options, _, _ in rows for p in options.items()))}
    logs = np.log(np.array([row[1:] for row in rows]))
    x = np.zeros((len(rows), len(pairs)))
    for r, (options, _, _) in enumerate(rows):
        for p in options.items():
            x[r, pairs[p]] = 1.0
    level = logs.mean(axis=0)
    gram = x.T @ x + PULL * np.eye(len(pairs))
    effects = np.linalg.solve(gram, x.T @ (logs - level)) if pairs else np.zeros((0, 2))
    left = logs - level - x @ effects
    return _Fit(level, {p: effects[k] for p, k in pairs.items()}, np.exp(left).mean(axis=0))
