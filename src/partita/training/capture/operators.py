"""Facts about one call of a captured graph: what it calls, whether it is a view, writes, or draws random numbers."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

#: Calls that only look at their first argument, or copy it: they are done with whoever makes what they look at.
VIEWS = frozenset(("view", "reshape", "_unsafe_view", "transpose", "permute", "t", "unsqueeze", "squeeze", "expand", "select", "slice", "alias", "detach", "flatten", "unflatten", "getitem", "split", "split_with_sizes", "chunk", "unbind", "contiguous", "as_strided", "movedim", "swapaxes", "narrow", "unsafe_split", "unsafe_chunk", "view_as", "expand_as", "reshape_as", "numpy_T", "mT", "diagonal", "tensor_split", "hsplit", "vsplit", "dsplit"))  # fmt: skip

#: Draw random numbers, and torch says so neither by a tag nor by a generator among their arguments.
_UNTAGGED = frozenset(("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "scaled_dot_product_attention"))  # fmt: skip


def under_autocast(
    device_type: str, dtype: torch.dtype | None, enabled: bool, call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """One call as it would be inside `torch.autocast`."""
    with torch.autocast(device_type, dtype, enabled, cache_enabled=False):
        return call(*args, **kwargs)


def called(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """(operator, its arguments) of a call, seen through `under_autocast`."""
    if node.target is under_autocast:
        return node.args[3], node.args[4:]
    return node.target, node.args


def for_device(code: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """The same code for tensors on another device than the CPU, on which models are captured: what it makes itself, masks
    and positions, it makes there, and so lie the constants that it holds."""
    if device.type == "cpu":
        return code
    moved = copy.deepcopy(code)
    for node in moved.graph.nodes:
        if node.op == "get_attr" and isinstance(held := attrgetter(str(node.target))(moved), Tensor):
            owner, _, name = str(node.target).rpartition(".")
            setattr(moved.get_submodule(owner), name, held.to(device))
        arguments = (node.args, node.kwargs)
        node.args, node.kwargs = map_aggregate(arguments, lambda a: device if isinstance(a, torch.device) else a)
        if node.target is under_autocast:
            node.args = (device.type, *node.args[1:])
    moved.recompile()
    return moved


def operator_name(node: fx.Node) -> str:
    """The short name of what a node calls: conv2d, add, getitem."""
    return operator_of(called(node)[0])


def operator_of(op: Any) -> str:
    """The short name of an operator."""
    if isinstance(op, torch._ops.OpOverload):
        return str(op._schema.name.split("::")[-1])
    return str(getattr(op, "__name__", op))


def is_in_place(node: fx.Node) -> bool:
    """It changes an argument."""
    op, _ = called(node)
    return node.op == "call_function" and isinstance(op, torch._ops.OpOverload) and op._schema.is_mutable


def draws_random_numbers(node: fx.Node) -> bool:
    """Two runs give two results, unless the generator was seeded. Dropout that is switched off draws nothing."""
    op, args = called(node)
    space = op.namespace if isinstance(op, torch._ops.OpOverload) else "aten"
    return _draws(space, operator_name(node)) and not _switched_off(op, args, node.kwargs)


@functools.cache
def _draws(space: str, name: str) -> bool:
    """An operator, or its form in place or out of place, is tagged by torch as seeded, or takes a generator."""
    plain = name.removesuffix("_")
    packets = [getattr(getattr(torch.ops, space), n, None) for n in (plain, f"{plain}_")]
    overloads = [getattr(p, o) for p in packets if isinstance(p, torch._ops.OpOverloadPacket) for o in p.overloads()]  # type: ignore[no-untyped-call]
    return plain in _UNTAGGED or any(
        torch.Tag.nondeterministic_seeded in o.tags or any(a.name == "generator" for a in o._schema.arguments)
        for o in overloads
    )


def _switched_off(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """It is a dropout of probability 0, or not in training; so is one inside of an LSTM or an attention."""
    if not isinstance(op, torch._ops.OpOverload):
        return False
    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | dict(kwargs)
    given = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()} | given
    probability = "p" if "dropout" in operator_of(op) else "dropout_p" if "dropout_p" in given else "dropout"
    return given.get(probability) == 0 or given.get("train") is False or given.get("training") is False


def is_view(node: fx.Node) -> bool:
    """It shares the memory of its first argument: as the traced values say, else as the operator's schema does."""
    if node.op != "call_function" or is_in_place(node):
        return False
    op, args = called(node)
    if not args or not isinstance(args[0], fx.Node):
        return False
    if operator_name(node) == "getitem":
        return is_view(args[0])
    if isinstance(node.meta.get("val"), Tensor) and isinstance(args[0].meta.get("val"), Tensor):
        return bool(_storage(node) == _storage(args[0]))
    return isinstance(op, torch._ops.OpOverload) and any(
        r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns
    )


def _storage(node: fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def norm_buffers(node: fx.Node) -> tuple[fx.Node, ...]:
    """The running statistics that a batch or instance norm in training mode changes (its schema does not say so)."""
    _, args = called(node)
    name = operator_name(node)
    training = name in ("batch_norm", "instance_norm") and len(args) > 5 and args[5]
    if not training and name != "batch_norm_part":
        return ()
    return tuple(a for a in args[3:5] if isinstance(a, fx.Node))


def module_path(node: fx.Node) -> str:
    """ "encoder.layer.0.attention" of the module that a node comes from."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    return paths[-1].removeprefix("L__self___").removeprefix("model").removeprefix(".") if paths else ""


def users_line(node: fx.Node) -> str:
    """' at FILE:LINE (code)' of the line of the user's model that made a node; empty where it is unknown."""
    libraries = (torch.__path__[0], str(Path(__file__).parents[2]))
    lines = [s.strip() for s in str(node.meta.get("stack_trace", "")).splitlines()]
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith('File "') and not any(own in lines[at] for own in libraries):
            file, _, rest = lines[at].removeprefix('File "').partition('", line ')
            code = lines[at + 1] if at + 1 < len(lines) and not lines[at + 1].startswith("File ") else ""
            return f" at {file}:{rest.partition(',')[0]}" + (f" ({code})" if code else "")
    return ""
