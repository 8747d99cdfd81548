"""The code of one stage: what it takes, what it gives, and how it runs forward and backward on a micro-batch.

takes: parameters, buffers, constants, leaves of the batch, and values that earlier stages send
gives: values that later stages read, and the loss where it is made here
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils import _pytree as pytree

from partita.training.capture.model import Binding, Captured, written_buffers
from partita.training.capture.operators import draws_random_numbers, for_device, operator_name
from partita.training.job import Batch, Precision, drawing
from partita.training.runtime.split_backward import WeightPart, input_part, run_backward


@dataclass(frozen=True)
class StageCode:
    """A stage's part of the captured code, as one function of its placeholders."""

    function: fx.GraphModule
    takes: tuple[str, ...]  #: placeholders in order: names in the captured bindings, or values from other stages
    received: tuple[str, ...]  #: those of them that other stages send
    gives: tuple[str, ...]  #: values returned, in order; the loss last where it is made here
    has_loss: bool
    parameters: tuple[str, ...]  #: names of the model's parameters it reads
    buffers: tuple[str, ...]  #: names of the model's buffers it reads or writes
    written: tuple[str, ...]  #: buffers that its forward changes
    random: bool  #: its forward draws random numbers


def stage_code(captured: Captured, tasks: Iterable[str], wanted: Sequence[str]) -> StageCode:
    """The code that runs `tasks` and returns the `wanted` values (and the loss, where one of the tasks makes it).

    Nodes that belong to no task (masks, positions) are copied in wherever they are needed.
    """
    own = {n for t in tasks for n in captured.task_nodes[t]}
    taken = {n for ns in captured.nodes for n in ns}
    has_loss = captured.loss in own
    needed = _needed(captured, own, taken)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    takes: list[str] = []
    outside = _outside(captured, needed)
    for node in captured.code.graph.nodes:
        if node.name in outside:
            copies[node] = graph.placeholder(node.name)
            takes.append(node.name)
    for node in captured.code.graph.nodes:
        if node.name in needed:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    gives = (*wanted, *([captured.loss] if has_loss else []))
    by_name = {n.name: c for n, c in copies.items()}
    graph.output(tuple(by_name[g] for g in gives))
    for node in graph.nodes:
        _write_over(node)
    function = fx.GraphModule(captured.code, graph)
    named = {
        k: [captured.bindings[t].name for t in takes if t in captured.bindings and captured.bindings[t].kind == k]
        for k in ("parameter", "buffer")
    }
    nodes = [n for n in captured.code.graph.nodes if n.name in needed]
    return StageCode(
        function,
        tuple(takes),
        tuple(t for t in takes if t not in captured.bindings),
        gives,
        has_loss,
        tuple(dict.fromkeys(named["parameter"])),
        tuple(dict.fromkeys(named["buffer"])),
        written_buffers(nodes, captured.bindings),
        any(draws_random_numbers(n) for n in nodes),
    )


#: Their backward does not read what they gave.
_FORGET = frozenset(
    ("conv1d", "conv2d", "conv3d", "batch_norm", "linear", "addmm", "mm", "bmm", "matmul", "add", "sub")
)
#: Of more than two dimensions, what they give is a view of a product of matrices, which traced values do not tell.
_FOLD = frozenset(("linear", "matmul"))


def _write_over(node: fx.Node) -> None:
    """A relu on what its stage makes for it alone goes in place, as models write it: nobody sees it, and less passes the caches.
    Not on a view: autograd would copy gradients into the whole of what it is a view of (1.4 ms for 1.0, 2-core EPYC, 2026-11-26)."""
    made = node.args[0] if node.target is torch.ops.aten.relu.default else None
    if (
        isinstance(made, fx.Node)
        and made.op == "call_function"
        and operator_name(made) in _FORGET
        and len(made.users) == 1
        and not _is_folded(made)
    ):
        node.target = torch.ops.aten.relu_.default


def _is_folded(made: fx.Node) -> bool:
    """Whether it is, or may be, a view of a product."""
    value = made.meta.get("val")
    return operator_name(made) in _FOLD and not (isinstance(value, Tensor) and value.dim() <= 2)


