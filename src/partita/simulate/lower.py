"""Lower a plan to a Program: the order of every device and every link, with explicit dependencies.

Two stages, one replica each, three micro-batches, 1F1B (time runs to the right, `>` is a message):

    cpu0        F0 F1 F2       B0    B1    B2 U
    cpu0->cpu1    >  >  >
    cpu1           F0 B0 F1 B1 F2 B2 U
    cpu1->cpu0          >     >     >

A message carries every tensor that one stage makes and another reads, straight from the one to the other, also where
the two are not neighbours. A gradient travels the same way back. Between two stages of one device nothing is sent, and
what several stages of a device read goes there once (`Boundary`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from partita.errors import PlanError, refuse
from partita.nouns.cluster import Cluster
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import Part, PipelinePlan, Slot
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.plan import GraphPlan, GraphProblem
from partita.nouns.program import Builder, Op, Piece, PieceKind, Program
from partita.simulate.boundaries import Boundary, boundaries, gradient_sums
from partita.simulate.exchange import ring_share
from partita.simulate.lower_placement import lower_placement
from partita.simulate.schedules import device_orders, unit_ends

MOST_INSTRUCTIONS = 4_000_000  #: of a program; making one takes 0.5 kB and 6 µs for each: 2 GB and half a minute
NORM_BYTES = 8.0  #: what is summed to know the norm of all gradients: one number


def lower(graph: TaskGraph, cluster: Cluster, plan: GraphPlan, *, clips: bool = False) -> Program:
    """The program of a plan. Raises PlanError where the plan does not fit the graph or the cluster.

    `clips`: the norm of all gradients is clipped, and so summed over all devices before the update.
    O(stages x micro-batches + tasks + tensors).
    """
    refuse(PlanError, plan.check(graph, cluster), "the plan does not fit", hint="plan again for this model and cluster")
    if isinstance(plan, PlacementPlan):
        return lower_placement(graph, cluster, plan).program(fair=_fair_queues(cluster))
    lowering = _Lowering(graph, cluster, plan)
    lowering.expect_size()
    for device, slots in lowering.orders.items():
        lowering.add_device(device, slots)
    lowering.add_sends()
    if any(lowering.tasks("backward", k) for k in range(len(plan.stages))):
        lowering.add_sums(clips)
        lowering.add_updates()
    return lowering.build.program(fair=_fair_queues(cluster))


def program_of(problem: GraphProblem, plan: GraphPlan) -> Program:
    """The program of a plan that answers a problem. Raises PlanError as `lower` does."""
    clips = isinstance(problem, PipelineProblem) and problem.clips
    return lower(problem.graph, problem.cluster, plan, clips=clips)


@dataclass(frozen=True)
class _Message:
    """A receive that still lacks its send."""

    receive: int
    piece: Piece
    origin: Slot  #: what makes the tensors


@dataclass
class _Lowering:
    """A pipeline plan on its way to a program."""

    graph: TaskGraph
    cluster: Cluster
    plan: PipelinePlan
    compute: dict[Slot, int] = field(default_factory=dict)  #: slot -> its instruction
    messages: list[_Message] = field(default_factory=list)
    #: (part, source and target of a boundary, micro-batch) -> the receive of its message
    receives: dict[tuple[Part, int, int, int], int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)  #: device -> its last computation
    stage_ends: dict[tuple[str, int], int] = field(
        default_factory=dict
    )  #: (device, stage) -> its last one of that stage
    reduced: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  #: device -> sums it takes part in
    pieces: dict[tuple[str, int, bool], Piece] = field(default_factory=dict)  #: made once: hashing long ones takes time

    @cached_property
    def build(self) -> Builder:
        return Builder(self.plan.devices)

    @cached_property
    def orders(self) -> Mapping[str, Sequence[Slot]]:
        orders = device_orders(self.plan)
        return {d: orders.get(d, ()) for d in self.plan.devices}

    @cached_property
    def crossing(self) -> tuple[Boundary, ...]:
        return boundaries(self.graph, self.plan)

    @cached_property
    def _tasks(self) -> dict[tuple[str, int], tuple[int, ...]]:
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        for i, t in enumerate(self.graph.tasks):
            stage = self.plan.stage_of.get(t.of if t.of is not None else t.id)
            if stage is not None:
                found["forward" if t.phase == "stage" else t.phase, stage].append(i)
        return {key: tuple(tasks) for key, tasks in found.items()}

    def tasks(self, phase: str, stage: int) -> tuple[int, ...]:
        return self._tasks.get((phase, stage), ())

    @cached_property
    def split(self) -> frozenset[tuple[int, int]]:
        """(stage, micro-batch) whose backward runs in two parts. Where no one waits for the gradients of a stage's inputs, both
        are done in one, at the first; and where the stage recomputes, which would have to keep all of it for the second."""
        sends = {b.target for b in self.crossing if b.gradients}
        return frozenset(
            (s.stage, s.micro_batch)
            for slots in self.orders.values()
            for s in slots
            if s.part == "W" and s.stage in sends and not self.plan.stages[s.stage].recompute
        )

    def expect_size(self) -> None:
        """Count before anything is made. Raises PlanError beyond MOST_INSTRUCTIONS."""
        plan = self.plan
        number = plan.micro_batches * (
            2 * len(plan.stages) + 2 * sum(bool(b.sent) + bool(b.returned) for b in self.crossing)
        )
        if number > MOST_INSTRUCTIONS:
            raise PlanError(
                f"{plan.micro_batches} micro-batches over {len(plan.stages)} stages make {number} instructions; "
                f"at most {MOST_INSTRUCTIONS} are simulated or run",
                hint="use fewer, larger micro-batches",
            )

    # ---- devices ----------------------------------------------------------------------------------------------------

    def add_device(self, device: str, slots: Sequence[Slot]) -> None:
        """Receives and computations of one device, in its order, and what it may forget."""
        forget = self._last_uses(device, slots)
        for i, slot in enumerate(slots):
            if slot.part == "W" and (slot.stage, slot.micro_batch) not in self.split:
                continue
            if slot.part != "F":
                self._expect_done(device, slot, Slot("F" if slot.part == "B" else "B", slot.stage, slot.micro_batch))
            piece = self._piece(slot)
            needs = self._arrivals(device, slot)
            if piece.tasks or slot.part == "F":
                done = self.build.add(Op.COMPUTE, device, piece, slot.micro_batch, needs)
                self.compute[slot] = self.ends[device] = self.stage_ends[device, slot.stage] = done
            for k, m in forget.get(i, ()):
                self.build.add(Op.FREE, device, Piece(f"X{k}", "free", k), m)

    def _arrivals(self, device: str, slot: Slot) -> list[int]:
        """What a computation waits for: receives, or what another stage of its device has made before."""
        needs: list[int] = []
        for b, origin in self._origins(slot):
            source = self.plan.stages[origin.stage].device_of(slot.micro_batch)
            if source != device:
                for message in self._messages_of(b, slot.part):
                    needs.append(self._receive(message, slot, source, device))
            elif slot.part == "F" or b.gradients:
                self._expect_done(device, slot, origin)
                needs.append(self.compute[origin])
        return needs

    def _origins(self, slot: Slot) -> list[tuple[Boundary, Slot]]:
        """(a boundary over which something may come, what makes it) of a slot."""
        part, k, m = slot
        exchanges = self._exchanges.get((part, k), ())
        return [(b, Slot(part, b.source if part == "F" else b.target, m)) for b in exchanges]

    @cached_property
    def _exchanges(self) -> Mapping[tuple[str, int], list[Boundary]]:
        """(part, stage) -> the boundaries over which its forwards are given values, its backwards gradients."""
        found: dict[tuple[str, int], list[Boundary]] = defaultdict(list)
        for b in self.crossing:
            found["F", b.target].append(b)
            if b.gradients or b.returned:
                found["B", b.source].append(b)
        return found

    def _messages_of(self, b: Boundary, part: str) -> list[Boundary]:
        """The boundaries whose messages carry what crosses this one."""
        if part == "B":
            return [b] if b.returned else []
        return [b] if b.by == (b.target,) else [self._between[b.source, by] for by in b.by]

    @cached_property
    def _between(self) -> Mapping[tuple[int, int], Boundary]:
        return {(b.source, b.target): b for b in self.crossing}

    def _receive(self, b: Boundary, slot: Slot, source: str, device: str) -> int:
        """The receive of a boundary's message, added where its device first waits for it."""
        m = slot.micro_batch
        key = (slot.part, b.source, b.target, m)
        if key not in self.receives:
            piece = self._message(b, slot.part, source, device)
            self.receives[key] = receive = self.build.add(Op.RECV, device, piece, m)
            self.messages.append(_Message(receive, piece, self._origin(b, slot.part, m)))
        return self.receives[key]

    def _origin(self, b: Boundary, part: Part, m: int) -> Slot:
        """What makes a message's tensors; the last of them in the order of its device."""
        if part == "F":
            return Slot("F", b.source, m)
        made = [Slot("B", k, m) for k in b.returners]
        return made[0] if len(made) == 1 else max(made, key=self._position.__getitem__)

    @cached_property
    def _position(self) -> Mapping[Slot, int]:
        return {slot: i for slots in self.orders.values() for i, slot in enumerate(slots)}

    def _expect_done(self, device: str, slot: Slot, first: Slot) -> None:
        """Raise PlanError where the device's order puts something before what it needs of the same device."""
        if first not in self.compute:
            raise PlanError(
                f"the order of {device!r} has {slot.part}{slot.stage} of micro-batch {slot.micro_batch} before "
                f"{first.part}{first.stage}, which it needs",
                hint="correct the order, or plan again",
            )

    def _piece(self, slot: Slot) -> Piece:
        key = (slot.part, slot.stage, slot.part == "B" and (slot.stage, slot.micro_batch) in self.split)
        if key not in self.pieces:
            self.pieces[key] = self._made_piece(slot)
        return self.pieces[key]

    def _made_piece(self, slot: Slot) -> Piece:
        part, k, m = slot
        if part == "F":
            return Piece(f"F{k}", "forward", k, tasks=self.tasks("forward", k))
        backward = self.tasks("backward", k)
        if part == "W":
            return Piece(f"W{k}", "weight", k, tasks=backward)
        again = self.tasks("forward", k) if self.plan.stages[k].recompute and backward else ()
        kind: PieceKind = "input" if (k, m) in self.split else "backward"
        return Piece(f"B{k}", kind, k, tasks=(*again, *backward))

    def _message(self, b: Boundary, part: str, source: str, target: str) -> Piece:
        if part == "F":
            return Piece(f"F{b.source}>F{b.target}", "values", b.source, b.target, (), b.sent, (source, target))
        return Piece(f"B{b.target}>B{b.source}", "gradients", b.target, b.source, (), b.returned, (source, target))

    def _last_uses(self, device: str, slots: Sequence[Slot]) -> dict[int, list[tuple[int, int]]]:
        """Position in the order -> (stage, micro-batch) that nothing on this device needs any more behind it, for stages
        without a backward."""
        ends = {k for k in self.plan.stages_of(device) if not self.tasks("backward", k)}
        readers: dict[int, set[int]] = defaultdict(set)
        for b in self.crossing:
            readers[b.source].add(b.target)
        last: dict[tuple[int, int], int] = {}
        for i, (part, k, m) in enumerate(slots):
            if part == "F":
                for e in ends:
                    if e == k or k in readers[e]:
                        last[e, m] = i
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for (k, m), i in last.items():
            if self.plan.stages[k].device_of(m) == device:
                found[i].append((k, m))
        return found

    # ---- links ------------------------------------------------------------------------------------------------------

    def add_sends(self) -> None:
        """A send for every receive. A link of one device serves its messages in the order in which that device makes
        them. Where several devices share a medium, they take turns as they would if a forward took one unit of time, a
        backward two and a message none: any order of time is free of circles, which an order by device would not be."""
        media = any(link.medium for link in (*self.cluster.links, self.cluster.default_link))
        made_at: Mapping[Slot, int] = unit_ends(self.orders, self._before) if media else self.compute
        for message in sorted(self.messages, key=lambda x: (made_at[x.origin], x.receive)):
            piece, m = message.piece, message.origin.micro_batch
            size = float(self.graph.size_bytes[list(piece.tensors)].sum())
            queue = self.cluster.link(*piece.route).queue
            send = self.build.add(Op.SEND, queue, piece, m, [self.compute[message.origin]], size)
            self.build.need(message.receive, send)

    def _before(self, slot: Slot) -> list[Slot]:
        """What a slot waits for: its own stage's part before, and what it is given by other stages, be they no neighbours."""
        part, k, m = slot
        found = [] if part == "F" else [Slot("F" if part == "B" else "B", k, m)]
        return found + [origin for b, origin in self._origins(slot) if part == "F" or b.gradients]

    # ---- the end of a step --------------------------------------------------------------------------------------------

    def add_sums(self, clips: bool) -> None:
        """Gradients are summed over replicas and over stages that share a parameter, as soon as the last backward of those
        stages has run on every member: earlier stages of these devices may still be at their backwards. The last stages
        come first, as their backwards do."""
        sums = gradient_sums(self.graph, self.plan)
        for number, s in sorted(enumerate(sums), key=lambda x: (-max(x[1].stages), x[0])):
            ends = [self.stage_ends[d, k] for d in s.devices for k in s.stages if (d, k) in self.stage_ends]
            self._add_ring(s.name, "sum", number, s.devices, s.size_bytes, ends)
        if clips and len(self.plan.devices) > 1:
            needs = [i for d in self.plan.devices for i in ([self.ends[d]] if d in self.ends else []) + self.reduced[d]]
            self._add_ring("N", "norm", len(sums), self.plan.devices, NORM_BYTES, list(dict.fromkeys(needs)))

    def _add_ring(
        self, name: str, kind: PieceKind, group: int, devices: Sequence[str], size_bytes: float, needs: Sequence[int]
    ) -> None:
        share = ring_share(len(devices)) * size_bytes  # what every member sends
        found = []
        for d, e in zip(devices, (*devices[1:], devices[0]), strict=True):
            piece = Piece(name, kind, route=(d, e), group=group)
            found.append(self.build.add(Op.REDUCE, self.cluster.link(d, e).queue, piece, -1, needs, share))
        for d in devices:
            self.reduced[d] += found

    def add_updates(self) -> None:
        """One update a device, of all stages that it serves; of a graph that has none, the end of its sums."""
        if not any(phase == "update" for phase, _ in self._tasks) and not self.reduced:
            return
        for device in self.plan.devices:
            stages = self.plan.stages_of(device)
            tasks = tuple(i for k in stages for i in self.tasks("update", k))
            piece = Piece("U" + "+".join(map(str, stages)), "update", stages[0], tasks=tasks)
            ends = [self.ends[device]] if device in self.ends else []
            self.build.add(Op.UPDATE, device, piece, -1, [*ends, *self.reduced[device]])


def _fair_queues(cluster: Cluster) -> frozenset[str]:
    links = [*cluster.links]
    if cluster.default_link.fair:
        names = [d.name for d in cluster.devices]
        links += [cluster.link(a, b) for a in names for b in names if a != b]
    return frozenset(link.queue for link in links if link.fair)
