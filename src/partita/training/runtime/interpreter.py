"""The interpreter: one rank's part of a Program, executed on real tensors by a table of handlers.

It walks its device's queue in order. After a computation it posts the sends that wait for it and goes on at once;
receives are posted several micro-batches ahead, so that a message travels while both sides compute.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from partita.errors import WorkerFailed
from partita.nouns.graph import FloatArray
from partita.nouns.program import Op, Piece, PieceKind, Program
from partita.simulate.boundaries import Boundary
from partita.training.capture.captured import TensorMeta
from partita.training.job import Batch, batch_size, leaves_of_micro_batches
from partita.training.runtime.mailbox import PeerGone
from partita.training.runtime.stage import on_device
from partita.training.runtime.stopwatch import Stopwatch, stopwatch_for

Key = tuple[int, int]  #: (stage, micro-batch)
Values = dict[str, Tensor]  #: by the name of the value
Meanwhile = Callable[[float], None]  #: what a rank does while it waits for others; told for how many seconds it will
_WAITED_ON = 0.1  #: of what was done meanwhile; less is only the way of a message that was there already


@dataclass(frozen=True)
class StepResult:
    """What one rank knows after a step."""

    loss: float  #: mean over the batch; nan where this rank makes none, and where it is none
    step_s: float
    core_share: float = math.nan  #: of its core that this rank had while it computed; nan where that is not known
    worked_s: float = math.nan  #: of its computations, by `work_clock`; nan where that is not known
    made: int = 0  #: micro-batches of which this rank made the loss


class Named(Protocol):
    """What an interpreter wants to know of a model: a `Captured`, or what stands for one in a rehearsal."""

    @property
    def values(self) -> Sequence[str]:
        """[tensors of the graph] their names."""

    @property
    def meta(self) -> Mapping[str, TensorMeta]:
        """Name -> layout."""


class Runs(Protocol):
    """A stage that runs, or waits as long: see `Stage`."""

    @property
    def gives(self) -> Sequence[str]: ...
    @property
    def has_loss(self) -> bool: ...
    def forward(
        self, micro_batch: int, batch_leaves: Sequence[Any], received: Mapping[str, Tensor], seed: int
    ) -> tuple[Tensor, ...]: ...
    def backward(self, micro_batch: int, gradients: Sequence[Tensor | None], weight: float) -> dict[str, Tensor]: ...
    def backward_inputs(
        self, micro_batch: int, gradients: Sequence[Tensor | None], weight: float
    ) -> dict[str, Tensor]: ...
    def backward_weights(self, micro_batch: int) -> None: ...
    def free(self, micro_batch: int) -> None: ...


@dataclass(frozen=True)
class Bound:
    """The stages that a rank serves, bound to its tensors, for one micro-batch size."""

    captured: Named
    stages: Mapping[int, Runs]


@dataclass(frozen=True)
class Place:
    """Where a rank stands among the others."""

    device: str  #: its name in the cluster
    ranks: Mapping[str, int]  #: device name -> rank
    torch_device: torch.device
    boundaries: tuple[Boundary, ...]  #: of the plan


class Message(Protocol):
    """A message that has been asked for."""

    def wait(self) -> list[Tensor]: ...


class Carries(Protocol):
    """A `Transport`, or one with emulated links."""

    def receive(self, metas: tuple[TensorMeta, ...], source: int, target: int, tag: int) -> Message: ...
    def send(
        self, tensors: Sequence[Tensor], metas: tuple[TensorMeta, ...], source: int, target: int, tag: int
    ) -> list[tuple[Any, Tensor]]: ...


class Optimising(Protocol):
    """What ends a step: sums of gradients over ranks, and the update."""

    def reduce(self, group: int) -> Callable[[], None]:
        """Begin a sum; what is returned waits for its end. In between this rank goes on computing."""

    def reduce_norm(self) -> None: ...
    def update(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Line:
    """An instruction of this rank, ready to be executed."""

    number: int
    piece: Piece
    micro_batch: int
    handler: Handler


@dataclass(frozen=True, slots=True)
class Contents:
    """What a message carries, from whom to whom."""

    names: tuple[str, ...]
    metas: tuple[TensorMeta, ...]
    source: int  #: rank
    target: int
    tag: int


@dataclass
class Step:
    """What one step's instructions leave for each other."""

    leaves: Sequence[Sequence[Any]]  #: [micro-batches] leaves of the batch
    weights: Sequence[float]  #: [micro-batches] their share of the batch
    bounds: Sequence[Bound]  #: [micro-batches]
    contents: Sequence[Mapping[int, Contents]]  #: [micro-batches] of each message
    seed: Callable[[int, int], int]  #: (stage, micro-batch) -> where its random numbers begin
    arrived: dict[Key, Values] = field(default_factory=lambda: defaultdict(dict))  #: what other stages made for it
    made: dict[Key, Values] = field(default_factory=dict)  #: values to send
    returned: dict[Key, Values] = field(default_factory=lambda: defaultdict(dict))  #: gradients of what it made
    owed: dict[Key, Values] = field(default_factory=dict)  #: gradients of what had arrived, until the last is sent back
    unsent: Counter[Key] = field(default_factory=Counter)  #: messages of them that are still to be sent
    losses: list[tuple[Tensor, float]] = field(default_factory=list)
    sums: list[tuple[int, Callable[[], None]]] = field(default_factory=list)  #: begun: (place in the script, its end)
    sending: deque[tuple[Any, Tensor]] = field(default_factory=deque)
    posted: dict[int, tuple[Sequence[str], Message]] = field(default_factory=dict)  #: receive -> (names, message)
    queues: dict[str, deque[Line]] = field(default_factory=dict)  #: sender -> receives not yet posted


