"""How much longer jobs take than the plan has it: by model, from the jobs done so far, for those that are still to do.

A model's latest inferences count, so that what changes slowly is followed. A side has a level: how slow it is now, as times of what it
was when a model, at a price, was seen first (two cuts of a model may be priced unlike). What was seen at another level counts as it would
be at that of now, also of models that have not run since. The level follows every inference a little, and at once where the latest are
nearly all off: a quota, a neighbour that came or left; one in seven may wait for its quota without any change.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partita.nouns.offload import OffloadProblem, OffloadTask

FEWEST = 3  #: inferences of a side before it is judged: under a quota one of them may wait for a period or not
#: so many in a row, one of them excepted, off by so many times what was expected: the side has changed
LATEST, CHANGED = 6, 1.4
LONE = (
    1 / 3
)  #: of the median: what one that took very long adds to its model at most, for a pause of the machine; waits for a quota recur
ABSURD = 1e9  #: times as long, or as short, as planned
MEMORY = 20  #: inferences of a model that count beside the latest; also those that tell what a model takes at level 1


@dataclass(frozen=True, slots=True)
class Inference:
    """What it took, and what the plan has for it."""

    number: int  #: in the order of the side
    model: str  #: its hash
    took_s: float
    planned_s: float
    level: float  #: of the side

    @property
    def slower(self) -> float:
        """Times as long as planned, at level 1."""
        return self.took_s / self.planned_s / self.level


@dataclass(slots=True)
class Tally:
    """Inferences of one side."""

    before: dict[str, deque[Inference]] = field(default_factory=dict)  #: by the model's hash, without the latest
    first: dict[tuple[str, float], list[Inference]] = field(default_factory=dict)  #: by model and price
    latest: deque[Inference] = field(default_factory=deque)  #: of all models, of those that can be judged
    level: float = 1.0
    count: int = 0

    def add(self, model: str, took_s: float, planned_s: float) -> None:
        """Nothing is learnt where nothing was planned, or what came has nothing to do with it. O(LATEST x MEMORY)."""
        if not (planned_s > 0 and 1 / ABSURD < took_s / planned_s < ABSURD):
            return
        self.count += 1
        inference = Inference(self.count, model, took_s, planned_s, self.level)
        if self._off(inference) is None:
            self._remember(inference)
            return
        self.latest.append(inference)
        self._notice_change()
        off = self._off(inference) or 1.0
        self.level *= min(max(off, 1 / CHANGED), CHANGED) ** (1 / MEMORY)
        if len(self.latest) == LATEST:
            self._remember(self.latest.popleft())

    def _remember(self, inference: Inference) -> None:
        self.before.setdefault(inference.model, deque(maxlen=MEMORY)).append(inference)
        first = self.first.setdefault((inference.model, inference.planned_s), [])
        if len(first) < MEMORY:
            first.append(inference)

    def _off(self, inference: Inference) -> float | None:
        """Times as long as its model, at its price, is expected to take now. None where too few were seen."""
        first = self.first.get((inference.model, inference.planned_s), ())
        if len(first) < FEWEST:
            return None
        return inference.slower * inference.level / (statistics.median(i.slower for i in first) * self.level)

    def _notice_change(self) -> None:
        """Where the latest are all off, or all but one, the side is at another level."""
        pairs = [(i, x) for i in self.latest if (x := self._off(i))]
        off = sorted(x for _, x in pairs)
        if len(off) < LATEST or not (off[1] > CHANGED or off[-2] < 1 / CHANGED):
            return
        self.level *= statistics.median(off)
        # the one that is not off may be from before
        self.latest = deque(replace(i, level=self.level) for i, x in pairs if not 1 / CHANGED <= x <= CHANGED)
        since = self.latest[0].number

        def at_its_level(i: Inference) -> Inference:
            return replace(i, level=self.level) if i.number >= since else i

        self.before = {m: deque(map(at_its_level, seen), MEMORY) for m, seen in self.before.items()}
        self.first = {k: list(map(at_its_level, seen)) for k, seen in self.first.items()}

    @property
    def slower(self) -> float:
        """Times as long as planned, over all models.

        >>> tally = Tally()
        >>> for took_s in (0.2, 0.3, 0.4): tally.add("a", took_s, 0.2)
        >>> round(tally.slower, 3), round(tally.of("a"), 3), round(tally.of("b"), 3)
        (1.5, 1.5, 1.5)
        """
        known = [m for m, seen in self.before.items() if len(seen) >= FEWEST]
        return (self.count >= FEWEST and self._times(known or self.before)) or 1.0

    def of(self, model: str) -> float:
        """Times as long as planned; a model that has hardly run is as slow as the others."""
        return (len(self.before.get(model, ())) >= FEWEST and self._times([model])) or self.slower

    def seen(self, model: str) -> float | None:
        """Times as long as planned, however few ran; None where it has not run."""
        return self._times([model])

    def _times(self, models: Collection[str]) -> float | None:
        rows = [row for m in models for row in self._counted(m)]
        return self.level * sum(t for t, _ in rows) / sum(planned_s for _, planned_s in rows) if rows else None

    def _counted(self, model: str) -> list[tuple[float, float]]:
        """What a model's inferences took, at level 1, and what was planned. One alone that took very long (a pause) counts as less."""
        seen = [*self.before.get(model, ()), *(i for i in self.latest if i.model == model)]
        by_length = sorted(i.slower for i in seen)
        most = math.inf
        if len(seen) >= FEWEST and by_length[-2] <= (rare := (1 + LONE * len(seen)) * by_length[len(seen) // 2]):
            most = rare
        return [(min(i.slower, most) * i.planned_s, i.planned_s) for i in seen]


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
