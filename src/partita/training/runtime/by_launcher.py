"""A rank's end of a run whose plan the launcher may change between two steps."""

from __future__ import annotations

import json
from pathlib import Path

from partita.nouns.pipeline_plan import PipelinePlan
from partita.training.runtime.patience import await_others
from partita.training.runtime.session import Session
from partita.training.runtime.steering import plan_at


class ByLauncher:
    """The launcher decides: it leaves a plan beside the board and says after which step it holds."""

    def __init__(self, session: Session) -> None:
        self._board, self._room = session.board, Path(session.spec.board).parent
        self._patience_s = session.spec.timeout_s

    def after(self, step: int, step_s: float) -> PipelinePlan | None:
        """Raises PeerGone where others do not come along: a rank without work must not be far ahead of the step after which
        a plan holds."""
        await_others(lambda: self._board.behind >= step, f"has not begun step {step}", self._patience_s)
        if step != self._board.switch_after:
            return None
        return PipelinePlan.from_json(json.loads(plan_at(self._room, step).read_text()))

    def end(self, step: int) -> None:
        """Nothing is left to be done."""
