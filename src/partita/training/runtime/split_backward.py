"""A backward in two parts: first the gradients of the stage's inputs, which the stage before waits for; later those of its
weights, which nobody waits for until the update ("zero bubble", Qi et al., ICLR 2024).

Done on plain autograd. In the graph of one forward, call a node *inner* where some input of the stage lies behind it:

    output -> [conv2] -> [relu] -> [conv1] -> input          inner nodes in brackets
                 \\-> w2               \\-> w1

The first part asks autograd for the inputs alone, so that conv2 makes no gradient of w2, and notes what arrives at every
inner node that has weights of its own. The second part runs each of these nodes once more, from the noted gradient to its
weights. A weight that several inner nodes read (tied ones, a recurrent cell's) would be reached from each through the
others; its gradient is made in the first part, and so are those of vectors (biases of their own, norms), which cost as
much again as they save. What autograd keeps for the weights stays until the second part has run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, _engine_run_backward

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class WeightPart:
    """What is left of a backward: nodes, what arrived at each, and the weights that hang on it alone."""

    nodes: tuple[tuple[Node, Gradients, tuple[Tensor, ...]], ...]

    def run(self) -> None:
        """Add to the weights' gradients. To be called once."""
        for node, arrived, weights in self.nodes:
            edges = tuple(GradientEdge(node, i) for i, g in enumerate(arrived) if g is not None)
            run_backward(edges, [g for g in arrived if g is not None], weights)


def run_backward(
    roots: Sequence[Tensor | GradientEdge],
    gradients: Sequence[Tensor],
    inputs: Sequence[Tensor] = (),
    *,
    retain_graph: bool = False,
) -> None:
    """`torch.autograd.backward(roots, gradients, retain_graph, inputs=inputs)` without its checks of shapes, which take a third of a small
    call (115 of 245 us, 2-core x86, torch 2.13, 2026-11-22). `inputs`: empty for all leaves."""
    if roots:
        _engine_run_backward(
            tuple(roots),
            tuple(gradients),
            retain_graph,
            False,
            tuple(inputs),
            allow_unreachable=True,
            accumulate_grad=True,
        )


def input_part(outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]) -> WeightPart:
    """Add to the gradients of the inputs (leaves) and of the weights that cannot wait; returns the rest of the work.

    `gradients` fits `outputs`, which all require gradients. O(nodes of the graph).
    """
    roots = [o.grad_fn for o in outputs if o.grad_fn is not None]
    waiting, soon = _deferrable(roots, {id(t) for t in inputs})
    noted: dict[Node, Gradients] = {}
    hooks = [node.register_prehook(_note(noted, node)) for node in waiting]
    wanted = [*inputs, *soon]
    try:
        if wanted:
            run_backward(outputs, gradients, wanted, retain_graph=True)
    finally:
        for hook in hooks:
            hook.remove()
    return WeightPart(tuple((n, noted[n], tuple(ws)) for n, ws in waiting.items() if n in noted))


def _note(noted: dict[Node, Gradients], node: Node) -> Any:
    def hook(arrived: Gradients) -> None:
        noted[node] = arrived

    return hook


def _deferrable(roots: Sequence[Node], inputs: set[int]) -> tuple[dict[Node, list[Tensor]], list[Tensor]]:
    """(inner node -> the weights that hang on it alone, the weights that do not wait)."""
    order = _bottom_up(roots)
    inner: set[Node] = set()
    leaves: dict[Node, dict[int, Tensor]] = {}  # node outside -> the weights behind it
    hangs: dict[int, set[Node | None]] = defaultdict(set)  # weight -> inner nodes it hangs on; None: an output itself
    weights: dict[int, Tensor] = {}
    for node in order:
        variable = getattr(node, "variable", None)
        after = [n for n, _ in node.next_functions if n is not None]
        if (variable is not None and id(variable) in inputs) or any(n in inner for n in after):
            inner.add(node)
            for n in after:
                for key in leaves.get(n, {}) if n not in inner else {}:
                    hangs[key].add(node)
        elif variable is not None:
            leaves[node] = {id(variable): variable}
            weights[id(variable)] = variable
        else:
            leaves[node] = {key: t for n in after for key, t in leaves.get(n, {}).items()}
    for root in roots:
        for key in leaves.get(root, {}) if root not in inner else {}:
            hangs[key].add(None)
    waiting: dict[Node, list[Tensor]] = defaultdict(list)
    for key, nodes in hangs.items():
        only = next(iter(nodes))
        if len(nodes) == 1 and only is not None:
            waiting[only].append(weights[key])
    worth = {n: ws for n, ws in waiting.items() if any(w.dim() > 1 for w in ws)}
    later = {id(w) for ws in worth.values() for w in ws}
    return worth, [w for key, w in weights.items() if key not in later]


def _bottom_up(roots: Sequence[Node]) -> list[Node]:
    """Every node of the graph after all that lie behind it (towards the leaves)."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(n, False) for n in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(n, False) for n, _ in node.next_functions if n is not None and n not in seen]
    return order
