"""Template: a pipeline's program with its durations left open, for plans that differ only in what their stages hold.

Such plans have the same instructions in the same order. The program is lowered and compiled once; another plan of the same
shape costs a table of amounts, a few for each stage, and one pass over the instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.nouns.cluster import Cluster
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.program import Op, Piece, Program
from partita.simulate.cold_caches import chilled
from partita.simulate.exchange import ring_share
from partita.simulate.overheads import Ends, beginnings
from partita.simulate.simulator import Durations, Simulator

#: What an amount is of: (kind of piece, stage, number of the device among the plan's) of what a device computes, update:
#: of stage -1, as begin, which comes before its first computation, and cold, behind a long wait; ("send", from stage, to stage) of a message; (name, -1, -1) of a
#: sum of gradients.
Key = tuple[str, int, int]


@dataclass(frozen=True, eq=False)
class Template:
    """Instruction i takes fixed_s[i], of its amount the seconds and per_byte_s[i] for each byte, and its part in messages."""

    program: Program
    simulator: Simulator
    at: IntArray  #: [instructions] which of the amounts it takes its duration from
    per_byte_s: FloatArray  #: [instructions]
    fixed_s: FloatArray  #: [instructions] what does not depend on the amounts
    first: IntArray  #: [devices that receive nothing before it] their first computations,
    begins: IntArray  #: and which of the amounts comes before each
    colds: IntArray  #: [devices] which of the amounts comes behind a long wait
    ends: Ends
    lag_s: FloatArray  #: [instructions]

    @staticmethod
    def of(program: Program, known: Durations, cluster: Cluster, keys: Sequence[Key]) -> Template:
        """The template of a program; `known` are its durations, `keys` name the amounts. O(instructions)."""
        place = {key: x for x, key in enumerate(keys)}
        members = Counter(p.name for p in program.pieces)  # a sum of gradients has a piece for each member
        found: dict[tuple[int, int, int], tuple[int, float]] = {}
        at, per_byte = np.empty(len(program), np.int64), np.empty(len(program))
        for i, row in enumerate(zip(program.op.tolist(), program.queue.tolist(), program.piece.tolist(), strict=True)):
            if row not in found:
                op, queue, number = row
                piece = program.pieces[number]
                found[row] = _place(op, queue, piece, place), _per_byte_s(op, piece, cluster, members)
            at[i], per_byte[i] = found[row]
        fixed = np.where(at == len(keys), known.busy_s, 0.0)
        first = beginnings(program)
        begins = np.array([place["begin", -1, q] for q in program.queue[first].tolist()], np.int64)
        colds = np.array([place["cold", -1, q] for q in range(program.devices)], np.int64)
        ends = Ends.of(program, cluster)
        return Template(program, Simulator(program), at, per_byte, fixed, first, begins, colds, ends, known.lag_s)

    def makespan_s(self, amounts: FloatArray) -> float:
        """The program's seconds with other amounts: [keys + 1, (seconds, bytes)], the last one nothing."""
        seconds, size = amounts[self.at].T
        busy_s = seconds + size * self.per_byte_s + self.fixed_s + self.ends.seconds(size)
        busy_s[self.first] += amounts[self.begins, 0]
        busy_s += chilled(self.program, Durations(busy_s, self.lag_s), amounts[self.colds, 0])
        return self.simulator.evaluate(busy_s, self.lag_s)


def _place(op: int, queue: int, piece: Piece, place: Mapping[Key, int]) -> int:
    """Which amount an instruction takes its duration from; the last, nothing, where it has none."""
    if op == Op.COMPUTE:
        return place[piece.kind, piece.stage, queue]
    if op == Op.UPDATE:
        return place["update", -1, queue]
    if op == Op.SEND:
        return place["send", piece.stage, piece.target]
    return place.get((piece.name, -1, -1), len(place)) if op == Op.REDUCE else len(place)


def _per_byte_s(op: int, piece: Piece, cluster: Cluster, members: Mapping[str, int]) -> float:
    """Seconds that a byte of a message, or of the gradient that is summed, takes of its link."""
    if op == Op.SEND:
        return 1.0 / cluster.link(*piece.route).rate_bytes_per_s
    if op == Op.REDUCE:
        return ring_share(members[piece.name]) / cluster.link(*piece.route).exchange_bytes_per_s
    return 0.0
