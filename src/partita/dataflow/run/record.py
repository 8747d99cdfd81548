"""What a run did, as one JSON value: every task, every choice, memory over time, and the totals that scripts rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from partita.records import lean

TaskState: TypeAlias = Literal["run", "shared", "cached", "pruned", "cancelled", "failed"]
FORMAT = "partita-flow-run"


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task of the graph. `shared`: it turned out to be another one of the flow when its inputs were known."""

    key: str
    label: str
    options: Mapping[str, str]
    state: TaskState
    started_s: float | None = None  #: since the run began
    ended_s: float | None = None
    worker: str = ""
    bytes: float = 0.0
    reason: str = ""
    runs: int = 0  #: how often it was computed: more than once where its result was dropped or lost
    readers: int = 0  #: tasks and choices that read it


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One candidate of a choice."""

    options: Mapping[str, str]
    score: float | None
    kept: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """One choice: what it compared."""

    name: str
    options: Mapping[str, str]  #: of the branch it stands on
    over: tuple[str, ...]
    select: str
    shape: str | None
    contradiction: str
    scores: tuple[ScoreRow, ...]
    larger_is_better: bool = True


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Bytes of results held by a worker, from then on."""

    t_s: float
    worker: str
    bytes: float


class Prediction(NamedTuple):
    """What was foretold while a run was under way."""

    when_s: float
    seconds: float  #: of the whole run
    part: float  #: of the work that was done


@dataclass(frozen=True, slots=True)
class Chosen:
    """One result of the flow."""

    options: Mapping[str, str]
    score: float | None  #: by which it was chosen; None where nothing chose
    value: Any  #: where it is a number or a short text, otherwise None
    kind: str  #: of the value
    failed: str = ""


@dataclass(frozen=True)
class RunRecord:
    """A run."""

    seconds: float  #: from the beginning of the run to its last result; without starting workers
    started_s: float  #: starting workers took
    tasks_run: int
    tasks_shared: int  #: calls that running each configuration for itself would run beyond the tasks there are
    tasks_cached: int
    tasks_pruned: int
    tasks_cancelled: int
    tasks_failed: int
    configurations: int
    branches: int
    branches_pruned: int  #: candidates whose score was never computed
    chosen: tuple[Chosen, ...]
    peak_bytes: float
    workers: int
    dropped: int  #: results let go of for want of memory
    #: the whole run's seconds, as told when a tenth of the tasks and of their time was done; None where that was never seen
    predicted_s: float | None
    predictions: tuple[Prediction, ...]
    busy_s: float  #: of all tasks together
    notes: tuple[str, ...]
    tasks: tuple[TaskRow, ...]
    choices: tuple[ChoiceRow, ...]
    memory: tuple[MemoryRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything; what is at its default in a row is left out."""
        return {
            "format": FORMAT,
            "version": 1,
            **self.totals(),
            "tasks": [lean(t) for t in self.tasks],
            "choices": [lean(c) for c in self.choices],
            "memory": [lean(m) for m in self.memory],
        }

    def totals(self) -> dict[str, Any]:
        """What scripts rely on."""
        names = [n for n in self.__dataclass_fields__ if n not in ("tasks", "choices", "memory", "chosen", "predictions", "notes")]  # fmt: skip
        return {
            **{n: getattr(self, n) for n in names},
            "chosen": [{"options": dict(c.options), "score": c.score, "value": c.value, "kind": c.kind, "failed": c.failed} for c in self.chosen],
            "predictions": [list(p) for p in self.predictions],
            "notes": list(self.notes),
        }  # fmt: skip
