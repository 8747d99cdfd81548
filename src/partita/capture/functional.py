"""Turn in-place calls of a captured graph into calls that return a new value, so that a cut can fall anywhere.

    relu_ = aten.relu_(conv)          ->   relu = aten.relu(conv); later readers of conv read relu
    add_  = aten.add_(counter, 1)     ->   kept: it writes to a buffer, which stays on the stage that owns it

Where a view was written to, the writer, the viewed tensor and all their readers share a colocation group instead.
"""

from __future__ import annotations

import torch
from torch import fx


def functionalise(code: fx.GraphModule, buffers: set[str]) -> None:
    """Rewrite the graph in place. `buffers` are the placeholders that may be written to."""
    position = {n: i for i, n in enumerate(code.graph.nodes)}
    for node in list(code.graph.nodes):
        if not _is_in_place(node) or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        target = node.args[0]
        if target.name in buffers:
            continue
        functional = _functional(node)
        if functional is not None and not _is_view_or_viewed(target, node):
            for user in list(target.users):
                if position[user] > position[node]:
                    user.replace_input_with(target, node)
            node.target = functional
        else:
            _keep_together(node, target)
    _drop_checks(code)
    code.graph.lint()
    code.recompile()


def _is_in_place(node: fx.Node) -> bool:
    return (
        node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    )


def _functional(node: fx.Node) -> torch._ops.OpOverload | None:
    """aten.relu_.default -> aten.relu.default; None where there is no twin."""
    space, name = node.target._schema.name.split("::")  # type: ignore[union-attr]
    if not name.endswith("_"):
        return None
    packet = getattr(getattr(torch.ops, space), name[:-1], None)
    overload = node.target._overloadname  # type: ignore[union-attr]
    return getattr(packet, overload, None) if packet is not None else None


def _is_view_or_viewed(target: fx.Node, writer: fx.Node) -> bool:
    """Another value shares the target's memory."""
    return _is_alias(target) or any(_is_alias(u) for u in target.users if u is not writer)


def _is_alias(node: fx.Node) -> bool:
    """The call returns a view of its argument, as its schema says."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(r.alias_info is not None and not r.alias_info.is_write for r in node.target._schema.returns)


def _keep_together(writer: fx.Node, target: fx.Node) -> None:
    base = target
    while _is_alias(base) and base.args and isinstance(base.args[0], fx.Node):
        base = base.args[0]
    group = f"memory of {base.name}"
    seen, todo = set(), [base, writer]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        node.meta["partita_group"] = group
        todo += list(node.users) if node is base or _is_alias(node) or node is writer else []


def _drop_checks(code: fx.GraphModule) -> None:
    """Remove assertions on shapes and types: the shapes are fixed, and they would hang on nothing."""
    for node in list(code.graph.nodes):
        if node.op == "call_function" and not node.users and "_assert" in str(node.target):
            code.graph.erase_node(node)
