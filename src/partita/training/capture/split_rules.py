"""How a part of a call's result is made: for each operator that can be split, which of its arguments are cut, and where.

A rule starts from the result. The slice [a, b) of the result of `linear(x, w, bias)` along its last dim needs that slice of
`w` and `bias` along dim 0, and all of `x`; along any other dim it needs the slice of `x`, and all of the others:

    linear(x, w, bias)[:, a:b] = linear(x, w[a:b], bias[a:b])
    linear(x, w, bias)[a:b]    = linear(x[a:b], w, bias)

Sums over the dim that is cut (the loss, means) are no such calls, and neither is whatever writes to a buffer. BatchNorm in
training is one after all: its parts tell each other their moments, or are taken for ghosts of the batch, and every part is
normalised by its own. Either way the first part keeps the running statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from partita.nouns.splits import Change, Dim
from partita.training.capture.captured import TensorMeta
from partita.training.capture.norm_parts import batch_norm_moments, batch_norm_part
from partita.training.capture.operators import called, draws_random_numbers, is_in_place, operator_name

aten = torch.ops.aten
Shape = tuple[int, ...]
Put = Callable[[int, int], Mapping[str, Any]]
Gathered = Callable[[Sequence[int], Sequence[fx.Node]], Mapping[str, Any]]


class CannotSplit(Exception):
    """A call cannot be split along a dim; says why."""


@dataclass(frozen=True)
class Recipe:
    """How the slice [a, b) of a call's result along a dim is made."""

    cut: Mapping[str, int]  #: argument -> its dim that is cut; of a list of tensors, of each. The others are read whole
    put: Put = lambda a, b: MappingProxyType({})  #: arguments that change with the part
    change: Change = "none"
    target: Any = None  #: what is called instead, with what is cut, what is put, and what is gathered
    tells: Any = None  #: what is called on each part's input before, for all parts to know
    gathered: Gathered = lambda bounds, told: MappingProxyType({})  #: arguments made of what the parts tell


@dataclass(frozen=True)
class Call:
    """A call of a captured graph, its arguments by name."""

    node: fx.Node
    meta: Mapping[str, TensorMeta] = field(repr=False)
    ghosts: bool = False  #: parts by the batch see their own statistics

    @property
    def name(self) -> str:
        return operator_name(self.node)

    @cached_property
    def given(self) -> dict[str, Any]:
        """Argument -> its value, defaults filled in. Raises CannotSplit for a call whose arguments have no names."""
        op, args = called(self.node)
        if self.name == "getitem":
            return {"self": args[0], "index": args[1]}
        if not isinstance(op, torch._ops.OpOverload):
            raise CannotSplit("it is no operator of torch's own")
        schema = op._schema.arguments
        defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
        return defaults | dict(zip((a.name for a in schema), args, strict=False)) | dict(self.node.kwargs)

    def shape_of(self, value: Any) -> Shape:
        """The shape of a value; of a list of tensors, of its first one that is read. () of what is no tensor."""
        if not isinstance(value, fx.Node):
            return ()
        if value.name in self.meta:
            return self.meta[value.name].shape
        first = next((u for u in value.users if operator_name(u) == "getitem" and u.name in self.meta), None)
        return self.meta[first.name].shape if first is not None else ()

    def shape(self, argument: str) -> Shape:
        return self.shape_of(self.given.get(argument))

    @cached_property
    def result(self) -> Shape:
        return self.shape_of(self.node)


Rule = Callable[[Call, int], Recipe]


def recipe(call: Call, dim: int) -> Recipe:
    """How a part along a dim (from 0) is made. Raises CannotSplit with the reason."""
    if is_in_place(call.node) or (call.node.meta.get("partita_writes") and call.name != "batch_norm"):
        raise CannotSplit("it writes to its argument")
    if any(not isinstance(n, int) for n in call.result):
        raise CannotSplit("its shape depends on values")
    rule = _RULES.get(call.name)
    if call.name in _REDUCING:
        raise CannotSplit("it sums over the batch")
    if rule is None and not _is_pointwise(call):
        raise CannotSplit(f"nothing is known about splitting {call.name}")
    if not 0 <= dim < len(call.result):
        raise CannotSplit(f"its result has {len(call.result)} dims")
    return (rule or _pointwise)(call, dim)


