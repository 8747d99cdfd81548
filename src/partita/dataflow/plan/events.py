"""What goes into a run's course and what comes out of it. Values only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeAlias

View: TypeAlias = "int | list[View]"  #: what a node stands for: a call, or a list of them
Worth: TypeAlias = Callable[[int], tuple[float, float]]  #: node -> (seconds, bytes) expected


class State(IntEnum):
    IDLE = 0  #: never asked for, or dropped
    WAITING = 1  #: asked for
    RUNNING = 2  #: handed out
    HELD = 3  #: its result lies in memory
    OUT = 4  #: nobody needs it
    FAILED = 5


@dataclass(frozen=True, slots=True)
class Job:
    """One task for an engine."""

    node: int
    turn: int  #: 1 when it is handed out for the first time
    kind: Literal["compute", "load"]
    key: str
    inputs: tuple[View, ...]  #: for each need of the node
    place: int  #: in the order


@dataclass(frozen=True, slots=True)
class Done:
    """A task has run."""

    node: int
    turn: int
    started_s: float
    ended_s: float
    worker: str
    size_bytes: float
    value: float | None = None  #: where it is a number
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A task has raised, or its worker died too often."""

    node: int
    turn: int
    reason: str
    started_s: float = 0.0
    ended_s: float = 0.0
    worker: str = ""


@dataclass(frozen=True)
class Limits:
    """How much may be under way, and in memory."""

    ahead: int = 2  #: candidates scored at once where one score decides about the next
    memory_bytes: float = math.inf  #: results held, all workers together; one that lies on several is counted once


def mapped(view: View, what: Callable[[int], Any]) -> Any:
    """A view with something else in the place of each call."""
    return what(view) if isinstance(view, int) else [mapped(v, what) for v in view]


def flat(view: View | Sequence[View]) -> Iterator[int]:
    """The calls in a view."""
    if isinstance(view, int):
        yield view
    else:
        for v in view:
            yield from flat(v)
