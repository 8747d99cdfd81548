"""The interpreter: one rank's part of a Program, executed on real tensors.

It walks its device's queue in order. After a computation it posts the sends that wait for it and goes on at once;
receives are posted several micro-batches ahead, so that a message travels while both sides compute.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from partita.errors import WorkerFailed
from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.program import Op, Piece, Program
from partita.training.capture.model import Captured, TensorMeta
from partita.training.job import Batch, batch_size, micro_batches
from partita.training.runtime.stage import Stage, batch_leaves
from partita.training.runtime.stopwatch import Stopwatch, stopwatch_for
from partita.training.runtime.transport import Pending, Transport


@dataclass(frozen=True)
class Place:
    """Where this rank stands."""

    rank: int
    stage: int
    plan: PipelinePlan
    device: torch.device

    def rank_of(self, device_name: str) -> int:
        return self.plan.devices.index(device_name)


@dataclass(frozen=True)
class StepResult:
    """What one rank knows after a step."""

    loss: float  #: mean over the batch; nan where this rank does not make the loss
    step_s: float


class Interpreter:
    """Executes one Program again and again, a batch at a time."""

    def __init__(
        self,
        program: Program,
        place: Place,
        stages: Mapping[int, Stage],
        captured: Mapping[int, Captured],
        transport: Transport,
        update: Callable[[], None],
        reduce: Callable[[str], None],
        cell: npt.NDArray[np.int64],
        *,
        ahead: int = 4,
    ) -> None:
        """`stages` and `captured` hold this rank's stage for each micro-batch size that occurs; `reduce(name)` sums the
        gradients of one REDUCE over its group; `ahead` receives are posted on each link before they are needed."""
        self.program = program
        self._place = place
        self._stages = stages
        self._captured = captured
        self._transport = transport
        self._update = update
        self._reduce = reduce
        self._cell = cell
        self._ahead = ahead
        self._script = _script(program, place)
        self.numbers = np.array([i for i, _ in self._script], np.int64)  #: [own instructions] their numbers
        self.watch: Stopwatch = stopwatch_for(place.device, len(self._script))
        self._receives = _receives(program, place)

    def step(self, batch: Batch, micro_batch_size: int, step: int, seed: int) -> StepResult:
        """One step on a batch. Raises WorkerFailed that names the peer where a message breaks."""
        began = time.perf_counter()
        self._begin(batch, micro_batch_size, step, seed)
        begin, finish, cell = self.watch.begin, self.watch.finish, self._cell
        number = -1
        try:
            for k, (number, (action, piece, m)) in enumerate(self._script):
                cell[0] = number
                begin(k)
                action(self, number, piece, m)
                finish(k)
            for work, _ in self._sending:
                work.wait()
        except RuntimeError as error:
            raise self._broken(number, error) from error
        loss = float(sum(float(v) * w for v, w in self._losses)) if self._losses else float("nan")
        return StepResult(loss, time.perf_counter() - began)

    def trace(self) -> tuple[FloatArray, FloatArray]:
        """(start, end) of the last step, in seconds of this rank's clock, in the order of `numbers`."""
        return self.watch.read()

    def _begin(self, batch: Batch, size: int, step: int, seed: int) -> None:
        parts = list(micro_batches(batch, size))
        total = batch_size(batch)
        sizes = [batch_size(p) for p in parts]
        self._leaves = [batch_leaves(p, self._place.device) for p in parts]
        self._weights = [n / total for n in sizes]
        self._size_of = sizes
        self._seeds = [hash((seed, step, m, self._place.stage)) & 0x7FFFFFFF for m in range(len(parts))]
        self._arrived: dict[int, dict[str, Tensor]] = defaultdict(dict)  # micro-batch -> received values
        self._made: dict[int, dict[str, Tensor]] = {}  # micro-batch -> values to send
        self._returned: dict[int, dict[str, Tensor]] = defaultdict(dict)  # micro-batch -> gradients of values sent
        self._owed: dict[int, dict[str, Tensor]] = {}  # micro-batch -> gradients of values received
        self._losses: list[tuple[Tensor, float]] = []
        self._sending: deque[tuple[Any, Tensor]] = deque()
        self._queues = {link: deque(numbers) for link, numbers in self._receives.items()}
        self._posted: dict[int, list[tuple[str, Pending]]] = {}
        for link in self._queues:
            for _ in range(self._ahead):
                self._post(link)

    def _post(self, link: str) -> None:
        """Post the next receive of a link, if one is left."""
        if not self._queues[link]:
            return
        number, piece, m = self._queues[link].popleft()
        source, target = (self._place.rank_of(d) for d in piece.route)
        self._posted[number] = [
            (value, self._transport.receive(meta, source, target, _tag(piece, m, j)))
            for j, (value, meta) in enumerate(self._values(piece, m))
        ]

    def _values(self, piece: Piece, m: int) -> list[tuple[str, TensorMeta]]:
        """(value, layout) of each tensor of a message."""
        captured = self._captured[self._size_of[m]]
        names = [captured.values[t] for t in piece.tensors]
        return [(n, captured.meta[n]) for n in names]

    def _do_receive(self, number: int, piece: Piece, m: int) -> None:
        for value, pending in self._posted.pop(number):
            tensor = pending.wait()
            if piece.name.startswith("F"):
                meta = self._captured[self._size_of[m]].meta[value]
                self._arrived[m][value] = tensor.requires_grad_(meta.requires_grad)
            elif value in self._returned[m]:
                self._returned[m][value] = self._returned[m][value] + tensor
            else:
                self._returned[m][value] = tensor
        self._post(_link(piece))

    def _do_forward(self, number: int, piece: Piece, m: int) -> None:
        stage = self._stages[self._size_of[m]]
        outputs = stage.forward(m, self._leaves[m], self._arrived.pop(m, {}), self._seeds[m])
        if stage.code.has_loss:
            self._losses.append((outputs[-1].detach(), self._weights[m]))
        self._made[m] = dict(zip(stage.code.gives, outputs, strict=True))

    def _do_backward(self, number: int, piece: Piece, m: int) -> None:
        stage = self._stages[self._size_of[m]]
        gives = stage.code.gives[:-1] if stage.code.has_loss else stage.code.gives
        returned = self._returned.pop(m, {})
        self._owed[m] = stage.backward(m, [returned.get(v) for v in gives], self._weights[m])
        self._made.pop(m, None)

    def _do_send(self, number: int, piece: Piece, m: int) -> None:
        source, target = (self._place.rank_of(d) for d in piece.route)
        held = self._made[m] if piece.name.startswith("F") else self._owed[m]
        for j, (value, meta) in enumerate(self._values(piece, m)):
            tensor = held.get(value)
            if tensor is None:  # the loss does not depend on it here, but its maker waits for an answer
                tensor = torch.zeros(meta.shape, dtype=meta.dtype, device=self._place.device)
            self._sending.append(self._transport.send(tensor, meta, source, target, _tag(piece, m, j)))
        while self._sending and self._sending[0][0].is_completed():
            self._sending.popleft()

    def _do_reduce(self, number: int, piece: Piece, m: int) -> None:
        self._reduce(piece.name)

    def _do_update(self, number: int, piece: Piece, m: int) -> None:
        self._update()

    def _broken(self, number: int, error: RuntimeError) -> Exception:
        """A broken message as the peer's failure; any other error as it is."""
        if not is_lost_peer(error):
            return error
        instruction = self.program[number] if number >= 0 else None
        peers = (
            [self._place.rank_of(d) for d in instruction.piece.route if d]
            if instruction and instruction.piece.route[0]
            else []
        )
        peer = next((p for p in peers if p != self._place.rank), -1)
        doing = str(instruction) if instruction else "waiting for its messages to leave"
        first = str(error).strip().splitlines()[0]
        return WorkerFailed(f"rank {self._place.rank} lost rank {peer} during {doing}: {first}", rank=peer, doing=doing)