def dim_of(call: Call, dim: Dim) -> int:
    """The dim of the result that is meant: the first one; the second of images and convolutions, else the last."""
    n = len(call.result)
    images = n > 3 or call.name.startswith("conv") or call.name == "batch_norm"
    return (1 if images else n - 1) if dim == "channel" else 0


# ---- rules ------------------------------------------------------------------------------------------------------------

_REDUCING = frozenset(("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"))  # fmt: skip

#: Work on every element alone, without torch's tag that says so.
_POINTWISE = frozenset(("dropout", "relu6", "to", "_to_copy", "clone", "contiguous", "detach", "alias", "type_as", "masked_fill", "where", "gelu", "silu", "hardtanh", "hardswish", "hardsigmoid", "leaky_relu", "selu", "celu", "elu", "softplus", "mish", "square", "relu", "tanh", "sigmoid", "float"))  # fmt: skip


def _is_pointwise(call: Call) -> bool:
    op, _ = called(call.node)
    tagged = isinstance(op, torch._ops.OpOverload) and torch.Tag.pointwise in op.tags
    return tagged or call.name in _POINTWISE


def _drawn(call: Call) -> Change:
    return "random" if draws_random_numbers(call.node) else "none"


def _broadcast(call: Call, dim: int, names: Sequence[str], skip_last: int = 0) -> dict[str, int]:
    """Where arguments that are stretched to the result's shape are cut; those of length 1 there are not."""
    cut = {}
    for name in names:
        shape = call.shape(name)
        at = dim - (len(call.result) - len(shape))
        if 0 <= at < len(shape) - skip_last and shape[at] == call.result[dim] and shape[at] > 1:
            cut[name] = at
    return cut


def _pointwise(call: Call, dim: int) -> Recipe:
    return Recipe(_broadcast(call, dim, [*call.given]), change=_drawn(call))


def _conv(call: Call, dim: int) -> Recipe:
    if len(call.shape("input")) != len(call.shape("weight")):
        raise CannotSplit("its input has no batch dim")
    if dim == 0:
        return Recipe({"input": 0})
    if dim != 1 or call.given.get("groups", 1) != 1:
        raise CannotSplit("its channels are grouped" if dim == 1 else "its neighbours overlap there")
    weight = {"weight": 1 if "transpose" in call.name else 0}
    return Recipe(weight | ({"bias": 0} if call.shape("bias") else {}))


def _linear(call: Call, dim: int) -> Recipe:
    if dim == len(call.result) - 1:
        return Recipe({"weight": 0} | ({"bias": 0} if call.shape("bias") else {}))
    return Recipe({"input": dim})


def _addmm(call: Call, dim: int) -> Recipe:
    return Recipe({"mat1" if dim == 0 else "mat2": dim} | _broadcast(call, dim, ["self"]))


def _matmul(call: Call, dim: int) -> Recipe:
    one, other = ("self", "mat2") if "mat2" in call.given else ("self", "other")
    a, b, n = len(call.shape(one)), len(call.shape(other)), len(call.result)
    if min(a, b) < 2:
        raise CannotSplit("one of its factors is a vector")
    if dim == n - 2:
        return Recipe({one: a - 2})
    if dim == n - 1:
        return Recipe({other: b - 1})
    cut = {}
    for name, rank in ((one, a), (other, b)):
        at = dim - (n - rank)
        if at >= 0 and call.shape(name)[at] > 1:
            cut[name] = at
    return Recipe(cut)


def _baddbmm(call: Call, dim: int) -> Recipe:
    cut = {0: {"batch1": 0, "batch2": 0}, 1: {"batch1": 1}, 2: {"batch2": 2}}[dim]
    return Recipe(cut | _broadcast(call, dim, ["self"]))


