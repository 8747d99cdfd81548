"""The predicted seconds of a training step of a candidate plan: lowered and simulated like the plan itself.

Candidates that differ only in where they cut have the same program with other durations. Such a program is lowered once
and kept; a further candidate costs one pass over its instructions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.plan import PipelinePlan, Schedule, Stage, Verdict
from partita.nouns.profile import Sample
from partita.nouns.program import Op, Program
from partita.nouns.stage_memory import stage_bytes
from partita.pipeline.plan.chain_dp import Chain
from partita.pipeline.plan.stage_costs import Bools, StageCosts, forward_readings
from partita.simulate.lower import lower
from partita.simulate.schedules import in_flight_of
from partita.simulate.simulator import Simulator, durations, times

NO_VERDICT = Verdict(math.nan, math.nan, "", "", math.nan)
LOWERING = 100  #: what lowering an instruction costs of the effort; simulating one costs 1
EVALUATION = 10_000  #: what an evaluation costs besides

Key = tuple[object, ...]
Amounts = dict[Key, tuple[float, float]]  #: (seconds, bytes) of a piece of a program


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan before it is written out."""

    sample: int  #: which micro-batch size
    chain: Chain
    in_flight: int
    schedule: Schedule = "1f1b"


@dataclass
class Effort:
    """What is left of a search, counted in instructions and not in seconds, so that it ends alike on every machine."""

    left: float


