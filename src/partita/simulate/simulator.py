"""Simulate: when would every instruction of a program start and end?

    simulate(program, durations(program, graph, costs, cluster)) -> Timeline

Each queue runs its instructions in ascending number, each as soon as the one before it has ended and everything it
needs has ended and, where that was a transfer, its latency has passed. Transfers on a fair queue share its rate
instead: k of them that are under way together each proceed at 1/k of it. The times follow from that alone, so they are
exact for the model; nothing is random.

`times` walks a program once, O(instructions + needs), plus O(log transfers) for each transfer on a fair queue.
A search that evaluates one program many times compiles it into a `Simulator` first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

import numpy as np

from partita.errors import CostError, PlanError, ProgramError, refuse
from partita.nouns.cluster import Cluster
from partita.nouns.costs import MOST_SECONDS, CostTable
from partita.nouns.graph import BoolArray, FloatArray, IntArray, TaskGraph
from partita.nouns.program import Op, Piece, Program
from partita.nouns.timeline import Timeline
from partita.simulate.exchange import ring_steps
from partita.simulate.kernel import Int32Array, makespans, nodes, walk

# ---------------------------------------------------------------------------------------------------------------------
# Durations


@dataclass(frozen=True, eq=False)
class Durations:
    """How long every instruction of a program takes."""

    busy_s: FloatArray  #: [n] it occupies its queue
    lag_s: FloatArray  #: [n] from its end until those that need it may start; 0 on devices

    def check(self, program: Program) -> list[str]:
        """Every fault at once; empty when the durations are sound and fit the program."""
        faults = []
        for name, a in (("busy_s", self.busy_s), ("lag_s", self.lag_s)):
            if a.shape != (len(program),):
                faults.append(f"{name} has shape {a.shape}; the program has {len(program)} instructions")
            elif not bool(np.all((a >= 0) & (a <= MOST_SECONDS))):
                bad = int(np.flatnonzero(~((a >= 0) & (a <= MOST_SECONDS)))[0])
                faults.append(f"{name} of {program[bad]} is {a[bad]} s")
            elif name == "lag_s" and bool(a[program.queue < program.devices].any()):
                bad = int(np.flatnonzero((a > 0) & (program.queue < program.devices))[0])
                faults.append(f"{name} of {program[bad]} is {a[bad]} s; only what a link carries has a lag")
        return faults


def durations(program: Program, graph: TaskGraph, costs: CostTable, cluster: Cluster) -> Durations:
    """The durations that costs and cluster predict.

    Computing takes the sum of the tasks' seconds on the kind of the device, divided by its speed. A transfer occupies
    its link for the given time of its tensors, and for size / rate where none is given; its latency comes after. A sum of
    gradients occupies the link of every member for what that member sends, copies and adds; the latencies of all steps of
    the ring, and the link's `sum_s`, come after (`exchange.ring_s`). Receiving takes the link's `message_s` of the device. Raises PlanError where a task cannot run on its device,
    CostError where costs and graph do not fit. O(instructions + tasks + tensors).
    """
    refuse(CostError, costs.check(graph), "the costs do not fit the graph")
    with np.errstate(over="ignore"):  # what overflows is refused by `Durations.check`
        return _durations(program, graph, costs, cluster)


def _durations(program: Program, graph: TaskGraph, costs: CostTable, cluster: Cluster) -> Durations:
    computes = np.flatnonzero((program.op == Op.COMPUTE) | (program.op == Op.UPDATE))
    carries = np.flatnonzero((program.op == Op.SEND) | (program.op == Op.REDUCE))
    receives = np.flatnonzero(program.op == Op.RECV)
    busy, lag = np.zeros(len(program)), np.zeros(len(program))
    busy[computes] = _compute_s(program, graph, costs, cluster, computes)
    given_s, rest, rate, latency, message = _transfer_facts(program, graph, costs, cluster)
    piece = program.piece[carries]
    # a message may hold more or less than its tensors; what no given time covers goes at the link's rate
    busy[carries] = given_s[piece] + program.size_bytes[carries] * rest[piece] / rate[piece]
    lag[carries] = latency[piece]
    busy[receives] = message[program.piece[receives]]
    return Durations(busy, lag)


def _compute_s(
    program: Program, graph: TaskGraph, costs: CostTable, cluster: Cluster, computes: IntArray
) -> FloatArray:
    """[instructions that compute] their seconds."""
    unknown = [n for n in program.queues[: program.devices] if n not in cluster.by_name]
    refuse(PlanError, [f"unknown device {n!r}" for n in unknown], "the program does not fit the cluster")
    devices = [cluster.by_name[n] for n in program.queues[: program.devices]]
    kind, speed = np.array([costs.column(d.kind) for d in devices]), np.array([d.speed for d in devices])
    owner = np.repeat(np.arange(len(program.pieces)), [len(p.tasks) for p in program.pieces])
    tasks = np.array([t for p in program.pieces for t in p.tasks], np.int64)
    part = _parts(program, graph, costs, owner, tasks)
    runs = np.isfinite(costs.seconds[tasks])
    takes = np.multiply(costs.seconds[tasks], part, out=np.full(part.shape, np.inf), where=runs)
    takes += _parting_s(program, graph, costs, owner, tasks)
    total = np.stack([np.bincount(owner, column, len(program.pieces)) for column in takes.T], axis=1)
    piece, queue = program.piece[computes], program.queue[computes]
    seconds = cast(FloatArray, total[piece, kind[queue]] / speed[queue])
    for i in np.flatnonzero(seconds > MOST_SECONDS)[:1].tolist():
        device = devices[queue[i]]
        task = max(program.pieces[piece[i]].tasks, key=lambda t: float(costs.seconds[t, kind[queue[i]]]))
        why = "cannot run" if np.isinf(costs.seconds[task, kind[queue[i]]]) else f"takes over {MOST_SECONDS:g} s"
        raise PlanError(
            f"task {graph.tasks[task].id!r} {why} on {device.name!r} of kind {device.kind!r}",
            hint="place it on another device",
        )
    return seconds


def _parts(program: Program, graph: TaskGraph, costs: CostTable, owner: IntArray, tasks: IntArray) -> FloatArray:
    """[tasks of pieces, kinds] the part of a task's time that its piece takes: of a split backward, one of two."""
    kind = np.array([("weight", "input").index(p.kind) if p.kind in ("weight", "input") else 2 for p in program.pieces])
    backward = np.array([t.phase == "backward" for t in graph.tasks])
    which = np.where(backward[tasks], kind[owner], 2)
    share = costs.shares_of_weights[tasks]
    return np.stack([share, 1.0 - share, np.ones_like(share)])[which, np.arange(len(tasks))]


