"""Readings: which forward task reads which tensor of another, and what of them crosses from stage to stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray, TaskGraph


class Readings(NamedTuple):
    """Who reads a tensor between forward tasks: one entry a reader."""

    tensor: IntArray  #: [readings]
    producer: IntArray  #: [readings] the task that makes it
    reader: IntArray  #: [readings] the task that reads it
    back: BoolArray  #: [readings] whether the reader's backward feeds the producer's backward


class Crossings(NamedTuple):
    """Tensors that one stage makes and a later one reads: one entry a tensor and pair of stages, in ascending order."""

    source: IntArray  #: stage
    target: IntArray  #: stage
    tensor: IntArray
    back: BoolArray  #: whether a gradient comes back


def forward_readings(graph: TaskGraph) -> Readings:
    """The readings between forward tasks of a graph. O(tasks + readers)."""
    forward = np.array([t.phase not in ("backward", "update") for t in graph.tasks], np.bool_)
    tensor = graph.tensor_read
    at = np.flatnonzero(forward[graph.producer[tensor]] & forward[graph.readers.items])
    n = len(graph)
    backward = np.full(n, -1, np.int64)
    for i, t in enumerate(graph.tasks):
        if t.phase == "backward" and t.of is not None:
            backward[graph.index[t.of]] = i
    producer, reader = graph.producer[tensor[at]], graph.readers.items[at]
    source, target = backward[reader], backward[producer]
    keys = graph.edges.reshape(-1, 2) @ np.array([n, 1])
    return Readings(tensor[at], producer, reader, (source >= 0) & (target >= 0) & np.isin(source * n + target, keys))


def crossings(tensor: IntArray, source: IntArray, target: IntArray, back: BoolArray) -> Crossings:
    """What crosses where reading i is of tensor[i], made in stage source[i] and read in target[i]; -1: in no stage.

    O(readings log readings).
    """
    far = np.flatnonzero((source < target) & (source >= 0))
    stages, tensors = int(target.max(initial=0)) + 1, int(tensor.max(initial=0)) + 1
    key, at = np.unique((source[far] * stages + target[far]) * tensors + tensor[far], return_inverse=True)
    returns = np.zeros(len(key), np.bool_)
    returns[at.reshape(-1)[back[far]]] = True
    pair = key // tensors
    return Crossings(pair // stages, pair % stages, key % tensors, returns)


def brought(crossing: Crossings, device_of: IntArray) -> IntArray:
    """[crossings] the stage whose message brings the tensor to the target's device: a tensor goes to a device once, with what the
    first of its stages reads that reads it. `device_of` [stages]: a number for each device; a stage of several has its own.

    >>> two_readers = Crossings(np.array([0, 0]), np.array([1, 3]), np.array([7, 7]), np.array([True, True]))
    >>> brought(two_readers, np.array([0, 1, 0, 1])).tolist(), brought(two_readers, np.array([0, 1, 0, 2])).tolist()
    ([1, 1], [1, 3])
    """
    if len(set(device_of.tolist())) == len(device_of):
        return crossing.target
    first: dict[tuple[int, int, int], int] = {}
    rows = zip(crossing.source.tolist(), crossing.tensor.tolist(), crossing.target.tolist(), strict=True)
    return np.array([first.setdefault((i, k, int(device_of[j])), j) for i, k, j in rows], np.int64)


def carried(crossing: Crossings, by: IntArray) -> Crossings:
    """What the messages carry, where `brought` says who brings: a tensor once a device."""
    if by is crossing.target:
        return crossing
    back: dict[tuple[int, int, int], bool] = {}
    columns = (crossing.source, by, crossing.tensor, crossing.back)
    for i, j, k, returns in zip(*(c.tolist() for c in columns), strict=True):
        back[i, j, k] = back.get((i, j, k), False) or returns
    source, target, tensor = np.array([*back], np.int64).reshape(-1, 3).T
    return Crossings(source, target, tensor, np.array([*back.values()], np.bool_))


def messages(
    crossing: Crossings, transfer_s: FloatArray, size_bytes: FloatArray
) -> dict[tuple[int, int], tuple[float, float]]:
    """(stage from, stage to), there and back: seconds given for the tensors of a message, and bytes of the others."""
    found: dict[tuple[int, int], tuple[float, float]] = {}
    given, size = transfer_s[crossing.tensor].tolist(), size_bytes[crossing.tensor].tolist()
    rows = zip(crossing.source.tolist(), crossing.target.tolist(), crossing.back.tolist(), given, size, strict=True)
    for i, j, back, seconds, n in rows:
        more = (0.0, n) if seconds != seconds else (seconds, 0.0)  # nan: the link decides
        for way in ((i, j), (j, i)) if back else ((i, j),):
            before = found.get(way, (0.0, 0.0))
            found[way] = before[0] + more[0], before[1] + more[1]
    return found
