"""Probing: the tasks that tell a device's speed, drawn from a job's time, and run on the device at hand."""

from __future__ import annotations

import contextlib
import itertools
import math
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from partita.errors import JobError, sentence_of
from partita.nouns.graph import FloatArray
from partita.nouns.probe import LEAST, MOST_RUNS, ProbePiece
from partita.training.capture.captured import Captured, TensorMeta
from partita.training.job import Batch, Precision, drawing
from partita.training.runtime.device import work_clock
from partita.training.runtime.stage import Stage, StageCode, batch_leaves, stage_code

Tasks = tuple[str, ...]

PARTS = 12  #: equal parts of a pass's time, a piece for each
#: Where in each part, as a share of it: evenly over all of them. In the middle of each, the pieces of a model of six equal layers are the
#: same two tasks of every layer.
_WITHIN = (np.arange(PARTS) + 0.5) * (math.sqrt(5) - 1) / 2 % 1
_LEAST_S = 4e-4  #: what a piece takes at least, with its neighbours where they are as small: less is all overhead
AT_ONCE = 2  #: readings, in measuring as in a run: four say 3 % less each (ViT, BERT on an EPYC, 2026-11-29)
_STRIDE = 5  #: from one piece to the next one read: over the model and back within a few readings
_FEW_PAGES, _TRIES = 8, 3
_LEARNS = 0.25  #: of what readings took, with each time that some are asked for
_MOST_LEARNT = 10.0  #: times as long as before: more is a rank that was stopped
_UNCOUNTED = 4 / 3  #: pieces that a row of readings takes beside those that count: one, and a forward
#: A pass that is no longer is one piece, run in a row as often as a first look says that this holds it, so that it is as warm as the job
#: itself: one of 0.1 ms is 3 to 20 % above its last time in its eighth run behind a step, and 1 % behind a measurement's pass (EPYC, 2026-11-28).
SHORT_PASS_S = 3e-3
_FEWEST_RUNS = 2
_MOST_BYTES = 256e6  #: of parameters that the pieces hold; drawn without those that are too large


