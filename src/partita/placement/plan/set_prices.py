"""A lower bound on the largest load of free placements: what devices can hold, priced.

Let every atom a have a price p_a. If no set of atoms that loads a device of class c up to T is worth more than z_c, then
n_c such devices hold at most n_c z_c, so that

    sum over atoms of p_a > sum over classes of n_c z_c      =>      no placement has a largest load of T or less

This is Gilmore and Gomory's bound for bin packing, with loads that share costs (see `sweep`); z is found exactly enough by
its relaxed labels. Good prices are the duals of the linear program over the sets met so far (column generation), kept in a
box around the best known prices, which keeps them from leaping (Marsten, Hogan and Blankenship, "The boxstep method",
Operations Research 1975). Prices near the work of the atoms are good from the start. Memory is left out of account.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack

from partita.nouns.graph import Csr, FloatArray, IntArray
from partita.placement.plan.alarm import FlagArray
from partita.placement.plan.load import Bools, LoadModel
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
FINEST, CELLS = 16_384, 1e6  #: buckets; cells of the first kind that are not too many
HALVINGS = 2  #: of the way from the bound to a limit that could not be excluded
FIRST_BOX, LEAST_BOX = 0.03, 2e-4
ENOUGH = 1.0 + 2e-5  #: worth of prices, the most that devices hold being 1, with which the proof is tried
WIDE = 1e-2  #: a gap, as a share, from which prices close more than other searches
CLOSE = 1e-3  #: share of the value, at which nothing more is tried
MOST_WORTH = 1e6  #: of prices, where no set is below the limit
ROUNDING = 1e-6
MOST_ROWS = 400  #: of a linear program: sets
LP_CELLS = 1800.0  #: cells of the sweep that an entry of the linear program takes as long as
CELLS_PER_S = 8e8  #: cautiously: 1.1e9 on one of 2 Xeon cores with others at work, 2026-11-21


@dataclass(eq=False)
class SetPrices:
    """The search for prices."""

    whole: LoadModel  #: the problem
    model: LoadModel  #: without nets that cost next to nothing
    sweeps: list[Sweep]  #: [classes]
    price: FloatArray  #: [atoms] the best known, worth 1 in total
    reach: FloatArray  #: [atoms] how far a price may move in a box of 1
    sets: list[tuple[int, Bools, float]] = field(default_factory=list)  #: (class, [atoms], the limit it was met under)
    box: float = FIRST_BOX
    spent: float = 0.0  #: cells of the sweep, and the linear programs in the same unit

    @staticmethod
    def of(model: LoadModel, known_s: float) -> SetPrices | None:
        """For a bound up to a known value; None where the model is too wide, or not of rule "sum"."""
        if model.rule != "sum" or not model.class_pays.any() or model.work_s.shape[1] > MOST_CLASSES:
            return None
        work, whole, model = model.work_s.min(axis=1), model, _without_cheap_nets(model, LEFT_OUT * known_s)
        if model.atoms > MOST_ATOMS or not work.sum() > 0 or float((np.diff(model.nets.start) ** 2).sum()) > MOST_PAIRS:
            return None
        sweep = Sweep.of(model, MOST_STATES)
        if sweep is None:
            return None
        alone = sweep.without_nets()
        beside = np.bincount(model.nets.items, np.repeat(model.cost_s, np.diff(model.nets.start)), model.atoms)
        sweeps = [sweep if pays else alone for pays in model.class_pays]
        return SetPrices(whole, model, sweeps, work / work.sum(), (work + beside / 3) / work.sum())

    def raised(self, bound_s: float, value_s: float, most: float, stop: FlagArray) -> float:
        """A bound, at least the given one: no placement has a smaller largest load. `value_s` is one that some placement has,
        `most` the work in cells. Limits between the two are tried, nearer to the bound where one could not be excluded."""
        end, step = self.spent + most, 0.5
        while self.spent < end and not stop[0] and step * (value_s - bound_s) > CLOSE * value_s:
            limit = bound_s + step * (value_s - bound_s)
            if self._excluded(limit, min(end, self.spent + most / 3), stop):
                bound_s = limit
                continue
            step /= 2
            low, high = bound_s, limit  # how far these prices go
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                low, high = (middle, high) if self._certainly(middle) > 1 else (low, middle)
            bound_s = low
        return bound_s

    def _excluded(self, limit_s: float, end: float, stop: FlagArray) -> bool:
        """Whether prices were found that exclude this limit."""
        price, best, asked = self.price, 0.0, self._known(limit_s)
        self.box = min(FIRST_BOX, max(self.box, 2 * LEAST_BOX) * 2)
        while self.spent < end and not stop[0] and self.box > LEAST_BOX:
            share = self._share(price, limit_s, asked, best)
            if share > best * (1 + 1e-5):
                best, self.box, self.price = share, self.box * 1.2, price * (share / float(price.sum()))
                if share > ENOUGH:
                    best = self._certainly(limit_s)
                    if best > 1:
                        return True
            else:
                self.box *= 0.75
            price, asked = self._duals(limit_s, self.price, self.box * self.reach)
            if price.sum() < min(1.0, best * (1 + 1e-4)):
                break
        return False

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
            asked = float(z[c]) * (1 + min(spare, 1.0) - ROUNDING)
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

    def _load_s(self, inside: Bools, c: int) -> float:
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

    def filled(self, where: IntArray, bound_s: float, value_s: float, most: float, seed: int) -> IntArray:
        """[atoms] the best placement met by filling one device after another with what is worth most; at least as good as
        the given one. Prices, the limit (between a bound and a value known) and the order of the devices are random. `most`:
        the work in cells."""
        random, model, best = np.random.default_rng(seed), self.model, where
        while most > 0:
            price = np.maximum(self.price, 0.0) * random.lognormal(0.0, 0.1, model.atoms)
            limit, line = random.uniform(bound_s, value_s), random.permutation(model.devices)
            found, left = np.full(model.atoms, line[-1]), np.ones(model.atoms, np.bool_)
            for d in line[:-1].tolist():
                c = int(model.class_of[d])
                work = np.where(left, model.work_s[:, c], np.inf)
                _, sets, cells = self.sweeps[c].best(work, price, limit, 0.0, ROUGH)
                most -= cells
                if len(sets):
                    found[sets[0]], left = d, left & ~sets[0]
            best = min(best, found, key=self.whole.value)
        return best

    def _duals(self, limit_s: float, centre: FloatArray, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """([atoms] prices within reach of the centre, [classes] z): worth most beside the sets met so far, which all
        devices together can hold 1 of."""
        known = [(c, s) for c, s, load in self.sets if load <= limit_s]
        slack = np.array([float(centre[s].sum()) for _, s in known])
        top = np.array([c for c, _ in known])
        slack = np.array([slack[top == c].max(initial=0.0) for c in range(len(self.sweeps))])[top] - slack
        met = [known[i] for i in np.sort(np.argsort(slack, kind="stable")[:MOST_ROWS])]
        k, n, types = len(met), self.model.atoms, len(self.sweeps)
        rows = csr_matrix(np.array([s for _, s in met], np.float64))
        most = csr_matrix((-np.ones(k), (np.arange(k), [c for c, _ in met])), shape=(k, types))
        self.spent += LP_CELLS * rows.nnz
        answer = linprog(
            np.concatenate([-np.ones(n), np.zeros(types)]),
            A_ub=hstack([rows, most]).tocsr(),
            b_ub=np.zeros(k),
            A_eq=np.concatenate([np.zeros(n), self.model.class_size])[None],
            b_eq=[1.0],
            bounds=[*zip(centre - reach, centre + reach, strict=True), *[(0.0, None)] * types],
        )
        if answer.status != 0:
            return centre, np.zeros(types)
        return np.asarray(answer.x[:n], np.float64), np.asarray(answer.x[n:], np.float64)


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
