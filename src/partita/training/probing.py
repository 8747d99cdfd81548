"""Probing: a job's probe chosen from what the job calls, and read on the device at hand.

convolution   (times, batch, in, height, width, out, kernel height, kernel width, stride, padding, groups)
product       (times, rows, inner, columns)
memory        (times, elements): the sum of two vectors, written into a third
calls         (times): a tiny operation with its backward, which costs Python, the dispatcher and autograd and little else
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, fx

from partita.nouns.probe import ProbePiece
from partita.training.capture.captured import Captured
from partita.training.capture.operators import called, operator_name

#: Operators whose time is spent multiplying.
PRODUCTS = frozenset(("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum", "bilinear", "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"))  # fmt: skip
_PRODUCT_FLOP = 1.5e7  #: of one call: half a millisecond or so of a core
_MEMORY_ELEMENTS = 1 << 18  #: at most
_PIECE_S = 3e-4  #: what a piece should take; a call that takes more is a piece as it is
_FIRST = 7  #: readings that say how long a piece is


class Prober:
    """Takes readings on a device, by the thread that calls it."""

    def __init__(self, pieces: Sequence[ProbePiece], device: torch.device) -> None:
        self._device = device
        self._runs = [_BUILD[p.kind](p.sizes, device) for p in pieces]
        for _ in range(2):  # the first calls find their way and their memory
            self.read()

    def read(self, times: int = 1) -> tuple[float, ...]:
        """Seconds of each piece, the median of so many times: CPU time of this thread; on a GPU the time until it is done."""
        found = np.empty((times, len(self._runs)))
        for row in found:
            for i, run in enumerate(self._runs):
                began = self._now()
                run()
                row[i] = self._now() - began
        return tuple(float(x) for x in np.median(found, axis=0))

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return time.perf_counter()
        return time.thread_time()


# ---- choosing the pieces ------------------------------------------------------------------------------------------------


def pieces_of(captured: Captured) -> tuple[ProbePiece, ...]:
    """A job's heaviest product, what it does to memory, and calls; their shares and seconds are not known yet."""
    nodes = [n for n in captured.code.graph.nodes if n.op == "call_function"]
    products = sorted(((_flop(n, captured), n) for n in nodes if operator_name(n) in PRODUCTS), key=lambda p: -p[0])
    others = [
        math.prod(m.shape) for n in nodes if operator_name(n) not in PRODUCTS and (m := captured.meta.get(n.name))
    ]
    elements = int(np.clip(np.median(others) if others else 1 << 14, 1 << 12, _MEMORY_ELEMENTS))
    found = [_product(products[0][1], captured)] if products and products[0][0] > 0 else []
    return (*found, ProbePiece("memory", (1, elements), 0.0, 0.0), ProbePiece("calls", (1,), 0.0, 0.0))


def long_enough(pieces: Sequence[ProbePiece], device: torch.device) -> tuple[ProbePiece, ...]:
    """The pieces repeated until each takes about as long as it should on this device."""
    once = Prober(pieces, device).read(_FIRST)
    times = [max(1, min(64, round(_PIECE_S / max(s, 1e-7)))) for s in once]
    return tuple(replace(p, sizes=(n, *p.sizes[1:])) for p, n in zip(pieces, times, strict=True))


def shares_of(captured: Captured, task_s: Mapping[str, float], call_s: float) -> Mapping[str, float]:
    """Kind of work -> its share of the job's time: `task_s` of every forward task with its backward, `call_s` of each call."""
    by_name = {n.name: n for n in captured.code.graph.nodes}
    product = other = calls = 0.0
    for task, names in captured.task_nodes.items():
        multiplies = any(operator_name(by_name[n]) in PRODUCTS for n in names)
        overhead = min(len(names) * call_s, task_s[task])
        calls += overhead
        product += (task_s[task] - overhead) * multiplies
        other += (task_s[task] - overhead) * (not multiplies)
    total = (product + other + calls) or 1.0
    return {"product": product / total, "memory": other / total, "calls": calls / total}


def with_shares(pieces: Sequence[ProbePiece], shares: Mapping[str, float]) -> tuple[ProbePiece, ...]:
    """The pieces with their shares. Without a product its share is nothing."""
    return tuple(replace(p, share=shares["product" if p.kind == "convolution" else p.kind]) for p in pieces)


def call_seconds(pieces: Sequence[ProbePiece], seconds: Sequence[float]) -> float:
    """What one call takes with its backward, when the pieces took so long."""
    return next(s / p.sizes[0] for p, s in zip(pieces, seconds, strict=True) if p.kind == "calls")


