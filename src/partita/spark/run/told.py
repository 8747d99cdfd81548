"""What the process that asks and the driver tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Policy = Literal["one-by-one", "fifo", "fair", "plan"]
POLICIES: tuple[Policy, ...] = ("one-by-one", "fifo", "fair")  #: those that need no plan


@dataclass(frozen=True)
class Told:
    """How the driver starts: its session and its program."""

    app: str
    master: str
    events: str  #: folder of the event log
    address: str  #: that the driver listens on
    cores: int  #: tasks at once in each executor
    memory_mb: int  #: of each executor
    executors: int = 1  #: wait for so many before the first round
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """One round: all jobs of the program, under a policy. `number` marks it in the event log."""

    number: int
    policy: Policy
    plan: str | None = None  #: path of the plan of policy "plan"


@dataclass(frozen=True)
class Answer:
    """How a round went; `error` and `hint` where it failed."""

    seconds: float = 0.0
    jobs: tuple[str, ...] = ()  #: names, as the program has them
    results: tuple[str, ...] = ()  #: [jobs] what the action gave, cut short
    error: str | None = None
    hint: str = ""


#: Local properties that mark a Spark job in the event log.
ROUND, JOB, PHASE, BEGAN, PARENTS, POLICY = (f"partita.{w}" for w in ("round", "job", "phase", "began_ms", "parents", "policy"))  # fmt: skip
