"""Lower a plan to a Program: the order of every device and every link, with explicit dependencies.

Two stages, one replica each, three micro-batches, 1F1B (time runs to the right, `>` is a message):

    cpu0        F0 F1 F2       B0    B1    B2 U
    cpu0->cpu1    >  >  >
    cpu1           F0 B0 F1 B1 F2 B2 U
    cpu1->cpu0          >     >     >

A message carries every tensor that one stage makes and another reads, straight from the one to the other, also where
the two are not neighbours. A gradient travels the same way back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.errors import PlanError, refuse
from partita.nouns.cluster import Cluster
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.plan import Plan
from partita.nouns.program import Builder, Op, Piece, Program
from partita.simulate.exchange import ring_share
from partita.simulate.schedules import Slot, slots, unit_ends


MOST_INSTRUCTIONS = 4_000_000  #: of a program; making one takes 0.5 kB and 6 µs for each: 2 GB and half a minute


def lower(graph: TaskGraph, cluster: Cluster, plan: Plan) -> Program:
    """The program of a plan. Raises PlanError where the plan does not fit the graph or the cluster.

    O(stages x micro-batches + tasks + tensors).
    """
    refuse(PlanError, plan.check(graph, cluster), "the plan does not fit", hint="plan again for this model and cluster")
    if isinstance(plan, PlacementPlan):
        return _lower_placement(graph, cluster, plan)
    return _lower_pipeline(graph, cluster, plan)


@dataclass(frozen=True)
class Boundary:
    """What one stage sends to a later one for a micro-batch."""

    source: int  #: stage
    target: int  #: stage, later than source
    tensors: tuple[int, ...]  #: forward tensors that cross, ascending
    gradients: tuple[int, ...]  #: those of them whose gradient comes back


def boundaries(graph: TaskGraph, plan: PipelinePlan) -> tuple[Boundary, ...]:
    """Every pair of stages that exchange tensors, in (source, target) order."""
    at = [plan.stage_of.get(t.id, -1) for t in graph.tasks]
    backward = {t.of: i for i, t in enumerate(graph.tasks) if t.phase == "backward" and t.of is not None}
    back_edges = {(int(u), int(v)) for u, v in graph.edges}
    cross: dict[tuple[int, int], dict[int, bool]] = defaultdict(dict)
    for k, u in enumerate(graph.producer.tolist()):
        for v in graph.readers.row(k).tolist():
            if 0 <= at[u] < at[v]:
                ub, vb = backward.get(graph.tasks[u].id), backward.get(graph.tasks[v].id)
                returns = ub is not None and vb is not None and (vb, ub) in back_edges
                cross[at[u], at[v]][k] = cross[at[u], at[v]].get(k, False) or returns
    return tuple(
        Boundary(i, j, tuple(sorted(ts)), tuple(sorted(k for k, g in ts.items() if g)))
        for (i, j), ts in sorted(cross.items())
    )


def shared_over_stages(graph: TaskGraph, plan: PipelinePlan) -> tuple[tuple[int, ...], ...]:
    """[shared parameters] the stages that read each one; more than one stage: its gradient is summed over them."""
    return tuple(tuple(sorted({plan.stage_of[t] for t in s.tasks})) for s in graph.shared)


def _lower_pipeline(graph: TaskGraph, cluster: Cluster, plan: PipelinePlan) -> Program:
    build = Builder(plan.devices)
    crossing = boundaries(graph, plan)
    _expect_size(plan, crossing)
    forward, backward, update = _stage_pieces(graph, plan)
    orders = slots(plan.schedule, [s.replicas for s in plan.stages], plan.micro_batches, plan.in_flight)
    compute: dict[tuple[str, int, int], int] = {}  # (phase, stage, micro-batch) -> instruction
    expects: list[tuple[int, Boundary, int, str]] = []  # (receive, boundary, micro-batch, phase) still without its send

    for k, stage in enumerate(plan.stages):
        for r, device in enumerate(stage.devices):
            for phase, m in (s for s in orders[k] if s[1] % stage.replicas == r):
                coming = [b for b in crossing if (b.target == k if phase == "F" else b.source == k and b.gradients)]
                receives = []
                for b in coming:
                    piece = _message(plan, b, phase, m)
                    receive = build.add(Op.RECV, device, piece, m)
                    expects.append((receive, b, m, phase))
                    receives.append(receive)
                piece = forward[k] if phase == "F" else backward[k]
                if piece.tasks or phase == "F":
                    compute[phase, k, m] = build.add(Op.COMPUTE, device, piece, m, receives)

    sent_at = _sending_times(cluster, plan, orders, compute)
    expects.sort(key=lambda e: (sent_at[e[3], e[1].source if e[3] == "F" else e[1].target, e[2]], e[0]))
    for receive, b, m, way in expects:
        origin = b.source if way == "F" else b.target
        tensors = b.tensors if way == "F" else b.gradients
        piece = _message(plan, b, way, m)
        size = float(graph.size_bytes[list(tensors)].sum())
        queue = cluster.link(*piece.route).queue
        build.need(receive, build.add(Op.SEND, queue, piece, m, [compute[way, origin, m]], size))

    if any(p.tasks for p in backward):
        _finish(graph, cluster, plan, build, compute, update)
    return build.program(fair=_fair_queues(cluster))


def _expect_size(plan: PipelinePlan, crossing: Sequence[Boundary]) -> None:
    """Count before anything is made. Raises PlanError beyond MOST_INSTRUCTIONS."""
    number = plan.micro_batches * (2 * len(plan.stages) + 2 * sum(1 + bool(b.gradients) for b in crossing))
    if number > MOST_INSTRUCTIONS:
        raise PlanError(
            f"{plan.micro_batches} micro-batches over {len(plan.stages)} stages make {number} instructions; "
            f"at most {MOST_INSTRUCTIONS} are simulated or run",
            hint="use fewer, larger micro-batches",
        )


def _sending_times(
    cluster: Cluster, plan: PipelinePlan, orders: list[list[Slot]], compute: dict[tuple[str, int, int], int]
) -> dict[tuple[str, int, int], int]:
    """When the messages of each computation are sent, as far as their order on a link is concerned.

    A link of one device serves its messages in the order in which that device makes them. Where several devices share
    a medium, they take turns as they would if a forward took one unit of time, a backward two and a message none: any
    order of time is free of circles, which an order by device would not be.
    """
    if not any(link.medium for link in (*cluster.links, cluster.default_link)):
        return compute
    ends = unit_ends(orders, [s.replicas for s in plan.stages])
    return {(phase, k, m): at for k, row in enumerate(ends) for (phase, m), at in row.items()}


def _message(plan: PipelinePlan, b: Boundary, phase: str, m: int) -> Piece:
    """The message of micro-batch m over a boundary: forward tensors, or their gradients coming back."""
    here, there = plan.stages[b.source], plan.stages[b.target]
    route = (here.devices[m % here.replicas], there.devices[m % there.replicas])
    if phase == "F":
        return Piece(f"F{b.source}>F{b.target}", "transfer", b.source, (), b.tensors, route)
    return Piece(f"B{b.target}>B{b.source}", "transfer", b.target, (), b.gradients, route[::-1])


def _stage_pieces(graph: TaskGraph, plan: PipelinePlan) -> tuple[list[Piece], list[Piece], list[Piece]]:
    """[stages] the forward, backward and update piece of each stage."""
    tasks: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i, t in enumerate(graph.tasks):
        stage = plan.stage_of.get(t.of if t.of is not None else t.id)
        if stage is not None:
            tasks["forward" if t.phase == "stage" else t.phase, stage].append(i)
    n = range(len(plan.stages))
    again = [tasks["forward", k] if plan.stages[k].recompute else [] for k in n]
    return (
        [Piece(f"F{k}", "forward", k, tuple(tasks["forward", k])) for k in n],
        [Piece(f"B{k}", "backward", k, (*again[k], *tasks["backward", k]) if tasks["backward", k] else ()) for k in n],
        [Piece(f"U{k}", "update", k, tuple(tasks["update", k])) for k in n],
    )


def _finish(
    graph: TaskGraph,
    cluster: Cluster,
    plan: PipelinePlan,
    build: Builder,
    compute: dict[tuple[str, int, int], int],
    update: Sequence[Piece],
) -> None:
    """After the last backward: gradients are summed over replicas and over stages that share a parameter; then update."""
    ends: dict[str, int] = {}  # device -> its last computation
    for (_, k, m), i in compute.items():
        device = plan.stages[k].devices[m % plan.stages[k].replicas]
        ends[device] = max(ends.get(device, -1), i)
    reduced: dict[str, list[int]] = defaultdict(list)
    for name, devices, size in reductions(graph, plan):
        needs = [ends[d] for d in devices if d in ends]
        share = ring_share(len(devices)) * size  # what every member sends
        for d, e in zip(devices, (*devices[1:], devices[0]), strict=True):
            i = build.add(
                Op.REDUCE, cluster.link(d, e).queue, Piece(name, "transfer", -1, (), (), (d, e)), -1, needs, share
            )
            for member in devices:
                reduced[member].append(i)
    if not any(p.tasks for p in update):
        return
    for k, stage in enumerate(plan.stages):
        for device in stage.devices:
            build.add(Op.UPDATE, device, update[k], -1, [*([ends[device]] if device in ends else []), *reduced[device]])


def reductions(graph: TaskGraph, plan: PipelinePlan) -> list[tuple[str, tuple[str, ...], float]]:
    """(name, devices, bytes) of every gradient sum: one a replicated stage, one a group of stages that share parameters."""
    found: list[tuple[str, tuple[str, ...], float]] = []
    stages_of = shared_over_stages(graph, plan)
    torn = {s.name for s, ks in zip(graph.shared, stages_of, strict=True) if len(ks) > 1}
    for k, stage in enumerate(plan.stages):
        size = sum(graph.tasks[graph.index[t]].parameter_bytes for t in stage.tasks)
        size -= sum(
            s.size_bytes * (sum(t in stage.tasks for t in s.tasks) - (s.name not in torn))
            for s, ks in zip(graph.shared, stages_of, strict=True)
            if k in ks
        )
        if stage.replicas > 1 and size > 0:
            found.append((f"R{k}", stage.devices, size))
    groups: dict[tuple[int, ...], float] = defaultdict(float)
    for s, ks in zip(graph.shared, stages_of, strict=True):
        if len(ks) > 1:
            groups[ks] += s.size_bytes
    for ks, size in sorted(groups.items()):
        found.append(("R" + "+".join(map(str, ks)), tuple(d for k in ks for d in plan.stages[k].devices), size))
    return found


def _lower_placement(graph: TaskGraph, cluster: Cluster, plan: PlacementPlan) -> Program:
    """Every task once, every device in topological order, a tensor sent once to each device that reads it."""
    build = Builder([d.name for d in cluster.devices])
    where = [plan.placement[t.id] for t in graph.tasks]
    done: dict[int, int] = {}
    arrived: dict[tuple[int, str], int] = {}
    incoming: dict[int, list[int]] = defaultdict(list)
    for k, readers in enumerate(np.split(graph.readers.items, graph.readers.start[1:-1])):
        for v in readers.tolist():
            incoming[v].append(k)
    for i in graph.order.tolist():
        device = where[i]
        needs = []
        for k in incoming[i]:
            u = int(graph.producer[k])
            if where[u] == device:
                needs.append(done[u])
                continue
            if (k, device) not in arrived:
                piece = Piece(f"{graph.tasks[u].id}>", "transfer", -1, (), (k,), (where[u], device))
                send = build.add(
                    Op.SEND, cluster.link(where[u], device).queue, piece, -1, [done[u]], float(graph.size_bytes[k])
                )
                arrived[k, device] = build.add(Op.RECV, device, piece, -1, [send])
            needs.append(arrived[k, device])
        task = graph.tasks[i]
        op = Op.UPDATE if task.phase == "update" else Op.COMPUTE
        done[i] = build.add(op, device, Piece(task.id, task.phase, -1, (i,)), -1, needs)
    return build.program(fair=_fair_queues(cluster))


def _fair_queues(cluster: Cluster) -> frozenset[str]:
    links = [*cluster.links]
    if cluster.default_link.fair:
        names = [d.name for d in cluster.devices]
        links += [cluster.link(a, b) for a in names for b in names if a != b]
    return frozenset(link.queue for link in links if link.fair)
