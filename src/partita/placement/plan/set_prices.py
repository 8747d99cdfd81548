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
BUCKETS = 128  #: of load, at first
FINEST, PROOF_CELLS = 2048, 2e7  #: buckets and cells when proving
HALVINGS = 4  #: of the way from the bound to a limit that could not be excluded
FIRST_BOX, LEAST_BOX = 0.2, 1e-3
ENOUGH = 1.002  #: worth of prices, the most that devices hold being 1, with which the proof is tried
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
    finest: int  #: buckets when proving
    sets: list[tuple[int, Bools, float]] = field(default_factory=list)  #: (class, [atoms], the limit it was met under)
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
        finest = int(min(FINEST, max(BUCKETS, PROOF_CELLS / sweep.states)))
        sweeps = [sweep if pays else alone for pays in model.class_pays]
        return SetPrices(whole, model, sweeps, work / work.sum(), (work + beside / 3) / work.sum(), finest)

    def raised(self, bound_s: float, value_s: float, most: float, stop: FlagArray) -> float:
        """A bound, at least the given one: no placement has a smaller largest load. `value_s` is one that some placement has,
        `most` the work in cells. Limits between the two are tried, nearer to the bound where one could not be excluded."""
        end, step = self.spent + most, 0.5
        while self.spent < end and not stop[0] and step * (value_s - bound_s) > CLOSE * value_s:
            limit = bound_s + step * (value_s - bound_s)
            worth = self._improve(limit, min(end, self.spent + most / 3), stop)
            if worth > 1 + ROUNDING and self._excludes(limit):
                bound_s = limit
                continue
            step /= 2
            low, high = bound_s, limit  # how far these prices go
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                low, high = (middle, high) if self._excludes(middle) else (low, middle)
            bound_s = low
        return bound_s

    def _improve(self, limit_s: float, end: float, stop: FlagArray) -> float:
        """Better prices for this limit, until they seem to exclude it; what they are worth, the most that devices hold
        being 1."""
        price, best, box = self.price, 0.0, FIRST_BOX
        asked = np.zeros(len(self.sweeps))
        while self.spent < end and not stop[0] and box > LEAST_BOX:
            share = self._share(price, limit_s, asked, best)
            if share > best * (1 + 1e-5):
                best, box, self.price = share, box * 1.2, price * (share / float(price.sum()))
                if share > ENOUGH:
                    break
            else:
                box *= 0.85
            price, asked = self._duals(limit_s, self.price, box * self.reach)
            if price.sum() < min(1.0, best * (1 + 1e-4)):
                break
        return best

    def _share(self, price: FloatArray, limit_s: float, asked: FloatArray, enough: float) -> float:
        """What prices are worth, the most that all devices hold being 1: at most that, by the sets met. More sets are met;
        the closer they look, the more it seems to be worth."""
        z, buckets, share = asked.copy(), BUCKETS, np.inf
        while share > enough and buckets <= self.finest:
            for c, sweep in enumerate(self.sweeps):
                z[c], sets, cells = sweep.best(self.model.work_s[:, c], price, limit_s, float(z[c]), buckets)
                self.spent += cells
                self.sets += [(c, s, limit_s) for s in sets]
            held = max(float(self.model.class_size @ z), float(price.sum()) / MOST_WORTH)
            share, buckets = float(price.sum()) / held, 4 * buckets
        return share

    def _excludes(self, limit_s: float) -> bool:
        """Whether the prices are worth more than all sets of load up to the limit."""
        total, size = float(self.price.sum()), self.model.class_size
        z = np.zeros(len(self.sweeps))
        for c, inside, load in self.sets:
            z[c] = max(z[c], float(self.price[inside].sum()) if load <= limit_s else 0.0)
        spare = total / max(float(size @ z), 1e-300) - 1.0
        if spare <= 2 * ROUNDING:
            return False
        for c, sweep in enumerate(self.sweeps):
            asked = float(z[c]) * (1 + min(spare, 1.0) - ROUNDING)
            above, work = limit_s * (1 + ROUNDING), self.model.work_s[:, c]
            z[c], _, cells = sweep.best(work, self.price, above, asked, self.finest, relaxed=True)
            self.spent += cells
        return float(size @ z) < total * (1 - ROUNDING / 2)

    def filled(self, where: IntArray, limit_s: float, most: float, seed: int) -> IntArray:
        """[atoms] the best placement met by filling one device after another with what is worth most; at least as good as
        the given one. Prices, limit and the order of the devices are shaken. `most`: the work in cells."""
        random, model, best = np.random.default_rng(seed), self.model, where
        end = most
        while end > 0:
            price = np.maximum(self.price, 0.0) * random.lognormal(0.0, 0.1, model.atoms)
            limit, line = limit_s * random.uniform(0.985, 1.015), random.permutation(model.devices)
            found, left = np.full(model.atoms, line[-1]), np.ones(model.atoms, np.bool_)
            for d in line[:-1].tolist():
                c = int(model.class_of[d])
                work = np.where(left, model.work_s[:, c], np.inf)
                _, sets, cells = self.sweeps[c].best(work, price, limit, 0.0, 2 * BUCKETS)
                end -= cells
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


def _without_cheap_nets(model: LoadModel, total_s: float) -> LoadModel:
    """The model without the nets that cost least, up to that in total."""
    order = np.argsort(model.cost_s, kind="stable")
    keep = np.ones(len(order), np.bool_)
    keep[order[np.cumsum(model.cost_s[order]) <= total_s]] = False
    size = np.diff(model.nets.start)
    start = np.concatenate([[0], np.cumsum(size[keep])]).astype(np.int64)
    return replace(model, nets=Csr(start, model.nets.items[np.repeat(keep, size)]), cost_s=model.cost_s[keep])
