"""How much longer jobs take than the plan has it: by model, from the jobs done so far, for those that are still to do.

A model's latest inferences count, so that what changes slowly is followed. A side whose latest jobs take much longer than those before,
or much less, has changed (a quota, a neighbour that came or left): what was seen before counts as many times as long from then on,
also of the models that have not run since. Each is compared with the median of the same model and price, for two cuts of a model may be
priced unlike, and one in seven may wait for its quota without any change.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partita.nouns.offload import OffloadProblem, OffloadTask

FEWEST = 3  #: inferences of a side before it is judged: under a quota one of them may wait for a period or not
#: so many in a row, one of them excepted, off by so many times what was expected: the side has changed
LATEST, CHANGED = 6, 1.4
MEMORY = 20  #: inferences of a model that count beside the latest


@dataclass(frozen=True, slots=True)
class Inference:
    """What it took, and what the plan has for it."""

    number: int  #: in the order of the side
    model: str  #: its hash
    took_s: float
    planned_s: float

    @property
    def slower(self) -> float:
        """Times as long as planned."""
        return self.took_s / self.planned_s


@dataclass(slots=True)
class Tally:
    """Inferences of one side."""

    before: dict[str, deque[Inference]] = field(default_factory=dict)  #: by the model's hash, without the latest
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)  #: of those: what they took, what was planned
    latest: deque[Inference] = field(default_factory=deque)  #: of all models, of those that can be judged
    count: int = 0

    def add(self, model: str, took_s: float, planned_s: float) -> None:
        """Nothing is learnt where nothing was planned. O(LATEST x MEMORY)."""
        if not (planned_s > 0 and took_s > 0):
            return
        self.count += 1
        inference = Inference(self.count, model, took_s, planned_s)
        if self._usual(inference) is None:
            self._remember(inference)
            return
        self.latest.append(inference)
        self._notice_change()
        if len(self.latest) == LATEST:
            self._remember(self.latest.popleft())

    def _remember(self, inference: Inference) -> None:
        self.before.setdefault(inference.model, deque(maxlen=MEMORY)).append(inference)
        self._sum(inference.model)

    def _sum(self, model: str) -> None:
        self.sums[model] = sum(i.took_s for i in self.before[model]), sum(i.planned_s for i in self.before[model])

    def _usual(self, inference: Inference) -> float | None:
        """Times as long as planned, of those of the same model and price: the median. None where there are too few."""
        alike = [i.slower for i in self.before.get(inference.model, ()) if i.planned_s == inference.planned_s]
        return statistics.median(alike) if len(alike) >= FEWEST else None

    def _notice_change(self) -> None:
        """Where the latest are all off, or all but one: what was before, at the speed of now."""
        pairs = [(i, i.slower / usual) for i in self.latest if (usual := self._usual(i))]
        off = sorted(x for _, x in pairs)
        if len(off) < LATEST or not (off[1] > CHANGED or off[-2] < 1 / CHANGED):
            return
        factor = statistics.median(off)
        # the one that is not off may be from before
        self.latest = deque(i for i, x in pairs if not 1 / CHANGED <= x <= CHANGED)
        for model, inferences in self.before.items():
            older = (
                replace(i, took_s=i.took_s * factor) if i.number < self.latest[0].number else i for i in inferences
            )
            self.before[model] = deque(older, MEMORY)
            self._sum(model)

    @property
    def slower(self) -> float:
        """Times as long as planned, over all models.

        >>> tally = Tally()
        >>> for took_s in (0.2, 0.3, 0.4): tally.add("a", took_s, 0.2)
        >>> round(tally.slower, 3), round(tally.of("a"), 3), round(tally.of("b"), 3)
        (1.5, 1.5, 1.5)
        """
        return self._times(self.sums) or 1.0 if self.count >= FEWEST else 1.0

    def of(self, model: str) -> float:
        """Times as long as planned; a model that has not run is as slow as the others."""
        return (self.count >= FEWEST and self._times([model])) or self.slower

    def seen(self, model: str) -> float | None:
        """Times as long as planned, however few ran; None where it has not run."""
        return self._times([model])

    def _times(self, models: Collection[str]) -> float | None:
        rows = [self.sums[m] for m in models if m in self.sums]
        rows += [(i.took_s, i.planned_s) for i in self.latest if i.model in models]
        return sum(took_s for took_s, _ in rows) / sum(planned_s for _, planned_s in rows) if rows else None


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
        """The problem, its times corrected; `models` are the hashes of its jobs'. O(tasks)."""
        self.planned_by = here, there = self.device.slower, self.server.slower
        all_factors = {h: (self.device.of(h), self.server.of(h)) for h in set(models)}
        known = dict[tuple[str, int], tuple[OffloadTask, ...]]()
        for h, j in zip(models, problem.jobs, strict=True):
            if (h, id(j.tasks)) not in known:
                factors = all_factors[h]
                known[h, id(j.tasks)] = tuple(t.slower(*factors) for t in j.tasks)
        rows = zip(models, problem.jobs, strict=True)
        jobs = tuple(replace(j, tasks=known[h, id(j.tasks)]) for h, j in rows)
        return replace(problem, link=problem.link.slower(here, there), jobs=jobs)

    def facts(self, names: Mapping[str, str]) -> list[dict[str, float | str | None]]:
        """A row a model that ran: its name, and how many times as long as planned it is believed to take now on either side."""
        seen = {h: (self.device.seen(h), self.server.seen(h)) for h in names}
        return [{"model": names[h], "device": d, "server": s} for h, (d, s) in seen.items() if d or s]