def _needed(captured: Captured, own: set[str], taken: set[str]) -> set[str]:
    """The tasks' nodes and every node of no task that they depend on."""
    needed = set(own)
    for node in reversed(list(captured.code.graph.nodes)):
        free = node.op in ("call_function", "get_attr") and node.name not in taken
        if free and any(u.name in needed for u in node.users):
            needed.add(node.name)
    return needed


def _outside(captured: Captured, needed: set[str]) -> set[str]:
    """Names of the values that the needed nodes read and that are not among them."""
    read = {a.name for n in captured.code.graph.nodes if n.name in needed for a in n.all_input_nodes}
    return read - needed


class Stage:
    """A stage that runs: its code with the tensors it is bound to.

    forward() keeps what backward() needs under the micro-batch's number; backward() frees it.
    """

    def __init__(
        self,
        code: StageCode,
        bindings: Mapping[str, Binding],
        tensors: Mapping[str, Tensor],
        *,
        device: torch.device,
        recompute: bool = False,
        precision: Precision = contextlib.nullcontext,
    ) -> None:
        """`tensors` holds this stage's parameters (leaves) and buffers by name; forwards run inside `precision()`."""
        self.code = code
        self._device = device
        self._run = for_device(code.function, device).forward
        self._recompute = recompute
        self._fixed: list[Any] = []  # a placeholder's value where it never changes
        self._leaves: list[tuple[int, int]] = []  # (placeholder, leaf of the batch)
        self._received: list[tuple[int, str]] = []  # (placeholder, value)
        self._arrivals: dict[int, _Leaves] = defaultdict(_Leaves)  # by micro-batch
        self._kept: dict[int, _Kept] = {}
        self._waiting: dict[int, WeightPart] = {}
        self._precision = precision
        self._written = [
            i
            for i, t in enumerate(code.takes)
            if t in bindings and bindings[t].kind == "buffer" and bindings[t].name in code.written
        ]
        for i, name in enumerate(code.takes):
            binding = bindings.get(name)
            value = None
            if binding is None:
                self._received.append((i, name))
            elif binding.kind == "input":
                self._leaves.append((i, int(binding.name)))
            elif binding.kind == "constant":
                value = binding.constant.to(device) if isinstance(binding.constant, Tensor) else binding.constant
            else:
                value = tensors[binding.name]
            self._fixed.append(value)

    @property
    def gives(self) -> tuple[str, ...]:
        return self.code.gives

    @property
    def has_loss(self) -> bool:
        return self.code.has_loss

    def forward(
        self, micro_batch: int, batch_leaves: Sequence[Any], received: Mapping[str, Tensor], seed: int
    ) -> tuple[Tensor, ...]:
        """Run on one micro-batch; returns the values it gives, in the order of `code.gives`."""
        arguments = list(self._fixed)
        for i, leaf in self._leaves:
            arguments[i] = batch_leaves[leaf]
        leaves = self._arrivals[micro_batch]
        arrived = leaves.hold(received)
        for i, name in self._received:
            arguments[i] = arrived[name]
        if not self._recompute:
            outputs = self._seeded(arguments, seed)
            self._kept[micro_batch] = _Kept(outputs, leaves, (), seed)
            return outputs
        before = {i: arguments[i].clone() for i in self._written}
        with torch.no_grad():
            outputs = self._seeded(arguments, seed)
        self._kept[micro_batch] = _Kept((), leaves, tuple(before.get(i, a) for i, a in enumerate(arguments)), seed)
        return outputs

    def backward(self, micro_batch: int, gradients: Sequence[Tensor | None], weight: float) -> dict[str, Tensor]:
        """Add to the parameters' gradients; returns the gradient of each received value that has one.

        `gradients` fits `code.gives` (without the loss); None: nobody reads that value differentiably.
        `weight` is the micro-batch's share of the batch: the loss is scaled by it.
        """
        kept = self._kept.pop(micro_batch)
        outputs, arrived = self._roots(kept, gradients, weight)
        run_backward(outputs, arrived)
        return kept.leaves.let_go()

    def backward_inputs(self, micro_batch: int, gradients: Sequence[Tensor | None], weight: float) -> dict[str, Tensor]:
        """Like `backward`, but most of the parameters' gradients wait for `backward_weights`."""
        kept = self._kept.pop(micro_batch)
        outputs, arrived = self._roots(kept, gradients, weight)
        self._waiting[micro_batch] = input_part(outputs, arrived, kept.leaves.inputs)
        return kept.leaves.handed_out()

    def backward_weights(self, micro_batch: int) -> None:
        """The rest of a backward whose inputs' part has run."""
        self._waiting.pop(micro_batch).run()
        self._arrivals[micro_batch].let_go()

    def free(self, micro_batch: int) -> None:
        """Drop what a forward kept, whose backward never comes."""
        if self._kept.pop(micro_batch, None):
            self._arrivals[micro_batch].let_go()

    def _roots(
        self, kept: _Kept, gradients: Sequence[Tensor | None], weight: float
    ) -> tuple[list[Tensor], list[Tensor]]:
        """(outputs that a backward begins at, the gradient that arrives at each)."""
        outputs = kept.outputs or self._again(kept)
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=False) if g is not None and o.requires_grad]
        if self.code.has_loss:
            pairs.append((outputs[-1], torch.full_like(outputs[-1], weight)))
        return [o for o, _ in pairs], [g for _, g in pairs]

    def _again(self, kept: _Kept) -> tuple[Tensor, ...]:
        """The forward once more, now differentiably, with buffers as it found them; what it writes to them is thrown away."""
        return self._seeded(kept.arguments, kept.seed)

    def _seeded(self, arguments: Sequence[Any], seed: int) -> tuple[Tensor, ...]:
        """The stage's code; what it draws at random depends on the seed alone."""
        if not self.code.random:
            with self._precision():
                return self._run(*arguments)  # type: ignore[no-any-return]
        with drawing, self._precision():
            _seed(seed, self._device)
            return self._run(*arguments)  # type: ignore[no-any-return]


