"""Steering: who may change the plan between two steps. A wing that searches while training brings one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from partita.nouns.pipeline_plan import PipelinePlan

if TYPE_CHECKING:
    from partita.training.runtime.session import Session


class Steering(Protocol):
    """One rank's end of it; every rank has one, and all of them answer alike."""

    def after(self, step: int, step_s: float) -> PipelinePlan | None:
        """Called when a step has ended, on every rank: the plan to go on with, None: the same one."""
        ...

    def end(self, step: int) -> None:
        """Called on every rank when no step comes any more."""
        ...


Steers = Callable[["Session"], Steering]


def plan_at(room: Path, step: int) -> Path:
    """Where the launcher leaves the plan that holds after a step."""
    return room / f"plan-after-{step}.json"
