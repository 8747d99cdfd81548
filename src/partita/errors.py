"""Everything that can go wrong, as one tree.

    PartitaError                 exit code 1
    |-- BadInput                 exit code 2   a file, a model or a flag that cannot be used
    |   |-- GraphError           ... a task graph
    |   |-- ClusterError         ... a cluster file
    |   |-- CostError            ... a cost table or a profile
    |   |-- PlanError            ... a plan, or a plan for something else
    |   |-- ProgramError         ... a program, e.g. one that waits for itself
    |   |-- TimelineError        ... a timeline
    |   |-- JobError             ... a training job, its model or its data
    |   |-- CaptureError         ... a model that cannot be turned into a task graph
    |   |-- CheckpointError      ... a checkpoint
    |   `-- MissingDependency    ... an optional package that is not installed
    |-- Infeasible               exit code 3   the request is sound, but nothing satisfies it
    `-- WorkerFailed             exit code 1   a rank died or stopped answering

Every message says the fact with its numbers; `hint` says what to do next. `str(error)` gives both:

>>> str(GraphError("task 'a' waits for itself", hint="remove the edge a -> a"))
"task 'a' waits for itself. hint: remove the edge a -> a"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class PartitaError(Exception):
    """The root: `message` is the fact, `hint` the next step."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        fact = self.message.rstrip()
        if not self.hint:
            return fact
        stop = "" if fact.endswith((".", "!", "?")) else "."
        return f"{fact}{stop} hint: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Crosses processes whole, although parts of it are keyword-only arguments."""
        return _again, (type(self), self.message, dict(self.__dict__))


def _again(kind: type[PartitaError], message: str, state: dict[str, Any]) -> PartitaError:
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


class BadInput(PartitaError):
    """Something handed in cannot be used as it is."""

    exit_code = 2


class GraphError(BadInput):
    """A task graph, or a file that should hold one."""


class ClusterError(BadInput):
    """A cluster, or its TOML file."""


class CostError(BadInput):
    """A cost table or a profile."""


class PlanError(BadInput):
    """A plan, or a plan that was made for another model or cluster."""


class ProgramError(BadInput):
    """A program that cannot be executed."""


class TimelineError(BadInput):
    """A timeline, or a file that should hold one."""


class JobError(BadInput):
    """A training job: its function, its model, its batches."""


class CaptureError(BadInput):
    """A model that cannot be captured as a task graph."""


class CheckpointError(BadInput):
    """A checkpoint that is missing, damaged or belongs to another model."""


class MissingDependency(BadInput):
    """An optional package is needed and not installed."""


class Infeasible(PartitaError):
    """Nothing satisfies the request: `constraint` binds, `relaxation` is the smallest change that would help."""

    exit_code = 3

    def __init__(self, message: str, *, constraint: str, relaxation: str) -> None:
        super().__init__(message, hint=relaxation)
        self.constraint = constraint
        self.relaxation = relaxation


class WorkerFailed(PartitaError):
    """A worker died: `rank` is who, `doing` what it was executing."""

    def __init__(self, message: str, *, rank: int, doing: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.rank = rank
        self.doing = doing


def refuse(kind: type[BadInput], faults: Sequence[str], what: str, *, hint: str = "", most: int = 12) -> None:
    """Raise `kind` with all `faults` of `what` at once; do nothing when there are none.

    >>> refuse(GraphError, [], "graph.json")
    """
    if not faults:
        return
    shown = "; ".join(faults[:most])
    more = f"; and {len(faults) - most} more" if len(faults) > most else ""
    raise kind(f"{what}: {shown}{more}", hint=hint)
