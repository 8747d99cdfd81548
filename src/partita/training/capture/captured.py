"""Captured: a model as a graph of tasks, and the code behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from partita.nouns.graph import TaskGraph
from partita.nouns.splits import Split
from partita.training.job import Batch


@dataclass(frozen=True)
class Captured:
    """A model as a graph of tasks, and the code behind it."""

    graph: TaskGraph
    code: fx.GraphModule  #: the whole forward with its loss; its placeholders are listed in `bindings`
    bindings: Mapping[str, Binding]  #: placeholder name -> what it stands for
    nodes: tuple[tuple[str, ...], ...]  #: [forward tasks, in graph order] names of the code's nodes that each task runs
    values: tuple[str, ...]  #: [tensors of the graph] name of the node that makes it; "" for bookkeeping edges
    loss: str  #: name of the node that is the loss
    aliases: Mapping[str, tuple[str, ...]]  #: parameter or buffer name -> other names of the same tensor
    meta: Mapping[str, TensorMeta]  #: node name -> what its value looks like
    splits: tuple[Split, ...] = ()  #: operators in parts
    saved: tuple[str, ...] = ()  #: names in the model's state_dict; buffers registered as not persistent are missing

    @cached_property
    def task_nodes(self) -> dict[str, tuple[str, ...]]:
        """Forward task id -> names of the nodes it runs."""
        forward = [t.id for t in self.graph.tasks if t.phase == "forward"]
        return dict(zip(forward, self.nodes, strict=True))


@dataclass(frozen=True)
class Binding:
    """What a placeholder of the code stands for."""

    kind: str  #: "parameter", "buffer", "constant" or "input"
    name: str  #: the model's own name of it; of an input: its position among the batch's leaves
    constant: Any = None


@dataclass(frozen=True)
class TensorMeta:
    """Shape and layout of a value."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @cached_property
    def dense_stride(self) -> tuple[int, ...]:
        """With which a copy of it is kept: its own where that is dense, else a contiguous one's."""
        if is_dense(self.shape, self.stride):
            return self.stride
        return tuple(torch.empty(self.shape, device="meta").stride())


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """The elements fill one block of memory, each place once.

    >>> is_dense((2, 3), (1, 2)), is_dense((2, 3), (0, 1))
    (True, False)
    """
    expected = 1
    for step, n in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= n
    return True


def bound_values(bindings: Mapping[str, Binding], tensors: Mapping[str, Tensor], batch: Batch) -> dict[str, Any]:
    """Placeholder name -> its value, for a model's tensors (by name) and a batch."""
    leaves = pytree.tree_leaves(batch)
    pick: dict[str, Callable[[Binding], Any]] = {
        "parameter": lambda b: tensors[b.name],
        "buffer": lambda b: tensors[b.name],
        "constant": lambda b: b.constant,
        "input": lambda b: leaves[int(b.name)],
    }
    return {name: pick[b.kind](b) for name, b in bindings.items()}


def written_buffers(nodes: Sequence[fx.Node], bindings: Mapping[str, Binding]) -> tuple[str, ...]:
    """Names of the buffers that some nodes change."""
    return tuple(dict.fromkeys(bindings[b].name for n in nodes for b in n.meta.get("partita_writes", ())))
