"""What comes behind a wait takes longer: a device that waits finds its caches cold, where its core's other thread is another machine's."""

from __future__ import annotations

import numpy as np

from partita.nouns.cluster import Device
from partita.nouns.costs import MOST_SECONDS
from partita.nouns.graph import FloatArray
from partita.nouns.program import Op, Program
from partita.simulate.kernel import behind_waits
from partita.simulate.simulator import Durations, finished, lines_of

_STEPS = 3  #: in a row, after which each takes as long as the one before it: 0.1 % is missing then where a step of 2.6 ms begins with a wait
COOLS_S = 2e-3  #: of waiting, behind which 63 % of what it costs at most is due (EPYC, 30 November 2026: 1.3 ms and 3 to 5 of three networks)


def cold_s(device: Device) -> float:
    """Seconds that what it does behind a long wait takes longer."""
    return device.cold_s / device.speed


def chilled(program: Program, known: Durations, cold: FloatArray) -> FloatArray:
    """[instructions] seconds that computations and updates behind a wait, for a message or a sum, take longer, where a long one costs
    [devices] `cold` seconds: so much that all that waits for them waits longer itself. One step follows another: before one that begins
    with a wait a device has waited since the end of the last one. What goes over fair queues takes as long as `known` has it. A longer
    `cold` may end a step sooner: what begins later waits less, and so finds its caches warmer. O(instructions + needs)."""
    if len(cold) < 2 or not cold.any() or not known.busy_s.max() <= MOST_SECONDS:
        return np.zeros(len(program))
    start, end, order = finished(program, known)
    line, lines, medium = lines_of(program)
    works = (program.op == Op.COMPUTE) | (program.op == Op.UPDATE)
    busy_s = np.where(medium[line] >= 0, end - start, known.busy_s)
    most_s, since = np.zeros(lines), np.zeros(lines)
    most_s[: len(cold)] = cold
    own = {q: at for q, at in enumerate(program.by_queue[: len(cold)]) if len(at)}
    waits_first = [q for q, at in own.items() if program.op[at[0]] != Op.COMPUTE]
    for _ in range(_STEPS):
        since[waits_first] = [end[own[q][-1]] - end.max() for q in waits_first]
        longer_s, end = behind_waits(
            line, program.needs.start, program.needs.items, order, busy_s, known.lag_s, works, most_s, since, COOLS_S
        )
    return longer_s