def _product(node: fx.Node, captured: Captured) -> ProbePiece:
    """A piece with the kernel and the channels of the call, and as much of its size as half a millisecond allows."""
    left, right = _operands(node, captured)
    if operator_name(node) == "conv2d" and (sizes := _convolution_sizes(node, left, right)):
        return ProbePiece("convolution", sizes, 0.0, 0.0)
    columns, inner = _columns_and_inner(node, right)
    sides = [max(1, round(_flop(node, captured) / (2 * columns * inner))), inner, columns]
    while 2 * math.prod(sides) > 1.5 * _PRODUCT_FLOP:
        longest = int(np.argmax(sides))
        sides[longest] = -(-sides[longest] // 2)
    return ProbePiece("product", (1, *sides), 0.0, 0.0)


def _convolution_sizes(node: fx.Node, image: tuple[int, ...], weight: tuple[int, ...]) -> tuple[int, ...]:
    """() where it is of a kind that a piece does not describe: dilated, padded by a name, or unlike in its two directions."""
    _, args = called(node)
    stride, padding, dilation = (args[k] if len(args) > k else default for k, default in ((3, 1), (4, 0), (5, 1)))
    groups = int(args[6]) if len(args) > 6 else 1
    plain = [_one(x) for x in (stride, padding, dilation)]
    if len(image) != 4 or None in plain or plain[2] != 1:
        return ()
    batch, channels, height, width = image
    out, _, *kernel = weight
    per_row = 2 * out * math.prod(weight[1:]) * max(1, width // int(plain[0] or 1))
    rows = max(1, round(_PRODUCT_FLOP / per_row))
    height = min(height, max(kernel[0], rows * int(plain[0] or 1)))
    flop = per_row * max(1, height // int(plain[0] or 1))
    batch = min(batch, max(1, round(_PRODUCT_FLOP / flop)))
    return (
        1,
        batch,
        channels,
        height,
        width,
        out,
        *kernel,
        int(plain[0] or 1),
        int(plain[1] or 0),
        groups,
    )


def _one(value: object) -> int | None:
    """The number that a list of equal numbers repeats; None where they differ, or are a word."""
    if isinstance(value, int):
        return value
    numbers = set(value) if isinstance(value, list | tuple) else set()
    return numbers.pop() if len(numbers) == 1 and all(isinstance(n, int) for n in numbers) else None


def _operands(node: fx.Node, captured: Captured) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the first two tensors that a call takes; () where there are none."""
    _, args = called(node)
    shapes = [captured.meta[a.name].shape for a in args if isinstance(a, fx.Node) and a.name in captured.meta]
    return (*shapes, (), ())[0], (*shapes, (), ())[1]


def _columns_and_inner(node: fx.Node, right: tuple[int, ...]) -> tuple[int, int]:
    name = operator_name(node)
    if name == "linear" or name.startswith("conv"):
        return max(1, right[0]), max(1, math.prod(right[1:]))
    return max(1, right[-1] if right else 1), max(1, right[-2] if len(right) > 1 else 1)


def _flop(node: fx.Node, captured: Captured) -> float:
    """Of the forward of a product; 0 where its shapes are not known."""
    _, right = _operands(node, captured)
    made = captured.meta.get(node.name)
    if made is None or not right:
        return 0.0
    return 2.0 * math.prod(made.shape) * _columns_and_inner(node, right)[1]


# ---- running them -------------------------------------------------------------------------------------------------------


def _convolution(sizes: Sequence[int], device: torch.device) -> Callable[[], None]:
    times, batch, channels, height, width, out, kernel_h, kernel_w, stride, padding, groups = sizes
    image = torch.zeros(batch, channels, height, width, device=device)
    weight = torch.zeros(out, channels // groups, kernel_h, kernel_w, device=device)

    def run() -> None:
        with torch.inference_mode():
            for _ in range(times):
                torch.conv2d(image, weight, None, stride, padding, 1, groups)

    return run


def _matrix_product(sizes: Sequence[int], device: torch.device) -> Callable[[], None]:
    times, rows, inner, columns = sizes
    left, right = torch.zeros(rows, inner, device=device), torch.zeros(columns, inner, device=device)

    def run() -> None:
        with torch.inference_mode():
            for _ in range(times):
                torch.nn.functional.linear(left, right)

    return run


def _memory(sizes: Sequence[int], device: torch.device) -> Callable[[], None]:
    times, elements = sizes
    a, b, c = (torch.zeros(elements, device=device) for _ in range(3))

    def run() -> None:
        with torch.inference_mode():
            for _ in range(times):
                torch.add(a, b, out=c)

    return run


def _calls(sizes: Sequence[int], device: torch.device) -> Callable[[], None]:
    start = torch.ones(4, device=device, requires_grad=True)

    def run() -> None:
        value: Tensor = start
        for _ in range(sizes[0]):
            value = value * 1.0
        torch.autograd.grad(value, start, torch.ones_like(value))

    return run


_BUILD: Mapping[str, Callable[[Sequence[int], torch.device], Callable[[], None]]] = {
    "convolution": _convolution,
    "product": _matrix_product,
    "memory": _memory,
    "calls": _calls,
}
