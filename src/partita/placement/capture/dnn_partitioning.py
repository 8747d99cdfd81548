"""dnn-partitioning graphs: operator and layer graphs with costs, as JSON.

    {"maxSizePerFPGA": bytes, "maxFPGAs": n, "maxCPUs": m,
     "nodes": [{"id", "supportedOnFpga", "cpuLatency" ms, "fpgaLatency" ms, "size" bytes, "isBackwardNode", "colorClass"}],
     "edges": [{"sourceId", "destId", "cost" ms}]}

Accelerators become devices acc0 .. of kind "acc", CPUs cpu0 .. of kind "cpu" with unlimited memory. A node is one task and
makes one tensor, read by all nodes its edges lead to; the edges' cost is the tensor's transfer time. Nodes of one colour
class are one colocation group. Published files carry further fields; they are left unread, and `PlacementProblem.remarks` names
them. Source: Tarnawski et al., "Efficient algorithms for device placement of DNN graph
operators", NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import ClusterError, GraphError, refuse
from partita.files import read_json
from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_problem import PlacementProblem

TOP = {"maxSizePerFPGA": True, "maxFPGAs": True, "maxCPUs": True, "nodes": True, "edges": True}  # name -> is needed
NODE = {
    "id": True, "supportedOnFpga": True, "cpuLatency": True, "fpgaLatency": True,
    "size": False, "isBackwardNode": False, "colorClass": False, "name": False,
}  # fmt: skip
EDGE = {"sourceId": True, "destId": True, "cost": True, "size": False}
KINDS = ("acc", "cpu")
Rows = list[Mapping[str, Any]]
MOST_DEVICES = 10_000  # more is a slip of the pen
HINT = "the format is described in docs/reference/formats.md"


def read(path: str | Path, devices: int | None = None, bandwidth_bytes_per_s: float = 1e9) -> PlacementProblem:
    """The problem in a dnn-partitioning file. `devices` replaces the file's number of accelerators.

    The bandwidth is not used (the file gives transfer times); it stands here so that all readers are called alike.
    Times come in milliseconds and leave in seconds. O(nodes + edges).

    Raises GraphError or ClusterError with every fault and its node's id, Infeasible where a node or a colour class fits
    on no device.
    """
    return from_json(read_json(path, GraphError), Path(path).stem, str(path), devices)


def from_json(value: Mapping[str, Any], name: str, what: str, devices: int | None = None) -> PlacementProblem:
    """The problem in a parsed JSON object."""
    refuse(GraphError, _missing(value, TOP, "the file"), what, hint=HINT)
    cluster = _cluster(value, what, devices)
    nodes, edges = _rows(value, "nodes", what), _rows(value, "edges", what)
    if not nodes:
        raise GraphError(f"{what}: it has no nodes", hint="give a graph with at least one node")
    refuse(GraphError, [f for i, n in enumerate(nodes) for f in _node_faults(i, n)], what, hint=HINT)
    ids = [str(n["id"]) for n in nodes]
    tensors, transfer_s = _tensors(ids, edges, what)
    graph = TaskGraph.build(name, [_task(n) for n in nodes], tensors)
    problem = PlacementProblem(
        graph,
        cluster,
        CostTable.given(KINDS, [[_seconds(n, k) for k in KINDS] for n in nodes], transfer_s),
        np.array([float(n.get("size", 0.0)) for n in nodes], np.float64),
        rule="sum",
        pays=frozenset({"acc"}),
        source_format="dnn-partitioning",
        source=name,
        remarks=_unread(value, nodes, edges),
    )
    problem.expect_fit()
    return problem


def _cluster(value: Mapping[str, Any], what: str, devices: int | None) -> Cluster:
    faults = []
    for key in ("maxFPGAs", "maxCPUs"):
        number = value[key]
        if (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not 0 <= number <= MOST_DEVICES
            or number % 1
        ):
            faults.append(f"{key} is {number!r}, not a whole number up to {MOST_DEVICES}")
    room = value["maxSizePerFPGA"]
    if not is_number(room) or not room >= 0:
        faults.append(f"maxSizePerFPGA is {room!r}, not a size in bytes")
    refuse(ClusterError, faults, what, hint=HINT)
    if devices is not None and not 1 <= devices <= MOST_DEVICES:
        raise ClusterError(f"{devices} devices asked for", hint=f"ask for 1 to {MOST_DEVICES}")
    accelerators = int(value["maxFPGAs"]) if devices is None else devices
    if accelerators + int(value["maxCPUs"]) == 0:
        raise ClusterError(f"{what}: it has 0 accelerators and 0 CPUs", hint="say --devices N")
    memory = float(room) or 5e-324  # a device must have some memory; this is none
    return Cluster(
        tuple(Device(f"acc{i}", "acc", memory) for i in range(accelerators))
        + tuple(Device(f"cpu{i}", "cpu") for i in range(int(value["maxCPUs"])))
    )


def _task(node: Mapping[str, Any]) -> Task:
    colour = node.get("colorClass")
    return Task(
        str(node["id"]),
        str(node.get("name", "")),
        "backward" if node.get("isBackwardNode") else "forward",
        None if colour is None else str(colour),
        parameter_bytes=float(node.get("size", 0.0)),
    )


def _seconds(node: Mapping[str, Any], kind: str) -> float:
    if kind == "acc":
        return float(node["fpgaLatency"]) / 1e3 if node["supportedOnFpga"] else math.inf
    return float(node["cpuLatency"]) / 1e3


def _node_faults(i: int, node: Mapping[str, Any]) -> list[str]:
    who = f"node {node['id']!r}" if "id" in node else f"node number {i}"
    faults = _missing(node, NODE, who)
    if faults:
        return faults
    if not isinstance(node["id"], int | str) or isinstance(node["id"], bool):
        faults.append(f"{who} has an id that is neither a number nor a word")
    for key in ("cpuLatency", "fpgaLatency", "size"):
        number = node.get(key, 0.0)
        if not is_number(number) or not number >= 0 or (key == "size" and math.isinf(number)):
            faults.append(f"{who} has {key} = {number!r}")
    for key in ("supportedOnFpga", "isBackwardNode"):
        if node.get(key, False) not in (0, 1):
            faults.append(f"{who} has {key} = {node[key]!r}, not true or false")
    if not isinstance(node.get("colorClass"), int | str | None):
        faults.append(f"{who} has colorClass = {node['colorClass']!r}, not a number")
    return faults


def _tensors(ids: list[str], edges: Rows, what: str) -> tuple[list[tuple[str, float, list[str]]], list[float]]:
    """(producer, bytes, readers) of every node that sends, and the seconds that sending takes."""
    known = set(ids)
    if len(known) < len(ids):
        seen: set[str] = set()
        twice = sorted({i for i in ids if i in seen or seen.add(i)})  # type: ignore[func-returns-value]
        refuse(GraphError, [f"node id {i} is used twice" for i in twice], what)
    faults: list[str] = []
    cost: dict[str, float] = {}
    size: dict[str, float] = {}
    readers: dict[str, dict[str, None]] = {}
    for i, edge in enumerate(edges):
        wrong = _edge_faults(i, edge, known)
        if wrong:
            faults += wrong
            continue
        u, v, c = str(edge["sourceId"]), str(edge["destId"]), float(edge["cost"])
        if not math.isclose(cost.setdefault(u, c), c, rel_tol=1e-9):
            faults.append(f"node {u} sends at a cost of {cost[u]:g} ms and of {c:g} ms; its edges must agree")
        size[u] = max(size.get(u, 0.0), float(edge.get("size", 0.0)))
        readers.setdefault(u, {})[v] = None
    refuse(GraphError, faults, what, hint=HINT)
    return [(u, size[u], list(vs)) for u, vs in readers.items()], [cost[u] / 1e3 for u in readers]


def _edge_faults(i: int, edge: Mapping[str, Any], known: set[str]) -> list[str]:
    faults = _missing(edge, EDGE, f"edge number {i}")
    if faults:
        return faults
    who = f"edge {edge['sourceId']} -> {edge['destId']}"
    faults += [f"{who} names the unknown node {edge[k]!r}" for k in ("sourceId", "destId") if str(edge[k]) not in known]
    if str(edge["sourceId"]) == str(edge["destId"]):
        faults.append(f"{who} is a circle: a node cannot read itself")
    for key in ("cost", "size"):
        number = edge.get(key, 0.0)
        if not is_number(number) or not (number >= 0 and math.isfinite(number)):
            faults.append(f"{who} has {key} = {number!r}")
    return faults


def _missing(row: Mapping[str, Any], known: Mapping[str, bool], who: str) -> list[str]:
    return [f"{who} has no {k!r}" for k, needed in known.items() if needed and k not in row]


def _unread(value: Mapping[str, Any], nodes: Rows, edges: Rows) -> tuple[str, ...]:
    """A sentence for each part of the file that has fields nobody reads here."""
    parts = (("the file", [value], TOP), ("nodes", nodes, NODE), ("edges", edges, EDGE))
    found = {what: list(dict.fromkeys(k for row in rows for k in row if k not in known)) for what, rows, known in parts}
    return tuple(f"{what}: {unread(names)}" for what, names in found.items() if names)


def unread(names: Sequence[str], most: int = 6) -> str:
    """The names of fields that are left unread, for a person.

    >>> unread(["layerId"])
    "the field 'layerId' is not read"
    """
    shown = ", ".join(repr(n[:40]) for n in names[:most])
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"the field {shown} is not read" if len(names) == 1 else f"the fields {shown}{more} are not read"


def _rows(value: Mapping[str, Any], key: str, what: str) -> Rows:
    rows = value[key]
    if not isinstance(rows, list):
        raise GraphError(f"{what}: {key} is not a list", hint=HINT)
    refuse(GraphError, _not_objects(rows, key), what, hint=HINT)
    return rows


def _not_objects(rows: Iterable[Any], key: str) -> list[str]:
    return [f"{key}[{i}] is {row!r:.40}, not an object" for i, row in enumerate(rows) if not isinstance(row, Mapping)]


def is_number(x: Any) -> bool:
    """Whether a JSON value is a number that a float can hold; JSON's whole numbers have no limit."""
    return isinstance(x, float) or (isinstance(x, int) and not isinstance(x, bool) and abs(x) < 1 << 1000)
