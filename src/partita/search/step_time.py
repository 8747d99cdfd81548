"""The predicted seconds of a training step of a candidate plan: lowered and simulated like the plan itself.

Candidates that differ only in where they cut have the same program with other durations. Such a program is lowered once
and kept; a further candidate costs one pass over its instructions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from partita.cluster import Cluster
from partita.errors import PlanError
from partita.lower import lower
from partita.plan import PipelinePlan, Schedule, Stage, Verdict
from partita.profile import Sample
from partita.schedules import in_flight_of
from partita.search.chain import Chain, devices_of
from partita.search.stage import StageCosts
from partita.search.units import Units
from partita.simulate import durations, times

NO_VERDICT = Verdict(math.nan, math.nan, "", "", math.nan)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan before it is written out."""

    sample: int  #: which micro-batch size
    chain: Chain
    in_flight: int
    schedule: Schedule = "1f1b"
    recompute: tuple[bool, ...] = ()  #: [stages]; empty: none


@dataclass(frozen=True, eq=False)
class Bench:
    """Evaluates candidates of one sample."""

    sample: Sample
    number: int
    cluster: Cluster
    units: Units
    costs: StageCosts
    known: dict[Candidate, float] = field(default_factory=dict)

    def plan(self, candidate: Candidate, verdict: Verdict = NO_VERDICT) -> PipelinePlan:
        """The candidate written out."""
        devices = devices_of(candidate.chain, [t.names for t in self.costs.types])
        again = candidate.recompute or (False,) * len(candidate.chain)
        stages = tuple(
            Stage(self._tasks(link.start, link.end), names, r)
            for link, names, r in zip(candidate.chain, devices, again, strict=True)
        )
        return PipelinePlan(
            self.sample.graph.fingerprint,
            stages,
            self.costs.micro_batches,
            candidate.in_flight,
            candidate.schedule,
            verdict,
        )

    def _tasks(self, start: int, end: int) -> tuple[str, ...]:
        """Ids of the forward tasks of a segment, in topological order."""
        unit = np.zeros(len(self.units), np.bool_)
        unit[self.costs.states.units_between(start, end)] = True
        graph = self.sample.graph
        return tuple(
            graph.tasks[i].id
            for i in graph.order.tolist()
            if unit[self.units.unit_of[i]] and graph.tasks[i].phase in ("forward", "stage")
        )

    def step_s(self, candidate: Candidate) -> float:
        """Predicted seconds; inf where the candidate does not fit into memory or cannot run."""
        found = self.known.get(candidate)
        if found is None:
            found = self._simulated(candidate) if self.fits(candidate) else math.inf
            self.known[candidate] = found
        return found

    def _simulated(self, candidate: Candidate) -> float:
        return step_s(self.plan(candidate), self.sample, self.cluster)

    def needs(self, candidate: Candidate) -> list[float]:
        """[stages] bytes that each device of a stage must hold."""
        held = in_flight_of(
            candidate.schedule, [x.replicas for x in candidate.chain], self.costs.micro_batches, candidate.in_flight
        )
        again = candidate.recompute or (False,) * len(candidate.chain)
        return [
            self.costs.need_bytes(x.start, x.end, -(-h // x.replicas), r)
            for x, h, r in zip(candidate.chain, held, again, strict=True)
        ]

    def fits(self, candidate: Candidate) -> bool:
        room = [self.costs.types[x.type].memory_bytes for x in candidate.chain]
        return all(n <= r for n, r in zip(self.needs(candidate), room, strict=True))


def step_s(plan: PipelinePlan, sample: Sample, cluster: Cluster) -> float:
    """Predicted seconds of one step of a plan; inf where a task cannot run on its device."""
    program = lower(sample.graph, cluster, plan)
    try:
        _, end = times(program, durations(program, sample.graph, sample.costs, cluster))
    except PlanError:
        return math.inf
    return float(end.max())
