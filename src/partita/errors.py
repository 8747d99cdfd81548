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
    |   |-- FlowError            ... a flow that cannot be unfolded or run as it is written
    |   |-- CaptureError         ... a model or a log that cannot be turned into a graph or a problem
    |   |-- CheckpointError      ... a checkpoint
    |   `-- MissingDependency    ... an optional package that is not installed
    |-- Infeasible               exit code 3   the request is sound, but nothing satisfies it
    |-- InternalError            exit code 1   Partita contradicts itself: a fault of ours, never of what was handed in
    |-- DiskFull                 exit code 1   no room for what is to be written
    |-- WorkerFailed             exit code 1   a rank died or stopped answering
    `-- Interrupted              exit code 130 the user asked to stop, and it did, in good order

Every message says the fact with its numbers; `hint` says what to do next. `str(error)` gives both:

>>> str(GraphError("task 'a' waits for itself", hint="remove the edge a -> a"))
"task 'a' waits for itself. hint: remove the edge a -> a"
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
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


class FlowError(BadInput):
    """A flow that cannot be unfolded or run as it is written, or a value in it that has no content that can be told."""


class CaptureError(BadInput):
    """A model that cannot be captured as a task graph, or a log as a problem."""


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


class InternalError(PartitaError):
    """Partita contradicts itself: a fault of ours that no input should bring about."""


class DiskFull(PartitaError):
    """Nothing more can be written: the disk, or what this user may take of it, is full."""


class WorkerFailed(PartitaError):
    """A worker died: `rank` is who, `doing` what it was executing."""

    def __init__(self, message: str, *, rank: int, doing: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.rank = rank
        self.doing = doing


class Interrupted(PartitaError):
    """The user asked to stop; the message says how far it came and what is safe on disk."""

    exit_code = 130


def place_of(error: BaseException) -> str:
    """ " at FILE:LINE (code)" of the innermost frame of an error that is neither a library's nor Partita's; "" without one.

    >>> place_of(ValueError("never raised"))
    ''
    """
    own = str(Path(__file__).parent)
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not (f.filename.startswith((own, "<")) or "site-packages" in f.filename or f.filename.startswith(_STDLIB))
    ]
    return f" at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""


_STDLIB = str(Path(traceback.__file__).parent)


def sentence_of(error: BaseException) -> str:
    """ "ValueError: it is too long" on one line, however long the error's text is.

    >>> sentence_of(ValueError("it is too long.\\nsee below"))
    'ValueError: it is too long'
    """
    try:
        text = str(error)
    except Exception:  # an error of the user's own that cannot say itself
        text = ""
    lines = text.encode("utf-8", "backslashreplace").decode().strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')[:300]}" if lines else type(error).__name__


LONGEST_FAULT = 300  #: characters shown of one
ANEW = "correct it, or make it anew"


def refuse(kind: type[BadInput], faults: Sequence[str], what: str, *, hint: str = ANEW, most: int = 12) -> None:
    """Raise `kind` with all `faults` of `what` at once, long ones cut short; do nothing when there are none.

    >>> refuse(GraphError, [], "graph.json")
    """
    if not faults:
        return
    shown = "; ".join(f if len(f) <= LONGEST_FAULT else f[:LONGEST_FAULT] + "..." for f in faults[:most])
    more = f"; and {len(faults) - most} more" if len(faults) > most else ""
    raise kind(f"{what}: {shown}{more}", hint=hint)
