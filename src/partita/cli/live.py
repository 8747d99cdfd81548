"""The live view of a run: the same lines of a terminal drawn again and again, and scalars for TensorBoard."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.talk import Talk
from partita.errors import MissingDependency
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.page.live import Live, LiveStep, lines
from partita.simulate.predicted import computing_s, predicted

if TYPE_CHECKING:
    from partita.nouns.plan import PlanFile
    from partita.training.runtime.step_log import StepSeen
    from partita.training.runtime.worker_status import Row

_KEPT = 64  #: steps
_BETWEEN_S = 0.2  #: two drawings


class Dashboard:
    """Draws over its own lines: each is written over and its rest erased, all in one write, so that nothing flickers."""

    def __init__(self, talk: Talk, job: str, total: int | None) -> None:
        self._talk, self._job, self._total = talk, job, total
        self._steps: deque[LiveStep] = deque(maxlen=_KEPT)
        self._events: list[str] = []
        self._predicted_s, self._expected_s = 0.0, dict[str, float]()
        self._began_s, self._drawn_s, self._height = time.monotonic(), 0.0, 0

    # ---- what it is told ------------------------------------------------------------------------------------------------

    def plan(self, file: PlanFile) -> None:
        self._predicted_s = predicted(file.problem, file.plan).duration_s
        apart = (replace(s, compute_s={}) for s in self._steps)  # by the plan before, which shared the work otherwise
        self._steps = deque(apart, maxlen=_KEPT)
        if isinstance(file.problem, PipelineProblem) and isinstance(file.plan, PipelinePlan):
            self._expected_s = computing_s(file.problem, file.plan)

    def step(self, seen: StepSeen) -> None:
        while self._steps and self._steps[-1].step >= seen.step:  # done again after a failure
            self._steps.pop()
        self._steps.append(LiveStep(seen.step, seen.loss, seen.step_s, seen.compute_s))

    def event(self, sentence: str) -> None:
        """Something has happened."""
        self._events.append(sentence)
        self.draw()

    def watch(self, row: Row) -> None:
        """Called a few times a second."""
        if row.stop_after is not None and not any(e.startswith("stopping") for e in self._events):
            self._events.append(f"stopping after step {row.stop_after}, then saving; Ctrl-C again ends at once")
        if time.monotonic() - self._drawn_s >= _BETWEEN_S:
            self.draw()

    # ---- drawing --------------------------------------------------------------------------------------------------------

    @property
    def live(self) -> Live:
        return Live(
            self._job, tuple(self._steps), self._total, self._predicted_s, self._expected_s, tuple(self._events),
            time.monotonic() - self._began_s,
        )  # fmt: skip

    def draw(self) -> None:
        """Over what was drawn before."""
        size = shutil.get_terminal_size()
        rows = lines(self.live, size.columns - 1, colour=self._talk.colour)[: max(1, size.lines - 1)]
        up = f"\x1b[{self._height}F" if self._height else ""
        self._talk.out.write(up + "".join(f"{row}\x1b[K\n" for row in rows) + "\x1b[J")
        self._talk.out.flush()
        self._height, self._drawn_s = len(rows), time.monotonic()

    def close(self) -> None:
        """The last picture stays."""
        self.draw()
        self._height = 0


class Scalars:
    """Loss, step time and busy shares as TensorBoard shows them, in the run's folder."""

    @staticmethod
    def expect() -> None:
        """Raise MissingDependency without tensorboard."""
        if importlib.util.find_spec("tensorboard") is None:
            raise MissingDependency(
                "--tensorboard needs the package tensorboard, which is not installed", hint="pip install tensorboard"
            )

    def __init__(self, folder: Path) -> None:
        """Raises MissingDependency as `expect`."""
        self.expect()
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))
        self._predicted_s = 0.0

    def plan(self, file: PlanFile) -> None:
        self._predicted_s = predicted(file.problem, file.plan).duration_s

    def step(self, seen: StepSeen) -> None:
        found = {"loss": seen.loss, "step_s/measured": seen.step_s, "step_s/predicted": self._predicted_s}
        found |= {f"busy/{d}": s / seen.step_s for d, s in seen.compute_s.items() if seen.step_s > 0}
        for name, value in found.items():
            self._writer.add_scalar(name, value, seen.step)

    def close(self) -> None:
        self._writer.close()