class Interpreter:
    """Executes one Program again and again, a batch at a time."""

    def __init__(
        self,
        program: Program,
        place: Place,
        bounds: Mapping[int, Bound],
        transport: Carries,
        optimising: Optimising,
        cell: npt.NDArray[np.int64],
        *,
        ahead: int = 4,
    ) -> None:
        """`bounds` holds this rank's stages for each micro-batch size that occurs; `ahead` receives are posted on each
        link before they are needed; `cell` tells others the instruction under way."""
        self.program = program
        self._place, self._bounds, self._transport, self._cell = place, bounds, transport, cell
        self._optimising, self._ahead = optimising, ahead
        self._script = _script(program, place.device)
        self.numbers = np.array([line.number for line in self._script], np.int64)  #: [own instructions]
        self._places = {line.number: k for k, line in enumerate(self._script)}
        self._receives = _receives(program, self._script)
        tags = message_tags(program)
        messages = [line for line in self._script if line.number in tags]
        computes = [program.op[line.number] == Op.COMPUTE for line in self._script]
        self.watch: Stopwatch = stopwatch_for(place.torch_device, computes, waits=bool(messages))
        on_cpu = place.torch_device.type == "cpu"  # a GPU waits by itself, while this thread goes on
        self._waits = [k for k, i in enumerate(self._script) if on_cpu and program.op[i.number] == Op.RECV]
        self._longest, self._aside_ns = -1, 0  # where something was done in the last step, and for how long
        self._contents = {
            size: {
                line.number: _contents(line.piece, bound.captured, place.ranks, tags[line.number]) for line in messages
            }
            for size, bound in bounds.items()
        }
        self._leaving: dict[int, list[Boundary]] = defaultdict(list)  # stage -> what others read of it
        self._coming: dict[int, list[Boundary]] = defaultdict(list)  # stage -> what it reads of others
        for b in place.boundaries:
            self._leaving[b.source].append(b)
            self._coming[b.target].append(b)
        sends = [i for i in self._script if program.op[i.number] == Op.SEND and i.piece.kind == "gradients"]
        between = {(b.source, b.target): b for b in place.boundaries}
        self._returners = {i.number: between[i.piece.target, i.piece.stage].returners for i in sends}
        self._unsent = Counter((k, i.micro_batch) for i in sends for k in self._returners[i.number])
        values = [line for line in messages if line.piece.kind == "values"]
        reads = {p: _readers(place.boundaries, p) for p in {i.piece for i in values}}
        self._readers = {i.number: reads[i.piece] for i in values}
        self._runs = {(i.piece.stage, i.micro_batch) for i in self._script if i.piece.kind == "forward"}

    def step(
        self, batch: Batch, micro_batch_size: int, step: int, seed: int, meanwhile: Meanwhile | None = None
    ) -> StepResult:
        """One step on a batch. `meanwhile` is called, with the seconds of that wait, where this rank waited longest for a message in the
        last step; nowhere in the first. Raises WorkerFailed that names the peer where a message breaks."""
        began = time.perf_counter()
        self._longest, wait_s = self._longest_wait() if meanwhile else (-1, 0.0)
        self._aside_ns = 0
        s = self._begin(batch, micro_batch_size, step, seed)
        begin, finish, cell = self.watch.begin, self.watch.finish, self._cell
        number = -1
        self.watch.begin_step()
        try:
            for k, line in enumerate(self._script):
                number = cell[0] = line.number
                if k == self._longest and meanwhile:
                    self._aside_ns = self.watch.aside(meanwhile, wait_s)
                begin(k)
                line.handler(self, s, line)
                finish(k)
            self._end_sums(s)
            for work, _ in s.sending:
                work.wait()
        except RuntimeError as error:
            raise self._broken(number, error) from error
        loss = float(sum(float(v) * w for v, w in s.losses)) if s.losses else float("nan")
        return StepResult(
            loss, time.perf_counter() - began, self.watch.core_share(), self.watch.worked_s(), len(s.losses)
        )

    def trace(self) -> tuple[FloatArray, FloatArray]:
        """(start, end) of the last step, in seconds of this rank's clock, in the order of `numbers`."""
        return self.watch.read()

    def computed_s(self) -> float:
        """What this rank computed in the last step; nan where it had nothing to compute."""
        return self.watch.computed_s()

    def _longest_wait(self) -> tuple[int, float]:
        """(Place, seconds) of the longest wait of the last step for a message; (-1, 0) where there was none. What was done meanwhile was
        part of it if this rank waited on behind that; else nobody knows how long it would have waited there."""
        waited_ns = {k: self.watch.end[k] - self.watch.start[k] for k in self._waits}
        if waited_ns.get(self._longest, 0) > _WAITED_ON * self._aside_ns:
            waited_ns[self._longest] += self._aside_ns
        k = max(waited_ns, key=waited_ns.__getitem__, default=-1)
        return (k, waited_ns[k] / 1e9) if waited_ns.get(k) else (-1, 0.0)

    def _begin(self, batch: Batch, size: int, step: int, seed: int) -> Step:
        total = batch_size(batch)
        sizes = [min(size, total - start) for start in range(0, total, size)]
        s = Step(
            [on_device(part, self._place.torch_device) for part in leaves_of_micro_batches(batch, size)],
            [n / total for n in sizes],
            [self._bounds[n] for n in sizes],
            [self._contents[n] for n in sizes],
            lambda stage, m: hash((seed, step, m, stage)) & 0x7FFFFFFF,
            unsent=self._unsent.copy(),
            queues={sender: deque(lines) for sender, lines in self._receives.items()},
        )
        for sender in s.queues:
            for _ in range(min(self._ahead, len(s.queues[sender]))):
                self._post(s, sender)
        return s

    def _post(self, s: Step, sender: str) -> None:
        """Post the next receive from a device, if one is left."""
        if not s.queues[sender]:
            return
        line = s.queues[sender].popleft()
        c = s.contents[line.micro_batch][line.number]
        s.posted[line.number] = c.names, self._transport.receive(c.metas, c.source, c.target, c.tag)

    def _received(self, s: Step, line: Line) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a message. Messages are posted in the order in which they are sent, also where this rank wants
        a later one first."""
        sender = line.piece.route[0]
        while line.number not in s.posted:
            self._post(s, sender)
        names, message = s.posted.pop(line.number)
        tensors = message.wait()
        self._post(s, sender)
        return zip(names, tensors, strict=True)

    # ---- handlers ---------------------------------------------------------------------------------------------------

    def receive_values(self, s: Step, line: Line) -> None:
        m, meta = line.micro_batch, s.bounds[line.micro_batch].captured.meta
        found = [(name, tensor.requires_grad_(meta[name].requires_grad)) for name, tensor in self._received(s, line)]
        for stage, places in self._readers[line.number]:
            s.arrived[stage, m].update(found[p] for p in places)

    def receive_gradients(self, s: Step, line: Line) -> None:
        _add(s.returned[line.piece.target, line.micro_batch], dict(self._received(s, line)))

    def forward(self, s: Step, line: Line) -> None:
        k, m = key = (line.piece.stage, line.micro_batch)
        stage = s.bounds[m].stages[k]
        outputs = stage.forward(m, s.leaves[m], s.arrived.pop(key, {}), s.seed(k, m))
        if stage.has_loss:
            s.losses.append((outputs[-1].detach(), s.weights[m]))
        s.made[key] = made = dict(zip(stage.gives, outputs, strict=True))
        captured = s.bounds[m].captured
        for b in self._leaving[k]:
            if (b.target, m) in self._runs:
                for t in b.tensors:
                    name = captured.values[t]
                    handed = made[name].detach().requires_grad_(captured.meta[name].requires_grad)
                    s.arrived[b.target, m][name] = handed

    def backward(self, s: Step, line: Line) -> None:
        self._backward(s, line, s.bounds[line.micro_batch].stages[line.piece.stage].backward)

    def backward_inputs(self, s: Step, line: Line) -> None:
        self._backward(s, line, s.bounds[line.micro_batch].stages[line.piece.stage].backward_inputs)

    def _backward(self, s: Step, line: Line, run: Callable[..., Values]) -> None:
        k, m = key = (line.piece.stage, line.micro_batch)
        stage = s.bounds[m].stages[k]
        gives = stage.gives[:-1] if stage.has_loss else stage.gives
        returned = s.returned.pop(key, {})
        owed = run(m, [returned.get(v) for v in gives], s.weights[m])
        if s.unsent[key]:
            s.owed[key] = owed
        s.made.pop(key, None)
        names = s.bounds[m].captured.values
        for b in self._coming[k]:
            if (b.source, m) in self._runs:
                _add(s.returned[b.source, m], {n: owed[n] for t in b.gradients if (n := names[t]) in owed})

    def backward_weights(self, s: Step, line: Line) -> None:
        s.bounds[line.micro_batch].stages[line.piece.stage].backward_weights(line.micro_batch)

    def send_values(self, s: Step, line: Line) -> None:
        self._send(s, line, s.made[line.piece.stage, line.micro_batch])

    def send_gradients(self, s: Step, line: Line) -> None:
        keys = [(k, line.micro_batch) for k in self._returners[line.number]]
        owed = s.owed[keys[0]]
        if len(keys) > 1:  # several stages read of what it was made of
            owed = {}
            names = s.contents[line.micro_batch][line.number].names
            for key in keys:
                _add(owed, {n: s.owed[key][n] for n in names if n in s.owed[key]})
        self._send(s, line, owed)
        for key in keys:
            s.unsent[key] -= 1
            if not s.unsent[key]:
                del s.owed[key]

    def _send(self, s: Step, line: Line, held: Values) -> None:
        c = s.contents[line.micro_batch][line.number]
        tensors = [held[n] if n in held else self._nothing(meta) for n, meta in zip(c.names, c.metas, strict=True)]
        s.sending.extend(self._transport.send(tensors, c.metas, c.source, c.target, c.tag))
        while s.sending and s.sending[0][0].is_completed():
            s.sending.popleft()

    def _nothing(self, meta: TensorMeta) -> Tensor:
        """The gradient of what the loss does not depend on here: its maker waits for an answer."""
        return torch.zeros(meta.shape, dtype=meta.dtype, device=self._place.torch_device)

    def reduce(self, s: Step, line: Line) -> None:
        s.sums.append((self._places[line.number], self._optimising.reduce(line.piece.group)))

    def reduce_norm(self, s: Step, line: Line) -> None:
        self._end_sums(s, line)
        self._optimising.reduce_norm()

    def update(self, s: Step, line: Line) -> None:
        self._end_sums(s, line)
        self._optimising.update()

    def _end_sums(self, s: Step, line: Line | None = None) -> None:
        """Wait for the sums that were begun, in their order; each ends here on the stopwatch, and `line` begins."""
        for place, end in s.sums:
            end()
            self.watch.finish(place)
        if s.sums and line:
            self.watch.begin(self._places[line.number])
        s.sums.clear()

    def free(self, s: Step, line: Line) -> None:
        key = (line.piece.stage, line.micro_batch)
        s.made.pop(key, None)
        s.bounds[line.micro_batch].stages[line.piece.stage].free(line.micro_batch)

    # ---- failures ---------------------------------------------------------------------------------------------------

    def _broken(self, number: int, error: RuntimeError) -> Exception:
        """A broken message as the peer's failure; any other error as it is."""
        if not is_lost_peer(error):
            return error
        me = self._place.ranks[self._place.device]
        instruction = self.program[number] if number >= 0 else None
        route = instruction.piece.route if instruction else ("", "")
        peer = next((r for d in route if d and (r := self._place.ranks[d]) != me), -1)
        doing = str(instruction) if instruction else "waiting for its messages to leave"
        first = str(error).strip().splitlines()[0]
        return WorkerFailed(f"rank {me} lost rank {peer} during {doing}: {first}", rank=peer, doing=doing)


