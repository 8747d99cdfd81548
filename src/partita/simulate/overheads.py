"""What a pipeline's instructions cost a device beside its tasks: calls of a stage's code, posting messages, what comes once a step.

The tasks' seconds were measured in a step of the whole model on one device: they hold one call for each forward and backward.
A plan of K stages calls K times; so a stage pays (1 - 1/K) of a call beside its tasks. What begins a step a device pays before its
first computation, unless it receives a message before that: then it is not charged, for it begins while it waits. Of six small
networks the second stage took 6 to 14 us longer over its first forward than over the others, where a step's beginning takes 77 to 92; of four,
on another day, 18 to 160: caches that the update has filled. What the whole model's first forward takes longer so is part of `step_s`.
(A device that takes longer to begin than the message takes to come, much slower than the one before it, is charged too little.)
What a device that waits takes longer behind it is in `cold_caches`.
And an optimizer's step takes 35 to 80 us before it has updated anything: every device pays for its own (2 cores of an EPYC, 28
November 2026).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable
from partita.nouns.graph import FloatArray, IntArray, TaskGraph
from partita.nouns.program import Op, Program
from partita.simulate.simulator import given_part


def call_s(device: Device, stages: int) -> float:
    """Seconds that a forward or a backward of one of so many stages takes beside its tasks."""
    return device.instruction_s / device.speed * (1 - 1 / stages)


def begin_s(device: Device) -> float:
    """Seconds that the beginning of a step takes of a device."""
    return device.step_s / device.speed


def update_s(device: Device) -> float:
    """Seconds that its update takes beside its tasks."""
    return device.update_s / device.speed


def beginnings(program: Program) -> IntArray:
    """[devices that receive nothing before it] the first computation of each."""
    at = np.flatnonzero((program.op == Op.COMPUTE) | (program.op == Op.RECV))
    _, first = np.unique(program.queue[at], return_index=True)
    found = at[first]
    return np.asarray(found[program.op[found] == Op.COMPUTE])


class Ends(NamedTuple):
    """What messages take of the devices at their ends, beside the links' `message_s`. [ends]"""

    at: IntArray  #: the instruction that takes longer: the computation that a message waits for, and its receiving
    send: IntArray  #: the message
    fixed_s: FloatArray
    per_byte_s: FloatArray

    @staticmethod
    def of(program: Program, cluster: Cluster) -> Ends:
        """O(instructions)."""
        rows = []
        links = [cluster.link(*p.route) if p.kind in ("values", "gradients") else None for p in program.pieces]
        if any(k and (k.send_s or k.send_s_per_byte or k.message_s_per_byte) for k in links):
            for i in np.flatnonzero((program.op == Op.SEND) | (program.op == Op.RECV)).tolist():
                link, sends = links[program.piece[i]], program.op[i] == Op.SEND
                needs = program.needs.row(i).tolist()
                others = [k for k in needs if program.op[k] == (Op.COMPUTE if sends else Op.SEND)]
                if link and others and sends:
                    rows.append((others[-1], i, link.send_s, link.send_s_per_byte))
                elif link and others:
                    rows.append((i, others[-1], 0.0, link.message_s_per_byte))
        at, send, fixed, per_byte = np.array(rows, np.float64).reshape(-1, 4).T
        return Ends(at.astype(np.int64), send.astype(np.int64), fixed, per_byte)

    def seconds(self, size_bytes: FloatArray) -> FloatArray:
        """[instructions] with messages of so many bytes [instructions]."""
        took = self.fixed_s + self.per_byte_s * size_bytes[self.send]
        return np.asarray(np.bincount(self.at, took, len(size_bytes)), np.float64)


def open_bytes(program: Program, graph: TaskGraph, costs: CostTable) -> FloatArray:
    """[instructions] bytes moved for which no time is given."""
    rest = np.array([given_part(p, graph, costs)[1] if p.route != ("", "") else 1.0 for p in program.pieces])
    return np.asarray(program.size_bytes * rest[program.piece])


def overheads(program: Program, graph: TaskGraph, costs: CostTable, cluster: Cluster) -> FloatArray:
    """[instructions] seconds of the device beside those of tasks and the links' `message_s`. O(instructions)."""
    devices = [cluster.by_name[n] for n in program.queues[: program.devices]]
    stages = len({p.stage for p in program.pieces if p.kind == "forward"})
    found = Ends.of(program, cluster).seconds(open_bytes(program, graph, costs))
    each = np.array([[call_s(d, max(1, stages)), begin_s(d), update_s(d)] for d in devices]).reshape(-1, 3)
    for at, seconds in zip(
        (program.op == Op.COMPUTE, beginnings(program), program.op == Op.UPDATE), each.T, strict=True
    ):
        found[at] += seconds[program.queue[at]]
    return found
