"""Which worker holds how many bytes of results, over the time of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from partita.dataflow.run.record import MemoryRow

MOST_ROWS = 1000


@dataclass
class Held:
    """An account of results and where they lie."""

    rows: list[MemoryRow] = field(default_factory=list)
    lies: dict[int, tuple[str, float]] = field(default_factory=dict)  #: node -> (worker, bytes)
    by_worker: dict[str, float] = field(default_factory=dict)

    def came(self, node: int, worker: str, size_bytes: float, when_s: float) -> None:
        """A result is on a worker now, and nowhere else."""
        self.went(node, when_s)
        self.lies[node] = worker, size_bytes
        self._add(worker, size_bytes, when_s)

    def went(self, node: int, when_s: float) -> None:
        """A result, if it was there, is no longer."""
        if node in self.lies:
            worker, size_bytes = self.lies.pop(node)
            self._add(worker, -size_bytes, when_s)

    def _add(self, worker: str, size_bytes: float, when_s: float) -> None:
        self.by_worker[worker] = max(0.0, self.by_worker.get(worker, 0.0) + size_bytes)
        self.rows.append(MemoryRow(when_s, worker, self.by_worker[worker]))


def thinned(rows: Sequence[MemoryRow], most: int = MOST_ROWS) -> tuple[MemoryRow, ...]:
    """At most `most` rows and the peaks of each worker among them."""
    if len(rows) <= most:
        return tuple(rows)
    step = len(rows) / most
    chosen = {int(k * step) for k in range(most)} | {len(rows) - 1}
    for worker in {r.worker for r in rows}:
        chosen.add(max((k for k, r in enumerate(rows) if r.worker == worker), key=lambda k: rows[k].bytes))
    return tuple(rows[k] for k in sorted(chosen))
