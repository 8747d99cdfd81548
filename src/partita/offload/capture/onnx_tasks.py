"""From the nodes of an ONNX model to tasks.

constant   a node that reads only constants and always makes the same: no task
task       any other node; nodes between which a tensor flows that cannot cross (its size is not known, or numpy has no array of
           its type) are one task together, and so are those on a way from one of these nodes to another, for a circle of
           tasks could not be cut
pinned     a task that reads an input or makes an output that cannot cross: it stays on the device
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from partita.errors import CaptureError
from partita.nouns.graph import Task, TaskGraph
from partita.offload.capture.onnx_canonical import reads
from partita.offload.capture.onnx_types import Value, refuse_strange

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


@dataclass(frozen=True)
class Layout:
    """How a model's nodes lie in its tasks. Nodes are named by their position in the file."""

    graph: TaskGraph
    nodes: tuple[tuple[int, ...], ...]  #: [tasks] nodes that it runs, in order
    constants: tuple[int, ...]  #: nodes that make constants, in order
    values: tuple[str, ...]  #: [tensors of the graph] its name in the model
    pinned: frozenset[str]  #: ids of tasks that stay on the device


def layout_of(model: onnx.ModelProto, name: str, types: Mapping[str, Value]) -> Layout:
    """Tasks and tensors of a canonical model. O(nodes + edges). Raises CaptureError where nothing computes an output, and where an
    input or output has a type of which numpy has no arrays."""
    graph = model.graph
    refuse_strange(name, (types[v.name] for v in (*graph.input, *graph.output) if v.name in types))
    constants = _constant_nodes(graph)
    makers = {o: n for n, node in enumerate(graph.node) if n not in constants for o in node.output if o}
    lost = [o.name for o in graph.output if o.name not in makers]
    if lost:
        raise CaptureError(
            f"{name}: no node computes the output {lost[0]!r}", hint="export the model without outputs that are inputs"
        )
    computing = sorted(set(range(len(graph.node))) - constants)
    flows = [(makers[r], n, r) for n in computing for r in dict.fromkeys(reads(graph.node[n])) if r in makers]
    unknown = [(a, b) for a, b, r in flows if _size(types, r) is None]
    group = _groups(len(graph.node), [(a, b) for a, b, _ in flows], unknown)
    members: dict[int, list[int]] = {}
    for n in computing:
        members.setdefault(int(group[n]), []).append(n)
    ids = dict(zip(members, _ids([graph.node[m[0]] for m in members.values()]), strict=True))
    tensors = _tensors(graph, flows, group, types, makers)
    sizes = _weight_sizes(graph, types, constants)
    tasks = [
        Task(
            ids[g],
            _name(graph, m),
            parameter_bytes=sum(sizes.get(r, 0.0) for r in {r for n in m for r in reads(graph.node[n])}),
        )
        for g, m in members.items()
    ]
    rows = [(ids[g], size, [ids[r] for r in readers]) for _, g, size, readers in tensors]
    unsized = {v.name for v in (*graph.input, *graph.output) if _size(types, v.name) is None}
    pinned = {
        ids[g]
        for g, m in members.items()
        if any(unsized.intersection((*reads(graph.node[n]), *graph.node[n].output)) for n in m)
    }
    return Layout(
        TaskGraph.build(name, tasks, rows),
        tuple(tuple(m) for m in members.values()),
        tuple(sorted(constants)),
        tuple(value for value, *_ in tensors),
        frozenset(pinned),
    )


def _constant_nodes(graph: onnx.GraphProto) -> set[int]:
    """Positions of the nodes that make the same from the weights alone, whatever the input; none makes an output."""
    known = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    wanted = {o.name for o in graph.output}
    constants = set()
    for n, node in enumerate(graph.node):
        if node.op_type not in RANDOM and known.issuperset(reads(node)) and not wanted.intersection(node.output):
            constants.add(n)
            known.update(node.output)
    return constants


def _size(types: Mapping[str, Value], value: str) -> float | None:
    found = types.get(value)
    return None if found is None else found.array_bytes


def _groups(n: int, edges: Sequence[tuple[int, int]], unknown: Sequence[tuple[int, int]]) -> npt.NDArray[np.int32]:
    """[nodes] the task of each node: ends of an unknown edge together, then whatever lies on a circle together.

    Both at once: an unknown edge counts in both directions, and a task is a strongly connected part.
    """
    pairs = np.array([*edges, *((b, a) for a, b in unknown)], np.int64).reshape(-1, 2)
    matrix = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    labels: npt.NDArray[np.int32] = connected_components(matrix, directed=True, connection="strong")[1]
    return labels


def _tensors(
    graph: onnx.GraphProto,
    flows: Sequence[tuple[int, int, str]],
    group: npt.NDArray[np.int32],
    types: Mapping[str, Value],
    makers: Mapping[str, int],
) -> list[tuple[str, int, float, list[int]]]:
    """(name, task that makes it, bytes, other tasks that read it) of what leaves a task, outputs of the model among it."""
    readers: dict[str, dict[int, None]] = {o.name: {} for o in graph.output}
    for a, b, value in flows:
        if group[a] != group[b]:
            readers.setdefault(value, {})[int(group[b])] = None
    order = {value: k for k, value in enumerate(makers)}
    return [
        (value, int(group[makers[value]]), _size(types, value) or 0.0, list(readers[value]))
        for value in sorted(readers, key=order.__getitem__)
    ]


def _ids(heads: Sequence[onnx.NodeProto]) -> list[str]:
    """A task is called like its first node where that name is its own, else like the operator with a number."""
    counts = Counter(n.name for n in heads)
    taken = {name for name, count in counts.items() if name and count == 1}
    ids = []
    for k, node in enumerate(heads):
        if node.name in taken and counts[node.name] == 1:
            ids.append(node.name)
            continue
        name = f"{node.op_type}_{k}"
        while name in taken:
            name += "_"
        taken.add(name)
        ids.append(name)
    return ids


def _name(graph: onnx.GraphProto, members: Sequence[int]) -> str:
    ops = [graph.node[n].op_type for n in members]
    return ops[0] if len(ops) == 1 else f"{ops[0]} .. {ops[-1]} ({len(ops)} nodes)"


def _weight_sizes(graph: onnx.GraphProto, types: Mapping[str, Value], constants: Set[int]) -> dict[str, float]:
    """Name -> bytes of every constant whose size is known."""
    sizes = {t.name: Value(t.name, tuple(t.dims), t.data_type).size_bytes or 0.0 for t in graph.initializer}
    made = [types[o] for n in constants for o in graph.node[n].output if o in types]
    return sizes | {v.name: v.size_bytes or 0.0 for v in made}
