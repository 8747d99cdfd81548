"""Tiny placement problems, and every way of solving them: nothing here is shared with the planners.

Loads and makespans are counted from the problem's tables alone, with dictionaries and loops; a makespan is that of given
orders of the devices, a message leaving when its tensor is made.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_problem import PlacementProblem

Where = tuple[int, ...]  #: [tasks] number of the device
Orders = tuple[tuple[int, ...], ...]  #: [devices] tasks in the order in which they run


def random_problem(seed: int, tasks: int = 5, devices: int = 3, *, training: bool = False) -> PlacementProblem:
    """Mixed devices, tight memory, groups; transfers given, or by links of different rates, latencies and handling times."""
    chance = random.Random(seed)
    n, m = chance.randint(2, tasks), chance.randint(1, devices)
    ids = [f"t{i}" for i in range(n)]
    groups = [chance.choice([None, None, None, "red", "blue"]) for _ in ids]
    forward = [Task(i, group=g) for i, g in zip(ids, groups, strict=True)]
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n) if chance.random() < 0.45]
    tensors = [(ids[u], _amount(chance), [ids[v] for a, v in pairs if a == u]) for u in range(n)]
    tensors = [t for t in tensors if t[2]]
    if training:  # every task's backward is with it; gradients run back
        forward = [Task(t.id, group=t.group or f"own {t.id}") for t in forward]
        backward = [Task(f"b{i}", phase="backward", of=i) for i in ids]
        tensors += [(f"b{ids[v]}", _amount(chance), [f"b{ids[u]}" for u, w in pairs if w == v]) for v in range(n)]
        tensors = [t for t in tensors if t[2]]
        forward += backward
    graph = TaskGraph.build("tiny", forward, tensors)
    kinds = ["acc", "cpu"] if chance.random() < 0.6 else ["acc"]
    tight = chance.random() < 0.4
    parts = tuple(
        Device(f"d{k}", chance.choice(kinds), chance.choice([3.0, 5.0, 8.0]) if tight else math.inf, chance.choice([1.0, 1.0, 2.0, 0.5]))
        for k in range(m)
    )  # fmt: skip
    seconds = [[math.inf if chance.random() < 0.06 else _amount(chance) for _ in ("acc", "cpu")] for _ in forward]
    seconds = [row if any(map(math.isfinite, row)) else [1.0, 1.0] for row in seconds]
    given = chance.choice(["given", "links", "both"])
    times = [
        math.nan if given == "links" or (given == "both" and chance.random() < 0.5) else _amount(chance)
        for _ in tensors
    ]
    return PlacementProblem(
        graph,
        Cluster(parts, _links(chance, parts), Link("", "", chance.choice([0.5, 1.0, 4.0]), chance.choice([0.0, 0.5]))),
        CostTable.given(("acc", "cpu"), seconds, times),
        np.array([float(chance.randint(0, 3)) for _ in forward]),
        chance.choice(["sum", "sum", "overlap"]),
        frozenset(chance.choice([("acc",), ("acc", "cpu")])),
    )  # fmt: skip


def _amount(chance: random.Random) -> float:
    return chance.choice([0.0, 1.0, 2.0, 3.0, chance.uniform(0.0, 4.0), chance.uniform(0.0, 4.0)])


def _links(chance: random.Random, devices: tuple[Device, ...]) -> tuple[Link, ...]:
    """Links of their own for no, some or all pairs."""
    share = chance.choice([0.0, 0.5, 1.0])
    return tuple(
        Link(a.name, b.name, chance.choice([0.25, 1.0, 2.0, 8.0]), chance.choice([0.0, 0.0, 0.3]), message_s=chance.choice([0.0, 0.0, 0.2]))
        for a in devices for b in devices if a is not b and chance.random() < share
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# what is allowed


def placements(problem: PlacementProblem) -> Iterator[Where]:
    """Every placement that respects groups, memory and what runs where."""
    tasks, devices = problem.graph.tasks, problem.cluster.devices
    for where in itertools.product(range(len(devices)), repeat=len(tasks)):
        homes: dict[str, int] = {}
        if any(t.group is not None and homes.setdefault(t.group, d) != d for t, d in zip(tasks, where, strict=True)):
            continue
        if any(t.of is not None and where[problem.graph.index[t.of]] != d for t, d in zip(tasks, where, strict=True)):
            continue
        held = [sum(float(problem.memory_bytes[i]) for i, e in enumerate(where) if e == d) for d in range(len(devices))]
        if any(h > d.memory_bytes for h, d in zip(held, devices, strict=True)):
            continue
        if all(math.isfinite(task_s(problem, i, d)) for i, d in enumerate(where)):
            yield where


def contiguous(problem: PlacementProblem, where: Where) -> bool:
    """Whether the devices can stand in a line that no forward edge runs against and no backward edge along."""
    tasks = problem.graph.tasks
    edges = [(u, v) for u, v in problem.graph.edges.tolist() if tasks[u].phase == tasks[v].phase]
    edges = [(v, u) if tasks[u].phase == "backward" else (u, v) for u, v in edges]
    after: dict[int, set[int]] = {d: set() for d in where}
    for u, v in edges:
        if where[u] != where[v]:
            after[where[u]].add(where[v])
    while after:
        last = [d for d, ds in after.items() if not ds & after.keys()]
        if not last:
            return False
        for d in last:
            del after[d]
    return True


def every_order(problem: PlacementProblem, where: Where) -> set[Orders]:
    """Every order of the devices' tasks in which none waits for ever."""
    before = [set(problem.graph.predecessors.row(i).tolist()) for i in range(len(where))]
    found: set[Orders] = set()

    def go(done: tuple[int, ...]) -> None:
        if len(done) == len(where):
            found.add(tuple(tuple(i for i in done if where[i] == d) for d in range(len(problem.cluster.devices))))
        for i in range(len(where)):
            if i not in done and before[i] <= set(done):
                go((*done, i))

    go(())
    return found


