"""Load: how a placement loads the devices, as a hypergraph that every placement search works on.

Tasks that must share a device are one *atom*. A tensor is a *net*: the atoms that make or read it, its maker first. A net
is cut when it touches two devices; then every device it touches pays its cost once, the maker's device on its way out,
the others' on its way in. So moving an atom from device p to device q changes the loads of p and q and of no other: all
incremental searches here rest on that.

Devices that are alike in everything (speed, memory, kind) form a *class*; what depends on the device only through its
class is stored once a class.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partita.nouns.graph import BoolArray, Csr, FloatArray, IntArray
from partita.nouns.placement_problem import PlacementProblem, Rule
from partita.solve.device_types import device_types


@dataclass(frozen=True, eq=False)
class LoadModel:
    """A placement problem, reduced to what its loads depend on."""

    rule: Rule
    atom_of: IntArray  #: [tasks]
    work_s: FloatArray  #: [atoms, classes] inf where the atom cannot run
    memory_bytes: FloatArray  #: [atoms]
    nets: Csr  #: [nets] atoms, at least two, the maker first
    cost_s: FloatArray  #: [nets] above zero
    class_of: IntArray  #: [devices]
    pays: BoolArray  #: [devices] whether its load includes its cut nets
    room_bytes: FloatArray  #: [devices]

    @property
    def atoms(self) -> int:
        return len(self.work_s)

    @property
    def devices(self) -> int:
        return len(self.class_of)

    @cached_property
    def nets_of(self) -> Csr:
        """[atoms] the nets that touch an atom."""
        net = np.repeat(np.arange(len(self.cost_s)), np.diff(self.nets.start))
        order = np.argsort(self.nets.items, kind="stable")
        start = np.zeros(self.atoms + 1, np.int64)
        start[1:] = np.cumsum(np.bincount(self.nets.items, minlength=self.atoms))
        return Csr(start, net[order].astype(np.int64))

    @cached_property
    def class_size(self) -> IntArray:
        """[classes] how many devices it has."""
        return np.bincount(self.class_of, minlength=self.work_s.shape[1]).astype(np.int64)

    @cached_property
    def class_pays(self) -> BoolArray:
        """[classes]"""
        return np.array([bool(self.pays[self.class_of == c].any()) for c in range(self.work_s.shape[1])], np.bool_)

    def loads(self, where: IntArray) -> FloatArray:
        """[devices] the load of every device, by the problem's rule. `where` is [atoms]. O(pins)."""
        compute, inward, outward = self.parts(where)
        if self.rule == "sum":
            return compute + np.where(self.pays, inward + outward, 0.0)
        return np.maximum(compute, np.where(self.pays, np.maximum(inward, outward), 0.0))

    def parts(self, where: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """[devices] compute, seconds coming in, seconds going out."""
        n = self.devices
        compute = summed(where, self.work_s[np.arange(self.atoms), self.class_of[where]], n)
        net = np.repeat(np.arange(len(self.cost_s)), np.diff(self.nets.start))
        touched = np.unique(net * n + where[self.nets.items])
        net, device = touched // n, touched % n
        cut = np.bincount(net, minlength=len(self.cost_s))[net] > 1
        net, device = net[cut], device[cut]
        maker = where[self.nets.items[self.nets.start[:-1]]][net] if len(net) else net
        own = maker == device
        cost = self.cost_s[net]
        return compute, summed(device[~own], cost[~own], n), summed(device[own], cost[own], n)

    def held(self, where: IntArray) -> FloatArray:
        """[devices] bytes."""
        return summed(where, self.memory_bytes, self.devices)

    def fits(self, where: IntArray) -> bool:
        """Whether every device has room, and every atom runs where it is."""
        runs = np.isfinite(self.work_s[np.arange(self.atoms), self.class_of[where]]).all()
        return bool(runs and (self.held(where) <= self.room_bytes).all())

    def value(self, where: IntArray) -> float:
        """The largest load; inf where the placement is not feasible."""
        return float(self.loads(where).max()) if self.fits(where) else float("inf")

    def only(self, atoms: BoolArray, nets: BoolArray) -> LoadModel:
        """The model with the work of some atoms and the cost of some nets only; the rest weighs nothing."""
        work = np.where(atoms[:, None], self.work_s, 0.0)
        return replace(self, work_s=work, cost_s=np.where(nets, self.cost_s, 0.0))

    def eased(self) -> LoadModel:
        """The model with all devices that pay made alike, and all others: as fast as the fastest, with room for all."""
        groups = np.unique(self.class_pays)
        work = np.stack([self.work_s[:, self.class_pays == g].min(axis=1) for g in groups], axis=1)
        pays = self.class_pays[self.class_of]
        return replace(
            self,
            work_s=work,
            class_of=np.searchsorted(groups, pays),
            pays=pays,
            room_bytes=np.full(self.devices, np.inf),
        )

    def merged(self, label: IntArray) -> LoadModel:
        """The model with atoms of one label (0 .. k-1) made one."""
        k = int(label.max()) + 1
        work = np.stack([summed(label, column, k) for column in self.work_s.T], axis=1)
        start, pins = self.nets.start.tolist(), label[self.nets.items].tolist()
        nets, cost = _nets([pins[i:j] for i, j in itertools.pairwise(start)], self.cost_s.tolist(), self.rule)
        memory = summed(label, self.memory_bytes, k)
        return LoadModel(
            self.rule, label[self.atom_of], work, memory, nets, cost, self.class_of, self.pays, self.room_bytes
        )


def summed(index: IntArray, weight: FloatArray, n: int) -> FloatArray:
    """[n] the weights summed by index."""
    return np.bincount(index, weight, n).astype(np.float64)


def load_model(problem: PlacementProblem) -> LoadModel:
    """The load model of a problem. O(tasks x classes + pins)."""
    cluster, costs, atom = problem.cluster, problem.costs, problem.graph.atom
    n = int(atom.max()) + 1
    types = device_types(cluster)
    number = {name: c for c, t in enumerate(types) for name in t.names}
    work = np.stack([summed(atom, costs.seconds[:, costs.column(t.kind)] / t.speed, n) for t in types], axis=1)
    start, items = problem.graph.readers.start.tolist(), atom[problem.graph.readers.items].tolist()
    makers = atom[problem.graph.producer].tolist()
    rows = [[u, *items[start[k] : start[k + 1]]] for k, u in enumerate(makers)]
    nets, cost = _nets(rows, problem.transfer_s.tolist(), problem.rule)
    return LoadModel(
        problem.rule,
        atom,
        work,
        summed(atom, problem.memory_bytes, n),
        nets,
        cost,
        np.array([number[d.name] for d in cluster.devices], np.int64),
        np.array([d.kind in problem.pays for d in cluster.devices], np.bool_),
        np.array([d.memory_bytes for d in cluster.devices], np.float64),
    )


def _nets(rows: list[list[int]], cost_s: list[float], rule: Rule) -> tuple[Csr, FloatArray]:
    """Nets of two atoms or more that cost something; nets of the same atoms become one where the rule cannot tell.

    Under "sum" it does not matter which atom of a net is the maker, under "overlap" it does.
    """
    found: dict[tuple[int, ...], float] = {}
    for row, c in zip(rows, cost_s, strict=True):
        others = sorted(set(row) - {row[0]})
        if others and c > 0:
            key = (row[0], *others) if rule == "overlap" else tuple(sorted((row[0], *others)))
            found[key] = found.get(key, 0.0) + c
    start = np.zeros(len(found) + 1, np.int64)
    start[1:] = np.cumsum([len(k) for k in found])
    return Csr(start, np.array([x for k in found for x in k], np.int64)), np.array(list(found.values()), np.float64)
