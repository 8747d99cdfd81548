"""Second looks: which tasks are run twice, to see whether a step gives the same again and leaves alone what it is given.

One task of a step is enough, and looking takes little of the whole. What a flow begins with is what all else waits for: a step is
looked at after as many of its tasks as there are workers, where it has more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from partita.dataflow.graph import FlowGraph

FREE_S, SHARE = 0.05, 0.02  #: seconds, and part of the time of all tasks, that looking may take in all


@dataclass
class Looks:
    """What was looked at in a run."""

    tasks: Counter[int]  #: step -> tasks of it in the graph
    workers: int
    seen: set[int] = field(default_factory=set)  #: steps that need no look any more
    handed: Counter[int] = field(default_factory=Counter)  #: step -> its tasks that were asked about
    looking: dict[int, int] = field(default_factory=dict)  #: step -> its task that was told to look
    spent_s: float = 0.0

    @staticmethod
    def of(graph: FlowGraph, workers: int) -> Looks:
        return Looks(Counter(n.step for n in graph.nodes if n.kind == "call"), workers)

    def begin_s(self, node: int, step: int, mean_s: float, busy_s: float) -> float:
        """A task begins: the seconds that a look at it may take. `mean_s`: of tasks of its step; `busy_s`: of all tasks so far."""
        before = self.handed[step]
        self.handed[step] += 1
        early = before < min(self.workers, self.tasks[step] - 1)
        allowed_s = FREE_S + SHARE * busy_s - self.spent_s
        if early or step in self.seen or step in self.looking or mean_s > allowed_s:
            return 0.0
        self.looking[step] = node
        return allowed_s

    def ended(self, node: int, step: int) -> None:
        """A task has ended, or never will."""
        if self.looking.get(step) == node:
            del self.looking[step]
