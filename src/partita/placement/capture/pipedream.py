"""PipeDream profiles: per-layer times and sizes, as text.

    node7 -- Conv2d(3, 64) -- forward_compute_time=1.5, backward_compute_time=2.5, activation_size=4096.0, parameter_size=256.0
    <TAB>node1 -- node7

Times are milliseconds, sizes bytes; `activation_size=[a; b]` is a sum. A layer is one task of phase "stage" (forward and
backward together), it makes one tensor of twice its activation, which crosses there and, as a gradient, back, at the rate of
the link it takes. As the profile of a training job (`read_profile`) a layer is a forward, a backward and an update, which the
profile does not time. `Input*` nodes are dropped. Source: Narayanan et al., "PipeDream", SOSP 2019.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from partita.errors import BadInput, ClusterError, GraphError, refuse
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.profile import MOST_SAMPLES, Profile, Sample
from partita.placement.capture.dnn_partitioning import unread

FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
LONGEST_LINE = 65536  # no layer describes itself at greater length; what does is not a profile
MOST_DEVICES = 10_000  # more is a slip of the pen
MOST_FAULTS = 12  # reading stops here: a file of garbage is refused at its first lines
HINT = "the format is described in docs/reference/formats.md"

_Node = tuple[str, str, dict[str, float], tuple[str, ...]]  # (id, description, values, names of fields left unread)


def read(path: str | Path, devices: int | None = None, bandwidth_bytes_per_s: float = 1e9) -> PlacementProblem:
    """The problem in a PipeDream profile, for `devices` accelerators (the file names none) without a memory limit.

    O(lines). Raises GraphError with every fault and its line, ClusterError without devices.
    """
    cluster = _accelerators(path, devices, bandwidth_bytes_per_s)
    graph, seconds, odd = read_graph(path)
    problem = PlacementProblem(
        graph,
        cluster,
        CostTable.given(("acc",), [[s] for s in seconds], np.full(len(graph.producer), math.nan)),
        np.array([t.parameter_bytes + t.activation_bytes for t in graph.tasks], np.float64),
        rule="overlap",
        pays=frozenset({"acc"}),
        source_format="pipedream",
        source=Path(path).stem,
        bandwidth_bytes_per_s=float(bandwidth_bytes_per_s),
        remarks=(f"nodes: {unread(odd)}",) if odd else (),
    )
    problem.expect_fit()
    return problem


def read_profile(
    path: str | Path, micro_batches: int, devices: int | None = None, bandwidth_bytes_per_s: float = 1e9
) -> tuple[Profile, list[str]]:
    """A training job of the profile's layers, and fields left unread: a micro-batch is what the profile timed, and a step
    has so many of them. Nothing is known of the updates but that they come, and of memory but parameters, their gradients
    and activations.

    O(lines). Raises GraphError with every fault and its line, ClusterError without devices, BadInput for another number.
    """
    if not 1 <= micro_batches <= MOST_SAMPLES:
        raise BadInput(f"{micro_batches} micro-batches asked for", hint="say --micro-batches M, at least 1")
    cluster = _accelerators(path, devices, bandwidth_bytes_per_s)
    kept, edges, odd = _layers(path)
    graph, seconds = _training_graph(Path(path).stem, kept, edges)
    costs = CostTable.given(("acc",), [[s] for s in seconds], np.full(len(graph.producer), math.nan))
    return Profile(Path(path).name, micro_batches, (Sample(1, graph, costs),), cluster), odd


def _accelerators(path: str | Path, devices: int | None, bandwidth_bytes_per_s: float) -> Cluster:
    """Equal accelerators without a memory limit; the file names none. Raises ClusterError."""
    if devices is None or not 1 <= devices <= MOST_DEVICES:
        said = "the profile names no devices" if devices is None else f"{devices} devices asked for"
        raise ClusterError(f"{path}: {said}", hint=f"say --devices N, 1 to {MOST_DEVICES}")
    if not (bandwidth_bytes_per_s > 0 and math.isfinite(bandwidth_bytes_per_s)):
        raise ClusterError(f"a bandwidth of {bandwidth_bytes_per_s} bytes/s", hint="say --bandwidth, e.g. 1e9")
    names = tuple(Device(f"acc{i}", "acc") for i in range(devices))
    return Cluster(names, default_link=Link("", "", bandwidth_bytes_per_s))


def read_graph(path: str | Path) -> tuple[TaskGraph, list[float], list[str]]:
    """The graph, [tasks] seconds of forward and backward together, and fields left unread. Raises GraphError."""
    kept, edges, odd = _layers(path)
    return *_graph(Path(path).stem, kept, edges), odd


def _layers(path: str | Path) -> tuple[list[_Node], list[tuple[str, str]], list[str]]:
    """(its layers, edges, fields left unread). Raises GraphError."""
    nodes: dict[str, _Node] = {}
    edges: dict[tuple[str, str], int] = {}
    faults: list[str] = []
    for number, line in _lines(Path(path)):
        try:
            if line.startswith("\t"):
                edges.setdefault(_edge(line), number)
            else:
                node = _node(line)
                if node[0] in nodes:
                    raise ValueError(f"node {node[0]!r} is described twice")
                nodes[node[0]] = node
        except ValueError as error:
            faults.append(f"line {number}: {error}")
            if len(faults) >= MOST_FAULTS:
                break
    refuse(GraphError, faults, str(path), hint=HINT)
    refuse(GraphError, _edge_faults(edges, nodes), str(path))
    kept = [n for n in nodes.values() if not n[1].startswith("Input")]
    if not kept:
        raise GraphError(f"{path}: it has no nodes" + (" besides inputs" if nodes else ""), hint=HINT)
    odd = list(dict.fromkeys(f for n in nodes.values() for f in n[3]))
    return kept, list(edges), odd


def _readers(kept: list[_Node], edges: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Layer -> those that read it."""
    readers: dict[str, list[str]] = {i: [] for i, *_ in kept}
    for u, v in edges:
        if u in readers and v in readers:
            readers[u].append(v)
    return readers


