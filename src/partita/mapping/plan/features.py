"""Features: what a surrogate is told of a mapping, [mappings, features], for a whole population at once.

makespan    of one iteration, task by task and message by message, as the searches simulate it (s)
busiest     seconds of the device that computes most
mean        seconds of a device, the mean over those used
messages    tensors that cross, once for each device that reads them
megabytes   that cross
inward      megabytes that come to the device that receives most
turns       how often the order goes on on another device: about so many segments
hops        messages on the chain of tasks that has most of them
devices     that have anything to do
"""

from __future__ import annotations

import numpy as np

from partita.mapping.plan.question import Question
from partita.nouns.graph import FloatArray, IntArray

NAMES = ("makespan", "busiest", "mean", "messages", "megabytes", "inward", "turns", "hops", "devices")


def features(question: Question, where: IntArray, orders: IntArray, makespan_s: FloatArray) -> FloatArray:
    """[mappings, features] of [mappings, atoms] devices, [mappings, tasks] orders and their [mappings] makespans.

    O(mappings x (tasks + readers)).
    """
    f, n, devices = question.facts, len(where), question.devices
    at = where[:, f.atom_of]
    work = np.stack([np.where(at == d, f.seconds[:, f.class_of[d]], 0.0).sum(axis=1) for d in range(devices)], axis=1)
    used = work > 0
    tensor = np.repeat(np.arange(len(f.producer)), np.diff(f.reader_start))
    target = at[:, f.reader]
    crosses = target != at[:, f.producer[tensor]]
    arrives = np.zeros((n, len(f.producer), devices), np.bool_)
    row, reading = np.nonzero(crosses)
    arrives[row, tensor[reading], target[row, reading]] = True
    inward = np.einsum("ntd,t->nd", arrives, f.size) / 1e6
    turns = (np.diff(np.take_along_axis(at, orders, axis=1), axis=1) != 0).sum(axis=1)
    return np.stack(
        [
            makespan_s, work.max(axis=1), work.sum(axis=1) / np.maximum(1, used.sum(axis=1)), arrives.sum(axis=(1, 2)),
            inward.sum(axis=1), inward.max(axis=1), turns, _hops(question, crosses), used.sum(axis=1),
        ],
        axis=1,
    ).astype(np.float64)  # fmt: skip


def _hops(question: Question, crosses: np.ndarray) -> IntArray:
    """[mappings] messages on the chain that has most; `crosses`: [mappings, readings]."""
    f = question.facts
    hops = np.zeros((len(crosses), question.tasks), np.int64)
    start = f.reader_start.tolist()
    for i in f.topological.tolist():
        for m in range(int(f.made_start[i]), int(f.made_start[i + 1])):
            k = int(f.made[m])
            for e in range(start[k], start[k + 1]):
                v = int(f.reader[e])
                np.maximum(hops[:, v], hops[:, i] + crosses[:, e], out=hops[:, v])
    found: IntArray = hops.max(axis=1, initial=0)
    return found