Handler = Callable[[Interpreter, Step, Line], None]

HANDLERS: Mapping[tuple[Op, PieceKind], Handler] = {
    (Op.RECV, "values"): Interpreter.receive_values,
    (Op.RECV, "gradients"): Interpreter.receive_gradients,
    (Op.COMPUTE, "forward"): Interpreter.forward,
    (Op.COMPUTE, "backward"): Interpreter.backward,
    (Op.COMPUTE, "input"): Interpreter.backward_inputs,
    (Op.COMPUTE, "weight"): Interpreter.backward_weights,
    (Op.SEND, "values"): Interpreter.send_values,
    (Op.SEND, "gradients"): Interpreter.send_gradients,
    (Op.REDUCE, "sum"): Interpreter.reduce,
    (Op.REDUCE, "norm"): Interpreter.reduce_norm,
    (Op.UPDATE, "update"): Interpreter.update,
    (Op.FREE, "free"): Interpreter.free,
}


def is_lost_peer(error: BaseException) -> bool:
    """The error of a collective or a message whose other side went away or fell silent. A job may fail with the same words: what it
    raises is no RuntimeError of torch.distributed, or of a call from here."""
    if isinstance(error, WorkerFailed | PeerGone):
        return True
    text, trace = str(error), error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    ours = not trace or module.startswith(("torch.distributed", "partita.training"))
    signs = ("onnection", "imed out", "imeout", "gloo", "NCCL")
    return isinstance(error, RuntimeError) and ours and any(sign in text for sign in signs)