def _pool(call: Call, dim: int) -> Recipe:
    spatial = int(next(c for c in call.name if c.isdigit()))
    if dim >= len(call.result) - spatial:
        raise CannotSplit("its neighbours overlap there")
    return Recipe({"self": dim})


def _pad(call: Call, dim: int) -> Recipe:
    if dim >= len(call.result) - len(call.given["pad"]) // 2:
        raise CannotSplit("it is made longer there")
    return Recipe({"self": dim})


def _upsample(call: Call, dim: int) -> Recipe:
    if dim > 1:
        raise CannotSplit("its neighbours overlap there")
    return Recipe({"self" if "self" in call.given else "input": dim})


def _softmax(call: Call, dim: int) -> Recipe:
    if dim == call.given["dim"] % len(call.result):
        raise CannotSplit("it sums over that dim")
    return Recipe({"self": dim})


def _layer_norm(call: Call, dim: int) -> Recipe:
    if dim >= len(call.result) - len(call.given["normalized_shape"]):
        raise CannotSplit("it is normalised over that dim")
    return Recipe({"input": dim})


def _group_norm(call: Call, dim: int) -> Recipe:
    if dim != 0:
        raise CannotSplit("it is normalised over groups of channels")
    return Recipe({"input": 0})


def _batch_norm(call: Call, dim: int) -> Recipe:
    """Running statistics are the first part's: the others would have to lie where it lies to write to them."""
    training, writes = bool(call.given["training"]), bool(call.node.meta.get("partita_writes"))
    if dim == 1 and not writes:
        names = ("input", "weight", "bias", "running_mean", "running_var")
        return Recipe({n: 1 if n == "input" else 0 for n in names if call.shape(n)})
    if dim != 0:
        raise CannotSplit("its running statistics stay in one place" if dim == 1 else "it is normalised over that dim")
    if not training:
        return Recipe({"input": 0})
    none = MappingProxyType({"running_mean": None, "running_var": None})
    if call.ghosts:
        return Recipe({"input": 0}, lambda a, b: {} if a == 0 else none, change="statistics")
    samples = math.prod(call.result) // call.result[1]
    given = {n: call.given[n] for n in ("weight", "bias", "running_mean", "running_var", "momentum", "eps")}
    return Recipe(
        {"input": 0},
        lambda a, b: given if a == 0 else {**given, **none},
        change="moments",
        target=batch_norm_part,
        tells=batch_norm_moments,
        gathered=lambda bounds, told: {
            "shares": [(b - a) / bounds[-1] for a, b in pairwise(bounds)],
            "samples": samples,
            "moments": [*told],
        },
    )


def _attention(call: Call, dim: int) -> Recipe:
    """scaled_dot_product_attention: heads and batch anywhere; queries only where none is masked by its place."""
    last = len(call.result) - 1
    if dim == last:
        return Recipe({"value": last}, change=_drawn(call))
    if dim < last - 1:
        lengths = {call.shape(n)[dim] for n in ("query", "key", "value")}
        if len(lengths) > 1 or call.given.get("enable_gqa"):
            raise CannotSplit("several of its heads share keys")
        return Recipe(
            {"query": dim, "key": dim, "value": dim, **_broadcast_mask(call, dim)},
            change=_drawn(call),
        )
    if call.given.get("is_causal"):
        raise CannotSplit("which keys it sees depends on the place")
    return Recipe({"query": dim, **_broadcast_mask(call, dim)}, change=_drawn(call))


def _broadcast_mask(call: Call, dim: int) -> dict[str, int]:
    """The mask has the result's dims but for the last one, which is of keys."""
    return _broadcast(call, dim, ["attn_mask"], skip_last=1)


def _embedding(call: Call, dim: int) -> Recipe:
    return Recipe({"weight": 1} if dim == len(call.result) - 1 else {"indices": dim})


