"""How much longer jobs take than the plan has it: by model, from the jobs done so far, for those that are still to do.

A model's latest inferences count, so that what changes slowly is followed. A side whose latest jobs take much longer than those before,
or much less, has changed (a quota, a neighbour that came or left): what was seen before counts as many times as long from then on,
also of the models that have not run since. Only inferences of the same model and price are compared, for two cuts of a model may be
priced unlike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from partita.nouns.offload import OffloadProblem, OffloadTask

FEWEST = 3  #: inferences of a side before it is judged: under a quota one of them may wait for a period or not
#: so many in a row, one of them excepted, off by so many times what was expected: the side has changed
LATEST, CHANGED = 6, 1.4
MEMORY = 20  #: inferences of a model that count beside the latest


@dataclass(frozen=True, slots=True)
class Inference:
    """What it took, and what the plan has for it."""

    model: str  #: its hash
    took_s: float
    planned_s: float


@dataclass(slots=True)
class Tally:
    """Inferences of one side."""

    before: dict[str, deque[Inference]] = field(default_factory=dict)  #: by the model's hash, without the latest
    latest: deque[Inference] = field(default_factory=deque)  #: of all models

    def add(self, model: str, took_s: float, planned_s: float) -> None:
        """Nothing is learnt where nothing was planned."""
        if planned_s > 0 and took_s > 0:
            self.latest.append(Inference(model, took_s, planned_s))
            self._notice_change()
            if len(self.latest) == LATEST:
                oldest = self.latest.popleft()
                self.before.setdefault(oldest.model, deque(maxlen=MEMORY)).append(oldest)

    def _notice_change(self) -> None:
        """Where the latest are all off, or all but one: what was before, at the speed of now."""
        off = [self._off(i) for i in self.latest]
        known = sorted(x for x in off if x > 0)
        if len(known) < LATEST or not (known[1] > CHANGED or known[-2] < 1 / CHANGED):
            return
        factor = float(np.median(known))
        for model, inferences in self.before.items():
            self.before[model] = deque((replace(i, took_s=i.took_s * factor) for i in inferences), MEMORY)
        # the one that is not off may be from before
        self.latest = deque(i for i, x in zip(self.latest, off, strict=True) if not 1 / CHANGED <= x <= CHANGED)

    def _off(self, inference: Inference) -> float:
        """Times as long as those of the same model and price took before; 0 where there were too few."""
        alike = [i for i in self.before.get(inference.model, ()) if i.planned_s == inference.planned_s]
        return _times([inference]) / _times(alike) if len(alike) >= FEWEST else 0.0

    def _all(self) -> Iterator[Inference]:
        for inferences in self.before.values():
            yield from inferences
        yield from self.latest

    @property
    def slower(self) -> float:
        """Times as long as planned, over all models.

        >>> tally = Tally()
        >>> for took_s in (0.2, 0.3, 0.4): tally.add("a", took_s, 0.2)
        >>> round(tally.slower, 3), round(tally.of("a"), 3), round(tally.of("b"), 3)
        (1.5, 1.5, 1.5)
        """
        known = list(self._all())
        return _times(known) if len(known) >= FEWEST else 1.0

    def of(self, model: str) -> float:
        """Times as long as planned; a model that has not run is as slow as the others."""
        known = list(self._all())
        return (len(known) >= FEWEST and _times(i for i in known if i.model == model)) or self.slower

    def seen(self, model: str) -> float | None:
        """Times as long as planned, however few ran; None where it has not run."""
        return _times(i for i in self._all() if i.model == model) or None


def _times(inferences: Iterable[Inference]) -> float:
    """As long as planned; 0 where there are none."""
    rows = list(inferences)
    return sum(i.took_s for i in rows) / sum(i.planned_s for i in rows) if rows else 0.0


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
        """A row a model that ran: its name, and how many times as long as planned it took of late on either side."""
        seen = {h: (self.device.seen(h), self.server.seen(h)) for h in names}
        return [{"model": names[h], "device": d, "server": s} for h, (d, s) in seen.items() if d or s]
