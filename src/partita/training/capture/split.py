"""Split operators of a captured graph into parts along the batch or a channel dim, as a rewrite of the graph.

    y = conv2d(x, w)           x_1, x_2 = split(x, [4, 4])             with the task that makes x
    z = relu(y)          ->    y_part1, y_part2 = conv2d(x_1, w), conv2d(x_2, w)
    s = sum(z)                 z_part1, z_part2 = relu(y_part1), relu(y_part2)
                               s = sum(cat([z_part1, z_part2]))

Parts go on as parts where the next operator is split alike, and so do the views of what is split; they are joined where
somebody reads the whole. What a channel split cuts is the weight, inside of each part, so that autograd puts the parts'
gradients together into one. Parts that read a weight share it as tied layers do.
"""

from __future__ import annotations

import difflib
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import fx

from partita.errors import CaptureError
from partita.nouns.splits import Split
from partita.training.capture.captured import TensorMeta
from partita.training.capture.operators import VIEWS, called, operator_name, operator_of, under_autocast
from partita.training.capture.split_rules import Call, CannotSplit, Recipe, dim_of, recipe

aten = torch.ops.aten
Bounds = tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """A value in parts: part i is [bounds[i], bounds[i + 1]) along the dim."""

    dim: int
    bounds: Bounds
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Tasks:
    """The graph that is to be split, as it is cut into tasks."""

    nodes: Mapping[str, Sequence[str]]  #: task -> names of its nodes
    meta: Mapping[str, TensorMeta]  #: node -> what its value looks like


def splittable(code: fx.GraphModule, tasks: Tasks, asked: Split) -> Split | str:
    """The split with what it changes, or the reason why there is none."""
    call = Call(_node(code, asked.task), tasks.meta, asked.dim == "ghost")
    try:
        at = dim_of(call, asked.dim)
        found = recipe(call, at)
        if call.result[at] < asked.parts:
            return f"it is {call.result[at]} long there"
        return replace(asked, change=found.change)
    except CannotSplit as reason:
        return str(reason)


def matching(code: fx.GraphModule, tasks: Tasks, asked: Sequence[Split]) -> tuple[Split, ...]:
    """The splits that are asked for, patterns replaced by all that fit and can be split, in the graph's order.

    Raises CaptureError for an operator that cannot be split or that there is not.
    """
    found: dict[str, Split] = {}
    for s in asked:
        names = [t for t in tasks.nodes if fnmatchcase(t, s.task)]
        if not names:
            close = difflib.get_close_matches(s.task, tasks.nodes, 1)
            raise CaptureError(
                f"there is no operator {s.task!r} to split",
                hint=f"did you mean {close[0]}?" if close else f"there are e.g. {', '.join([*tasks.nodes][:4])}",
            )
        for name in names:
            able = splittable(code, tasks, replace(s, task=name))
            if isinstance(able, Split):
                found[name] = able
            elif name == s.task:
                raise _refused(s, operator_name(_node(code, name)), able)
    return tuple(found[t] for t in tasks.nodes if t in found)


def split_operators(code: fx.GraphModule, tasks: Tasks, asked: Sequence[Split]) -> tuple[Split, ...]:
    """Rewrite the graph in place; returns the splits with the names of their parts.

    Raises CaptureError for an operator that cannot be split or that there is not. O(nodes + parts).
    """
    chosen = matching(code, tasks, asked)
    done = _Rewriting(code, tasks).split(chosen)
    code.graph.lint()
    code.recompile()
    return done


def _refused(asked: Split, operator: str, reason: str) -> CaptureError:
    return CaptureError(
        f"{asked.task} ({operator}) cannot be split by {asked.dim} into {asked.parts}: {reason}",
        hint="leave it out, or split along the other dim",
    )


def _node(code: fx.GraphModule, name: str) -> fx.Node:
    found: fx.Node = next(n for n in code.graph.nodes if n.name == name)
    return found


