"""A lower bound on the largest load of free placements: what devices can hold, priced.

Let every atom a have a price p_a. If no set of atoms that loads a device of class c up to T is worth more than z_c, then
n_c such devices hold at most n_c z_c, so that

    sum over atoms of p_a > sum over classes of n_c z_c      =>      no placement has a largest load of T or less

This is Gilmore and Gomory's bound for bin packing, with loads that share costs (see `sweep`); z is found exactly enough by
its relaxed labels. Good prices are the duals of the linear program over the sets met so far (column generation), kept in a
box around the best known prices, which keeps them from leaping (Marsten, Hogan and Blankenship, "The boxstep method",
Operations Research 1975). Prices near the work of the atoms are good from the start. Memory is left out of account.

Networks repeat their layers, and a set stands for its copies in the other layers too. So at first all atoms of a kind have
one price: some forty prices instead of hundreds, found in a tenth of the sweeps. Once the linear program knows no better
ones, every atom gets its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack

from partita.nouns.graph import BoolArray, Csr, FloatArray, IntArray
from partita.placement.plan.absorbed import absorbed
from partita.placement.plan.alarm import FlagArray
from partita.placement.plan.atom_kinds import atom_kinds
from partita.placement.plan.load import LoadModel, summed
from partita.placement.plan.sweep import Sweep

MOST_STATES = 100_000
MOST_CLASSES = 4
MOST_ATOMS, MOST_PAIRS = 3_000, 5_000_000  #: and pairs of atoms that share a net
LEFT_OUT = 1e-4  #: of the value that has to be beaten: nets that cost no more in total are left out
BUCKETS = (
    128,
    512,
    2048,
)  #: of load: at first, where prices look good, and when proving; more for sweeps of few states
ROUGH = 48  #: when filling devices
FINEST, CELLS = 4096, 1e6  #: buckets; cells of the first kind that are not too many
FIRST_BOX, LEAST_BOX = 0.03, 2e-4
KINDS_BOX = 0.1  #: the first one where atoms of a kind have one price
ENOUGH = (
    1.001  #: worth of prices, the most that devices hold being 1, with which the proof is tried; it is dear for less
)
WIDE = 1e-2  #: a gap, as a share, from which prices close more than other searches
CLOSE = 1e-3  #: share of the value, at which nothing more is tried
MOST_WORTH = 1e6  #: of prices, where no set is below the limit
ROUNDING = 1e-6
MOST_ROWS = 400  #: of a linear program: sets
LP_CELLS = 1800.0  #: cells of the sweep that an entry of the linear program takes as long as
CELLS_PER_S = 8e8  #: 7e8 to 9e8 on one of 2 Xeon cores with others at work, 2026-11-21


@dataclass(eq=False)
class SetPrices:
    """The search for prices."""

    whole: LoadModel  #: the problem
    atom_of: IntArray  #: [atoms of the whole]
    model: LoadModel  #: without atoms that may as well be beside a neighbour, nor nets that cost next to nothing
    sweeps: list[Sweep]  #: [classes]
    kind: IntArray  #: [atoms] those of a kind have one price
    price: FloatArray  #: [atoms] the best known, worth 1 in total
    reach: FloatArray  #: [atoms] how far a price may move in a box of 1
    sets: list[tuple[int, BoolArray, float]] = field(
        default_factory=list
    )  #: (class, [atoms], the limit it was met under)
    box: float = KINDS_BOX
    spent: float = 0.0  #: cells of the sweep, and the linear programs in the same unit

    @staticmethod
    def of(model: LoadModel, known_s: float) -> SetPrices | None:
        """For a bound up to a known value; None where the model is too wide, or not of rule "sum"."""
        if model.rule != "sum" or not model.class_pays.any() or model.work_s.shape[1] > MOST_CLASSES:
            return None
        if model.atoms > MOST_ATOMS or _pairs(model) > MOST_PAIRS:
            return None
        whole, (model, atom_of) = model, absorbed(model, known_s)
        model = _without_cheap_nets(model, LEFT_OUT * known_s)
        work = model.work_s[:, model.class_pays].min(axis=1)
        sweep = Sweep.of(model, MOST_STATES) if 0 < work.sum() < np.inf else None
        if sweep is None:
            return None
        alone, kind = sweep.without_nets(), atom_kinds(model)
        beside = np.bincount(model.nets.items, np.repeat(model.cost_s, np.diff(model.nets.start)), model.atoms)
        sweeps = [sweep if pays else alone for pays in model.class_pays]
        price, reach = (_mean(kind, x / work.sum()) for x in (work, work + beside / 3))
        return SetPrices(whole, atom_of, model, sweeps, kind, price, reach)

    def raised(self, bound_s: float, value_s: float, most: float, stop: FlagArray) -> float:
        """A bound, at least the given one: no placement has a smaller largest load. `value_s` is one that some placement has,
        `most` the work in cells. Limits between the two are tried, nearer to the bound where one could not be excluded."""
        end, step = self.spent + most, 0.5
        while self.spent < end and not stop[0] and step * (value_s - bound_s) > CLOSE * value_s:
            limit = bound_s + step * (value_s - bound_s)
            share = self._excluded(limit, min(end, self.spent + most / 2), stop)
            if share > 1:
                bound_s, step = limit, min(0.5, 2 * step)
                continue
            step, near = step / 2, limit * share / ENOUGH**2  # what these prices should exclude
            if near > bound_s + CLOSE * value_s and self._certainly(near) > 1:
                bound_s = near
        return bound_s

    def _excluded(self, limit_s: float, end: float, stop: FlagArray) -> float:
        """What the best prices found for this limit seem to be worth; above 1 they certainly are, which excludes it."""
        price, best, asked = self.price, 0.0, self._known(limit_s)
        self.box = min(self._first_box, max(self.box, 2 * LEAST_BOX) * 2)
        while self.spent < end and not stop[0]:
            share = self._share(price, limit_s, asked, best)
            if share > best * (1 + 1e-5):
                best, self.box, self.price = share, self.box * 1.2, price * (share / float(price.sum()))
                if share > ENOUGH:
                    best = self._certainly(limit_s)
                    if best > 1:
                        return best
            else:
                self.box *= 0.75
            if all(met > limit_s for _, _, met in self.sets):
                break  # all sets are above the limit, but some so little that it is not certain: prices are no help
            price, asked = self._duals(limit_s, self.price, self.box * self.reach)
            if price.sum() < min(1.0, best * (1 + 1e-4)) or self.box <= LEAST_BOX:
                if not self._kinds:
                    break
                self.kind, self.box = np.arange(len(self.kind)), FIRST_BOX
        return min(best, 1.0)

    @property
    def _kinds(self) -> bool:
        """Whether atoms of a kind have one price still."""
        return int(self.kind.max()) + 1 < len(self.kind)

    @property
    def _first_box(self) -> float:
        return KINDS_BOX if self._kinds else FIRST_BOX

    def _share(self, price: FloatArray, limit_s: float, asked: FloatArray, enough: float) -> float:
        """What prices are worth, the most that all devices hold being 1: at most that, by the sets met. More sets are met;
        the closer they look, the more it seems to be worth."""
        z, fineness, share = asked.copy(), 0, np.inf
        while share > enough and fineness < len(BUCKETS) - 1:
            for c, sweep in enumerate(self.sweeps):
                z[c], sets, cells = sweep.best(
                    self.model.work_s[:, c], price, limit_s, float(z[c]), _buckets(sweep, fineness)
                )
                self.spent += cells
                self.sets += [(c, s, limit_s) for s in sets]
            held = max(float(self.model.class_size @ z), float(price.sum()) / MOST_WORTH)
            share, fineness = float(price.sum()) / held, fineness + 1
        return share

    def _certainly(self, limit_s: float) -> float:
        """What the prices are worth at least, the most that all devices hold below the limit being 1."""
        total, size = float(self.price.sum()), self.model.class_size
        z = self._known(limit_s)
        spare = total / max(float(size @ z), 1e-300) - 1.0
        if spare <= 2 * ROUNDING:
            return 0.0
        for c, sweep in enumerate(self.sweeps):
            asked = float(z[c]) * (1 + min(spare, 1.0)) * (1 - ROUNDING)
            above, work = limit_s * (1 + ROUNDING), self.model.work_s[:, c]
            z[c], sets, cells = sweep.best(work, self.price, above, asked, _buckets(sweep, 2), relaxed=True)
            self.sets += [(c, s, limit_s) for s in sets if self._load_s(s, c) <= limit_s]
            self.spent += cells
        return total * (1 - ROUNDING / 2) / max(float(size @ z), 1e-300)

    def _known(self, limit_s: float) -> FloatArray:
        """[classes] the most that a set met so far is worth."""
        z = np.zeros(len(self.sweeps))
        for c, inside, load in self.sets:
            z[c] = max(z[c], float(self.price[inside].sum()) if load <= limit_s else 0.0)
        return z

    def _load_s(self, inside: BoolArray, c: int) -> float:
        """The load of a device of class c that holds these atoms."""
        nets = self.model.nets
        held = (
            np.add.reduceat(inside[nets.items], nets.start[:-1], dtype=np.int64)
            if len(self.model.cost_s)
            else np.zeros(0)
        )
        torn = (held > 0) & (held < np.diff(nets.start))
        sent = float(self.model.cost_s[torn].sum()) if self.model.class_pays[c] else 0.0
        return float(self.model.work_s[inside, c].sum()) + sent

    def filled(
        self,
        where: IntArray,
        price: FloatArray,
        bound_s: float,
        value_s: float,
        most: float,
        seed: int,
        stop: FlagArray,
    ) -> IntArray:
        """[atoms] the best placement met by filling one device after another with what is worth most; at least as good as
        the given one. `price` shaken at random, the limit (between a bound and a value known) and the order of the devices are random. `most`:
        the work in cells. Leaves the search for prices, which may go on beside it, as it is."""
        random, model, best = np.random.default_rng(seed), self.model, where
        work_s = np.stack([summed(self.atom_of, column, model.atoms) for column in self.whole.work_s.T], axis=1)
        while most > 0 and not stop[0]:
            shaken = np.maximum(price, 0.0) * random.lognormal(0.0, 0.1, model.atoms)
            limit, line = random.uniform(bound_s, value_s), random.permutation(model.devices)
            found, left = np.full(model.atoms, line[-1]), np.ones(model.atoms, np.bool_)
            for d in line[:-1].tolist():
                c = int(model.class_of[d])
                work = np.where(left, work_s[:, c], np.inf)
                _, sets, cells = self.sweeps[c].best(work, shaken, limit, 0.0, ROUGH)
                most -= cells
                if len(sets):
                    found[sets[0]], left = d, left & ~sets[0]
            best = min(best, found[self.atom_of], key=self.whole.value)
        return best

    def _duals(self, limit_s: float, centre: FloatArray, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """([atoms] prices within reach of the centre, [classes] z): worth most beside the sets met so far, which all
        devices together can hold 1 of."""
        known = [(c, s) for c, s, load in self.sets if load <= limit_s]
        slack = np.array([float(centre[s].sum()) for _, s in known])
        top = np.array([c for c, _ in known])
        slack = np.array([slack[top == c].max(initial=0.0) for c in range(len(self.sweeps))])[top] - slack
        met = [known[i] for i in np.sort(np.argsort(slack, kind="stable")[:MOST_ROWS])]
        k, n, types = len(met), int(self.kind.max()) + 1, len(self.sweeps)
        rows = csr_matrix(np.array([np.bincount(self.kind[s], minlength=n) for _, s in met], np.float64))
        most = csr_matrix((-np.ones(k), (np.arange(k), [c for c, _ in met])), shape=(k, types))
        one = np.unique(self.kind, return_index=True)[1]
        low, high = (centre - reach)[one], (centre + reach)[one]
        self.spent += LP_CELLS * rows.nnz
        answer = linprog(
            np.concatenate([-np.bincount(self.kind).astype(np.float64), np.zeros(types)]),
            A_ub=hstack([rows, most]).tocsr(),
            b_ub=np.zeros(k),
            A_eq=np.concatenate([np.zeros(n), self.model.class_size])[None],
            b_eq=[1.0],
            bounds=[*zip(low, high, strict=True), *[(0.0, None)] * types],
        )
        if answer.status != 0:
            return centre, np.zeros(types)
        return np.asarray(answer.x[:n], np.float64)[self.kind], np.asarray(answer.x[n:], np.float64)


def _mean(kind: IntArray, x: FloatArray) -> FloatArray:
    """[atoms] the mean over all atoms of its kind, for each atom."""
    return (np.bincount(kind, x) / np.bincount(kind))[kind]


def _pairs(model: LoadModel) -> float:
    """Pairs of atoms that share a net."""
    return float((np.diff(model.nets.start) ** 2).sum())


def _buckets(sweep: Sweep, fineness: int) -> int:
    """How many buckets of load."""
    scale = BUCKETS[fineness] / BUCKETS[0]
    return int(min(FINEST, max(BUCKETS[0], CELLS / sweep.states) * scale))


def _without_cheap_nets(model: LoadModel, total_s: float) -> LoadModel:
    """The model without the nets that cost least, up to that in total."""
    order = np.argsort(model.cost_s, kind="stable")
    keep = np.ones(len(order), np.bool_)
    keep[order[np.cumsum(model.cost_s[order]) <= total_s]] = False
    size = np.diff(model.nets.start)
    start = np.concatenate([[0], np.cumsum(size[keep])]).astype(np.int64)
    return replace(model, nets=Csr(start, model.nets.items[np.repeat(keep, size)]), cost_s=model.cost_s[keep])