def _contents(piece: Piece, captured: Named, ranks: Mapping[str, int], tag: int) -> Contents:
    names = tuple(captured.values[t] for t in piece.tensors)
    source, target = (ranks[device] for device in piece.route)
    return Contents(names, tuple(captured.meta[n] for n in names), source, target, tag)


def _add(held: Values, more: Values) -> None:
    """Gradients of one value from several readers add up."""
    for name, tensor in more.items():
        held[name] = held[name] + tensor if name in held else tensor


def _readers(found: Sequence[Boundary], piece: Piece) -> list[tuple[int, list[int]]]:
    """(stage, which of a message's tensors it reads) of the device that the message is for."""
    place = {t: p for p, t in enumerate(piece.tensors)}
    of_device = [b for b in found if b.source == piece.stage and piece.target in b.by]
    return [(b.target, [place[t] for t in b.tensors if t in place]) for b in of_device]


def _script(program: Program, device: str) -> list[Line]:
    """What a device does, in the order in which it does it: its queue, sends after what they need, and sums of gradients
    begun after what they need, in ascending number, so that all members begin them in one order."""
    if device not in program.queues[: program.devices]:
        return []
    own = program.by_queue[program.queues.index(device)].tolist()
    waiting: dict[int, list[int]] = defaultdict(list)
    last = [i for i in own if program.op[i] == Op.COMPUTE][-1:]
    place = {i: k for k, i in enumerate(own)}
    begun = -1
    for i in np.flatnonzero((program.op == Op.SEND) | (program.op == Op.REDUCE)).tolist():
        piece = program.pieces[program.piece[i]]
        if piece.route[0] != device:
            continue
        needs = program.needs.row(i).tolist()
        if program.op[i] == Op.SEND:
            waiting[int(needs[0])].append(i)
            continue
        mine = [k for k in needs if k in place] if piece.kind == "sum" else last
        begun = max([begun, *(place[k] for k in mine)])
        waiting[own[begun] if begun >= 0 else -1].append(i)
    script = waiting[-1] + [j for i in own for j in (i, *waiting[i])]
    return [_line(program, i) for i in script]


