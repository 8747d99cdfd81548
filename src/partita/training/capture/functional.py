"""Turn a captured graph into one where every call returns a new value, so that a cut can fall anywhere.

    relu_ = aten.relu_(conv)           ->  relu_ = aten.relu(conv); later readers of conv read relu_
    row = aten.select(y, 0, 1)             row = aten.select(y, 0, 1)
    fill_ = aten.fill_(row, 0)         ->  fill_ = aten.fill(row, 0)
    z = aten.mul(y, 2)                     y_1 = aten.select_scatter(y, fill_, 0, 1); z = aten.mul(y_1, 2)
    add_ = aten.add_(counter, 1)       ->  kept: it writes to a buffer, which stays on the stage that owns it

What the model does inside `torch.no_grad()` or `torch.autocast` arrives as one opaque call; it is spread out, on
detached inputs or under autocast call by call. Calls that neither the loss nor a buffer needs are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from partita.errors import CaptureError
from partita.training.capture.captured import Binding
from partita.training.capture.operators import (
    draws_random_numbers,
    is_in_place,
    is_view,
    norm_buffers,
    operator_name,
    under_autocast,
    users_line,
)

aten = torch.ops.aten
_NO_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled


def functionalise(code: fx.GraphModule, bindings: Mapping[str, Binding]) -> bool:
    """Rewrite the graph in place; `bindings` say what its placeholders stand for.

    Afterwards `node.meta["partita_writes"]` and `["partita_touches"]` name the buffers (placeholders) whose memory a call
    changes, or reads or changes. Returns whether a dropped call drew random numbers.
    Raises CaptureError for a write that cannot be followed. O(nodes x views of a tensor that is written to).
    """
    _spread(code)
    _Writes(code.graph, bindings).follow()
    mark_buffers(code, {n for n, b in bindings.items() if b.kind == "buffer"})
    random = _drop_dead(code)
    code.graph.lint()
    code.recompile()
    return random


# ---- blocks under no_grad and autocast --------------------------------------------------------------------------------


def _spread(code: fx.GraphModule) -> None:
    """Copy the calls of every no_grad and autocast block into the graph itself, inner blocks first."""
    for node in list(code.graph.nodes):
        if node.op != "call_function" or operator_name(node) not in (
            "wrap_with_set_grad_enabled",
            "wrap_with_autocast",
        ):
            continue
        at = 1 if node.target is _NO_GRAD else 4
        block = code.get_submodule(str(node.args[at].target))
        assert isinstance(block, fx.GraphModule)
        _spread(block)
        with code.graph.inserting_before(node):
            results = _copied(code, block, node, node.args[:at], node.args[at + 1 :])
        for user in list(node.users):  # getitem(block, i)
            user.replace_all_uses_with(results[user.args[1]])
            code.graph.erase_node(user)
        code.graph.erase_node(node)
    for node in list(code.graph.nodes):
        if node.op == "get_attr" and not node.users:
            code.graph.erase_node(node)


def _copied(
    code: fx.GraphModule, block: fx.GraphModule, at: fx.Node, how: tuple[Any, ...], given: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Insert the block's calls; returns what it returns. `how`: (grad enabled,) or torch.autocast's arguments."""
    copies: dict[fx.Node, Any] = {}
    arguments = iter(given)
    for node in block.graph.nodes:
        if node.op == "placeholder":
            value = next(arguments)
            copies[node] = _detached(code.graph, value) if how == (False,) else value
        elif node.op == "get_attr":
            copies[node] = code.graph.get_attr(_adopted(code, block, str(node.target)))
        elif node.op == "output":
            return tuple(copies[r] if isinstance(r, fx.Node) else r for r in node.args[0])
        else:
            copies[node] = code.graph.node_copy(node, lambda n: copies[n])
            copies[node].meta.setdefault("nn_module_stack", at.meta.get("nn_module_stack"))
            if len(how) > 1 and node.target is not under_autocast and not is_in_place(node) and not is_view(node):
                copies[node].args = (*how[:3], node.target, *copies[node].args)
                copies[node].target = under_autocast
    return ()


def _detached(graph: fx.Graph, value: Any) -> Any:
    if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), Tensor):
        return value
    node = graph.call_function(aten.detach.default, (value,))
    node.meta = {"val": value.meta["val"], "stack_trace": value.meta.get("stack_trace", "")}
    return node


