"""The predicted seconds of a training step of a candidate plan: lowered and simulated like the plan itself.

Candidates that differ only in where they cut have the same program with other durations. Such a program is lowered once
and kept; a further candidate costs one pass over its instructions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.pipeline_plan import PipelinePlan, Schedule, Stage
from partita.nouns.profile import Sample
from partita.nouns.program import Op, Program
from partita.nouns.stage_memory import stage_bytes
from partita.pipeline.plan.chain_dp import Chain
from partita.pipeline.plan.stage_costs import Bools, StageCosts, forward_readings
from partita.simulate.exchange import ring_share
from partita.simulate.lower import lower
from partita.simulate.schedules import in_flight_of
from partita.simulate.simulator import Simulator, durations, times

LOWERING = 10.0  #: effort that lowering an instruction costs
EVALUATION = 100.0  #: that an evaluation costs, besides
INSTRUCTION = 0.02  #: for every instruction
AMOUNT = 1.0  #: and for every amount

Move = tuple[int, int] | str  #: a message from a stage to a stage, or a sum of gradients by its name


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan before it is written out."""

    sample: int  #: which micro-batch size
    chain: Chain
    in_flight: int
    schedule: Schedule = "1f1b"


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
        )

    def _tasks(self, start: int, end: int) -> tuple[str, ...]:
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
            found = self._simulated(candidate) if self.fits(candidate) else math.inf
            self.known[candidate] = found
        return found

    def _simulated(self, candidate: Candidate) -> float:
        """By a kept program where there is one of the same shape."""
        amounts = self._amounts(candidate)
        shape = (
            tuple(len(s.devices) if self._alike else s.devices for s in candidate.chain),
            *(tuple(s.recompute for s in candidate.chain), candidate.in_flight, candidate.schedule),
            *(amounts.moves, (amounts.values > 0).tobytes()),
        )
        template = self.templates.get(shape)
        if template is None:
            template = self.templates[shape] = Template.of(
                self.plan(candidate), self.sample, self.cluster, amounts, self.clips
            )
            self.effort.left -= LOWERING * len(template.at)
        self.effort.left -= EVALUATION + INSTRUCTION * len(template.at) + AMOUNT * len(amounts.values)
        return template.step_s(amounts)

    @cached_property
    def _alike(self) -> bool:
        """All links are alike, so that which device it is matters for its speed only."""
        return not self.cluster.links

    @cached_property
    def _limited(self) -> bool:
        """Some device's memory is."""
        return any(math.isfinite(d.memory_bytes) for d in self.cluster.devices)

    def _amounts(self, candidate: Candidate) -> Amounts:
        """What a candidate's program computes and moves."""
        costs, chain = self.costs, candidate.chain
        start, end, redo, c = np.array(
            [(s.start, s.end, s.recompute, self.class_of[d]) for s in chain for d in s.devices], np.int64
        ).T
        forward, backward, update = (
            np.maximum(table[end, c] - table[start, c], 0.0)
            for table in (costs.forward_s, costs.backward_s, costs.update_s)
        )
        again = redo.astype(np.bool_) & (costs.backward_tasks[end] > costs.backward_tasks[start])
        seconds = np.concatenate([forward, backward + forward * again, update])
        moves = self._messages(chain) | self._reductions(chain)
        values = np.zeros((len(seconds) + len(moves) + 1, 2))
        values[: len(seconds), 0] = seconds
        values[len(seconds) : -1] = np.array([*moves.values()]).reshape(-1, 2)
        return Amounts(tuple(moves), values)

    def _messages(self, chain: Chain) -> dict[Move, tuple[float, float]]:
        """(stage from, stage to) of each message: seconds given for its tensors, and bytes of the others."""
        stage = (~self.costs.inside[[s.end for s in chain]]).sum(axis=0)  # a unit is behind so many cuts
        tensor, source, target, back = self._readings
        at, to = stage[source], stage[target]
        cross = np.flatnonzero(at < to)
        n, given, size = len(chain), self.sample.costs.transfer_s, self.sample.graph.size_bytes
        found: dict[Move, tuple[float, float]] = {}
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

    def _reductions(self, chain: Chain) -> dict[Move, tuple[float, float]]:
        """Name of each gradient sum: bytes of the parameters, as in `lower`."""
        costs = self.costs
        if not costs.training:
            return {}
        start, end = np.array([(s.start, s.end) for s in chain]).T
        readers = costs.shared[end] - costs.shared[start]
        torn = (readers > 0).sum(axis=0) > 1
        twice = np.where(readers > 0, readers - ~torn, 0.0) @ costs.shared_bytes
        size = (costs.parameter_bytes[end] - costs.parameter_bytes[start] - twice).tolist()
        found: dict[Move, tuple[float, float]] = {
            f"R{k}": (0.0, size[k]) for k, s in enumerate(chain) if len(s.devices) > 1 and size[k] > 0
        }
        for p in np.flatnonzero(torn).tolist():
            name = "R" + "+".join(str(k) for k in range(len(chain)) if readers[k, p] > 0)
            found[name] = 0.0, found.get(name, (0.0, 0.0))[1] + float(costs.shared_bytes[p])
        return found

    def fits(self, candidate: Candidate) -> bool:
        """Every device of every stage runs its tasks and holds what it must."""
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