# ---------------------------------------------------------------------------------------------------------------------
# what it costs


def task_s(problem: PlacementProblem, i: int, d: int) -> float:
    device = problem.cluster.devices[d]
    return float(problem.costs.seconds[i, problem.costs.kinds.index(device.kind)]) / device.speed


def link(problem: PlacementProblem, p: int, d: int) -> Link:
    a, b = problem.cluster.devices[p].name, problem.cluster.devices[d].name
    return next((k for k in problem.cluster.links if (k.source, k.target) == (a, b)), problem.cluster.default_link)


def transfer_s(problem: PlacementProblem, k: int, p: int, d: int) -> float:
    given = float(problem.costs.transfer_s[k])
    return float(problem.graph.size_bytes[k]) / link(problem, p, d).rate_bytes_per_s if math.isnan(given) else given


def largest_load(problem: PlacementProblem, where: Where) -> float:
    """By the rule; what goes to several devices goes out at the pace of the slowest link."""
    devices = problem.cluster.devices
    compute, coming, going = ([0.0] * len(devices) for _ in range(3))
    for i, d in enumerate(where):
        compute[d] += task_s(problem, i, d)
    for k, u in enumerate(problem.graph.producer.tolist()):
        others = {where[v] for v in problem.graph.readers.row(k).tolist()} - {where[u]}
        for d in others:
            coming[d] += transfer_s(problem, k, where[u], d)
        going[where[u]] += max((transfer_s(problem, k, where[u], d) for d in others), default=0.0)
    loads = []
    for d, device in enumerate(devices):
        c, i, o = (compute[d], coming[d], going[d]) if device.kind in problem.pays else (compute[d], 0.0, 0.0)
        loads.append(c + i + o if problem.rule == "sum" else max(c, i, o))
    return max(loads)


def makespan(problem: PlacementProblem, where: Where, orders: Orders) -> float:
    """Devices run their tasks in order; links serve their messages as they are made, one task's by who reads them first."""
    graph, devices = problem.graph, range(len(problem.cluster.devices))
    reads = [[k for k in range(len(graph.producer)) if i in graph.readers.row(k).tolist()] for i in range(len(where))]
    place = {i: (x, d) for d, tasks in enumerate(orders) for x, i in enumerate(tasks)}
    done: dict[int, float] = {}
    arrives: dict[tuple[int, int], float] = {}
    free, link_free = dict.fromkeys(devices, 0.0), {(p, d): 0.0 for p in devices for d in devices}
    heads = dict.fromkeys(devices, 0)
    while len(done) < len(where):
        d = next(
            d
            for d in devices
            if heads[d] < len(orders[d]) and all(int(graph.producer[k]) in done for k in reads[orders[d][heads[d]]])
        )
        i = orders[d][heads[d]]
        heads[d] += 1
        at = free[d]
        for k in reads[i]:
            p = where[int(graph.producer[k])]
            if p != d and (k, d) in arrives:
                at = max(at, arrives.pop((k, d))) + link(problem, p, d).message_s
        done[i] = free[d] = at + task_s(problem, i, d)
        made = [k for k in range(len(graph.producer)) if graph.producer[k] == i]
        sends = [(min(place[v][0] for v in graph.readers.row(k).tolist() if where[v] == e), k, e)
                 for k in made for e in {where[v] for v in graph.readers.row(k).tolist()} - {d}]  # fmt: skip
        for _, k, e in sorted(sends):
            link_free[d, e] = max(link_free[d, e], done[i]) + transfer_s(problem, k, d, e)
            arrives[k, e] = link_free[d, e] + link(problem, d, e).latency_s
    return max(done.values())