@dataclass
class _Rewriting:
    """A graph while its operators are being split."""

    code: fx.GraphModule
    tasks: Tasks
    parts: dict[fx.Node, Parts] = field(default_factory=dict)  #: of the values that are in parts
    joined: dict[fx.Node, fx.Node] = field(
        default_factory=dict
    )  #: value in parts -> the whole, where somebody wants it
    slices: dict[tuple[fx.Node, int, Bounds], tuple[fx.Node, ...]] = field(default_factory=dict)

    def split(self, chosen: Sequence[Split]) -> tuple[Split, ...]:
        wanted = {s.task: s for s in chosen}
        home = {n: t for t, ns in self.tasks.nodes.items() for n in ns}
        done: dict[str, Split] = {}
        for node in list(self.code.graph.nodes):
            asked = wanted.get(home.get(node.name, ""))
            if asked is None:
                continue
            if node.name == asked.task:
                done[asked.task] = self._operator(node, asked)
            elif operator_name(node) in VIEWS and node.args and node.args[0] in self.parts:
                self._view(node, self.parts[node.args[0]])
        self._forget()
        return tuple(done[s.task] for s in chosen)

    def _operator(self, node: fx.Node, asked: Split) -> Split:
        call = Call(node, self.tasks.meta, asked.dim == "ghost")
        try:
            dim = dim_of(call, asked.dim)
            how = recipe(call, dim)
            if call.result[dim] < asked.parts:
                raise CannotSplit(f"it is {call.result[dim]} long there")
            self._make(call, dim, how, self._bounds(call, dim, how, asked.parts))
        except CannotSplit as reason:
            raise _refused(asked, call.name, str(reason)) from reason
        return replace(asked, change=how.change, tasks=tuple(n.name for n in self.parts[node].nodes))

    def _bounds(self, call: Call, dim: int, how: Recipe, parts: int) -> Bounds:
        """Where the result is cut: where what it reads is cut already, else into equal parts, larger ones first."""
        n = call.result[dim]
        for argument, at in how.cut.items():
            known = self.parts.get(call.given[argument]) if isinstance(call.given[argument], fx.Node) else None
            if known and known.dim == at and len(known.nodes) == parts:
                ends = [b * n / known.bounds[-1] for b in known.bounds]
                if all(e == int(e) for e in ends):
                    return tuple(int(e) for e in ends)
        sizes = [n // parts + (i < n % parts) for i in range(parts)]
        return tuple(sum(sizes[:i]) for i in range(parts + 1))

    def _view(self, node: fx.Node, source: Parts) -> None:
        """A view of a value in parts, in parts, where each of them can be looked at alone; else it looks at the whole."""
        call = Call(node, self.tasks.meta)
        for dim, n in enumerate(call.result):
            try:
                how = recipe(call, dim)
                ends = [b * n / source.bounds[-1] for b in source.bounds]
                if how.cut.get("self") == source.dim and all(e == int(e) for e in ends):
                    self._make(call, dim, how, tuple(int(e) for e in ends))
                    return
            except CannotSplit:
                continue

    def _make(self, call: Call, dim: int, how: Recipe, bounds: Bounds) -> None:
        """Insert the parts of a call before it."""
        node, n = call.node, bounds[-1]
        cut = {a: self._cut(call, a, at, [b / n for b in bounds], node) for a, at in how.cut.items()}
        made = []
        with self.code.graph.inserting_before(node):
            told = self._told(call, how, cut)
            for i, (a, b) in enumerate(itertools.pairwise(bounds)):
                changed = (
                    {name: values[i] for name, values in cut.items()}
                    | dict(how.put(a, b))
                    | dict(how.gathered(bounds, told))
                )
                made.append(self._called(call, how, changed, f"{node.name}_part{i + 1}"))
        self.parts[node] = Parts(dim, bounds, tuple(made))

    def _told(self, call: Call, how: Recipe, cut: Mapping[str, Sequence[Any]]) -> list[fx.Node]:
        """[parts] what each part tells the others."""
        if how.tells is None:
            return []
        name = f"{call.node.name}_{operator_of(how.tells)}"
        return [
            self._new(call.node, how.tells, own, {}, f"{name}{i}")
            for i, own in enumerate(zip(*cut.values(), strict=True), 1)
        ]

    def _called(self, call: Call, how: Recipe, changed: Mapping[str, Any], name: str) -> fx.Node:
        node = call.node
        if how.target is not None:
            new = self._new(node, how.target, tuple(self._read(v) for v in changed.values()), {}, name)
        elif call.name == "getitem":
            new = self._new(node, node.target, (changed["self"], node.args[1]), {}, name)
        else:
            op, args = called(node)
            named = [a.name for a in op._schema.arguments]
            args = tuple(self._read(changed.get(a, v)) for a, v in zip(named, args, strict=False))
            named_args = {k: self._read(changed.get(k, v)) for k, v in node.kwargs.items()}
            if node.target is under_autocast:
                args = (*node.args[:4], *args)
            new = self._new(node, node.target, args, named_args, name)
        return self._lists(new) if isinstance(node.meta.get("val"), list | tuple) else new

    def _read(self, value: Any) -> Any:
        """An argument, with what is in parts joined."""
        return fx.map_arg(value, self._whole)

    def _new(self, like: fx.Node, target: Any, args: Any, named: Any, name: str) -> fx.Node:
        node = self.code.graph.create_node("call_function", target, args, named, name)
        node.meta = {k: v for k, v in like.meta.items() if k in ("nn_module_stack", "stack_trace")}
        return node

    def _lists(self, node: fx.Node) -> fx.Node:
        """Marked as what makes a list of tensors."""
        node.meta["val"] = ()
        return node

    # ---- cutting and joining ----------------------------------------------------------------------------------------

    def _cut(self, call: Call, argument: str, dim: int, shares: Sequence[float], before: fx.Node) -> list[Any]:
        """[parts] an argument's parts, cut at these shares of its length; of a list of tensors, lists."""
        value = call.given[argument]
        if isinstance(value, list | tuple):
            each = [self._slices(v, dim, self._ends(call, v, dim, shares), before) for v in value]
            return [list(row) for row in zip(*each, strict=True)]
        return list(self._slices(value, dim, self._ends(call, value, dim, shares), before))

    def _ends(self, call: Call, value: fx.Node, dim: int, shares: Sequence[float]) -> Bounds:
        n = call.shape_of(value)[dim]
        ends = [round(s * n, 6) for s in shares]
        if any(e != int(e) for e in ends):
            raise CannotSplit("its parts do not end where its input's rows do")
        return tuple(int(e) for e in ends)

    def _slices(self, value: fx.Node, dim: int, bounds: Bounds, before: fx.Node) -> tuple[fx.Node, ...]:
        known = self.parts.get(value)
        if known and (known.dim, known.bounds) == (dim, bounds):
            return known.nodes
        if value.op == "placeholder":  # a weight is cut inside of each part, a batch wherever it is
            return tuple(self._sliced(value, dim, bounds, before))
        key = (value, dim, bounds)
        if key not in self.slices:
            whole = self._whole(value)
            sizes = [b - a for a, b in itertools.pairwise(bounds)]
            with self.code.graph.inserting_after(whole):
                cut = self._lists(
                    self._new(whole, aten.split_with_sizes.default, (whole, sizes, dim), {}, f"{value.name}_cut")
                )
            at, found = cut, []
            for i in range(len(sizes)):
                with self.code.graph.inserting_after(at):
                    at = self._new(whole, operator.getitem, (cut, i), {}, f"{value.name}_cut{i + 1}")
                found.append(at)
            self.slices[key] = tuple(found)
        return self.slices[key]

    def _sliced(self, value: fx.Node, dim: int, bounds: Bounds, before: fx.Node) -> Iterator[fx.Node]:
        for i, (a, b) in enumerate(itertools.pairwise(bounds)):
            with self.code.graph.inserting_before(before):
                yield self._new(before, aten.slice.Tensor, (value, dim, a, b), {}, f"{value.name}_cut{i + 1}")

    def _whole(self, value: fx.Node) -> fx.Node:
        """A value, its parts joined where it is in parts."""
        if value not in self.parts:
            return value
        if value not in self.joined:
            known = self.parts[value]
            with self.code.graph.inserting_before(value):
                args = ([*known.nodes], known.dim)
                self.joined[value] = self._new(value, aten.cat.default, args, {}, f"{value.name}_joined")
        return self.joined[value]

    def _forget(self) -> None:
        """Take out what is in parts now; whoever still reads it reads its parts joined."""
        for node in reversed([*self.parts]):
            if node.users:
                node.replace_all_uses_with(self._whole(node))
            self.code.graph.erase_node(node)
