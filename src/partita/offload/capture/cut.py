"""Cuts: a downset of tasks stays on the device, the rest goes to the server, and tensors cross once.

a -> b -> d        {a, c} on the device: a's tensor (b reads it) and c's (d reads it) cross
a -> c -> d        {b} on the device: no cut, for b reads a, which would be on the server
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Literal

import numpy as np
import numpy.typing as npt

from partita.errors import CaptureError
from partita.nouns.graph import BoolArray, TaskGraph
from partita.nouns.offload import OffloadJob, OffloadTask

Shape = Literal["chain", "tree", "dag"]
NEVER_S = 1e6  #: what a task that must stay on the device takes on the server: eleven days, so that none is sent there


def shape_of(graph: TaskGraph) -> Shape:
    """A chain has at most one reader and one producer a task, a tree at most one of either kind, all else is a DAG."""
    readers, producers = np.diff(graph.successors.start), np.diff(graph.predecessors.start)
    one = (bool((readers <= 1).all()), bool((producers <= 1).all()))
    return "chain" if all(one) else "tree" if any(one) else "dag"


def crossing(graph: TaskGraph, device: Set[str]) -> npt.NDArray[np.int64]:
    """Indices of the tensors that cross a cut: made on the device, read on the server. O(tasks + readers).

    Raises CaptureError where `device` is no downset of the graph.
    """
    on_device = _on_device(graph, device)
    counts = np.diff(graph.readers.start)
    tensor = np.repeat(np.arange(len(counts)), counts)
    away = ~on_device[graph.readers.items]
    return np.unique(tensor[away & on_device[graph.producer[tensor]]]).astype(np.int64)


def _on_device(graph: TaskGraph, device: Set[str]) -> BoolArray:
    unknown = sorted(set(device) - set(graph.index))
    if unknown:
        raise CaptureError(
            f"{graph.name}: the cut names the unknown task {unknown[0]!r}", hint="plan again for this model"
        )
    on_device = np.zeros(len(graph), np.bool_)
    on_device[[graph.index[t] for t in device]] = True
    edges = graph.edges
    back = edges[~on_device[edges[:, 0]] & on_device[edges[:, 1]]] if len(edges) else edges
    if len(back):
        away, here = (graph.tasks[int(i)].id for i in back[0])
        raise CaptureError(
            f"{graph.name}: task {here!r} on the device reads {away!r} on the server",
            hint=f"move {away!r} to the device or {here!r} to the server",
        )
    return on_device


def offload_job(
    graph: TaskGraph,
    input_bytes: float,
    device_s: Mapping[str, float],
    server_s: Mapping[str, float],
    pinned: Set[str] = frozenset(),
) -> OffloadJob:
    """A job for the planner: the graph's tasks in topological order with their times on either side.

    A task's output is the sum of the tensors it makes; of a task with several, all are priced where one crosses. Tasks in
    `pinned` must stay on the device: on the server they take NEVER_S. Raises CaptureError where a time is missing.
    """
    missing = [t.id for t in graph.tasks if t.id not in device_s or t.id not in server_s]
    if missing:
        raise CaptureError(
            f"{graph.name}: task {missing[0]!r} has no time ({len(missing)} of {len(graph)} have none)",
            hint="measure this model again",
        )
    made = np.zeros(len(graph))
    np.add.at(made, graph.producer, graph.size_bytes)
    tasks = [
        OffloadTask(
            (t := graph.tasks[i]).id,
            float(device_s[t.id]),
            NEVER_S if t.id in pinned else float(server_s[t.id]),
            float(made[i]),
            tuple(graph.tasks[int(p)].id for p in graph.predecessors.row(i)),
        )
        for i in graph.order.tolist()
    ]
    return OffloadJob(graph.name, input_bytes, tuple(tasks))