def _training_graph(name: str, kept: list[_Node], edges: list[tuple[str, str]]) -> tuple[TaskGraph, list[float]]:
    """Forwards, backwards in the opposite order, updates of what has parameters; a gradient goes back along every edge."""
    readers = _readers(kept, edges)
    forward = [Task(i, t, "forward", None, None, v["parameter_size"], v["activation_size"]) for i, t, v, _ in kept]
    backward = [Task(f"{i}.backward", text, "backward", of=i) for i, text, *_ in reversed(kept)]
    update = [Task(f"{i}.update", text, "update", of=i) for i, text, v, _ in kept if v["parameter_size"] > 0]
    size = {i: v["activation_size"] for i, _, v, _ in kept}
    tensors = [(i, size[i], readers[i]) for i, *_ in kept if readers[i]]
    tensors += [(f"{r}.backward", size[i], [f"{i}.backward"]) for i in readers for r in readers[i]]
    tensors += [(i, 0.0, [f"{i}.backward"]) for i in readers]
    tensors += [(f"{t.of}.backward", 0.0, [t.id]) for t in update]
    seconds = [v["forward_compute_time"] / 1e3 for _, _, v, _ in kept]
    seconds += [v["backward_compute_time"] / 1e3 for _, _, v, _ in reversed(kept)] + [0.0] * len(update)
    return TaskGraph.build(name, [*forward, *backward, *update], tensors), seconds


def _graph(name: str, kept: list[_Node], edges: list[tuple[str, str]]) -> tuple[TaskGraph, list[float]]:
    tasks = [
        Task(i, text, "stage", parameter_bytes=v["parameter_size"], activation_bytes=v["activation_size"])
        for i, text, v, _ in kept
    ]
    readers = _readers(kept, edges)
    tensors = [(i, 2.0 * v["activation_size"], readers[i]) for i, _, v, _ in kept if readers[i]]
    seconds = [(v["forward_compute_time"] + v["backward_compute_time"]) / 1e3 for _, _, v, _ in kept]
    return TaskGraph.build(name, tasks, tensors), seconds


def _edge_faults(edges: dict[tuple[str, str], int], nodes: dict[str, _Node]) -> list[str]:
    faults = [f"line {k}: edge to the unknown node {n!r}" for e, k in edges.items() for n in e if n not in nodes]
    return faults + [f"line {k}: edge {u} -> {v} is a circle" for (u, v), k in edges.items() if u == v]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank, read one at a time, so that garbage costs nothing."""
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(LONGEST_LINE):
                number += 1
                if len(raw) == LONGEST_LINE:
                    raise GraphError(f"{path}: line {number} is over {LONGEST_LINE} bytes long", hint=HINT)
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise GraphError(f"{path} is not text: line {number} holds 0x{error.object[error.start]:02x}") from error
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}", hint="check the path") from error


def _edge(line: str) -> tuple[str, str]:
    parts = line.strip().split(" -- ")
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"{line.strip()[:60]!r} is no edge 'node1 -- node2'")
    return parts[0], parts[1]


def _node(line: str) -> _Node:
    parts = line.strip().split(" -- ")
    if len(parts) < 3:
        raise ValueError(f"{line.strip()[:60]!r} is no node 'id -- description -- forward_compute_time=...'")
    rest = parts[2]
    said = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,\s]+)", rest))
    missing = [f for f in FIELDS if f not in said]
    if missing:
        raise ValueError(f"node {parts[0]!r} has no {missing[0]}")
    odd = tuple(f for f in said if f not in FIELDS)
    return parts[0], parts[1], {f: _total(said[f], parts[0], f) for f in FIELDS}, odd


def _total(text: str, node: str, field: str) -> float:
    """A number, or the sum of a list of them.

    >>> _total("[1.0; 2.5]", "node1", "activation_size")
    3.5
    """
    try:
        parts = [float(x) for x in re.split(r"[;,\s]+", text.strip("[]")) if x]
    except ValueError as error:
        raise ValueError(f"node {node!r} has {field} = {text[:40]}") from error
    if not all(x >= 0 and math.isfinite(x) for x in parts):
        raise ValueError(f"node {node!r} has {field} = {text[:40]}")
    return float(sum(parts))