def _line(program: Program, i: int) -> Line:
    piece = program.pieces[program.piece[i]]
    return Line(i, piece, int(program.micro_batch[i]), HANDLERS[Op(int(program.op[i])), piece.kind])


def _receives(program: Program, script: Sequence[Line]) -> dict[str, list[Line]]:
    """Sender -> this rank's receives from it, in the order in which they are sent."""
    found: dict[str, list[tuple[int, Line]]] = defaultdict(list)
    for line in script:
        if program.op[line.number] == Op.RECV:
            found[line.piece.route[0]].append((_send_of(program, line.number), line))
    return {sender: [line for _, line in sorted(rows, key=lambda r: r[0])] for sender, rows in found.items()}


def _send_of(program: Program, receive: int) -> int:
    return next(int(j) for j in program.needs.row(receive) if program.op[j] == Op.SEND)


def message_tags(program: Program) -> dict[int, int]:
    """Send, and the receive that waits for it -> the tag of its first tensor: tensors are numbered through the program,
    so that no two of a step have one tag, and both sides know them."""
    sends = np.flatnonzero(program.op == Op.SEND).tolist()
    counts = [len(program.pieces[program.piece[i]].tensors) for i in sends]
    first = (
        dict(zip(sends, np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int).tolist(), strict=True))
        if sends
        else {}
    )
    return first | {i: first[_send_of(program, i)] for i in np.flatnonzero(program.op == Op.RECV).tolist()}