def _adopted(code: fx.GraphModule, block: fx.GraphModule, name: str) -> str:
    """The block's attribute, now also an attribute of the whole; returns its name there."""
    new, k = name, 0
    while hasattr(code, new):
        new, k = f"{name}_{k}", k + 1
    setattr(code, new, getattr(block, name))
    return new


# ---- writes -----------------------------------------------------------------------------------------------------------


@dataclass
class _Writes:
    """Follows every piece of memory through the graph: `root` is whoever made it, `version` counts the writes to it."""

    graph: fx.Graph
    bindings: Mapping[str, Binding]
    root: dict[fx.Node, fx.Node] = field(default_factory=dict)
    made_at: dict[fx.Node, int] = field(default_factory=dict)  #: value or view -> version of its root that it shows
    version: dict[fx.Node, int] = field(default_factory=dict)  #: root -> writes so far
    newest: dict[fx.Node, fx.Node] = field(default_factory=dict)  #: root -> the value that holds its last version
    again: dict[tuple[fx.Node, int], fx.Node] = field(
        default_factory=dict
    )  #: (view, version) -> the view of that version
    view_of: dict[fx.Node, fx.Node] = field(default_factory=dict)  #: view -> what it looks at
    stands_for: dict[fx.Node, fx.Node] = field(default_factory=dict)  #: value after a write -> the value or view before
    trained: set[fx.Node] = field(default_factory=set)  #: values that depend on a parameter

    def follow(self) -> None:
        """Visit all nodes in order; turn writes into new values, let later readers read those."""
        for node in list(self.graph.nodes):
            if node.op == "placeholder":
                self._own(node)
                if self.bindings[node.name].kind == "parameter":
                    self.trained.add(node)
            elif node.op == "call_function":
                self._visit(node)
            elif node.op == "output":
                self._refresh(node)

    def _visit(self, node: fx.Node) -> None:
        self._refresh(node)
        if any(a in self.trained for a in node.all_input_nodes):
            self.trained.add(node)
        if is_in_place(node):
            self._write(node)
        elif is_view(node):
            self._look(node, node.args[0])  # type: ignore[arg-type]
        else:
            self._own(node)

    def _own(self, node: fx.Node) -> None:
        """The node makes memory of its own."""
        self.root[node], self.made_at[node], self.version[node], self.newest[node] = node, 0, 0, node

    def _look(self, node: fx.Node, at: fx.Node) -> None:
        """The node is a view of `at`."""
        self.root[node] = self.root[at]
        self.made_at[node] = self.version[self.root[at]]
        self.view_of[node] = at

    def _refresh(self, node: fx.Node) -> None:
        """Let the node read the newest version of each of its arguments."""
        for a in list(node.all_input_nodes):
            if a in self.root and self.made_at[a] < self.version[self.root[a]]:
                node.replace_input_with(a, self._newest_of(a, node))

    def _newest_of(self, a: fx.Node, before: fx.Node) -> fx.Node:
        """`a` as it looks after the last write to its memory; views are taken again."""
        root = self.root[a]
        version = self.version[root]
        if self.made_at[a] == version:
            return a
        if a in self.stands_for:
            return self._newest_of(self.stands_for[a], before)
        if a not in self.view_of:
            return self.newest[root]
        if (a, version) not in self.again:
            source = self._newest_of(self.view_of[a], before)
            with self.graph.inserting_before(before):
                view = self.graph.node_copy(a, lambda n: source if n is self.view_of[a] else n)
            self._look(view, source)
            self.again[a, version] = view
        return self.again[a, version]

    def _write(self, node: fx.Node) -> None:
        target = _written_argument(node)
        binding = self.bindings.get(self.root[target].name)
        if binding is not None and binding.kind == "buffer":
            self._look(node, target)
        elif binding is not None and binding.kind == "parameter":
            raise CaptureError(
                f"the model changes its own parameter {binding.name!r}{users_line(node)}",
                hint="change parameters after the optimizer's step, or with torch.nn.utils.parametrize",
            )
        elif operator_name(node) in _RESHAPES:
            self._reshape_itself(node, target)
        else:
            self._renew(node, target)

    def _reshape_itself(self, node: fx.Node, target: fx.Node) -> None:
        """y.unsqueeze_(0): a view from here on, also for those who read `y`."""
        node.target = _twin(node.target) or node.target
        self._look(node, target)
        later, at = set(), node
        while at.op != "output":
            at = at.next
            later.add(at)
        target.replace_all_uses_with(node, lambda user: user in later)

    def _renew(self, node: fx.Node, target: fx.Node) -> None:
        """The write as a new value of `target`, put back into everything that `target` is a view of."""
        root, version = self.root[target], self.version[self.root[target]] + 1
        at = self.stands_for.get(target, target)
        sources = self._seen_through(at, node)
        after = node.next
        whole = self._as_function(node, target)
        values = [(at, whole)]
        for view, source, before in sources:
            with self.graph.inserting_before(after):
                whole = self._put_back(view, before, whole)
            values.append((source, whole))
        self.version[root], self.newest[root] = version, whole
        for old, value in values:
            self.root[value], self.made_at[value] = root, version
            self.stands_for[value] = old
            self.again[old, version] = value
            if any(a in self.trained for a in value.all_input_nodes):
                self.trained.add(value)

    def _seen_through(self, view: fx.Node, node: fx.Node) -> list[tuple[fx.Node, fx.Node, fx.Node]]:
        """From a view down to its root: (view, what it looks at, the newest value of that)."""
        found = []
        while view in self.view_of:
            source = self.view_of[view]
            if operator_name(view) == "getitem":  # a part of a split: put back into what was split
                source = self.view_of[source]
            found.append((view, source, self._newest_of(source, node)))
            view = self.stands_for.get(source, source)
        return found

    def _as_function(self, node: fx.Node, target: fx.Node) -> fx.Node:
        """The in-place call as one that returns a new value: its twin where autograd knows that, else on a copy."""
        twin = _twin(node.target)
        if twin is not None:
            node.target = twin
        else:
            with self.graph.inserting_before(node):
                copy = self.graph.call_function(aten.clone.default, (target,))
            copy.meta = {k: v for k, v in target.meta.items() if k in ("val", "nn_module_stack", "stack_trace")}
            node.replace_input_with(target, copy)
        return node

    def _put_back(self, view: fx.Node, source: fx.Node, part: fx.Node) -> fx.Node:
        """`source` with what `view` shows of it replaced by `part`."""
        name = operator_name(view)
        hidden = name == "detach" and source in self.trained  # autograd would see the write, but must not
        give = None if hidden else _PUT_BACK.get(name)
        if give is None:
            raise CaptureError(
                f"the model writes through {name} into another tensor{users_line(view)}",
                hint="assign to the tensor itself, or build it with torch.cat or torch.where",
            )
        value = give(self.graph, view, source, part)
        value.meta = {k: v for k, v in source.meta.items() if k in ("val", "nn_module_stack", "stack_trace")}
        return value


