"""What a pipeline's instructions cost a device beside its tasks: calls of a stage's code, posting messages, what comes once a step.

The tasks' seconds were measured in a step of the whole model on one device: they hold one call for each forward and backward
and one beginning of a step. A plan of K stages calls K times; so a stage pays (1 - 1/K) of a call beside its tasks, and likewise
each of its devices (1 - 1/K) of what comes once a step.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.cluster import Cluster, Device
from partita.nouns.graph import FloatArray
from partita.nouns.program import Op, Program


def call_s(device: Device, stages: int) -> float:
    """Seconds that a forward or a backward of one of so many stages takes beside its tasks."""
    return device.instruction_s / device.speed * (1 - 1 / stages)


def begin_s(device: Device, stages: int) -> float:
    """Seconds that the beginning of a step takes of a device of one of so many stages, beside its updates."""
    return device.step_s / device.speed * (1 - 1 / stages)


def posting_s(program: Program, cluster: Cluster) -> FloatArray:
    """[instructions] seconds that posting its messages takes of a device, at the computation that they wait for."""
    found = np.zeros(len(program))
    posts = [cluster.link(*p.route).send_s if p.kind in ("values", "gradients") else 0.0 for p in program.pieces]
    if any(posts):
        for i in np.flatnonzero(program.op == Op.SEND).tolist():
            made = [k for k in program.needs.row(i).tolist() if program.op[k] == Op.COMPUTE]
            if made:
                found[made[-1]] += posts[program.piece[i]]
    return found


def overheads(program: Program, cluster: Cluster) -> FloatArray:
    """[instructions] seconds of the device beside those of tasks and of receiving. O(instructions)."""
    devices = [cluster.by_name[n] for n in program.queues[: program.devices]]
    stages = len({p.stage for p in program.pieces if p.kind == "forward"})
    updates = program.op == Op.UPDATE
    found = posting_s(program, cluster)
    for at, each in (
        (program.op == Op.COMPUTE, [call_s(d, max(1, stages)) for d in devices]),
        (updates, [begin_s(d, max(1, stages)) for d in devices]),
    ):
        found[at] += np.array(each)[program.queue[at]]
    return found
