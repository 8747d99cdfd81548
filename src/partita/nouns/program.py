"""Program: what every device and link does, instruction by instruction. The simulator and the real engine both run it.

Instructions are numbered; each stands in one queue (a device, or a direction of a link), and a queue executes its
instructions in ascending number, each as soon as the instructions it needs are done.

    COMPUTE  device  run a piece (a part of a stage, or a task) on one micro-batch
    SEND     link    carry tensors from the device that made them; posted by that device, it does not wait for it
    RECV     device  wait for a SEND; takes the device only the time that handling a message takes
    REDUCE   link    sum gradients over the devices of a group by a ring; occupies the link of every member at once: one
                     REDUCE a member, from it to the next, all of one group
    UPDATE   device  the optimizer's step, of all stages that the device serves
    FREE     device  drop what a stage kept of a micro-batch whose backward never comes; a backward drops it itself
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from partita.errors import ProgramError, refuse
from partita.files import damaged, expect_format
from partita.nouns.graph import Csr, FloatArray, IntArray, csr
from partita.records import record


class Op(IntEnum):
    COMPUTE = 0
    SEND = 1
    RECV = 2
    REDUCE = 3
    UPDATE = 4
    FREE = 5


PieceKind = Literal[
    "forward", "backward", "input", "weight", "update", "task", "values", "gradients", "sum", "norm", "free"
]


@dataclass(frozen=True, slots=True)
class Piece:
    """What an instruction is about: the tasks it computes, or the tensors it moves.

    kind      forward, backward: of a stage; input, weight: the two parts of a split backward; update: of a device's stages;
              task: of a placement, one by one; values, gradients: a message between two stages, or of a task's tensor;
              sum: of gradients over a group; norm: of all gradients over all devices; free: of what a stage kept
    """

    name: str  #: short, for people: "F0", "B1", "F0>F1"
    kind: PieceKind
    stage: int = -1  #: that computes, or whose tensors are sent
    target: int = -1  #: the stage that a message is for
    tasks: tuple[int, ...] = ()  #: indices into the graph: what it computes
    tensors: tuple[int, ...] = ()  #: indices into the graph's tensors: what it moves (forward)
    route: tuple[str, str] = ("", "")  #: device names: from where to where it moves them
    group: int = -1  #: of a sum: its number among the program's sums


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a program, for reading; inside, a program is arrays."""

    id: int
    op: Op
    queue: str
    piece: Piece
    micro_batch: int  #: -1 where it concerns the whole batch
    size_bytes: float
    needs: tuple[int, ...]

    def __str__(self) -> str:
        micro = "" if self.micro_batch < 0 else f" micro-batch {self.micro_batch}"
        return f"{self.op.name.lower()} {self.piece.name}{micro}"


