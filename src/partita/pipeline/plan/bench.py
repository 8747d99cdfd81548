"""The predicted seconds of a training step of a candidate plan: lowered and simulated like the plan itself.

Candidates that differ only in where they cut have the same program with other durations. Such a program is lowered once
and kept; a further candidate costs one pass over its instructions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partita.nouns.cluster import Cluster
from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.nouns.pipeline_plan import PipelinePlan, Schedule, Stage
from partita.nouns.pipeline_problem import PipelineProblem, alone_in
from partita.nouns.profile import Sample
from partita.nouns.stage_memory import stage_bytes
from partita.pipeline.plan.chain_dp import Chain
from partita.pipeline.plan.stage_costs import StageCosts
from partita.simulate.cold_caches import cold_s
from partita.simulate.evaluator import Evaluator
from partita.simulate.lower import lower
from partita.simulate.overheads import begin_s, call_s, update_s
from partita.simulate.readings import Crossings, crossings, forward_readings, messages
from partita.simulate.schedules import in_flight_of, needed_bytes
from partita.simulate.simulator import durations
from partita.simulate.template import Key, Template

LOWERING = 10.0  #: effort that lowering an instruction costs
EVALUATION = 100.0  #: that an evaluation costs, besides
INSTRUCTION = 0.02  #: for every instruction
AMOUNT = 1.0  #: and for every amount
WAITS = 90.0  #: and that what waits cost costs where they do


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A plan that is no chain, written out by its method."""

    plan: PipelinePlan


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan before it is written out."""

    sample: int  #: which micro-batch size
    chain: Chain
    in_flight: int
    schedule: Schedule = "1f1b"
    written: Written | None = None  #: then the rest says nothing


@dataclass
class Effort:
    """What is left of a search, counted in work and not in seconds, so that it ends alike on every machine.

    One is about a microsecond (2-core x86, CPU time, 2026-11-21).
    """

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
    clips: bool = False  #: a step sums the norm of all gradients over the devices
    known: dict[Candidate, float] = field(default_factory=dict)
    templates: dict[object, Template] = field(default_factory=dict)

    def plan(self, candidate: Candidate) -> PipelinePlan:
        """The candidate written out."""
        if candidate.written:
            return candidate.written.plan
        names = [d.name for d in self.cluster.devices]
        stages = tuple(
            Stage(self.tasks_between(s.start, s.end), tuple(names[d] for d in s.devices), s.recompute)
            for s in candidate.chain
        )
        return PipelinePlan(
            self.sample.graph.fingerprint,
            stages,
            self.costs.micro_batches,
            candidate.in_flight,
            candidate.schedule,
        )

    def tasks_between(self, start: int, end: int) -> tuple[str, ...]:
        """Ids of the forward tasks of a segment, in topological order."""
        unit = self.costs.inside[end] & ~self.costs.inside[start]
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
            simulated = self._plan_s if candidate.written else self._simulated
            found = simulated(candidate) if self.fits(candidate) else math.inf
            self.known[candidate] = found
        return found

    def _simulated(self, candidate: Candidate) -> float:
        """By a kept program where there is one of the same shape."""
        moves, amounts = self._amounts(candidate)
        shape = (
            tuple(len(s.devices) if self._alike else s.devices for s in candidate.chain),
            *(tuple(s.recompute for s in candidate.chain), candidate.in_flight, candidate.schedule),
            *(moves, (amounts > 0).tobytes()),
        )
        template = self.templates.get(shape)
        if template is None:
            template = self.templates[shape] = self._template(candidate, moves)
            self.effort.left -= LOWERING * len(template.at)
        self.effort.left -= EVALUATION + INSTRUCTION * len(template.at) + AMOUNT * len(amounts)
        self.effort.left -= WAITS * bool(amounts[template.colds].any())
        amounts[: 2 * sum(len(s.devices) for s in candidate.chain), 0] += self._beside(candidate.chain)
        return template.makespan_s(amounts)

    def _plan_s(self, candidate: Candidate) -> float:
        plan = self.plan(candidate)
        # about three instructions for each computation: it, a receive, a send
        self.effort.left -= EVALUATION + 3 * LOWERING * sum(len(slots) for slots in plan.orders.values())
        return self.simulated_s(plan)

    def simulated_s(self, plan: PipelinePlan) -> float:
        """A plan by the evaluator, which keeps programs by their shapes, too."""
        return self._evaluator.estimate(plan).seconds

    @cached_property
    def _evaluator(self) -> Evaluator:
        sample = self.sample
        return Evaluator(
            PipelineProblem(
                sample.graph, self.cluster, sample.costs, "", self.costs.micro_batches * sample.micro_batch_size,
                sample.micro_batch_size, clips=self.clips, probe=sample.probe,
            )
        )  # fmt: skip

    def _beside(self, chain: Chain) -> FloatArray:
        """[2 devices] what forwards and backwards take beside their tasks."""
        return np.array([call_s(self.cluster.devices[d], len(chain)) for s in chain for d in s.devices] * 2)

    def _template(self, candidate: Candidate, moves: Sequence[Key]) -> Template:
        graph, costs = self.sample.graph, self.sample.costs
        program = lower(graph, self.cluster, self.plan(candidate), clips=self.clips)
        runs = [k for k, s in enumerate(candidate.chain) for _ in s.devices]
        keys: list[Key] = [(kind, k, r) for kind in ("forward", "backward") for r, k in enumerate(runs)]
        keys += [(kind, -1, r) for kind in ("update", "begin", "cold") for r in range(len(runs))]
        return Template.of(program, durations(program, graph, costs, self.cluster), self.cluster, [*keys, *moves])

    @cached_property
    def _alike(self) -> bool:
        """All links are alike, so that which device it is matters for its speed only."""
        return not self.cluster.links

    @cached_property
    def _limited(self) -> bool:
        """Some device's memory is."""
        return any(math.isfinite(d.memory_bytes) for d in self.cluster.devices)

    def _amounts(self, candidate: Candidate) -> tuple[tuple[Key, ...], FloatArray]:
        """(its messages and sums, [5 devices + moves + 1, (seconds, bytes)] amounts of forwards, backwards, updates, beginnings, waits, moves)."""
        costs, chain = self.costs, candidate.chain
        at = [(s.start, s.end, s.recompute, self.class_of[d]) for s in chain for d in s.devices]
        start, end, redo, c = np.array(at, np.int64).T
        forward, backward, update = (
            np.maximum(table[end, c] - table[start, c], 0.0)
            for table in (costs.forward_s, costs.backward_s, costs.update_s)
        )
        again = redo.astype(np.bool_) & (costs.backward_tasks[end] > costs.backward_tasks[start])
        transfer_s, size_bytes = self.sample.costs.transfer_s, self.sample.graph.size_bytes
        moves: dict[Key, tuple[float, float]] = {
            ("send", *way): amount for way, amount in messages(self.crossings(chain), transfer_s, size_bytes).items()
        }
        moves |= {(name, -1, -1): (0.0, size) for name, size in self._sums(chain).items()}
        values = np.zeros((5 * len(at) + len(moves) + 1, 2))
        faster = alone_in(self.cluster, self.sample.probe) if len(at) == 1 else 1.0
        devices = [self.cluster.devices[d] for s in chain for d in s.devices]
        begin, beside, cold = (np.array([of(d) for d in devices]) for of in (begin_s, update_s, cold_s))
        values[: 5 * len(at), 0] = (
            np.concatenate([forward, backward + forward * again, update + beside, begin, cold]) / faster
        )
        values[5 * len(at) : -1] = np.array([*moves.values()]).reshape(-1, 2)
        return tuple(moves), values

    def crossings(self, chain: Chain) -> Crossings:
        stage = (~self.costs.inside[[s.end for s in chain]]).sum(axis=0)  # a unit is behind so many cuts
        tensor, source, target, back = self._readings
        return crossings(tensor, stage[source], stage[target], back)

    @cached_property
    def _readings(self) -> tuple[IntArray, IntArray, IntArray, BoolArray]:
        """Forward readings between units: (tensor, producing unit, reading unit, whether a gradient comes back)."""
        read, unit_of = forward_readings(self.sample.graph), self.costs.units.unit_of
        source, target = unit_of[read.producer], unit_of[read.reader]
        apart = source != target
        return read.tensor[apart], source[apart], target[apart], read.back[apart]

    def _sums(self, chain: Chain) -> dict[str, float]:
        """Name of each sum of gradients: bytes of the parameters, as in `lower`."""
        costs = self.costs
        if not costs.training:
            return {}
        start, end = np.array([(s.start, s.end) for s in chain]).T
        readers = costs.shared[end] - costs.shared[start]
        torn = (readers > 0).sum(axis=0) > 1
        twice = np.where(readers > 0, readers - ~torn, 0.0) @ costs.shared_bytes
        size = (costs.parameter_bytes[end] - costs.parameter_bytes[start] - twice).tolist()
        found = {f"R{k}": size[k] for k, s in enumerate(chain) if len(s.devices) > 1 and size[k] > 0}
        for p in np.flatnonzero(torn).tolist():
            name = "R" + "+".join(str(k) for k in range(len(chain)) if readers[k, p] > 0)
            found[name] = found.get(name, 0.0) + float(costs.shared_bytes[p])
        return found

    def fits(self, candidate: Candidate) -> bool:
        """Every device of every stage runs its tasks and holds what it must."""
        if candidate.written:
            return self.plan_fits(candidate.written.plan)
        for s in candidate.chain:
            cannot = self.costs.cannot[s.end] - self.costs.cannot[s.start]
            if any(cannot[self.class_of[d]] for d in s.devices):
                return False
        if not self._limited:
            return True
        room = [d.memory_bytes for d in self.cluster.devices]
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

    def plan_fits(self, plan: PipelinePlan) -> bool:
        """Every device of a plan holds what it must, and may serve several stages."""
        optimizer = self.costs.per_parameter_byte - 2.0 if self.costs.training else 0.0
        needs = needed_bytes(self.sample.graph, plan, optimizer)
        return all(need <= self.cluster.by_name[d].memory_bytes for d, need in needs.items())
