"""How much longer jobs take than the plan has it: by model, from the jobs done so far, for those that are still to do.

A side whose latest jobs take much longer than its earlier ones, or much less, has changed (a quota, a neighbour that came or left): what
was seen before counts no more, or a run of a thousand jobs would never notice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from partita.nouns.offload import OffloadProblem, OffloadTask

FEWEST = 3  #: inferences of a side before it is judged: under a quota one of them may wait for a period or not
#: so many in a row, one of them excepted, off by so many times what was expected: the side has changed
LATEST, CHANGED = 6, 1.4


@dataclass(frozen=True, slots=True)
class Inference:
    """What it took, what the plan has for it, and what the ones before let expect."""

    model: str  #: its hash
    took_s: float
    planned_s: float
    expected_s: float


@dataclass(slots=True)
class Tally:
    """Inferences of one side since it last changed."""

    took_s: dict[str, float] = field(default_factory=dict)  #: by the model's hash
    planned_s: dict[str, float] = field(default_factory=dict)
    inferences: int = 0
    latest: deque[Inference] = field(default_factory=lambda: deque(maxlen=LATEST))

    def add(self, model: str, took_s: float, planned_s: float) -> None:
        """Nothing is learnt where nothing was planned."""
        if planned_s > 0 and took_s > 0:
            self.latest.append(Inference(model, took_s, planned_s, planned_s * self.of(model)))
            if self._changed():
                self.took_s, self.planned_s, self.inferences = {}, {}, 0
                for inference in list(self.latest)[1:]:  # the first may be from before
                    self._count(inference)
            else:
                self._count(self.latest[-1])

    def _count(self, inference: Inference) -> None:
        self.took_s[inference.model] = self.took_s.get(inference.model, 0.0) + inference.took_s
        self.planned_s[inference.model] = self.planned_s.get(inference.model, 0.0) + inference.planned_s
        self.inferences += 1

    def _changed(self) -> bool:
        """Whether the latest took so many times as long as expected that it is no chance, each of them or all but one."""
        if self.inferences < FEWEST + LATEST:
            return False
        times = sorted(i.took_s / i.expected_s for i in self.latest)
        return times[1] > CHANGED or times[-2] < 1 / CHANGED

    @property
    def slower(self) -> float:
        """Times as long as planned, over all models.

        >>> tally = Tally()
        >>> for took_s in (0.2, 0.3, 0.4): tally.add("a", took_s, 0.2)
        >>> round(tally.slower, 3), round(tally.of("a"), 3), round(tally.of("b"), 3)
        (1.5, 1.5, 1.5)
        """
        planned_s = sum(self.planned_s.values())
        return sum(self.took_s.values()) / planned_s if planned_s > 0 and self.inferences >= FEWEST else 1.0

    def of(self, model: str) -> float:
        """Times as long as planned; a model that has not run is as slow as the others."""
        known = self.inferences >= FEWEST and self.planned_s.get(model, 0.0) > 0
        return self.took_s[model] / self.planned_s[model] if known else self.slower


@dataclass(slots=True)
class Corrections:
    """Of both sides, against the problem as it was planned first."""

    device: Tally = field(default_factory=Tally)
    server: Tally = field(default_factory=Tally)
    planned_by: tuple[float, float] = (1.0, 1.0)  #: what the plan at hand takes the sides' slowness for

    def drifted(self, share: float) -> bool:
        """Whether a side is off what the plan at hand takes it for by more than a share of that."""
        now = self.device.slower, self.server.slower
        return any(abs(a / b - 1) > share for a, b in zip(now, self.planned_by, strict=True))

    def applied(self, problem: OffloadProblem, models: Sequence[str]) -> OffloadProblem:
        """The problem, its times corrected; `models` are the hashes of its jobs'. O(tasks of all models)."""
        self.planned_by = here, there = self.device.slower, self.server.slower
        known = dict[tuple[str, int], tuple[OffloadTask, ...]]()
        for h, j in zip(models, problem.jobs, strict=True):
            if (h, id(j.tasks)) not in known:
                factors = self.device.of(h), self.server.of(h)
                known[h, id(j.tasks)] = tuple(t.slower(*factors) for t in j.tasks)
        rows = zip(models, problem.jobs, strict=True)
        jobs = tuple(replace(j, tasks=known[h, id(j.tasks)]) for h, j in rows)
        return replace(problem, link=problem.link.slower(here, there), jobs=jobs)

    def facts(self, names: Mapping[str, str]) -> list[dict[str, float | str | None]]:
        """A row a model that ran: its name, and how many times as long as planned it took on either side."""
        tallies = (self.device, self.server)
        ran = [h for h in names if any(h in t.planned_s for t in tallies)]
        factors = [[t.took_s[h] / t.planned_s[h] if h in t.planned_s else None for t in tallies] for h in ran]
        return [{"model": names[h], "device": d, "server": s} for h, (d, s) in zip(ran, factors, strict=True)]