@dataclass(frozen=True, eq=False)
class Bench:
    """Evaluates candidates of one sample."""

    sample: Sample
    number: int
    cluster: Cluster
    costs: StageCosts  #: a column for each class of device
    class_of: tuple[int, ...]  #: [devices]
    effort: Effort
    known: dict[Candidate, float] = field(default_factory=dict)
    templates: dict[object, Template] = field(default_factory=dict)

    def plan(self, candidate: Candidate, verdict: Verdict = NO_VERDICT) -> PipelinePlan:
        """The candidate written out."""
        names = [d.name for d in self.cluster.devices]
        stages = tuple(
            Stage(self._tasks(s.start, s.end), tuple(names[d] for d in s.devices), s.recompute) for s in candidate.chain
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
        unit = np.zeros(len(self.costs.units), np.bool_)
        unit[self.costs.states.units_between(start, end)] = True
        graph = self.sample.graph
        return tuple(
            graph.tasks[i].id
            for i in graph.order.tolist()
            if unit[self.costs.units.unit_of[i]] and graph.tasks[i].phase in ("forward", "stage")
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
        amounts = self._amounts(candidate)
        there = tuple((k, s > 0, b > 0) for k, (s, b) in amounts.items())
        shape = (
            tuple(len(s.devices) if self._alike else s.devices for s in candidate.chain),
            *(tuple(s.recompute for s in candidate.chain), candidate.in_flight, candidate.schedule, there),
        )
        template = self.templates.get(shape)
        if template is None:
            template = self.templates[shape] = Template.of(self.plan(candidate), self.sample, self.cluster, amounts)
            self.effort.left -= LOWERING * template.size
        self.effort.left -= EVALUATION + template.size
        return template.step_s(amounts)

    @cached_property
    def _alike(self) -> bool:
        """All links are alike, so that which device it is matters for its speed only."""
        return not self.cluster.links

    def _amounts(self, candidate: Candidate) -> Amounts:
        """What a candidate's program computes and moves."""
        costs, found = self.costs, Amounts()
        for k, s in enumerate(candidate.chain):
            redo = s.recompute and costs.backward_tasks[s.end] > costs.backward_tasks[s.start]
            for r, d in enumerate(s.devices):
                c = self.class_of[d]
                forward, backward, update = (
                    max(0.0, float(table[s.end, c] - table[s.start, c]))
                    for table in (costs.forward_s, costs.backward_s, costs.update_s)
                )
                found["forward", k, r] = forward, 0.0
                found["backward", k, r] = backward + (forward if redo else 0.0), 0.0
                found["update", k, r] = update, 0.0
        return found | self._messages(candidate.chain) | self._reductions(candidate.chain)

    def _messages(self, chain: Chain) -> Amounts:
        """(stage from, stage to) of each message: seconds given for its tensors, and bytes of the others."""
        stage = np.zeros(len(self.costs.units), np.int64)
        for k, s in enumerate(chain):
            stage[self.costs.states.units_between(s.start, s.end)] = k
        tensor, source, target, back = self._readings
        at, to = stage[source], stage[target]
        cross = np.flatnonzero(at < to)
        n, given, size = len(chain), self.sample.costs.transfer_s, self.sample.graph.size_bytes
        found: Amounts = {}
        for forth, chosen in ((True, cross), (False, cross[back[cross]])):
            for key in np.unique((tensor[chosen] * n + at[chosen]) * n + to[chosen]).tolist():
                i, j, k = key // n % n, key % n, key // n // n
                way = (i, j) if forth else (j, i)
                seconds, open_bytes = found.get(way, (0.0, 0.0))
                if math.isnan(given[k]):
                    found[way] = seconds, open_bytes + float(size[k])
                else:
                    found[way] = seconds + float(given[k]), open_bytes
        return found

    @cached_property
    def _readings(self) -> tuple[IntArray, IntArray, IntArray, Bools]:
        """Forward readings between units: (tensor, producing unit, reading unit, whether a gradient comes back)."""
        read = forward_readings(self.sample.graph)
        source, target = read.units(self.sample.graph, self.costs.units)
        apart = source != target
        return read.tensor[apart], source[apart], target[apart], read.back[apart]

    def _reductions(self, chain: Chain) -> Amounts:
        """Name of each gradient sum: bytes of the parameters, as in `lower`."""
        costs = self.costs
        if not costs.training:
            return {}
        readers = np.stack([costs.shared[s.end] - costs.shared[s.start] for s in chain])
        torn = (readers > 0).sum(axis=0) > 1
        found: Amounts = {}
        for k, s in enumerate(chain):
            twice = np.where(readers[k] > 0, readers[k] - ~torn, 0.0) @ costs.shared_bytes
            size = float(costs.parameter_bytes[s.end] - costs.parameter_bytes[s.start] - twice)
            if len(s.devices) > 1 and size > 0:
                found[(f"R{k}",)] = 0.0, size
        for p in np.flatnonzero(torn).tolist():
            name = ("R" + "+".join(str(k) for k in range(len(chain)) if readers[k, p] > 0),)
            found[name] = 0.0, found.get(name, (0.0, 0.0))[1] + float(costs.shared_bytes[p])
        return found

    def fits(self, candidate: Candidate) -> bool:
        """Every device of every stage runs its tasks and holds what it must."""
        for s in candidate.chain:
            cannot = self.costs.cannot[s.end] - self.costs.cannot[s.start]
            if any(cannot[self.class_of[d]] for d in s.devices):
                return False
        room = [d.memory_bytes for d in self.cluster.devices]
        if not any(map(math.isfinite, room)):
            return True
        chain, costs = candidate.chain, self.costs
        replicas = [len(s.devices) for s in chain]
        flown = in_flight_of(candidate.schedule, replicas, costs.micro_batches, candidate.in_flight)
        for s, m, held in zip(chain, replicas, flown, strict=True):
            weights, kept = costs.weight_bytes[s.start, s.end], costs.kept_bytes[s.start, s.end]
            inputs = costs.input_bytes[s.start, s.end] if s.recompute else 0.0
            need = stage_bytes(costs.per_parameter_byte * weights, kept, inputs, -(-held // m), s.recompute)
            if need > min(room[d] for d in s.devices):
                return False
        return True


def step_s(plan: PipelinePlan, sample: Sample, cluster: Cluster) -> float:
    """Predicted seconds of one step of a plan; inf where a task cannot run on its device."""
    program = lower(sample.graph, cluster, plan)
    try:
        _, end = times(program, durations(program, sample.graph, sample.costs, cluster))
    except PlanError:
        return math.inf
    return float(end.max())


@dataclass(frozen=True, eq=False)
class Template:
    """A program with its durations left open."""

    simulator: Simulator
    keys: tuple[Key, ...]  #: pieces that compute or carry
    at: IntArray  #: [instructions] position in `keys`; len(keys): neither
    per_byte_s: FloatArray  #: [instructions] seconds a byte of its piece takes
    fixed_s: FloatArray  #: [instructions] what receiving takes
    lag_s: FloatArray  #: [instructions]

    @property
    def size(self) -> int:
        return len(self.at)

    @staticmethod
    def of(plan: PipelinePlan, sample: Sample, cluster: Cluster, amounts: Amounts) -> Template:
        """The template of a plan with these amounts."""
        program = lower(sample.graph, cluster, plan)
        known = durations(program, sample.graph, sample.costs, cluster)
        keys = tuple(amounts)
        at = _positions(program, plan, {k: i for i, k in enumerate(keys)})
        seconds, size = np.array([*amounts.values(), (0.0, 0.0)]).T[:, at]
        per_byte = np.divide(known.busy_s - seconds, size, out=np.zeros(len(program)), where=size > 0)
        fixed = np.where(program.op == Op.RECV, known.busy_s, 0.0)
        return Template(Simulator(program), keys, at, per_byte, fixed, known.lag_s)

    def step_s(self, amounts: Amounts) -> float:
        """The step's seconds with other amounts of the same shape."""
        seconds, size = np.array([*(amounts[k] for k in self.keys), (0.0, 0.0)]).T[:, self.at]
        return self.simulator.evaluate(seconds + size * self.per_byte_s + self.fixed_s, self.lag_s)


def _positions(program: Program, plan: PipelinePlan, place: Mapping[Key, int]) -> IntArray:
    """[instructions] the place of the amounts that each takes its duration from; len(place): none."""
    home = {d: (k, r) for k, s in enumerate(plan.stages) for r, d in enumerate(s.devices)}
    found: dict[tuple[int, int, int], int] = {}
    at = np.empty(len(program), np.int64)
    for i, row in enumerate(zip(program.op.tolist(), program.queue.tolist(), program.piece.tolist(), strict=True)):
        if row not in found:
            op, queue, number = row
            piece = program.pieces[number]
            key: Key = ()
            if op in (Op.COMPUTE, Op.UPDATE):
                key = (piece.phase, *home[program.queues[queue]])
            elif op == Op.SEND:
                key = tuple(home[d][0] for d in piece.route)
            elif op == Op.REDUCE:
                key = (piece.name,)
            found[row] = place.get(key, len(place))
        at[i] = found[row]
    return at