def _reduction(call: Call, dim: int) -> Recipe:
    """mean(x, [2, 3]): the dims that are left."""
    rank = len(call.shape("self"))
    over = call.given.get("dim")
    gone = {d % rank for d in ([over] if isinstance(over, int) else over or range(rank))}
    if call.given.get("keepdim"):
        if dim in gone:
            raise CannotSplit("it sums over that dim")
        return Recipe({"self": dim})
    return Recipe({"self": [d for d in range(rank) if d not in gone][dim]})


def _cat(call: Call, dim: int) -> Recipe:
    if dim == call.given.get("dim", 0) % len(call.result):
        raise CannotSplit("it joins along that dim")
    return Recipe({"tensors": dim})


# ---- views ------------------------------------------------------------------------------------------------------------


def _reshape(call: Call, dim: int) -> Recipe:
    """A block of rows stays one: where as many elements lie before the dim on either side."""
    old, new = call.shape("self"), call.result
    before = math.prod(new[:dim])
    at = next((i for i, n in enumerate(old) if n > 1 and math.prod(old[:i]) == before), None)
    if at is None:
        raise CannotSplit("its rows do not stay together")
    return Recipe(
        {"self": at}, lambda a, b: {"shape": [*new[:dim], b - a, *new[dim + 1 :]]}, target=aten.reshape.default
    )


def _transpose(call: Call, dim: int) -> Recipe:
    rank = len(call.result)
    one, other = (call.given[k] % rank for k in ("dim0", "dim1"))
    return Recipe({"self": {one: other, other: one}.get(dim, dim)})


def _t(call: Call, dim: int) -> Recipe:
    return Recipe({"self": len(call.result) - 1 - dim})


def _permute(call: Call, dim: int) -> Recipe:
    return Recipe({"self": call.given["dims"][dim] % len(call.result)})


def _expand(call: Call, dim: int) -> Recipe:
    sizes = call.result
    return Recipe(_broadcast(call, dim, ["self"]), lambda a, b: {"size": [*sizes[:dim], b - a, *sizes[dim + 1 :]]})


def _select(call: Call, dim: int) -> Recipe:
    gone = call.given["dim"] % len(call.shape("self"))
    return Recipe({"self": dim + (dim >= gone)})


def _same_but_one(call: Call, dim: int) -> Recipe:
    """slice, split, chunk: any dim but the one along which they take pieces."""
    if dim == call.given.get("dim", 0) % len(call.shape("self")):
        raise CannotSplit("it takes pieces along that dim")
    return Recipe({"self": dim})


def _unbind(call: Call, dim: int) -> Recipe:
    gone = call.given.get("dim", 0) % (len(call.result) + 1)
    return Recipe({"self": dim + (dim >= gone)})


def _getitem(call: Call, dim: int) -> Recipe:
    return Recipe({"self": dim})


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _conv),
        "linear": _linear,
        "addmm": _addmm,
        **dict.fromkeys(("mm", "bmm", "matmul"), _matmul),
        "baddbmm": _baddbmm,
        **dict.fromkeys(
            ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
             "adaptive_avg_pool2d", "adaptive_avg_pool3d"), _pool),
        **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
        **dict.fromkeys(("upsample_nearest1d", "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"), _upsample),
        **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax"), _softmax),
        "layer_norm": _layer_norm,
        "group_norm": _group_norm,
        "batch_norm": _batch_norm,
        "scaled_dot_product_attention": _attention,
        "embedding": _embedding,
        **dict.fromkeys(("mean", "sum", "amax", "amin"), _reduction),
        "cat": _cat,
        **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"), _reshape),
        **dict.fromkeys(("transpose", "swapaxes"), _transpose),
        "t": _t,
        "permute": _permute,
        "expand": _expand,
        "select": _select,
        **dict.fromkeys(("slice", "split", "split_with_sizes", "chunk"), _same_but_one),
        "unbind": _unbind,
        "getitem": _getitem,
    }
)  # fmt: skip