class Prober:
    """Takes readings on a device, by the thread that calls it. It holds tensors of its own: the job's are left alone."""

    def __init__(
        self,
        pieces: Sequence[ProbePiece],
        captured: Captured,
        part: Batch,
        device: torch.device,
        precision: Precision = contextlib.nullcontext,
    ) -> None:
        """`part` is a micro-batch of the size that `captured` has. What the pieces take need not be known exactly, only be the same
        wherever readings are compared. Raises what torch raises where a piece cannot run so."""
        self._now = work_clock(device)
        leaves = batch_leaves(part, device)
        known = {
            tasks: _Work(tasks, captured, leaves, device, precision) for tasks in dict.fromkeys(p.tasks for p in pieces)
        }
        self._works = [known[p.tasks] for p in pieces]
        self._order, self._last = _rotation(len(pieces)), len(pieces) - 1
        self._runs = pieces[0].runs if len(pieces) == 1 else 1
        self._seconds = max(LEAST, sum(p.seconds for p in pieces) / len(pieces))
        self._slower = 1.0  # what readings take by the wall clock as a multiple of what was planned: of the latest most
        for _ in range(2):  # the first calls find their way and their memory
            for work, count in Counter(self._works).items():
                for number in range(min(count, 2)):
                    work.forward(number)
                    work.backward(number)
            if self._runs == 1:
                self._in_a_row(self._last, [(self._last + k) % len(pieces) for k in range(len(pieces))])

    def takes_s(self, times: int) -> float:
        """What so many readings take, on average, that are asked for at once: as long as in measuring, or twice, four times as long and so
        on where that is nearer to what the latest took. So ranks that are about as slow as each other say the same, and read in the same
        steps as a rule: until one of them was charged otherwise for a while."""
        return self._planned_s(times) * 2.0 ** round(math.log2(max(1.0, self._slower)))

    def _planned_s(self, times: int) -> float:
        if not times:
            return 0.0
        return self._seconds * (self._runs if self._runs > 1 else times + _UNCOUNTED)

    def read(self, times: int = 1) -> FloatArray:
        """[pieces] seconds of the next pieces in turn, as many as asked for, which is one or more; nan for the others, by `work_clock`. What
        asks the system for memory runs again, twice at most: a page of 4 kB took 10 us of a virtual machine, so that a convolution of
        23 ms took 116, and a ReLU of 5 ms in its second run 43 (an EPYC, 2026-11-27)."""
        self._now()  # on a GPU it waits for what the job has asked for, which is no part of a reading
        began = time.perf_counter()
        found = self._readings(times)
        took = (time.perf_counter() - began) / self._planned_s(times)
        self._slower += _LEARNS * (min(took, _MOST_LEARNT * self._slower) - self._slower)
        return found

    def _readings(self, times: int) -> FloatArray:
        found = np.full(len(self._works), np.nan)
        if self._runs > 1:
            found[0] = self._alone()
            return found
        wanted, before = [next(self._order) for _ in range(min(times, len(self._works)))], self._last
        self._last = wanted[-1]
        for _ in range(_TRIES):
            found[wanted], pages = self._in_a_row(before, wanted)
            wanted = [piece for piece, asked in zip(wanted, pages, strict=True) if asked > _FEW_PAGES]
            if not wanted:
                break
        return found

    def _alone(self) -> float:
        """Of the only piece: of the last of so many runs as it takes until it is as warm as the job."""
        work = self._works[0]
        for k in range(self._runs + _TRIES - 1):
            seconds, pages = self._timed(work.forward, 0) + self._timed(work.backward, 0)
            if k >= self._runs - 1 and pages <= _FEW_PAGES:
                break
        return float(seconds)

    def _in_a_row(self, before: int, pieces: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """(Seconds, pages asked for) of each. As in a pipeline, the forward of each runs before the backward of the one before it: it
        finds its data, and its backward its activations, as cold as a pass of the job does. One that is not counted runs `before` them
        all: behind the steps of a run it takes longer than behind the passes of a measurement (a layer of BERT 2.9 and 2.5 ms; Xeon,
        2026-11-25). And its forward once more at the end, so that the last of them is like the others.

            forward   0 1   2   3   0
            backward      0   1   2   3
        """
        row = [self._works[p] for p in (before, *pieces, before)]
        number, took = 0, np.zeros((len(row), 2))
        row[0].forward(number)
        for k in range(1, len(row)):
            earlier, number = number, 1 - number if row[k] is row[k - 1] else 0
            took[k] = self._timed(row[k].forward, number)
            took[k - 1] += self._timed(row[k - 1].backward, earlier)
        row[-1].drop(number)
        return took[1:-1, 0], took[1:-1, 1]

    def _timed(self, function: Callable[[int], None], number: int) -> FloatArray:
        """(seconds, pages asked for)"""
        pages, began = _pages(), self._now()
        function(number)
        return np.array([self._now() - began, _pages() - pages])


def _pages() -> int:
    """That this thread has had to ask the system for so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def _runs(piece_s: float) -> int:
    """How often the only piece of a probe is run for a reading, in measuring as in every run: its second run takes 5 % longer
    than its third.

    >>> [_runs(s) for s in (0.0, 1e-4, 7e-4, 2e-3, 1.2e-2)]
    [30, 30, 5, 2, 2]
    """
    if piece_s * MOST_RUNS <= SHORT_PASS_S:
        return MOST_RUNS
    return max(_FEWEST_RUNS, math.ceil(SHORT_PASS_S / piece_s))


def _rotation(pieces: int) -> Iterator[int]:
    """Every piece once in so many, neighbours apart, none twice in a row; each time from the next one on, or each would always be read at
    the same place of a round of measuring.

    >>> from itertools import islice
    >>> list(islice(_rotation(4), 12))
    [0, 3, 2, 1, 3, 2, 1, 0, 2, 1, 0, 3]
    """
    stride = next(s for s in range(min(_STRIDE, pieces), 0, -1) if math.gcd(s, pieces) == 1)
    for k in itertools.count():
        skipped = k // pieces if pieces > 2 else 0
        yield (k + skipped) * stride % pieces


# ---- drawing the pieces -------------------------------------------------------------------------------------------------


def prober_for(
    captured: Captured, task_s: Sequence[float], part: Batch, device: torch.device, precision: Precision
) -> tuple[tuple[ProbePiece, ...], Prober]:
    """The pieces `drawn` for a job, and their prober. Tasks that do not run on numbers that stand in for their own are left out (a
    factorisation of what has to be positive definite, positions that lie beyond their table); of a short pass, pieces are taken then.
    Raises JobError where none runs."""
    leaves, refused, short_pass_s = batch_leaves(part, device), dict[str, Exception](), SHORT_PASS_S

    def error_of(tasks: Tasks) -> Exception | None:
        try:
            work = _Work(tasks, captured, leaves, device, precision)
            work.forward(0)
            work.backward(0)
        except Exception as error:
            return error
        return None

    while len(refused) < len(captured.task_nodes):
        pieces = drawn(captured, task_s, short_pass_s, refused)
        try:
            return pieces, Prober(pieces, captured, part, device, precision)
        except Exception as together:  # whatever an operator raises
            alone = {tasks: error for tasks in dict.fromkeys(p.tasks for p in pieces) if (error := error_of(tasks))}
            failing = alone or {p.tasks: together for p in pieces}
        for tasks, error in failing.items():
            apart = {t: e for t in tasks if (e := error_of((t,)))}
            if not apart and not short_pass_s:  # they do not run together, and do apart
                apart = dict.fromkeys(tasks, error)
            refused |= apart
        short_pass_s = 0.0
    raise JobError(
        f"no operator of this job runs on numbers that stand in for its own: {sentence_of(next(iter(refused.values())))}",
        hint="how fast a device is in a run is told by operators of the job: it needs one of which numbers between 0.5 and 1 are right inputs",
    )


def drawn(
    captured: Captured,
    task_s: Sequence[float],
    short_pass_s: float = SHORT_PASS_S,
    without: Collection[str] = (),
) -> tuple[ProbePiece, ...]:
    """The tasks that run at a moment of each part of a pass, which takes `task_s` [forward tasks, in graph order] seconds with
    their backwards, without some; a small one with its small neighbours. Where all parts fall on the same tasks, they are one. A short
    pass is one piece: which tasks would stand for it hangs on noise (of a perceptron of 0.35 ms those of 0.1 to 0.24 ms, with which the whole
    went up and down by 30 %, and with the whole by 2 %; EPYC, 2026-11-28). O(tasks)."""
    tasks, held = [*captured.task_nodes], {t.id: t.parameter_bytes for t in captured.graph.tasks}
    seconds = np.maximum(np.array(task_s), 1e-12)
    runs = np.array([t not in without for t in tasks])
    light = runs & np.array([held[t] <= _MOST_BYTES / PARTS for t in tasks])
    light = light if light.any() else runs
    if light.all() and seconds.sum() <= short_pass_s:
        return (_only(tuple(tasks), float(seconds.sum())),)
    ends = np.cumsum(np.where(light, seconds, 0.0))
    moments = (np.arange(PARTS) + _WITHIN) / PARTS * ends[-1]
    found = [
        _with_neighbours(int(i), np.where(light, seconds, math.inf))
        for i in np.searchsorted(ends, moments).clip(max=len(tasks) - 1)
    ]
    counts = Counter(found)
    common = math.gcd(*counts.values())
    once = {(a, b): ProbePiece(tuple(tasks[a:b]), float(sum(task_s[a:b]))) for a, b in counts}
    if len(once) == 1:
        (piece,) = once.values()
        return (_only(piece.tasks, piece.seconds),)
    return tuple(once[where] for where, n in counts.items() for _ in range(n // common))


def _only(tasks: Tasks, seconds: float) -> ProbePiece:
    """The only piece of a probe."""
    return ProbePiece(tasks, seconds, _runs(seconds))


def _with_neighbours(at: int, seconds: FloatArray) -> tuple[int, int]:
    """[a, b) around a task, long enough to be timed, without drawing in a task that is larger than that by itself (inf: no piece may
    hold it)."""
    a, b, n = at, at + 1, len(seconds)
    while seconds[a:b].sum() < _LEAST_S and b - a < n:
        left = seconds[a - 1] if a > 0 else math.inf
        right = seconds[b] if b < n else math.inf
        if min(left, right) > _LEAST_S:
            break
        a, b = (a - 1, b) if left <= right else (a, b + 1)
    return a, b


# ---- running them -------------------------------------------------------------------------------------------------------


class _Work:
    """Tasks forward and backward, as a stage of their own; two may be under way, told apart by their number."""

    def __init__(
        self, tasks: Tasks, captured: Captured, leaves: Sequence[object], device: torch.device, precision: Precision
    ) -> None:
        code = stage_code(captured, tasks, _read_elsewhere(captured, tasks))
        tensors = _tensors(code, captured, device)
        self._stage = Stage(code, captured.bindings, tensors, device=device, precision=precision)
        self._leaves, self._device = leaves, device
        self._received = defaultdict[int, dict[str, Tensor]](
            lambda: {n: _stand_in(captured.meta[n], device) for n in code.received}
        )
        self._gradients: list[Tensor | None] = []
        self._trains = False

    def forward(self, number: int) -> None:
        received, code = self._received[number], self._stage.code
        with _undrawn(self._device) if code.random else contextlib.nullcontext():
            outputs = self._stage.forward(number, self._leaves, received, 0)
        self._trains = any(o.requires_grad for o in outputs)
        if not self._gradients:
            made = outputs[:-1] if code.has_loss else outputs
            self._gradients = [torch.ones_like(o) if o.requires_grad else None for o in made]

    def backward(self, number: int) -> None:
        if self._trains:
            self._stage.backward(number, self._gradients, 1.0)
        else:
            self.drop(number)

    def drop(self, number: int) -> None:
        """What a forward has kept, without a backward."""
        self._stage.free(number)


@contextlib.contextmanager
def _undrawn(device: torch.device) -> Iterator[None]:
    """Whoever draws at random on the CPU or this device afterwards draws as if nobody had."""
    with drawing, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def held_bytes(pieces: Sequence[ProbePiece], captured: Captured) -> float:
    """Of memory that a prober of these holds at most: what its pieces read, with two sets of what others would send; gradients of what
    they hand on, of what they receive and of parameters; and what the two largest keep from their forwards until their backwards."""
    graph, held, kept = captured.graph, 0.0, 0.0
    for tasks in {p.tasks for p in pieces}:
        code = stage_code(captured, tasks, _read_elsewhere(captured, tasks))
        own = [graph.tasks[graph.index[t]] for t in tasks]
        read = (*code.received * 3, *code.gives, *_bound_to(captured, code.buffers).values())
        held += sum(captured.meta[n].size_bytes for n in read) + 2 * sum(t.parameter_bytes for t in own)
        kept = max(kept, sum(t.activation_bytes for t in own))
    return held + 2 * kept


def _read_elsewhere(captured: Captured, tasks: Tasks) -> Tasks:
    """Names of the values that other tasks read."""
    own = {n for t in tasks for n in captured.task_nodes[t]}
    return tuple(
        n.name
        for n in captured.code.graph.nodes
        if n.name in own
        and n.name in captured.meta
        and n.name != captured.loss
        and any(u.name not in own for u in n.users)
    )


def _tensors(code: StageCode, captured: Captured, device: torch.device) -> Mapping[str, Tensor]:
    """Parameters and buffers that the tasks read, with values that cost what any others would. What comes out of a layer is near 1 as
    what goes in: behind 25 layers of 64 numbers each it would be infinite else, and nothing can be drawn from such probabilities.
    """
    at = _bound_to(captured, (*code.parameters, *code.buffers))
    found = {name: _stand_in(captured.meta[node], device, most=1.5) for name, node in at.items()}
    return {n: _parameter(t) if n in code.parameters else t for n, t in found.items()}


def _bound_to(captured: Captured, names: Sequence[str]) -> dict[str, str]:
    """The node that stands for each parameter and buffer."""
    return {b.name: n for n, b in captured.bindings.items() if b.kind in ("parameter", "buffer") and b.name in names}


def _parameter(values: Tensor) -> torch.nn.Parameter:
    """A matrix or kernel sums up as many products as it has numbers for each output."""
    weights = values.detach()
    if weights.dim() > 1 and weights.is_floating_point():
        weights /= max(1, weights.numel() // max(1, len(weights)))
    return torch.nn.Parameter(weights, values.requires_grad)


def _stand_in(meta: TensorMeta, device: torch.device, most: float = 1.0) -> Tensor:
    """A tensor like it: numbers from 0.5 up, sound as probabilities and as variances; indices and masks of 0."""
    if not meta.dtype.is_floating_point:
        return torch.zeros(meta.shape, dtype=meta.dtype, device=device)
    values = torch.empty(meta.shape, dtype=meta.dtype, device=device)
    if 0 not in meta.stride:  # not one that repeats itself
        values = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device)
    values.uniform_(0.5, most, generator=torch.Generator(device).manual_seed(0))
    return values.requires_grad_(meta.requires_grad)
