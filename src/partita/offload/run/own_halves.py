"""The device's halves of the jobs' models: their sessions, and what the plan has for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from partita.errors import CaptureError
from partita.nouns.offload import OffloadProblem
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.onnx_session import Session, model_inputs

Cut = frozenset[str]  #: the tasks on the device


@dataclass(frozen=True, slots=True)
class OwnHalves:
    """Built when first asked for, and kept."""

    problem: OffloadProblem
    models: Sequence[OnnxModel]  #: [jobs]
    _sessions: dict[tuple[str, Cut], tuple[Session | None, tuple[str, ...]]] = field(default_factory=dict, init=False)
    _refused: dict[tuple[str, Cut], str] = field(default_factory=dict, init=False)
    _planned_s: dict[tuple[int, Cut], tuple[float, float]] = field(default_factory=dict, init=False)

    def of(self, job: int, cut: Cut) -> tuple[Session | None, tuple[str, ...]]:
        """The session (None where the device computes nothing), and the names of what crosses. Raises CaptureError."""
        model = self.models[job]
        key = model.hash, cut
        if key not in self._sessions:
            halves = model.halves(cut)
            session = Session(halves.device, f"the device's half of {model.name}") if halves.device else None
            self._sessions[key] = session, model_inputs(halves.server) if halves.server else ()
        return self._sessions[key]

    def why_not(self, job: int, cut: Cut) -> str | None:
        """Why ONNX Runtime refuses it, as it may that of a new plan; None where it takes it."""
        key = self.models[job].hash, cut
        if key not in self._refused:
            try:
                self.of(job, cut)
            except CaptureError as error:
                self._refused[key] = str(error)
        return self._refused.get(key)

    def planned_s(self, job: int, cut: Cut) -> tuple[float, float]:
        """What the first plan has for the tasks on either side of a cut, without messages. O(tasks), once."""
        if (job, cut) not in self._planned_s:
            tasks = self.problem.jobs[job].tasks
            here, there = (t.device_s for t in tasks if t.id in cut), (t.server_s for t in tasks if t.id not in cut)
            self._planned_s[job, cut] = sum(here), sum(there)
        return self._planned_s[job, cut]
