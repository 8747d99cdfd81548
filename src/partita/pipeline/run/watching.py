"""Who watches a run from its launcher: those that show it, and the one that may change its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.pipeline.run.adapt import Adapts
from partita.training.runtime.step_log import StepLog, StepSeen
from partita.training.runtime.worker_status import Board


class Shows(Protocol):
    """Is told what happens; what it does with that is its own business."""

    def plan(self, file: PlanFile) -> None:
        """From here on this plan holds."""
        ...

    def step(self, seen: StepSeen) -> None:
        """A step has ended on all ranks."""
        ...


@dataclass
class Watching:
    """One generation of workers under watch; see `training.runtime.launch.Minds`."""

    devices: Sequence[str]  #: [ranks]
    shows: Sequence[Shows] = ()
    adapts: Adapts | None = None
    _log: StepLog = field(init=False)

    def __post_init__(self) -> None:
        self._log = StepLog(self.devices)

    def look(self, board: Board) -> PipelinePlan | None:
        """The plan to go on with, where that is another one now."""
        found = self.adapts.decision() if self.adapts else None
        for seen in self._log.new(board):
            for show in self.shows:
                show.step(seen)
            if self.adapts:
                found = self.adapts.after(seen) or found
        return found

    def told(self, step: int) -> None:
        """That plan holds after this step."""
        if self.adapts:
            self.adapts.told(step)