@dataclass(frozen=True, eq=False)
class Program:
    """Instructions 0 .. n-1 as columns."""

    queues: tuple[str, ...]  #: devices first, then links
    devices: int  #: how many of the queues are devices
    pieces: tuple[Piece, ...]
    op: npt.NDArray[np.uint8]  #: [n]
    queue: npt.NDArray[np.int32]  #: [n] position in `queues`
    piece: npt.NDArray[np.int32]  #: [n] position in `pieces`
    micro_batch: npt.NDArray[np.int32]  #: [n]
    size_bytes: FloatArray  #: [n] bytes moved; 0 for others
    needs: Csr  #: [n] instructions that must be done first
    fair: frozenset[str] = frozenset()  #: links whose transfers share the rate instead of waiting in order

    def __len__(self) -> int:
        return len(self.op)

    def __getitem__(self, i: int) -> Instruction:
        return Instruction(
            i,
            Op(int(self.op[i])),
            self.queues[self.queue[i]],
            self.pieces[self.piece[i]],
            int(self.micro_batch[i]),
            float(self.size_bytes[i]),
            tuple(self.needs.row(i).tolist()),
        )

    def __iter__(self) -> Iterator[Instruction]:
        return (self[i] for i in range(len(self)))

    @cached_property
    def by_queue(self) -> tuple[IntArray, ...]:
        """[queues] the instructions of each queue, in order."""
        return tuple(np.flatnonzero(self.queue == q).astype(np.int64) for q in range(len(self.queues)))

    def check(self) -> list[str]:
        """Every fault at once; empty when the program is sound (whether it can progress, `simulate` tells)."""
        n = len(self)
        columns = (self.queue, self.piece, self.micro_batch, self.size_bytes, self.needs.start[1:])
        if any(len(c) != n for c in columns):
            return [f"its columns have {', '.join(str(len(c)) for c in (self.op, *columns))} entries"]
        faults = [] if n else ["it has no instructions"]
        if n and int(self.op.max()) >= len(Op):
            faults.append(f"it has the unknown operation {self.op.max()}")
        if n and not (int(self.piece.min()) >= 0 and int(self.piece.max()) < len(self.pieces)):
            faults.append(
                f"piece numbers run from {self.piece.min()} to {self.piece.max()}; there are {len(self.pieces)} pieces"
            )
        faults += [
            f"instruction {i} moves {self.size_bytes[i]} bytes"
            for i in np.flatnonzero(~(np.isfinite(self.size_bytes) & (self.size_bytes >= 0)))
        ]
        if n and not (int(self.queue.min()) >= 0 and int(self.queue.max()) < len(self.queues)):
            faults.append(
                f"queue numbers run from {self.queue.min()} to {self.queue.max()}; there are {len(self.queues)} queues"
            )
        items = self.needs.items
        if len(items) and not (int(items.min()) >= 0 and int(items.max()) < n):
            faults.append(f"instructions needed run from {items.min()} to {items.max()}; there are {n}")
        else:
            sends = np.concatenate([[0], np.cumsum(self.op[items] == Op.SEND)])
            sent = sends[self.needs.start[1:]] > sends[self.needs.start[:-1]]
            lost = np.flatnonzero((self.op == Op.RECV) & ~sent)
            faults += [f"instruction {i} receives what nobody sends" for i in lost]
        return faults

    def to_json(self) -> dict[str, Any]:
        """Readable rows, one an instruction."""
        rows = [
            {
                "id": i.id,
                "op": i.op.name,
                "queue": i.queue,
                "piece": int(self.piece[i.id]),
                "micro_batch": i.micro_batch,
                "bytes": i.size_bytes,
                "needs": list(i.needs),
            }
            for i in self
        ]
        return {
            "format": "partita-program",
            "version": 2,
            "queues": list(self.queues),
            "devices": self.devices,
            "fair": sorted(self.fair),
            "pieces": [asdict(p) for p in self.pieces],
            "instructions": rows,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> Program:
        """Raises ProgramError where the object is damaged."""
        expect_format(value, "partita-program", ProgramError, "the program", version=2)
        with damaged(ProgramError, "the program", hint="lower the plan again"):
            names, devices = [str(q) for q in value["queues"]], int(value["devices"])
            number = {name: q for q, name in enumerate(names)}
            if len(number) < len(names) or not 0 <= devices <= len(names):
                raise ValueError(f"{len(number)} different queues of {len(names)}, {devices} of them devices")
            pieces = [record(Piece, p, ProgramError, f"piece {k}") for k, p in enumerate(value["pieces"])]
            rows = value["instructions"]
            program = Program(
                tuple(names),
                devices,
                tuple(pieces),
                np.array([Op[r["op"]] for r in rows], np.uint8),
                np.array([number[r["queue"]] for r in rows], np.int32),
                np.array([r["piece"] for r in rows], np.int32),
                np.array([r["micro_batch"] for r in rows], np.int32),
                np.array([r["bytes"] for r in rows], np.float64),
                csr([[int(j) for j in r["needs"]] for r in rows]),
                frozenset(str(q) for q in value.get("fair", ())),
            )
        refuse(ProgramError, program.check(), "the program")
        return program


@dataclass
class Builder:
    """Collects instructions; `program()` freezes them."""

    device_names: Sequence[str]
    _queues: dict[str, int] = field(default_factory=dict)
    _pieces: dict[Piece, int] = field(default_factory=dict)
    _rows: list[tuple[int, int, int, int, float]] = field(default_factory=list)
    _needs: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.device_names:
            self.queue(name)

    def queue(self, name: str) -> int:
        """The number of a queue, made at its first use."""
        return self._queues.setdefault(name, len(self._queues))

    def add(
        self,
        op: Op,
        queue: str,
        piece: Piece,
        micro_batch: int = -1,
        needs: Sequence[int] = (),
        size_bytes: float = 0.0,
    ) -> int:
        """Append an instruction; returns its number."""
        number = self._pieces.setdefault(piece, len(self._pieces))
        self._rows.append((int(op), self.queue(queue), number, micro_batch, size_bytes))
        self._needs.append(list(needs))
        return len(self._rows) - 1

    def need(self, instruction: int, other: int) -> None:
        """Let an instruction that exists already wait for another one."""
        self._needs[instruction].append(other)

    def program(self, *, fair: Sequence[str] | frozenset[str] = ()) -> Program:
        """The finished program. Raises ProgramError with every fault at once."""
        rows = np.array(self._rows, np.float64).reshape(-1, 5)
        program = Program(
            tuple(self._queues),
            len(self.device_names),
            tuple(self._pieces),
            rows[:, 0].astype(np.uint8),
            rows[:, 1].astype(np.int32),
            rows[:, 2].astype(np.int32),
            rows[:, 3].astype(np.int32),
            rows[:, 4].copy(),
            csr(self._needs),
            frozenset(fair),
        )
        refuse(ProgramError, program.check(), "program")
        return program
