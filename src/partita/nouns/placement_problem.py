"""PlacementProblem: what a placement planner is asked, whatever file it came from.

A graph, the machines, what everything costs, and how those costs add up to the load of a device:

    rule "sum"       load = compute + boundary              dnn-partitioning: a device computes or sends
    rule "overlap"   load = max(compute, in, out)           PipeDream: sending hides behind computing

where boundary = in + out; `in` counts once every tensor that a task on the device reads and another device makes, `out`
once every tensor that is made on the device and read elsewhere. A crossing costs the tensor's given time, or its bytes over
the rate of the link; what goes to several devices goes out at the pace of the slowest of these links. Devices of a kind
outside `pays` have no boundary: their load is their compute. The objective "throughput" is the largest load; a sample leaves the pipeline every so many seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from partita.errors import CostError, Infeasible, refuse
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import FloatArray, IntArray, TaskGraph

Rule = Literal["sum", "overlap"]


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Everything a planner needs; arrays are in the order of the graph's tasks and tensors."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    memory_bytes: FloatArray  #: [tasks] what a task holds on its device
    rule: Rule = "sum"
    pays: frozenset[str] = frozenset()  #: kinds of device whose load includes what crosses their boundary
    source_format: str = ""  #: of the file it came from
    source: str = ""  #: that file's name
    bandwidth_bytes_per_s: float | None = None  #: that its transfer times were made with, where the file gave bytes
    remarks: tuple[str, ...] = ()  #: what a person should know of that file, a sentence each; not kept in plan files
    kind: ClassVar[str] = "placement"

    @cached_property
    def transfer_s(self) -> FloatArray:
        """[tensors] seconds that a crossing costs at least: where the table leaves it open, over the best link."""
        given = self.costs.transfer_s
        return np.where(np.isnan(given), self.graph.size_bytes / self.cluster.best_rate_bytes_per_s, given)

    @cached_property
    def links_differ(self) -> bool:
        """Whether what a crossing costs depends on between which devices it is."""
        of_links = np.isnan(self.costs.transfer_s) & (self.graph.size_bytes > 0)
        return bool(of_links.any()) and not self.cluster.equal_rates

    def crossing_s(self, tensor: IntArray, source: IntArray, target: IntArray) -> FloatArray:
        """[k] seconds that tensor[k] takes from device source[k] to another one, target[k]."""
        if not self.links_differ:
            return self.transfer_s[tensor]
        names, n = [d.name for d in self.cluster.devices], len(self.cluster.devices)
        pairs, at = np.unique(source * n + target, return_inverse=True)
        rate = [self.cluster.link(names[p // n], names[p % n]).rate_bytes_per_s for p in pairs.tolist()]
        over_link = self.graph.size_bytes[tensor] / np.array(rate, np.float64)[at.reshape(-1)]
        given = self.costs.transfer_s[tensor]
        return np.where(np.isnan(given), over_link, given)

    def boundary_s(self, device_of: IntArray) -> tuple[FloatArray, FloatArray]:
        """([devices] seconds that come in, [devices] that go out) where task i is on device device_of[i]. O(readers)."""
        graph, n = self.graph, len(self.cluster.devices)
        owner = graph.tensor_read
        met = np.unique(owner * n + device_of[graph.readers.items])
        tensor, target = met // n, met % n
        away = device_of[graph.producer[tensor]] != target
        tensor, target = tensor[away], target[away]
        seconds = self.crossing_s(tensor, device_of[graph.producer[tensor]], target)
        slowest = np.zeros(len(graph.producer))
        np.maximum.at(slowest, tensor, seconds)
        inward = np.bincount(target, seconds, n).astype(np.float64)
        return inward, np.bincount(device_of[graph.producer], slowest, n).astype(np.float64)

    def loads(self, device_of: IntArray) -> FloatArray:
        """[devices] the load of every device, by the rule; inf where a task cannot run. `device_of` is [tasks]."""
        devices, n = self.cluster.devices, len(self.cluster.devices)
        column = np.array([self.costs.column(d.kind) for d in devices])[device_of]
        speed = np.array([d.speed for d in devices])[device_of]
        seconds = self.costs.seconds[np.arange(len(self.graph)), column] / speed
        compute = np.bincount(device_of, seconds, n).astype(np.float64)
        pays = np.array([d.kind in self.pays for d in devices], np.bool_)
        inward, outward = (np.where(pays, x, 0.0) for x in self.boundary_s(device_of))
        return compute + inward + outward if self.rule == "sum" else np.maximum(compute, np.maximum(inward, outward))

    def on(self, cluster: Cluster) -> PlacementProblem:
        """The same question for other machines."""
        return replace(self, cluster=cluster)

    def shown(self) -> dict[str, Any]:
        """What of it stands beside the plan, for scripts."""
        rate = self.bandwidth_bytes_per_s
        return {
            "source_format": self.source_format,
            "source": self.source,
            **({} if rate is None else {"bandwidth_bytes_per_s": rate}),
            "rule": self.rule,
            "pays": sorted(self.pays),
        }

    def to_json(self) -> dict[str, Any]:
        parts = {"graph": self.graph.to_json(), "cluster": self.cluster.to_json(), "costs": self.costs.to_json()}
        return {"kind": self.kind, **self.shown(), "memory_bytes": self.memory_bytes.tolist(), **parts}

    @staticmethod
    def from_json(value: Mapping[str, Any], what: str) -> PlacementProblem:
        """Raises GraphError, ClusterError or CostError, KeyError, TypeError or ValueError where it is damaged."""
        graph = TaskGraph.from_json(value["graph"], f"{what}: graph")
        if value["rule"] not in get_args(Rule):
            raise ValueError(f"unknown rule {value['rule']!r}")
        rate = value.get("bandwidth_bytes_per_s")
        problem = PlacementProblem(
            graph,
            Cluster.from_json(value["cluster"], f"{what}: cluster"),
            CostTable.from_json(value["costs"], graph, f"{what}: costs"),
            np.array(value["memory_bytes"], np.float64),
            value["rule"],
            frozenset(str(k) for k in value["pays"]),
            str(value["source_format"]),
            str(value["source"]),
            None if rate is None else float(rate),
        )
        refuse(CostError, problem.check(), what)
        return problem

    def check(self) -> list[str]:
        """Every fault at once; empty when the parts fit together."""
        faults = [*self.graph.check(), *self.cluster.check()]
        faults = faults or self.costs.check(self.graph)
        faults += [
            f"no costs for devices of kind {k!r}"
            for k in (*self.cluster.kinds, *self.pays)
            if k not in self.costs.kinds
        ]
        if self.memory_bytes.shape != (len(self.graph),):
            return [*faults, f"memory of {len(self.memory_bytes)} tasks is given; the graph has {len(self.graph)}"]
        bad = np.flatnonzero(~(np.isfinite(self.memory_bytes) & (self.memory_bytes >= 0)))
        return faults + [f"task {self.graph.tasks[i].id!r} holds {self.memory_bytes[i]} bytes" for i in bad]

    def expect_fit(self) -> None:
        """Raise Infeasible where some task, some colocation group, or all together cannot be placed at all.

        Passing is necessary for a feasible placement, not sufficient. Raises CostError where the parts do not fit.
        """
        refuse(CostError, self.check(), f"problem {self.graph.name!r}")
        atom, n = self.graph.atom, int(self.graph.atom.max()) + 1
        holds = np.bincount(atom, self.memory_bytes, n).astype(np.float64)
        takes = np.stack([np.bincount(atom, self.costs.seconds[:, k], n) for k in range(len(self.costs.kinds))], axis=1)
        room = {k: max(d.memory_bytes for d in self.cluster.devices if d.kind == k) for k in self.cluster.kinds}
        runs = np.stack([np.isfinite(takes[:, self.costs.column(k)]) for k in room], axis=1)
        fits = np.stack([holds <= space for space in room.values()], axis=1)
        homeless = np.flatnonzero(~(runs & fits).any(axis=1))
        if len(homeless):
            raise self._homeless(int(homeless[0]), len(homeless), holds, runs, room)
        total, most = float(self.memory_bytes.sum()), sum(d.memory_bytes for d in self.cluster.devices)
        if total > most:
            raise Infeasible(
                f"the tasks hold {_size(total)}; all {len(self.cluster.devices)} devices together have {_size(most)}",
                constraint="memory",
                relaxation=f"{total - most:.0f} more bytes of memory, or one more device",
            )

    def _homeless(self, a: int, more: int, holds: FloatArray, runs: Any, room: Mapping[str, float]) -> Infeasible:
        """The error for atom a, the first of `more` that fit nowhere."""
        members = np.flatnonzero(self.graph.atom == a)
        ids = [self.graph.tasks[i].id for i in members]
        group = self.graph.tasks[members[0]].group
        if len(ids) == 1:
            who = f"task {ids[0]!r}"
        else:
            shown = ", ".join(map(repr, ids[:4])) + (", ..." if len(ids) > 4 else "")
            who = f"colocation group {group!r} ({len(ids)} tasks: {shown})"
        others = f" (and {more - 1} more like it)" if more > 1 else ""
        if not runs[a].any():
            alone = [i for i in members if not np.isfinite(self.costs.seconds[i]).any()]
            why = (
                "cannot run on any device"
                if len(ids) == 1 or alone
                else "has no kind of device on which all of it runs"
            )
            return Infeasible(
                f"{who} {why}{others}; there are {_listed(self.cluster)}",
                constraint="supported devices",
                relaxation="add a device of a kind that runs it",
            )
        space = max(s for r, s in zip(runs[a], room.values(), strict=True) if r)
        return Infeasible(
            f"{who} holds {_size(float(holds[a]))}; the largest device that runs it has {_size(space)}{others}",
            constraint="memory",
            relaxation=f"a device with {holds[a]:.0f} bytes, or a smaller group",
        )


def _size(size_bytes: float) -> str:
    """Bytes for a person.

    >>> _size(1.5e9)
    '1.5 GB'
    """
    if not math.isfinite(size_bytes):
        return "unlimited bytes"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes:.0f} bytes"


def _listed(cluster: Cluster) -> str:
    counts = {k: sum(d.kind == k for d in cluster.devices) for k in cluster.kinds}
    return " and ".join(f"{n} of kind {k!r}" for k, n in counts.items())
