"""A flow's tasks run one after another in this process: no start-up, errors where they happen, for small flows and debugging."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.dataflow.plan.events import mapped
from partita.dataflow.run.keeping import Keeping
from partita.dataflow.run.task import Order, Report, execute, missing, needed, with_own_constants


@dataclass
class InProcess:
    """An engine with one worker: this process."""

    functions: Sequence[Callable[..., Any]]
    store: Keeping | None = None
    workers: int = 1
    results: dict[int, Any] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    waiting: deque[Order] = field(default_factory=deque)
    gone: set[tuple[int, int]] = field(default_factory=set)  #: what is not to be begun

    @property
    def idle(self) -> int:
        return 0 if self.waiting else 1

    def submit(self, orders: Sequence[Order]) -> None:
        self.waiting += orders

    def release(self, gone: Sequence[tuple[int, int]]) -> None:
        """Forget results, and tasks that have not begun."""
        for node, turn in gone:
            if self.turns.get(node) == turn:
                self.results.pop(node, None)
        self.gone |= set(gone)

    def wait(self, timeout_s: float) -> list[tuple[Report, str]]:
        """The report of the next task, which runs now."""
        while self.waiting and (self.waiting[0].told.node, self.waiting[0].told.turn) in self.gone:
            self.waiting.popleft()
        if not self.waiting:
            return []
        told, inputs, *_ = self.waiting.popleft()
        if not all(n in self.results for n in needed(inputs)):
            return [(missing(told), "here")]
        found = [mapped(v, self.results.__getitem__) for v in inputs]
        result, report = execute(with_own_constants(told), self.functions[told.step], found, self.store)
        if report.state == "done":
            self.results[told.node], self.turns[told.node] = result, told.turn
        return [(report, "here")]

    def fetch(self, nodes: Sequence[int]) -> list[Any]:
        return [self.results[n] for n in nodes]

    def stop_keeping(self) -> None:
        if self.store is not None:
            self.store.stop()

    def close(self) -> None:
        self.results.clear()