def _parting_s(program: Program, graph: TaskGraph, costs: CostTable, owner: IntArray, tasks: IntArray) -> FloatArray:
    """[tasks of pieces, kinds] that parting a backward takes, at its first part."""
    first = np.array([p.kind == "input" for p in program.pieces], np.bool_)[owner]
    backward = np.array([t.phase == "backward" for t in graph.tasks], np.bool_)[tasks]
    return costs.partings_s[tasks] * (first & backward)[:, None]


def _transfer_facts(program: Program, graph: TaskGraph, costs: CostTable, cluster: Cluster) -> FloatArray:
    """[5, pieces] of the message a piece is: seconds given for its tensors, share of its bytes that no given time
    covers, the rate at which they go, the latency, the time of receiving on the device."""
    facts = np.zeros((5, len(program.pieces)))
    facts[2] = 1.0
    members = Counter(piece.group for piece in program.pieces if piece.group >= 0)
    for p, piece in enumerate(program.pieces):
        if piece.route != ("", ""):
            link = cluster.link(*piece.route)
            given_s, rest = given_part(piece, graph, costs)
            summed = piece.group >= 0  # a ring: one piece a member, so many messages one after another
            rate = link.exchange_bytes_per_s if summed else link.rate_bytes_per_s
            lag = ring_steps(members[piece.group]) * link.latency_s + link.sum_s if summed else link.latency_s
            facts[:, p] = given_s, rest, rate, lag, link.message_s
    return facts


def given_part(piece: Piece, graph: TaskGraph, costs: CostTable) -> tuple[float, float]:
    """Seconds given for the tensors of a message, and the share of its bytes for which none are given."""
    tensors = list(piece.tensors)
    given = costs.transfer_s[tensors]
    open_ = np.isnan(given)
    if bool(open_.all()):
        return 0.0, 1.0
    size = graph.size_bytes[tensors]
    total = float(size.sum())
    return float(given[~open_].sum()), float(size[open_].sum()) / total if total > 0 else 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Times


def simulate(program: Program, durations: Durations) -> Timeline:
    """The timeline of a program. Raises ProgramError as `times` does."""
    return Timeline.of(program, *times(program, durations))


def times(program: Program, durations: Durations) -> tuple[FloatArray, FloatArray]:
    """([n] start_s, [n] end_s) of every instruction.

    Raises ProgramError where the durations do not fit, and where the program cannot progress: the error names the
    instructions that wait for each other in a circle.
    """
    refuse(ProgramError, durations.check(program), "the durations do not fit the program")
    start, end, _ = finished(program, durations)
    return start, end