def step_s(plan: PipelinePlan, sample: Sample, cluster: Cluster) -> float:
    """Predicted seconds of one step of a plan; inf where a task cannot run on its device."""
    program = lower(sample.graph, cluster, plan)
    try:
        _, end = times(program, durations(program, sample.graph, sample.costs, cluster))
    except PlanError:
        return math.inf
    return float(end.max())


@dataclass(frozen=True, eq=False)
class Amounts:
    """What the pieces of a candidate's program amount to."""

    moves: tuple[Move, ...]  #: its messages and gradient sums
    values: FloatArray  #: [3 devices + moves + 1, (seconds, bytes)] forwards, backwards, updates, moves; the last is nothing


@dataclass(frozen=True, eq=False)
class Template:
    """A program with its durations left open."""

    simulator: Simulator
    at: IntArray  #: [instructions] which of the amounts it takes its duration from
    per_byte_s: FloatArray  #: [instructions] seconds a byte of its piece takes
    fixed_s: FloatArray  #: [instructions] what does not depend on the amounts, such as receiving
    lag_s: FloatArray  #: [instructions]

    @staticmethod
    def of(plan: PipelinePlan, sample: Sample, cluster: Cluster, amounts: Amounts, clips: bool) -> Template:
        """The template of a plan with these amounts."""
        program = lower(sample.graph, cluster, plan, clips=clips)
        known = durations(program, sample.graph, sample.costs, cluster)
        at = _positions(program, plan, amounts.moves)
        fixed = np.where(at == len(amounts.values) - 1, known.busy_s, 0.0)
        return Template(Simulator(program), at, _per_byte_s(program, cluster), fixed, known.lag_s)

    def step_s(self, amounts: Amounts) -> float:
        """The step's seconds with other amounts of the same shape."""
        seconds, size = amounts.values[self.at].T
        return self.simulator.evaluate(seconds + size * self.per_byte_s + self.fixed_s, self.lag_s)


def _positions(program: Program, plan: PipelinePlan, moves: Sequence[Move]) -> IntArray:
    """[instructions] which of the amounts each takes its duration from."""
    n = len(plan.devices)
    rank = {d: r for r, d in enumerate(plan.devices)}
    stage = {d: k for k, s in enumerate(plan.stages) for d in s.devices}
    place: dict[Move, int] = {move: 3 * n + x for x, move in enumerate(moves)}
    block = {"forward": 0, "backward": n, "update": 2 * n}
    found: dict[tuple[int, int, int], int] = {}
    at = np.empty(len(program), np.int64)
    for i, row in enumerate(zip(program.op.tolist(), program.queue.tolist(), program.piece.tolist(), strict=True)):
        if row not in found:
            op, queue, number = row
            piece = program.pieces[number]
            found[row] = 3 * n + len(moves)
            if op in (Op.COMPUTE, Op.UPDATE):
                found[row] = block[piece.kind] + rank[program.queues[queue]]
            elif op == Op.SEND:
                found[row] = place[stage[piece.route[0]], stage[piece.route[1]]]
            elif op == Op.REDUCE:
                found[row] = place.get(piece.name, found[row])
        at[i] = found[row]
    return at


def _per_byte_s(program: Program, cluster: Cluster) -> FloatArray:
    """[instructions] seconds that a byte of a message, or of the gradient that is summed, takes of its link."""
    members = Counter(p.name for p in program.pieces)  # a sum of gradients has a piece for each member
    found: dict[tuple[int, int], float] = {}
    out = np.zeros(len(program))
    for i, row in enumerate(zip(program.op.tolist(), program.piece.tolist(), strict=True)):
        if row[0] in (Op.SEND, Op.REDUCE):
            if row not in found:
                piece = program.pieces[row[1]]
                link = cluster.link(*piece.route)
                sums = ring_share(members[piece.name]) / link.exchange_bytes_per_s
                found[row] = sums if row[0] == Op.REDUCE else 1 / link.rate_bytes_per_s
            out[i] = found[row]
    return out
