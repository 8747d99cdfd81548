"""Atoms absorbed by a neighbour, and kinds of atoms."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from placement.plan.placement_contract import SOME, problems

from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.plan.absorbed import absorbed
from partita.placement.plan.atom_kinds import atom_kinds
from partita.placement.plan.load import LoadModel, load_model


def least_s(model: LoadModel) -> float:
    """The least largest load of all placements, memory left out of account."""
    every = itertools.product(range(model.devices), repeat=model.atoms)
    return min(float(model.loads(np.array(where)).max()) for where in every)


@SOME
@given(problem=problems())
def test_no_placement_of_fewer_atoms_is_worse_than_the_best(problem: PlacementProblem) -> None:
    model = load_model(problem)
    best = least_s(model)
    small, atom_of = absorbed(model, best * 1.01)
    assert small.atoms == len(set(atom_of.tolist())) <= model.atoms
    assert least_s(small) <= best * (1 + 1e-9)
    if model.class_pays.all():
        assert np.isclose(small.work_s.sum(), model.work_s.sum()) or not np.isfinite(model.work_s).all()


def blocks(count: int) -> LoadModel:
    """`count` times: weights (no work, costly to send) -> a -> b -> (a dear tensor) c -> the next a."""
    tasks = [Task(f"{x}{k}") for k in range(count) for x in "wabc"]
    tensors = [(f"{x}{k}", s, [f"{y}{k}"]) for k in range(count) for x, s, y in (("w", 2.0, "a"), ("a", 1.0, "b"))]
    tensors += [(f"b{k}", 5.0, [f"c{k}"]) for k in range(count)]
    tensors += [(f"c{k}", 1.0, [f"a{k + 1}"]) for k in range(count - 1)]
    graph = TaskGraph.build("blocks", tasks, tensors)
    seconds = [[{"w": 0.0, "a": 3.0, "b": 4.0, "c": 2.0}[t.id[0]]] for t in tasks]
    cluster = Cluster((Device("x", "acc"), Device("y", "acc")))
    costs = CostTable.given(("acc",), seconds, [c for _, c, _ in tensors])
    return load_model(PlacementProblem(graph, cluster, costs, np.zeros(len(tasks)), "sum", frozenset({"acc"})))


def test_weights_are_absorbed_by_readers_and_masks_by_makers() -> None:
    model = blocks(3)
    small, atom_of = absorbed(model, 100.0)
    assert small.atoms == 6  # of 12: w with a, c with b
    for k in range(3):
        w, a, b, c = atom_of[4 * k : 4 * k + 4]
        assert w == a != b == c


def test_atoms_of_middle_layers_are_of_a_kind() -> None:
    kind = atom_kinds(blocks(5)).reshape(5, 4)
    assert (kind[1:4] == kind[1]).all()
    assert len(set(kind[1].tolist())) == 4
    assert kind[0, 1] != kind[1, 1]  # the first a reads nothing but weights
