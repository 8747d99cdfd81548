"""The predicted seconds of a training step of a candidate plan: lowered and simulated like the plan itself.

Candidates that differ only in where they cut have the same program with other durations. Such a program is lowered once
and kept; a further candidate costs one pass over its instructions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.pipeline_plan import PipelinePlan, Schedule, Stage
from partita.nouns.profile import Sample
from partita.nouns.program import Op
from partita.pipeline.plan.stage import Bools, StageCosts, gradient_edges
from partita.simulate.lower import lower
from partita.simulate.schedules import in_flight_of
from partita.simulate.simulator import Simulator, durations, times
from partita.solve.chain_dp import Chain, devices_of
from partita.solve.units import Units


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan before it is written out."""

    sample: int  #: which micro-batch size
    chain: Chain
    in_flight: int
    schedule: Schedule = "1f1b"


@dataclass(frozen=True, eq=False)
class Bench:
    """Evaluates candidates of one sample."""

    sample: Sample
    number: int
    cluster: Cluster
    units: Units
    costs: StageCosts
    known: dict[Candidate, float] = field(default_factory=dict)
    templates: dict[object, Template] = field(default_factory=dict)

    def plan(self, candidate: Candidate) -> PipelinePlan:
        """The candidate written out."""
        devices = devices_of(candidate.chain, [t.names for t in self.costs.types])
        stages = tuple(
            Stage(self._tasks(link.start, link.end), names, link.recompute)
            for link, names in zip(candidate.chain, devices, strict=True)
        )
        return PipelinePlan(
            self.sample.graph.fingerprint,
            stages,
            self.costs.micro_batches,
            candidate.in_flight,
            candidate.schedule,
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
        """By a kept program where there is one of the same shape."""
        if not np.isnan(self.sample.costs.transfer_s).all():
            return step_s(self.plan(candidate), self.sample, self.cluster)
        amounts = self._amounts(candidate)
        shape = (
            tuple((x.type, x.replicas, x.recompute) for x in candidate.chain),
            candidate.in_flight,
            candidate.schedule,
            *amounts.shape,
        )
        template = self.templates.get(shape)
        if template is None:
            template = self.templates[shape] = Template.of(self.plan(candidate), self.sample, self.cluster, amounts)
        return template.step_s(amounts)

    def _amounts(self, candidate: Candidate) -> Amounts:
        """What a candidate's program moves and computes."""
        costs, chain = self.costs, candidate.chain
        seconds: dict[str, float] = {}
        for k, x in enumerate(chain):
            forward, backward, update = (
                float(table[x.end, x.type] - table[x.start, x.type])
                for table in (costs.forward_s, costs.backward_s, costs.update_s)
            )
            seconds |= {f"F{k}": forward, f"B{k}": backward + (forward if x.recompute else 0.0), f"U{k}": update}
        return Amounts(seconds, {**self._messages(chain), **self._reductions(chain)})

    def _messages(self, chain: Chain) -> dict[str, float]:
        """Name of each message between stages -> bytes."""
        stage = np.zeros(len(self.units), np.int64)
        for k, x in enumerate(chain):
            stage[self.costs.states.units_between(x.start, x.end)] = k
        tensor, source, target, back = self.readings
        at, to = stage[source], stage[target]
        cross = np.flatnonzero(at < to)
        n, size = len(chain), self.sample.graph.size_bytes
        found: dict[str, float] = {}
        for sign, chosen in (("F", cross), ("B", cross[back[cross]])):
            once = np.unique((tensor[chosen] * n + at[chosen]) * n + to[chosen])
            for key in once.tolist():
                i, j = key // n % n, key % n
                name = f"F{i}>F{j}" if sign == "F" else f"B{j}>B{i}"
                found[name] = found.get(name, 0.0) + float(size[key // n // n])
        return found

    @cached_property
    def readings(self) -> tuple[IntArray, IntArray, IntArray, Bools]:
        """Forward readings: (tensor, producing unit, reading unit, whether a gradient comes back)."""
        graph, unit_of = self.sample.graph, self.units.unit_of
        forward = np.array([t.phase in ("forward", "stage") for t in graph.tasks], np.bool_)
        tensor = np.repeat(np.arange(len(graph.producer)), np.diff(graph.readers.start))
        source, target = graph.producer[tensor], graph.readers.items
        read = forward[source] & forward[target] & (unit_of[source] != unit_of[target])
        return tensor[read], unit_of[source[read]], unit_of[target[read]], gradient_edges(graph)[read]

    def _reductions(self, chain: Chain) -> dict[str, float]:
        """Name of each gradient sum -> bytes of the parameters, as in `lower`."""
        costs = self.costs
        if not costs.update_s.any() and not any(t.phase == "update" for t in self.sample.graph.tasks):
            return {}
        readers = np.stack([costs.shared[x.end] - costs.shared[x.start] for x in chain])
        torn = (readers > 0).sum(axis=0) > 1
        found: dict[str, float] = {}
        for k, x in enumerate(chain):
            twice = np.where(readers[k] > 0, readers[k] - ~torn, 0.0) @ costs.shared_bytes
            size = float(costs.parameter_bytes[x.end] - costs.parameter_bytes[x.start] - twice)
            if x.replicas > 1 and size > 0:
                found[f"R{k}"] = size
        for s in np.flatnonzero(torn).tolist():
            name = "R" + "+".join(str(k) for k in range(len(chain)) if readers[k, s] > 0)
            found[name] = found.get(name, 0.0) + float(costs.shared_bytes[s])
        return found

    def needs(self, candidate: Candidate) -> list[float]:
        """[stages] bytes that each device of a stage must hold."""
        held = in_flight_of(
            candidate.schedule, [x.replicas for x in candidate.chain], self.costs.micro_batches, candidate.in_flight
        )
        return [
            self.costs.need_bytes(x.start, x.end, -(-h // x.replicas), x.recompute)
            for x, h in zip(candidate.chain, held, strict=True)
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


@dataclass(frozen=True, slots=True)
class Amounts:
    """What the pieces of a candidate's program amount to, by their names."""

    seconds: dict[str, float]  #: of computing F0, B0, U0, ...
    size_bytes: dict[str, float]  #: of messages F0>F1, B1>B0 and gradient sums R0, R0+1

    @property
    def shape(self) -> tuple[object, ...]:
        """What decides which instructions there are."""
        return tuple(self.size_bytes), tuple(k for k, v in (self.seconds | self.size_bytes).items() if v > 0)


@dataclass(frozen=True, eq=False)
class Template:
    """A program with its durations left open."""

    simulator: Simulator
    names: tuple[str, ...]  #: pieces that compute or carry
    at: IntArray  #: [instructions] position in `names`; len(names): neither
    factor: FloatArray  #: [instructions] seconds per second computed or per byte carried
    fixed_s: FloatArray  #: [instructions] what receiving takes
    lag_s: FloatArray  #: [instructions]

    @staticmethod
    def of(plan: PipelinePlan, sample: Sample, cluster: Cluster, amounts: Amounts) -> Template:
        """The template of a plan with these amounts."""
        program = lower(sample.graph, cluster, plan)
        known = durations(program, sample.graph, sample.costs, cluster)
        values = {**amounts.seconds, **amounts.size_bytes}
        names = tuple(values)
        place = {n: k for k, n in enumerate(names)}
        receives = program.op == Op.RECV
        of_piece = np.array([place.get(p.name, len(names)) for p in program.pieces], np.int64)
        at = np.where(receives, len(names), of_piece[program.piece])
        value = np.array([*values.values(), 1.0])[at]
        factor = np.divide(known.busy_s, value, out=np.zeros(len(program)), where=(value > 0) & ~receives)
        return Template(Simulator(program), names, at, factor, np.where(receives, known.busy_s, 0.0), known.lag_s)

    def step_s(self, amounts: Amounts) -> float:
        """The step's seconds with other amounts of the same shape."""
        values = {**amounts.seconds, **amounts.size_bytes}
        value = np.array([*(values[n] for n in self.names), 0.0])
        return self.simulator.evaluate(value[self.at] * self.factor + self.fixed_s, self.lag_s)
