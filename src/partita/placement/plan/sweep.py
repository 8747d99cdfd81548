"""What one device can hold: the most valuable set of atoms whose load stays below a limit, by a sweep over the graph.

A device that holds the set S of atoms has the load f(S) = work(S) + cost of the nets that S cuts. For given values of the
atoms, sought is the S of most value with f(S) <= limit: a knapsack whose items share costs. The atoms are swept in an order
that keeps few nets open. Of an open net all that matters is whether atoms met so far are inside, outside, or both (then it
is paid for); that is the *state*. Layered graphs of hundreds of operators have a few thousand states over all.

In each state live labels (load, value). A label is dropped where another has less load and more value, and where even

    value + the most that can be added from here, a second of load being priced at mu, + mu (limit - load)

does not reach the value asked for, for some mu (Lagrange). Loads are kept in buckets: in one, either the label of most
value less mu x load is kept (then what is found is a set), or one of least load and most value of all (then nothing is better
than what is found).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.placement.plan.load import LoadModel
from partita.solve.compiled import compiled

MOST_OPEN = 30  #: nets at a time, two bits of a word each
MOST_SETS = 10  #: handed back
STARTS, MOST_STEPS = 64, 50_000_000  #: orders tried, and atoms looked at for that
STEPS_OF_MU = 24
LABEL = 130.0  #: cells that a label takes as long as


@dataclass(frozen=True, eq=False)
class Sweep:
    """All states of an order of the atoms, layer by layer; layer k is before the k-th atom."""

    order: IntArray  #: [atoms]
    start: IntArray  #: [layers + 1] first state of each layer
    inside: IntArray  #: [states] the state after it if its atom is inside, counted within the next layer
    outside: IntArray  #: [states] and if it is not
    inside_s: FloatArray  #: [states] what nets add to the load if its atom is inside
    outside_s: FloatArray  #: [states]

    @property
    def states(self) -> int:
        return len(self.inside)

    @staticmethod
    def of(model: LoadModel, most_states: int) -> Sweep | None:
        """The sweep of a model, whose nets all cost; None: it has more states. O(atoms^2 + states log states)."""
        order = _order(*_neighbours(model))
        codes, states, rows = np.zeros(1, np.int64), 0, []
        left, slot = np.diff(model.nets.start), np.full(len(model.cost_s), -1, np.int64)
        free = list(range(MOST_OPEN))[::-1]
        for a in order.tolist():
            nets = model.nets_of.row(a)
            for e in nets[slot[nets] < 0].tolist():
                if not free:
                    return None
                slot[e] = free.pop()
            left[nets] -= 1
            closed = nets[left[nets] == 0]
            after = [_marked(codes, slot[nets], model.cost_s[nets], bit) for bit in (1, 2)]
            kept = ~int((np.int64(3) << (2 * slot[closed])).sum())
            both, place = np.unique(np.concatenate([c & kept for c, _ in after]), return_inverse=True)
            rows.append((len(codes), place[: len(codes)], place[len(codes) :], after[0][1], after[1][1]))
            free += slot[closed].tolist()
            codes, states = both, states + len(codes)
            if states > most_states:
                return None
        sizes, *columns = zip(*rows, strict=True)
        start = np.cumsum([0, *sizes, 1]).astype(np.int64)
        inside, outside, inside_s, outside_s = (np.concatenate(c) for c in columns)
        return Sweep(order, start, inside.astype(np.int64), outside.astype(np.int64), inside_s, outside_s)

    def without_nets(self) -> Sweep:
        """The same order for devices that do not pay: one state a layer."""
        n = len(self.order)
        same, nothing = np.zeros(n, np.int64), np.zeros(n)
        return Sweep(self.order, np.arange(n + 2), same, same, nothing, nothing)

    def best(
        self, work_s: FloatArray, value: FloatArray, limit_s: float, asked: float, buckets: int, relaxed: bool = False
    ) -> tuple[float, BoolArray, float]:
        """(the most value of a set of load up to limit_s, [sets, atoms] sets, work done); `asked` where none has more.

        `relaxed`: nothing has more than this value, and the sets may be too much for the limit. Else they are not, the best
        comes first, and there may be better ones. Work is in cells. `work_s`, `value` [atoms]. O(states x buckets).
        """
        work = np.minimum(work_s[self.order], 2 * limit_s)  # inf where an atom cannot run, and no product with it
        args = (self.start, self.inside, self.outside, self.inside_s, self.outside_s, work)
        worth = value[self.order]
        mu, rest = _dual(*args, worth, limit_s)
        top, rows, looked = _labels(*args, worth, limit_s, asked, buckets, mu, rest, relaxed)
        sets = np.zeros((len(rows), len(self.order)), np.bool_)
        sets[:, self.order] = rows
        scanned = self.states * (2.0 * buckets + 4.0 * (2 * STEPS_OF_MU + len(mu)))
        return top, sets, scanned + LABEL * looked


def _neighbours(model: LoadModel) -> tuple[IntArray, IntArray]:
    """(start, atoms): those that share a net with each atom."""
    n, start = model.atoms, model.nets.start.tolist()
    pairs = [
        np.stack(np.meshgrid(p, p), axis=-1).reshape(-1, 2) for p in (model.nets.items[i:j] for i, j in pairwise(start))
    ]
    both = np.concatenate([np.zeros((0, 2), np.int64), *pairs])
    found = np.unique(both[both[:, 0] != both[:, 1]] @ np.array([n, 1]))
    return np.searchsorted(found, np.arange(n + 1) * n).astype(np.int64), found % n


def _marked(codes: IntArray, slots: IntArray, cost_s: FloatArray, bit: int) -> tuple[IntArray, FloatArray]:
    """The states with an atom of these nets inside (1) or outside (2), and what that costs."""
    paid = np.zeros(len(codes))
    for s, c in zip((2 * slots).tolist(), cost_s.tolist(), strict=True):
        seen = codes >> s & 3
        paid += np.where(seen == 3 - bit, c, 0.0)
        codes = codes | bit << s
    return codes, paid


@compiled
def _order(start: IntArray, near: IntArray) -> IntArray:
    """[atoms] of greedy orders, each from another atom, the one that seems to have fewest states: next always the atom
    beside those met that leaves fewest of them with neighbours not met. `start`, `near`: the neighbours of each atom."""
    n = len(start) - 1
    best, least = np.arange(n), np.inf
    for first in range(0, n, max(1, n // STARTS, n**3 // MOST_STEPS)):
        left = start[1:] - start[:-1]
        met, order = np.zeros(n, np.bool_), np.empty(n, np.int64)
        waiting, states = 0, 0.0
        a = first
        for k in range(n):
            met[a] = True
            order[k] = a
            waiting += left[a] > 0
            for b in near[start[a] : start[a + 1]]:
                left[b] -= 1
                waiting -= met[b] and left[b] == 0
            states += 2.0**waiting
            if states >= least:
                break
            a, fewest, beside = -1, n, False
            for b in range(n):
                touches = left[b] < start[b + 1] - start[b]
                if met[b] or (beside and not touches):
                    continue
                more = 1 if left[b] > 0 else 0
                for x in near[start[b] : start[b + 1]]:
                    more -= met[x] and left[x] == 1
                if a < 0 or (touches and not beside) or more < fewest:
                    a, fewest, beside = b, more, touches
        if states < least:
            least, best = states, order
    return best


@compiled
def _rest(
    start: IntArray, inside: IntArray, outside: IntArray, inside_s: FloatArray, outside_s: FloatArray, work: FloatArray,
    worth: FloatArray, mu: float, rest: FloatArray,
) -> None:  # fmt: skip
    """[states + 1] the most value less mu x load that can be added from each state on."""
    rest[start[-2]] = 0.0
    for k in range(len(work) - 1, -1, -1):
        for s in range(start[k], start[k + 1]):
            with_it = rest[start[k + 1] + inside[s]] + worth[k] - mu * (inside_s[s] + work[k])
            rest[s] = max(with_it, rest[start[k + 1] + outside[s]] - mu * outside_s[s])


@compiled
def _dual(
    start: IntArray, inside: IntArray, outside: IntArray, inside_s: FloatArray, outside_s: FloatArray, work: FloatArray,
    worth: FloatArray, limit: float,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """(mu, what it leaves for each state): about the price of load that gives the least bound at the start."""
    rest = np.zeros(start[-1])
    low, high = 0.0, 4.0 * np.maximum(worth, 0.0).sum() / limit
    for _ in range(STEPS_OF_MU):  # the bound is convex in mu
        a, b = low + 0.382 * (high - low), low + 0.618 * (high - low)
        _rest(start, inside, outside, inside_s, outside_s, work, worth, a, rest)
        at_a = rest[0] + a * limit
        _rest(start, inside, outside, inside_s, outside_s, work, worth, b, rest)
        if at_a <= rest[0] + b * limit:
            high = b
        else:
            low = a
    prices = (low + high) / 2 * np.array([1.0, 0.6, 1.6, 0.3, 3.0, 0.8, 1.25, 0.0])
    rests = np.zeros((len(prices), start[-1]))
    for i in range(len(prices)):
        _rest(start, inside, outside, inside_s, outside_s, work, worth, prices[i], rests[i])
    return prices, rests


@compiled
def _labels(
    start: IntArray, inside: IntArray, outside: IntArray, inside_s: FloatArray, outside_s: FloatArray, work: FloatArray,
    worth: FloatArray, limit: float, asked: float, buckets: int, mu: FloatArray, rest: FloatArray, relaxed: bool,
) -> tuple[float, BoolArray, int]:  # fmt: skip
    """(most value, sets in the sweep's order, how many labels there were)."""
    n, widest = len(work), 1
    for k in range(n):
        widest = max(widest, start[k + 1] - start[k])
    load, value = np.full((widest, buckets + 1), np.inf), np.full((widest, buckets + 1), -np.inf)
    next_load, next_value = load.copy(), value.copy()
    came, next_came = np.full((widest, buckets + 1), -1), np.full((widest, buckets + 1), -1)
    parent, layer_of = np.empty(1024, np.int64), np.empty(1024, np.int64)  # of labels with their atom inside
    low, high = np.full(widest, buckets + 1), np.full(widest, -1)  # buckets with labels, from and to
    next_low, next_high = low.copy(), high.copy()
    kept, looked = 0, 0
    load[0, 0], value[0, 0], low[0], high[0] = 0.0, 0.0, 0, 0
    grain = buckets / limit
    for k in range(n):
        for s in range(start[k], start[k + 1]):
            here, top = s - start[k], -np.inf
            for b in range(low[here], high[here] + 1):
                v = value[here, b]
                value[here, b] = -np.inf  # free for the next layer but one
                if v <= top:
                    continue
                spent = load[here, b]
                looked += 1
                top = v
                pruned = False
                for i in range(len(mu)):
                    if v + rest[i, s] + mu[i] * (limit - spent) <= asked:
                        pruned = True
                        break
                if pruned:
                    continue
                for taken in range(2):
                    if taken:
                        x, w, to = spent + inside_s[s] + work[k], v + worth[k], inside[s]
                    else:
                        x, w, to = spent + outside_s[s], v, outside[s]
                    if x > limit:
                        continue
                    c = int(x * grain)
                    first = next_value[to, c] == -np.inf
                    if (
                        first
                        or (relaxed and w > next_value[to, c])
                        or (not relaxed and w - mu[0] * x > next_value[to, c] - mu[0] * next_load[to, c])
                    ):
                        next_value[to, c] = w
                        next_load[to, c] = min(x, next_load[to, c]) if relaxed and not first else x
                        next_low[to], next_high[to] = min(next_low[to], c), max(next_high[to], c)
                        next_came[to, c] = came[here, b]
                        if taken:
                            if kept == len(parent):
                                parent = np.concatenate((parent, np.empty(kept, np.int64)))
                                layer_of = np.concatenate((layer_of, np.empty(kept, np.int64)))
                            parent[kept], layer_of[kept] = came[here, b], k
                            next_came[to, c] = kept
                            kept += 1
                    elif relaxed:
                        next_load[to, c] = min(x, next_load[to, c])
            low[here], high[here] = buckets + 1, -1
        load, next_load = next_load, load
        value, next_value = next_value, value
        came, next_came = next_came, came
        low, next_low = next_low, low
        high, next_high = next_high, high
    final = value[0].copy()
    best = max(asked, final.max())
    sets = np.zeros((MOST_SETS, n), np.bool_)
    count = 0
    for i in range(len(sets)):
        b = int(final.argmax())
        if final[b] <= asked:
            break
        final[b] = -np.inf
        at = came[0, b]
        while at >= 0:
            sets[i, layer_of[at]] = True
            at = parent[at]
        count += 1
    return best, sets[:count], looked