def is_lost_peer(error: BaseException) -> bool:
    """The error of a collective or a message whose other side went away or fell silent."""
    text = str(error)
    return isinstance(error, WorkerFailed) or any(
        sign in text for sign in ("onnection", "imed out", "imeout", "gloo", "NCCL")
    )


Action = Callable[[Interpreter, int, Piece, int], None]


def _script(program: Program, place: Place) -> list[tuple[int, tuple[Action, Piece, int]]]:
    """(instruction, what to do) in the order in which this rank does it: its device's queue, sends after what they need."""
    me = place.plan.devices[place.rank]
    own = program.by_queue[program.queues.index(me)].tolist()
    waiting: dict[int, list[int]] = defaultdict(list)
    reduces: list[int] = []
    for i in np.flatnonzero((program.op == Op.SEND) | (program.op == Op.REDUCE)).tolist():
        piece = program.pieces[program.piece[i]]
        if piece.route[0] != me:
            continue
        if program.op[i] == Op.SEND:
            waiting[int(program.needs.row(i)[0])].append(i)
        else:
            reduces.append(i)
    script: list[int] = []
    for i in own:
        if program.op[i] == Op.UPDATE:
            script += reduces
        script += [i, *waiting[i]]
    return [(i, (_action(program, i), program.pieces[program.piece[i]], int(program.micro_batch[i]))) for i in script]


