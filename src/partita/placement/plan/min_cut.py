"""The least load of a device that holds given atoms and not others, by minimum cut.

A device that holds the set S of atoms has the load f(S) = work(S) + cost of the nets that S cuts. f is submodular, so the
S of least f among those that hold atom u and lack atom v is a minimum cut of this network (Lawler's):

    source -> u  inf      x -> sink  work(x)      v -> sink  inf
    x -> in(e)  inf       in(e) -> out(e)  cost(e)        out(e) -> x  inf        for every net e and atom x of it

Three things follow, all for the rule "sum":

- *anchor bound*: every atom is somewhere, so no placement is better than the largest least load of an atom;
- *seeds*: the S that attains it is a device no placement can improve on, a good start;
- *merging*: if keeping u and v apart costs as much as a placement known, they share a device in every better one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.placement.plan.load import LoadModel
from partita.solve.max_flow import ENDLESS, GRAIN, max_flow

MOST_NEIGHBOURS = 8  # looked at, of one atom


@dataclass(frozen=True, eq=False)
class Network:
    """The flow network of a model for devices of one class. Nodes: atoms, two a net, source, sink; arcs in pairs."""

    atoms: int
    start: IntArray  #: [nodes + 1]
    arcs: IntArray  #: arcs that leave a node
    head: IntArray  #: [arcs] where an arc ends; arc i ^ 1 is its reverse
    capacity: IntArray  #: [arcs]
    grain: float  #: capacity of a second
    spent: IntArray = field(default_factory=lambda: np.zeros(1, np.int64))  #: [1] arcs looked at so far

    def least(
        self, inside: Iterable[int], outside: Iterable[int] = (), limit_s: float = np.inf
    ) -> tuple[float, BoolArray]:
        """The least load of a set that holds `inside` and lacks `outside`, in seconds, and that set as [atoms].

        Where the load reaches `limit_s` the search stops there: the load returned is then only a lower bound, and the
        set is meaningless. The load is rounded down by at most 1e-10 of the total.
        """
        capacity = self.capacity.copy()
        for u in inside:
            capacity[4 * u] = ENDLESS
        for v in outside:
            capacity[4 * v + 2] = ENDLESS
        nodes = len(self.start) - 1
        limit = int(min(float(ENDLESS), limit_s * self.grain))
        flow, side = max_flow(self.start, self.arcs, self.head, capacity, nodes - 2, nodes - 1, limit, self.spent)
        return float(flow) / self.grain, side[: self.atoms]


def network(model: LoadModel, c: int) -> Network:
    """The flow network for devices of class c, which must pay for their nets. Raises nothing; O(pins).

    An atom that cannot run on the class can be in no set: its arc to the sink is endless.
    """
    n, m = model.atoms, len(model.cost_s)
    work = model.work_s[:, c]
    total = float(work[np.isfinite(work)].sum() + model.cost_s.sum()) or 1.0
    grain = GRAIN / total
    source, sink = n + 2 * m, n + 2 * m + 1
    atom = np.arange(n)
    whole = np.where(np.isfinite(work), np.floor(np.where(np.isfinite(work), work, 0.0) * grain), ENDLESS)
    net = np.repeat(np.arange(m), np.diff(model.nets.start))
    pins = model.nets.items
    first = np.stack([np.full(n, source), atom], axis=1).ravel()  # source -> a, then a -> sink
    second = np.stack([atom, np.full(n, sink)], axis=1).ravel()
    caps = np.stack([np.zeros(n), whole], axis=1).ravel()
    tail = np.concatenate([first, n + 2 * np.arange(m), pins, n + 2 * net + 1]).astype(np.int64)
    head = np.concatenate([second, n + 2 * np.arange(m) + 1, n + 2 * net, pins]).astype(np.int64)
    cap = np.concatenate([caps, np.floor(model.cost_s * grain), np.full(2 * len(pins), ENDLESS)]).astype(np.int64)
    both = np.stack([tail, head], axis=1).ravel()
    ends = np.stack([head, tail], axis=1).ravel()
    capacity = np.stack([cap, np.zeros(len(cap), np.int64)], axis=1).ravel()
    arcs = np.argsort(both, kind="stable").astype(np.int64)
    start = np.zeros(n + 2 * m + 3, np.int64)
    start[1:] = np.cumsum(np.bincount(both, minlength=n + 2 * m + 2))
    return Network(n, start, arcs, ends, capacity, grain)


@dataclass(frozen=True, eq=False)
class Anchors:
    """What the minimum cuts of the atoms say."""

    bound_s: float  #: no placement has a smaller largest load
    atom: int  #: the atom that shows it, -1 where none was looked at
    seed: BoolArray  #: [atoms] the set around it that attains its least load on a device that pays


def anchors(model: LoadModel, networks: dict[int, Network], *, most_arcs: float = 2e8) -> Anchors:
    """The anchor bound of a model under the rule "sum". At most `most_arcs` arcs are looked at; then it is weaker.

    On devices that pay, an atom's least load is a minimum cut. Atoms whose least load is high would all have to be on
    devices that pay for nothing, which their work fills: with l_1 >= l_2 >= .. the least loads, w_i the work on n devices
    that pay for nothing, the bound is the largest min(l_k, (w_1 + .. + w_k) / n).

    Atoms are taken by descending cost of standing alone. The set found for one atom bounds the least load of its members
    from above, so atoms that cannot raise the bound are skipped.
    """
    cover = np.full_like(model.work_s, np.inf)  # an upper bound of the least load on a class that pays
    free = [c for c in range(model.work_s.shape[1]) if c not in networks]
    work = model.work_s[:, free].min(axis=1) if free else np.full(model.atoms, np.inf)
    low, away = np.zeros(model.atoms), work.copy()
    best, atom, around = 0.0, -1, {-1: np.zeros(model.atoms, np.bool_)}
    alone = np.bincount(model.nets.items, np.repeat(model.cost_s, np.diff(model.nets.start)), model.atoms)
    for u in np.argsort(-alone, kind="stable").tolist():
        if any(n.spent[0] > most_arcs for n in networks.values()):
            break
        if cover[u].min() <= best:
            continue
        low[u] = np.inf
        for c, net in networks.items():
            if np.isfinite(model.work_s[u, c]):
                found, inside = net.least([u])
                cover[inside, c] = np.minimum(cover[inside, c], found * (1 + 1e-9))
                low[u], around[u] = (found, inside) if found < low[u] else (low[u], around[u])
        if low[u] > best:
            away[u] = max(work[u], min((_away_s(model, networks, u, c, low[u]) for c in free), default=np.inf))
            best, atom = _filled(low, work, away, int(model.class_size[free].sum()))
    return Anchors(best, atom, around.get(atom, around[-1]))


def _filled(low: FloatArray, work: FloatArray, away: FloatArray, devices: int) -> tuple[float, int]:
    """(the largest bound over the k atoms of highest least load, the last of them): one of them is on a device that pays,
    or all are on `devices` others, which that fills."""
    order = np.argsort(-low, kind="stable")
    filled = np.cumsum(work[order]) / devices if devices else np.full(len(low), np.inf)
    bound = np.minimum(low[order], np.maximum(filled, np.maximum.accumulate(away[order])))
    k = int(bound.argmax())
    return float(bound[k]), int(order[k])


def _away_s(model: LoadModel, networks: dict[int, Network], u: int, c: int, limit_s: float) -> float:
    """A lower bound on the largest load of a placement that has atom u on a device of class c, which pays for no nets;
    stopped at limit_s.

    Leaving u alone there makes its neighbours pay: each is on a device that pays and lacks u, or with u, or on another
    device that pays for nothing.
    """
    bound = float(model.work_s[u, c])
    nets = model.nets_of.row(u)
    for e in nets[np.argsort(-model.cost_s[nets], kind="stable")][:MOST_NEIGHBOURS].tolist():
        for v in model.nets.row(e)[:MOST_NEIGHBOURS].tolist():
            if v == u or bound >= limit_s:
                continue
            beside = [n.least([v], [u], limit_s)[0] for n in networks.values()]
            for d in range(model.work_s.shape[1]):
                if d not in networks:
                    same = d == c and model.class_size[d] == 1
                    beside.append(float(model.work_s[v, d] + (model.work_s[u, c] if same else 0.0)))
            bound = max(bound, min(beside))
    return bound


def merge(model: LoadModel, networks: dict[int, Network], known_s: float, *, most_arcs: float = 2e8) -> IntArray:
    """[atoms] labels: atoms of one label share a device in every placement better than `known_s`. Rule "sum".

    Tried for the two ends of costly nets only: keeping apart what talks little is cheap.
    """
    label = np.arange(model.atoms)
    for e in np.argsort(-model.cost_s, kind="stable").tolist():
        maker, *others = model.nets.row(e).tolist()
        if model.cost_s[e] < 0.02 * known_s or any(n.spent[0] > most_arcs for n in networks.values()):
            break
        for v in others:
            if label[maker] != label[v] and apart_s(model, networks, maker, v, known_s) >= known_s:
                label[label == label[v]] = label[maker]
    return np.unique(label, return_inverse=True)[1].reshape(-1).astype(np.int64)


def apart_s(model: LoadModel, networks: dict[int, Network], u: int, v: int, limit_s: float) -> float:
    """A lower bound on the largest load of a placement that keeps atoms u and v apart, stopped at limit_s."""
    classes = range(model.work_s.shape[1])

    def one(a: int, b: int, c: int) -> float:
        if c in networks:
            return networks[c].least([a], [b], limit_s)[0]
        return float(model.work_s[a, c])

    least_u, least_v = [one(u, v, c) for c in classes], [one(v, u, c) for c in classes]
    pairs = [(c, d) for c in classes for d in classes if c != d or model.class_size[c] > 1]
    return min((max(least_u[c], least_v[d]) for c, d in pairs), default=np.inf)