class Simulator:
    """A program compiled for many evaluations with different durations.

    Its instructions are put once in an order in which each comes after all it waits for, with two predecessors each,
    so that an evaluation is one pass without branches: about 2 ns an instruction, and a fraction of that where
    `evaluate_many` takes eight candidates side by side. Where the program has fair queues, the order depends on the
    durations, and every evaluation walks the program anew.

    >>> from partita.nouns.program import Builder
    >>> build = Builder(["cpu0"])
    >>> _ = build.add(Op.COMPUTE, "cpu0", Piece("F0", "forward", 0))
    >>> _ = build.add(Op.COMPUTE, "cpu0", Piece("B0", "backward", 0))
    >>> Simulator(build.program()).evaluate(np.array([1.0, 2.0]), np.zeros(2))
    3.0
    """

    def __init__(self, program: Program) -> None:
        """Raises ProgramError where the program cannot progress. O(instructions + needs)."""
        n = len(program)
        _, _, order = finished(program, Durations(np.ones(n), np.zeros(n)))
        line, lines, medium = lines_of(program)
        self.instructions = n
        self._walk = (line, lines, medium, program.needs.start, program.needs.items)
        self._fair = bool((medium >= 0).any())
        self._nodes = nodes(line, lines, program.devices, program.needs.start, program.needs.items, order)

    def evaluate(self, busy_s: FloatArray, lag_s: FloatArray) -> float:
        """The makespan with these durations ([n] each, as in `Durations`; their values are not checked)."""
        return float(self.evaluate_many(busy_s[None], lag_s)[0])

    def evaluate_many(self, busy_s: FloatArray, lag_s: FloatArray) -> FloatArray:
        """[k] the makespan with each row of busy_s [k, n] and one lag_s [n]. Raises ProgramError for other shapes."""
        if busy_s.ndim != 2 or busy_s.shape[1] != self.instructions or lag_s.shape != (self.instructions,):
            raise ProgramError(
                f"durations of shapes {busy_s.shape} and {lag_s.shape} for {self.instructions} instructions",
                hint="give busy_s [candidates, instructions] and lag_s [instructions]",
            )
        busy_s = np.ascontiguousarray(busy_s, np.float64)  # one machine code for all
        if self._fair:
            walks = (walk(*self._walk, busy, lag_s) for busy in busy_s)
            return np.array([end.max() for _, end, _, _ in walks])
        return makespans(*self._nodes, busy_s, lag_s)


def finished(program: Program, durations: Durations) -> tuple[FloatArray, FloatArray, Int32Array]:
    """Start, end and the order in which instructions were found to end. Raises ProgramError where some never do."""
    line, lines, medium = lines_of(program)
    needs = program.needs
    start, end, order, done = walk(line, lines, medium, needs.start, needs.items, durations.busy_s, durations.lag_s)
    if done < len(program):
        raise _stuck(program, np.isnan(end))
    return start, end, order


def lines_of(program: Program) -> tuple[Int32Array, int, Int32Array]:
    """([n] the line each instruction stands in, number of lines, [lines] the fair queue behind a line or -1).

    A queue is a line, but on a fair queue nobody stands behind another: there every instruction is a line of its own.
    """
    queues = len(program.queues)
    fair = np.array([q >= program.devices and name in program.fair for q, name in enumerate(program.queues)], np.bool_)
    if not fair.any():
        return program.queue, queues, np.full(queues, -1, np.int32)
    line = program.queue.copy()
    alone = np.flatnonzero(fair[line])
    medium = np.concatenate([np.full(queues, -1, np.int32), line[alone]])
    line[alone] = queues + np.arange(len(alone), dtype=np.int32)
    return line, queues + len(alone), medium


def _stuck(program: Program, waiting: BoolArray) -> ProgramError:
    """The error for a program some of whose instructions wait for ever: it names a circle of them."""
    line = lines_of(program)[0]
    before: dict[int, int] = {}
    last: dict[int, int] = {}
    for i in np.flatnonzero(waiting).tolist():
        if int(line[i]) in last:
            before[i] = last[int(line[i])]
        last[int(line[i])] = i
    path: dict[int, None] = {}
    at = int(np.flatnonzero(waiting)[0])
    while at not in path:
        path[at] = None
        needed = [j for j in program.needs.row(at).tolist() if waiting[j]]
        at = needed[0] if needed else before[at]
    circle = [*path][[*path].index(at) :]
    names = [f"{program[i]} on {program[i].queue}" for i in circle]
    shown = names if len(names) <= 12 else [*names[:6], f"({len(names) - 12} more)", *names[-6:]]
    return ProgramError(
        f"the program cannot progress: {int(waiting.sum())} of {len(program)} instructions cannot run, since each of "
        f"these waits for the next: {' -> '.join([*shown, names[0]])}",
        hint="change the order of one of these queues",
    )