def _action(program: Program, i: int) -> Action:
    op, piece = Op(int(program.op[i])), program.pieces[program.piece[i]]
    if op == Op.COMPUTE:
        return Interpreter._do_forward if piece.phase == "forward" else Interpreter._do_backward
    return {
        Op.RECV: Interpreter._do_receive,
        Op.SEND: Interpreter._do_send,
        Op.REDUCE: Interpreter._do_reduce,
        Op.UPDATE: Interpreter._do_update,
    }[op]


def _receives(program: Program, place: Place) -> dict[str, list[tuple[int, Piece, int]]]:
    """Link -> its receives on this rank, in the order in which they are sent."""
    me = place.plan.devices[place.rank]
    sends = {
        int(j): i
        for i in np.flatnonzero(program.op == Op.RECV)
        for j in program.needs.row(int(i))
        if program.op[int(j)] == Op.SEND
    }
    found: dict[str, list[tuple[int, Piece, int]]] = defaultdict(list)
    for send in sorted(sends):
        receive = int(sends[send])
        piece = program.pieces[program.piece[receive]]
        if piece.route[1] == me:
            found[_link(piece)].append((receive, piece, int(program.micro_batch[receive])))
    return dict(found)


def _link(piece: Piece) -> str:
    return f"{piece.route[0]}->{piece.route[1]}"


def _tag(piece: Piece, m: int, j: int) -> int:
    """A number for one tensor of one message, the same on both sides. Room for 4096 micro-batches and 64 stages."""
    stages = [int(s[1:]) for s in piece.name.split(">")]
    kind = 0 if piece.name.startswith("F") else 1
    tag = ((stages[0] * 64 + stages[1]) * 2 + kind) * 4096 + m
    return (tag * 32 + j) & 0x7FFFFFFF


def reduce_gradients(parameters: Sequence[Tensor], group: Any) -> None:
    """Sum the gradients of some parameters over a group, as one message a type."""
    by_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        by_type[p.dtype].append(p.grad)
    for grads in by_type.values():
        flat = torch.cat([g.reshape(-1) for g in grads])
        dist.all_reduce(flat, group=group)
        for g, part in zip(grads, torch.split(flat, [g.numel() for g in grads]), strict=True):
            g.copy_(part.view_as(g))