def _written_argument(node: fx.Node) -> fx.Node:
    """The one tensor that a call writes to, its first argument. Raises CaptureError for `out=` and the like."""
    schema = node.target._schema  # type: ignore[union-attr]
    written = [i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    if written != [0] or not isinstance(node.args[0], fx.Node):
        raise CaptureError(
            f"the model calls {schema.name}, which writes to an argument{users_line(node)}",
            hint="use the form that returns its result (without out=)",
        )
    return node.args[0]


#: In-place calls whose twin autograd can follow; others are done on a copy.
_TWINS = frozenset(("abs", "add", "addcdiv", "addcmul", "addmm", "baddbmm", "celu", "clamp", "clamp_max", "clamp_min", "cos", "div", "dropout", "elu", "erf", "exp", "fill", "hardsigmoid", "hardswish", "hardtanh", "index_add", "index_copy", "index_fill", "index_put", "leaky_relu", "lerp", "log", "masked_fill", "mul", "neg", "pow", "reciprocal", "relu", "relu6", "rsqrt", "scatter", "scatter_add", "selu", "sigmoid", "silu", "sin", "sqrt", "square", "sub", "tanh", "threshold", "tril", "triu", "squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims", "detach"))  # fmt: skip


def _twin(op: Any) -> Any:
    """aten.relu_.default -> aten.relu.default; None where there is none that autograd can follow."""
    space, name = op._schema.name.split("::")
    if space != "aten" or not name.endswith("_") or name[:-1] not in _TWINS:
        return None
    return getattr(getattr(aten, name[:-1], None), op._overloadname, None)


_RESHAPES = frozenset(("squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "detach_"))
PutBack = Callable[[fx.Graph, fx.Node, fx.Node, fx.Node], fx.Node]


def _reshape(graph: fx.Graph, view: fx.Node, source: fx.Node, part: fx.Node) -> fx.Node:
    return graph.call_function(aten.reshape.default, (part, list(source.meta["val"].shape)))


def _same_again(graph: fx.Graph, view: fx.Node, source: fx.Node, part: fx.Node) -> fx.Node:
    """Exchanging two dimensions twice changes nothing."""
    return graph.call_function(view.target, (part, *view.args[1:]))  # type: ignore[arg-type]


def _permute(graph: fx.Graph, view: fx.Node, source: fx.Node, part: fx.Node) -> fx.Node:
    dims = [d % len(view.args[1]) for d in view.args[1]]  # type: ignore[arg-type,operator,union-attr]
    return graph.call_function(aten.permute.default, (part, [dims.index(k) for k in range(len(dims))]))


def _select(graph: fx.Graph, view: fx.Node, source: fx.Node, part: fx.Node) -> fx.Node:
    return graph.call_function(aten.select_scatter.default, (source, part, *view.args[1:]))


def _slice(graph: fx.Graph, view: fx.Node, source: fx.Node, part: fx.Node) -> fx.Node:
    return graph.call_function(aten.slice_scatter.default, (source, part, *view.args[1:]))


def _diagonal(graph: fx.Graph, view: fx.Node, source: fx.Node, part: fx.Node) -> fx.Node:
    return graph.call_function(aten.diagonal_scatter.default, (source, part, *view.args[1:]))


def _part(graph: fx.Graph, view: fx.Node, source: fx.Node, part: fx.Node) -> fx.Node:
    """Part i of a split: the slice (of unbind: the row) that begins where the parts before it end."""
    split, i = view.args
    assert isinstance(split, fx.Node)
    assert isinstance(i, int)
    if operator_name(split) == "unbind":
        return graph.call_function(aten.select_scatter.default, (source, part, _dim(split, 1), i))
    dim = _dim(split, 2)
    sizes = [v.shape[dim] for v in split.meta["val"]]
    start = sum(sizes[:i])
    return graph.call_function(aten.slice_scatter.default, (source, part, dim, start, start + sizes[i]))


def _dim(node: fx.Node, at: int) -> int:
    """The dimension that a call works along: its argument number `at`, 0 where it is not given."""
    dim = node.args[at] if len(node.args) > at else node.kwargs.get("dim", 0)
    assert isinstance(dim, int)
    return dim


def _whole(graph: fx.Graph, view: fx.Node, source: fx.Node, part: fx.Node) -> fx.Node:
    return part


_PUT_BACK: dict[str, PutBack] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as"), _reshape),
    **dict.fromkeys(("transpose", "t", "swapaxes", "T", "mT", "numpy_T"), _same_again),
    **dict.fromkeys(("alias", "detach", "contiguous", "to"), _whole),
    "getitem": _part,
    "permute": _permute,
    "select": _select,
    "slice": _slice,
    "diagonal": _diagonal,
}  # fmt: skip


# ---- buffers, and what nobody needs -----------------------------------------------------------------------------------


def mark_buffers(code: fx.GraphModule, buffers: set[str]) -> None:
    """Note at every call which buffers it touches, and which of them it changes."""
    memory: dict[fx.Node, str] = {}
    for node in code.graph.nodes:
        if node.op == "placeholder" and node.name in buffers:
            memory[node] = node.name
            continue
        if node.op != "call_function":
            continue
        node.meta["partita_touches"] = tuple(dict.fromkeys(memory[a] for a in node.all_input_nodes if a in memory))
        target = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        writes = [memory[b] for b in norm_buffers(node) if b in memory]
        if is_in_place(node) and target in memory:
            writes.append(memory[target])
        node.meta["partita_writes"] = tuple(writes)
        if target in memory and (is_view(node) or is_in_place(node)):
            memory[node] = memory[target]


def _drop_dead(code: fx.GraphModule) -> bool:
    """Remove every call that neither the loss nor a buffer needs; returns whether one of them drew random numbers."""
    random = False
    for node in reversed(list(code.graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not node.meta.get("partita_writes"):
            random |= node.op == "call_function" and draws_random_numbers(node)
            code.graph.erase_node(node)
    return random
