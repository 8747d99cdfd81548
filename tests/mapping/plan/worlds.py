"""Small problems for mappings: random graphs of many shapes, and the layers of a profile that nobody measured."""

from __future__ import annotations

import random

import numpy as np

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_problem import PlacementProblem


def problem_of(
    seconds: list[list[float]],
    edges: list[tuple[int, int]],
    sizes: list[float],
    devices: tuple[Device, ...],
    link: Link,
    links: tuple[Link, ...] = (),
) -> PlacementProblem:
    """Tasks t0 .., each of which makes one tensor for those it has edges to."""
    ids = [f"t{i}" for i in range(len(seconds))]
    tensors = [(ids[u], sizes[u], [ids[v] for a, v in edges if a == u]) for u in range(len(ids))]
    tensors = [t for t in tensors if t[2]]
    graph = TaskGraph.build("small", [Task(i) for i in ids], tensors)
    kinds = tuple(dict.fromkeys(d.kind for d in devices))
    costs = CostTable.given(kinds, [row[: len(kinds)] for row in seconds], np.full(len(tensors), np.nan))
    return PlacementProblem(graph, Cluster(devices, links, link), costs, np.zeros(len(ids)))


def random_mapping(seed: int, tasks: int = 5) -> PlacementProblem:
    """Chains, trees, wide and disconnected graphs with times of zero, on one to three devices, alike or not."""
    chance = random.Random(seed)
    n, m = chance.randint(1, tasks), chance.choice([1, 2, 2, 2, 3])
    n = min(n, 4) if m == 3 else n
    share = chance.choice([0.0, 0.2, 0.4, 0.7])
    edges = [(u, v) for u in range(n) for v in range(u + 1, n) if chance.random() < share]
    if chance.random() < 0.3:  # all pass through the middle
        c = n // 2
        edges = (
            [(u, v) for u, v in edges if not u < c < v] + [(u, c) for u in range(c)] + [(c, v) for v in range(c + 1, n)]
        )
        edges = sorted(set(edges))
    alike = chance.random() < 0.6
    devices = tuple(
        Device(f"d{k}", "a" if alike else chance.choice("ab"), speed=1.0 if alike else chance.choice([0.5, 1.0, 2.0]))
        for k in range(m)
    )
    seconds = [[_amount(chance), _amount(chance)] for _ in range(n)]
    sizes = [_amount(chance) for _ in range(n)]
    lag = chance.choice([0.0, 0.0, 0.4])
    own = () if alike else tuple(
        Link(a.name, b.name, chance.choice([0.5, 2.0]), lag) for a in devices for b in devices if a is not b and chance.random() < 0.5
    )  # fmt: skip
    return problem_of(seconds, edges, sizes, devices, Link("", "", chance.choice([0.5, 1.0, 4.0]), lag), own)


def _amount(chance: random.Random) -> float:
    return chance.choice([0.0, 1.0, 2.0, chance.uniform(0.0, 4.0)])


def branches(blocks: int = 4, width: int = 3, rate: float = 2.0, devices: int = 2) -> PlacementProblem:
    """Blocks of parallel branches between waists, as inception has them, the tasks of each of another length."""
    chance = random.Random(7)
    seconds, edges, at = [[1.0]], [], 0
    for _ in range(blocks):
        ends = []
        for _ in range(width):
            first = len(seconds)
            seconds += [[chance.uniform(0.5, 3.0)], [chance.uniform(0.5, 3.0)]]
            edges += [(at, first), (first, first + 1)]
            ends.append(first + 1)
        at = len(seconds)
        seconds.append([0.1])
        edges += [(e, at) for e in ends]
    sizes = [chance.uniform(0.2, 2.0) for _ in seconds]
    return problem_of(seconds, edges, sizes, tuple(Device(f"d{k}", "a") for k in range(devices)), Link("", "", rate))


LAYERS = "".join(
    f"node{i} -- Layer {i} -- forward_compute_time={1 + i % 3}.0, backward_compute_time=2.0, activation_size={1000 * (1 + i % 2)}.0, parameter_size=2000.0\n"
    for i in range(1, 12)
) + "".join(f"\tnode{a} -- node{b}\n" for a, b in [(1, 2), (1, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 8), (6, 8), (7, 8), (8, 9), (8, 10), (9, 11), (10, 11)])  # fmt: skip
