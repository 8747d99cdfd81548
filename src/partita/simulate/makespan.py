"""The makespan of a placement in one pass over its tasks: the simulator's, without a program.

Every device runs its tasks in the order, a tensor is sent when it is made, once to each device that reads it, a link serves
its transfers in order: what `lower_placement` writes down, some hundred times faster than lowering and simulating it. Where
a link is shared, fairly or by several devices, the pass is an estimate.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.nouns.placement_problem import PlacementProblem
from partita.solve.compiled import compiled
from partita.solve.device_types import device_types

MAKESPAN, SUM, OVERLAP = 0, 1, 2  #: objectives


class Facts(NamedTuple):
    """All that the objective of a placement depends on."""

    objective: int
    topological: IntArray  #: [tasks]
    atom_of: IntArray  #: [tasks]
    incoming_start: IntArray  #: [tasks + 1]
    incoming: IntArray  #: tensors a task reads, ascending
    made_start: IntArray  #: [tasks + 1]
    made: IntArray  #: tensors a task makes
    reader_start: IntArray  #: [tensors + 1]
    reader: IntArray  #: tasks that read a tensor
    producer: IntArray  #: [tensors]
    seconds: FloatArray  #: [tasks, classes]
    class_of: IntArray  #: [devices] alike in kind, speed and memory
    pays: BoolArray  #: [devices]
    given: FloatArray  #: [tensors] seconds a transfer takes, nan where the link decides
    size: FloatArray  #: [tensors] bytes
    rate: FloatArray  #: [devices, devices]
    latency: FloatArray  #: [devices, devices]
    message: FloatArray  #: [devices, devices] seconds of the receiving device
    queue: IntArray  #: [devices, devices] what transfers wait for
    queues: int
    held: FloatArray  #: [atoms] bytes
    room: FloatArray  #: [devices] bytes


class Scratch(NamedTuple):
    """Where a pass keeps its notes; `arrives` is -1 everywhere before and after."""

    arrives: FloatArray  #: [tensors, devices]
    done: FloatArray  #: [tasks]
    place: IntArray  #: [tasks] position in the order


def facts_of(
    problem: PlacementProblem, objective: Literal["latency", "throughput"], seconds: FloatArray | None = None
) -> Facts:
    """The facts of a problem. `seconds` are its costs' [tasks, kinds] or others. O(tasks + readers + devices^2)."""
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    seconds = costs.seconds if seconds is None else seconds
    types, devices = device_types(cluster), cluster.devices
    number = {name: c for c, t in enumerate(types) for name in t.names}
    atoms = int(graph.atom.max()) + 1
    tensor = graph.tensor_read
    by_reader = np.lexsort((tensor, graph.readers.items))
    incoming_start = np.zeros(len(graph) + 1, np.int64)
    incoming_start[1:] = np.cumsum(np.bincount(graph.readers.items, minlength=len(graph)))
    links = [[cluster.link(a.name, b.name) for b in devices] for a in devices]
    queues: dict[str, int] = {}
    return Facts(
        MAKESPAN if objective == "latency" else SUM if problem.rule == "sum" else OVERLAP,
        graph.order, graph.atom, incoming_start, tensor[by_reader].astype(np.int64),
        graph.tensors_of.start, graph.tensors_of.items, graph.readers.start, graph.readers.items, graph.producer,
        np.stack([seconds[:, costs.column(t.kind)] / t.speed for t in types], axis=1),
        np.array([number[d.name] for d in devices], np.int64),
        np.array([d.kind in problem.pays for d in devices], np.bool_),
        costs.transfer_s, graph.size_bytes,
        np.array([[k.rate_bytes_per_s for k in row] for row in links]),
        np.array([[k.latency_s for k in row] for row in links]),
        np.array([[k.message_s for k in row] for row in links]),
        np.array([[queues.setdefault(k.queue, len(queues)) for k in row] for row in links], np.int64),
        len(queues), np.bincount(graph.atom, problem.memory_bytes, atoms).astype(np.float64),
        np.array([min(d.memory_bytes, 1e300) for d in devices]),
    )  # fmt: skip