def _seed(seed: int, device: torch.device) -> None:
    """The generators that code on a device draws from, and no others: `torch.manual_seed` also keeps a stack trace a call for devices
    that are not in use, which takes 250 us (2-core EPYC, 2026-11-28), this one a microsecond."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


class _Leaves:
    """What a stage has received for a micro-batch, as leaves of autograd that stay from step to step: making one, and catching its
    gradient, takes 13 us (2-core Xeon, 2026-11-24), filling it 0.2.

    A gradient is taken where it would be added to `.grad`: what autograd adds up there it may copy first, and nobody else adds to it.
    """

    def __init__(self) -> None:
        self._gradients: dict[str, Tensor] = {}
        self._leaves: dict[str, Tensor] = {}
        self._nodes: list[Node] = []  # a hook lives as long as the node it hangs on

    @property
    def inputs(self) -> list[Tensor]:
        """Those that want a gradient."""
        return list(self._leaves.values())

    def hold(self, received: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The values to compute with: as received, or, where they want gradients, leaves that hold them."""
        self._gradients = {}
        return {name: self._filled(name, t) if t.requires_grad else t for name, t in received.items()}

    def handed_out(self) -> dict[str, Tensor]:
        """The gradients that arrived, which are not held any longer."""
        gradients, self._gradients = self._gradients, {}
        return gradients

    def let_go(self) -> dict[str, Tensor]:
        """Likewise, nor what was received."""
        for leaf in self._leaves.values():
            leaf.data = leaf.new_empty(0)
        return self.handed_out()

    def _filled(self, name: str, tensor: Tensor) -> Tensor:
        leaf = self._leaves.get(name)
        if leaf is None:
            leaf = self._leaves[name] = tensor.detach().requires_grad_()
            node = get_gradient_edge(leaf).node
            node.register_prehook(self._catch(name))
            self._nodes.append(node)
        leaf.data = tensor
        return leaf

    def _catch(self, name: str) -> Callable[[tuple[Tensor, ...]], tuple[None]]:
        def hook(arrived: tuple[Tensor, ...]) -> tuple[None]:
            self._gradients[name] = arrived[0]
            return (None,)

        return hook


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a forward leaves for its backward."""

    outputs: tuple[Tensor, ...]
    leaves: _Leaves
    arguments: tuple[Any, ...]
    seed: int


def batch_leaves(batch: Batch, device: torch.device) -> list[Any]:
    """The batch's leaves in the order of the captured inputs, on the device."""
    return on_device(pytree.tree_leaves(batch), device)


def on_device(leaves: Sequence[Any], device: torch.device) -> list[Any]:
    return [leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
