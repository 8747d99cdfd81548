"""Segments: a placement cut into pieces that each run on one device without waiting for another in their midst.

A pipeline whose stages are the devices needs an acyclic quotient. Where it is cyclic, a device serves several *virtual
stages*: a sequence of (device, tasks) in which every task comes after all it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partita.nouns.graph import IntArray, TaskGraph
from partita.nouns.pipeline_plan import Stage


def segments(graph: TaskGraph, device_of: Sequence[int] | IntArray) -> list[tuple[int, list[int]]]:
    """(device, tasks) in an order in which everything read was made before.

    Greedy: run all that is ready on a device, and all that becomes ready there; then go on to the device that can finish
    the largest part of what it still has to do. One stage a device where the quotient is acyclic; else a small number,
    not always the smallest. O(stages x (tasks + edges)) at worst.
    """
    where = np.asarray(device_of, np.int64).tolist()
    waiting = np.diff(graph.predecessors.start).tolist()
    start, items = graph.successors.start.tolist(), graph.successors.items.tolist()
    devices = max(where) + 1
    left = np.bincount(where, minlength=devices).tolist()
    ready: list[list[int]] = [[] for _ in range(devices)]
    for i, w in enumerate(waiting):
        if w == 0:
            ready[where[i]].append(i)
    stages: list[tuple[int, list[int]]] = []
    reach: dict[int, list[int]] = {}  # device -> what it could run now; dropped when something new is ready there
    for _ in range(len(where)):
        for d in range(devices):
            if ready[d] and d not in reach:
                reach[d] = _reach(d, ready[d], waiting, where, start, items)
        if not reach:
            break
        d = max(reach, key=lambda k: (len(reach[k]) / left[k], -k))
        done = reach.pop(d)
        ready[d] = []
        left[d] -= len(done)
        inside = set(done)
        for i in done:
            for j in items[start[i] : start[i + 1]]:
                waiting[j] -= 1
                if waiting[j] == 0 and j not in inside:
                    ready[where[j]].append(j)
                if where[j] != d:
                    reach.pop(where[j], None)
        stages.append((d, done))
    return stages


def _reach(
    d: int,
    ready: Sequence[int],
    waiting: Sequence[int],
    where: Sequence[int],
    start: Sequence[int],
    items: Sequence[int],
) -> list[int]:
    """The tasks that device d can run one after the other without any other device."""
    done = list(ready)
    met: dict[int, int] = {}
    for i in done:
        for j in items[start[i] : start[i + 1]]:
            if where[j] == d:
                met[j] = met.get(j, 0) + 1
                if met[j] == waiting[j]:
                    done.append(j)
    return done


def stages_of(graph: TaskGraph, device_of: Mapping[str, str]) -> tuple[Stage, ...]:
    """The stages of a pipeline that runs a placement of the forward tasks: one a segment, in an order that keeps all edges.

    `device_of`: forward task id -> device name; backward and update tasks follow their forward. O(tasks + edges) a stage.
    """
    forward = [t for t in graph.tasks if t.phase in ("forward", "stage")]
    inside = {t.id for t in forward}
    tensors = [
        (graph.tasks[u].id, 0.0, [r for v in graph.readers.row(k) if (r := graph.tasks[v].id) in inside])
        for k, u in enumerate(graph.producer.tolist())
        if graph.tasks[u].id in inside
    ]
    part = TaskGraph.build(graph.name, forward, tensors)
    names = sorted(set(device_of.values()))
    number = {n: i for i, n in enumerate(names)}
    place = np.empty(len(part), np.int64)
    place[part.order] = np.arange(len(part))
    return tuple(
        Stage(tuple(part.tasks[i].id for i in sorted(tasks, key=place.__getitem__)), (names[d],))
        for d, tasks in segments(part, [number[device_of[t.id]] for t in forward])
    )