def scratch(facts: Facts) -> Scratch:
    """Room for the notes of one pass after another."""
    tensors, tasks = len(facts.producer), len(facts.topological)
    return Scratch(np.full((tensors, len(facts.class_of)), -1.0), np.zeros(tasks), np.zeros(tasks, np.int64))


@compiled
def transfer_s(f: Facts, k: int, p: int, d: int) -> float:
    """Seconds that tensor k occupies the link from device p to device d."""
    return float(f.size[k] / f.rate[p, d]) if np.isnan(f.given[k]) else float(f.given[k])


@compiled
def makespan(f: Facts, where: IntArray, order: IntArray, s: Scratch) -> float:
    """Seconds until the last task ends; `where` is [atoms], `order` [tasks] a topological order. O(tasks + readers).

    `send` stands here once more, and the arrays of `f` have names of their own: a call with a tuple of arrays, or a look
    into it, counts references to each of them, which would take most of the time.
    """
    atom_of, incoming_start, incoming, made_start, made = f.atom_of, f.incoming_start, f.incoming, f.made_start, f.made
    reader_start, reader, producer, seconds, class_of = f.reader_start, f.reader, f.producer, f.seconds, f.class_of
    given, size, rate, latency, message, queue = f.given, f.size, f.rate, f.latency, f.message, f.queue
    arrives, done, place = s.arrives, s.done, s.place
    free, link_free = np.zeros(len(class_of)), np.zeros(f.queues)
    for x in range(len(order)):
        place[order[x]] = x
    last = 0.0
    for x in range(len(order)):
        i = order[x]
        p = where[atom_of[i]]
        at = free[p]
        for e in range(incoming_start[i], incoming_start[i + 1]):
            k = incoming[e]
            if arrives[k, p] >= 0.0:  # the first of the device's tasks that reads it
                at = max(at, arrives[k, p]) + message[where[atom_of[producer[k]]], p]
                arrives[k, p] = -1.0
        end = at + seconds[i, class_of[p]]
        free[p] = end
        done[i] = end
        last = max(last, end)
        while True:  # a task sends few messages: the next one is looked for each time
            best_k, best_d, best_place, more = -1, -1, len(place), 0
            for m in range(made_start[i], made_start[i + 1]):
                k = made[m]
                for e in range(reader_start[k], reader_start[k + 1]):
                    v = reader[e]
                    d = where[atom_of[v]]
                    if d != p and arrives[k, d] < 0.0:
                        more += 1
                        if place[v] < best_place or (place[v] == best_place and k < best_k):
                            best_k, best_d, best_place = k, d, place[v]
            if best_k < 0:
                break
            q = queue[p, best_d]
            took = size[best_k] / rate[p, best_d] if np.isnan(given[best_k]) else given[best_k]
            link_free[q] = max(link_free[q], end) + took
            arrives[best_k, best_d] = link_free[q] + latency[p, best_d]
            if more == 1:
                break
    return last


@compiled
def send(f: Facts, where: IntArray, i: int, p: int, s: Scratch, link_free: FloatArray, place: IntArray) -> None:
    """Task i has ended on device p: what it made goes to the devices that read it, first read first."""
    while True:  # a task sends few messages: the next one is looked for each time
        best_k, best_d, best_place = -1, -1, len(place)
        for m in range(f.made_start[i], f.made_start[i + 1]):
            k = f.made[m]
            for e in range(f.reader_start[k], f.reader_start[k + 1]):
                v = f.reader[e]
                d = where[f.atom_of[v]]
                if (
                    d != p
                    and s.arrives[k, d] < 0.0
                    and (place[v] < best_place or (place[v] == best_place and k < best_k))
                ):
                    best_k, best_d, best_place = k, d, place[v]
        if best_k < 0:
            return
        q = f.queue[p, best_d]
        link_free[q] = max(link_free[q], s.done[i]) + transfer_s(f, best_k, p, best_d)
        s.arrives[best_k, best_d] = link_free[q] + f.latency[p, best_d]
