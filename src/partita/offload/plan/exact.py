"""The best plan with a proof: dynamic programming over sets of jobs, with dominance and bounds.

A label is a beginning of a schedule: which jobs are served, and when each machine is free again. Of two labels that
serve the same jobs, one that is nowhere later than the other replaces it (schedules in a given order are monotone in
every time); a label whose bound reaches the best plan known is dropped. What is left at the end is optimal. Labels grow
by one job a level; jobs of one kind are alike, so a set of jobs is a count for each kind.

Where a level has more labels than the width, those of least bound go on (a beam). The least bound of the labels that
were left behind then still bounds every plan, so a search that is cut short proves something too.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.offload.plan.bounds import SAFE
from partita.offload.plan.kernel import Shop
from partita.offload.plan.shop import Found, found
from partita.solve.compiled import compiled

# Columns of a label. Machines are raised to when the next job could reach them, so that labels compare well.
DEVICE, DEVICE_ALL, UP, DOWN, END, LATE, STAGE, THREADS = range(8)
# DEVICE: device parts of jobs that are cut; DEVICE_ALL: and of those that are not; END: last answer; LATE: largest
# lateness; STAGE: where jobs wholly on the device go last, they are chosen first, by ascending kind: the last such kind;
# THREADS: and the columns after it, ascending: when each thread is free.

MOST_SETS_LOG2 = 60.0  #: sets of jobs are numbered by 64-bit numbers
MOST_CHILDREN = 1 << 20  #: labels of a level before they are compared: about 100 MB
MOST_COMPARED = 1000  #: a label is compared with so many of the same jobs
WIDER = 8  #: times as wide is the next beam
STEPS_PER_S = 2e6  #: options looked at in a second, on a slow machine
NEAR = 1e-13  #: times this close, as a share of the makespan, count as equal


@dataclass(frozen=True, eq=False)
class Proof:
    """What the search found and what it proved."""

    plan: Found
    lower_bound_s: float  #: no plan is faster; 0 with deadlines: a plan that is late may be faster than the best one
    complete: bool


def weights_for(binding: FloatArray) -> FloatArray:
    """[rows, 5] the combinations of machine bounds that a label is judged by; `binding` [5] are those of the whole problem."""
    halves = [np.array(p) / 2 for p in itertools.product(range(3), repeat=5) if sum(p) == 2]
    mixed = [(binding + w) / 2 for w in np.eye(5)]
    return np.array([binding, *mixed, *halves]) if binding.sum() > 0 else np.array(halves)


def solve(shop: Shop, start: Found, binding: FloatArray, *, budget_s: float) -> Proof:
    """The best plan, starting from a known one, with ever wider beams until one is complete or the budget is spent.

    O(labels x options x (rows + threads)) a level; labels grow exponentially with the number of kinds, polynomially
    with the number of jobs of each. The budget is counted in steps, so that the result does not depend on the clock,
    unless this machine is much slower than STEPS_PER_S.
    """
    count = np.bincount(shop.kind, minlength=len(shop.first) - 1).astype(np.int64)
    if float(np.log2(count + 1.0).sum()) > MOST_SETS_LOG2:
        return Proof(start, 0.0, False)
    radix = np.concatenate([[1], np.cumprod(count + 1)[:-1]]).astype(np.int64)
    rows = weights_for(binding)
    beam = Beam(shop, count, radix, rows, _costs(shop, rows), time.monotonic() + 3 * budget_s)
    hurried = bool(np.isfinite(shop.deadline).any())
    best, proved, steps, width = start, 0.0, STEPS_PER_S * budget_s, 64
    while True:
        found = beam.run(best, width)
        best = min(best, found.plan, key=lambda p: p.value) if found.plan else best
        if found.finished and found.left_s == np.inf:
            return Proof(best, 0.0 if hurried else best.makespan_s, True)
        if found.finished:  # a plan was left behind, or reaches the best one known
            proved = max(proved, min(found.left_s, best.makespan_s))
        steps -= found.steps
        if not found.finished or steps < WIDER * found.steps:
            break
        width *= WIDER
    return Proof(best, 0.0 if hurried else proved * SAFE, False)


def _costs(shop: Shop, rows: FloatArray) -> FloatArray:
    """[2, rows, kinds] the least weighted seconds that a job of a kind adds to the machines; second: if it is cut."""
    cut = rows @ np.stack([shop.d, shop.d, shop.u, shop.s / shop.threads, shop.w])
    local, both = np.flatnonzero(shop.local), cut.copy()
    both[:, local] = rows[:, :1] * shop.d[local]
    cut[:, local] = np.inf
    least = [np.minimum.reduceat(c, shop.first[:-1], axis=1) for c in (both, cut)]
    return np.ascontiguousarray(np.stack(least))


@dataclass(frozen=True)
class Pass:
    """What one beam came to."""

    plan: Found | None  #: a better plan
    left_s: float  #: the least bound of what was left behind
    steps: int  #: options looked at
    finished: bool  #: the last level was reached


@dataclass(frozen=True, eq=False)
class Beam:
    """A search by levels."""

    shop: Shop
    count: IntArray  #: [kinds] jobs
    radix: IntArray  #: [kinds] a set of jobs is the number sum of count x radix
    rows: FloatArray  #: [rows, 5]
    costs: FloatArray  #: [2, rows, kinds]
    ends: float  #: on the clock

    def run(self, best: Found, width: int) -> Pass:
        """Search with at most `width` labels a level for what is better than `best`."""
        shop = self.shop
        labels = np.zeros((1, THREADS + shop.threads))
        labels[0, STAGE] = -1
        keys = np.array([(self.count * self.radix).sum()], np.int64)
        history: list[tuple[IntArray, IntArray]] = []
        left, steps = np.inf, 0
        limit = best.makespan_s * SAFE
        for _ in range(len(shop.kind)):
            steps += len(labels) * int(shop.first[-1])
            labels, keys, parent, option, bound = expand(
                shop, labels, keys, self.count, self.radix, self.rows, self.costs, best.late_s, limit, MOST_CHILDREN
            )
            if time.monotonic() > self.ends or len(labels) >= MOST_CHILDREN:
                return Pass(None, left, steps, False)
            few, left = _least(bound, np.arange(len(bound)), 16 * width, left)
            kept = few[undominated(labels[few], keys[few], NEAR * limit, MOST_COMPARED)]
            kept, left = _least(bound, kept, width, left)
            labels, keys = labels[kept], keys[kept]
            history.append((parent[kept], option[kept]))
        if not len(labels):
            return Pass(None, left, steps, True)
        final = np.lexsort((np.maximum(labels[:, END], labels[:, DEVICE_ALL]), labels[:, LATE]))[0]
        return Pass(_traced(shop, history, int(final)), left, steps, True)


def _least(bound: FloatArray, of: IntArray, most: int, left: float) -> tuple[IntArray, float]:
    """(the `most` labels of least bound, ascending; the least bound of the others and `left`)."""
    if len(of) <= most:
        return of, left
    order = of[np.argsort(bound[of], kind="stable")]
    return np.sort(order[:most]), min(left, float(bound[order[most]]))


def _traced(shop: Shop, history: list[tuple[IntArray, IntArray]], at: int) -> Found:
    """The plan whose last label is `at`; jobs of one kind stand in the given order."""
    chosen = []
    for parent, option in reversed(history):
        chosen.append(int(option[at]))
        at = int(parent[at])
    kind_of = np.searchsorted(shop.first, np.array(chosen[::-1]), side="right") - 1
    waiting = [np.flatnonzero(shop.kind == k).tolist() for k in range(len(shop.first) - 1)]
    order = np.array([waiting[k].pop(0) for k in kind_of.tolist()], np.int64)
    choice = np.zeros(len(order), np.int64)
    choice[order] = chosen[::-1]
    return found(shop, order, choice, "beam")


@compiled
def expand(
    shop: Shop,
    labels: FloatArray,
    keys: IntArray,
    count: IntArray,
    radix: IntArray,
    rows: FloatArray,
    costs: FloatArray,
    limit_late: float,
    limit: float,
    most: int,
) -> tuple[FloatArray, IntArray, IntArray, IntArray, FloatArray]:
    """Every label with one more job: (labels, keys, parents, options, bounds) of those that may beat the limit."""
    kinds, wide = len(count), labels.shape[1]
    size, n = 1024, 0
    out, key_of = np.empty((size, wide)), np.empty(size, np.int64)
    parent, option, bound = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size)
    least = _least_of_cut(shop, kinds)
    rest, low, new = np.empty((2, len(rows))), np.empty(LOWS), np.empty(wide)
    for i in range(len(labels)):
        for k in range(kinds):
            if keys[i] // radix[k] % (count[k] + 1) == 0:
                continue
            key = keys[i] - radix[k]
            home = _left_to_do(shop, key, count, radix, costs, least, rest, low)
            for o in range(shop.first[k], shop.first[k + 1]):
                new[:] = labels[i]
                if not _serve(shop, new, k, o, kinds) or new[LATE] > limit_late:
                    continue
                only_cut = new[STAGE] == kinds and key > 0  # no job wholly on the device may follow
                value = np.inf if only_cut else max(new[END], new[DEVICE_ALL] + home)
                if low[0] < np.inf:
                    _raise_to(new, low, shop.lag)
                    after = rest[1] if only_cut else rest[0]
                    enough = limit if new[LATE] >= limit_late else np.inf
                    value = min(value, _bound(new, low, shop.lag, rows, after, enough))
                if value >= limit and new[LATE] >= limit_late:
                    continue
                if n == most:
                    return out[:n], key_of[:n], parent[:n], option[:n], bound[:n]
                if n == size:
                    size *= 2
                    out, key_of, bound = _longer(out, size), _longer_of(key_of, size), _longer_at(bound, size)
                    parent, option = _longer_of(parent, size), _longer_of(option, size)
                out[n] = new
                key_of[n], parent[n], option[n], bound[n] = key, i, o, value
                n += 1
    return out[:n], key_of[:n], parent[:n], option[:n], bound[:n]


LOWS = 7  #: least of the cut jobs: d, u, d + u, s, then what comes after device, uplink, server


@compiled
def _least_of_cut(shop: Shop, kinds: int) -> FloatArray:
    """[kinds, LOWS] over the options of a kind that cut it; inf without any."""
    least, lag = np.full((kinds, LOWS), np.inf), shop.lag
    for k in range(kinds):
        for o in range(shop.first[k], shop.first[k + 1]):
            if not shop.local[o]:
                d, u, s, w = shop.d[o], shop.u[o], shop.s[o], shop.w[o]
                seconds = (d, u, d + u, s, u + s + w + 2 * lag, s + w + 2 * lag, w + lag)
                for x in range(LOWS):
                    least[k, x] = min(least[k, x], seconds[x])
    return least


@compiled
def _left_to_do(
    shop: Shop,
    key: int,
    count: IntArray,
    radix: IntArray,
    costs: FloatArray,
    least: FloatArray,
    rest: FloatArray,
    low: FloatArray,
) -> float:
    """Of the jobs of a set: seconds if all stay at home; fills rest [2, rows], their weighted seconds, and low [LOWS]."""
    rest[:] = 0.0
    low[:] = np.inf
    home = 0.0
    for q in range(len(count)):
        r = key // radix[q] % (count[q] + 1)
        if r > 0:
            home += r * shop.d[shop.first[q]]
            for x in range(rest.shape[1]):
                rest[0, x] += r * costs[0, x, q]
                rest[1, x] += r * costs[1, x, q]
            for x in range(LOWS):
                low[x] = min(low[x], least[q, x])
    return home


@compiled
def _serve(shop: Shop, new: FloatArray, k: int, o: int, kinds: int) -> bool:
    """Add a job of kind k by option o to a label; False where the order of local jobs forbids it."""
    ready = max(new[DEVICE], shop.release[k])
    if shop.local[o] and shop.last:
        if new[STAGE] > k:
            return False
        new[STAGE] = k
        new[DEVICE_ALL] += shop.d[o]
        return True
    new[DEVICE_ALL] += ready - new[DEVICE] + shop.d[o]
    new[DEVICE] = ready + shop.d[o]
    done = new[DEVICE]
    if not shop.local[o]:
        if shop.last:
            new[STAGE] = kinds
        new[UP] = max(new[UP], done) + shop.u[o]
        through = max(new[THREADS], new[UP] + shop.lag) + shop.s[o]
        t = THREADS
        while t + 1 < len(new) and new[t + 1] < through:
            new[t] = new[t + 1]
            t += 1
        new[t] = through
        new[DOWN] = max(new[DOWN], through) + shop.w[o]
        done = new[DOWN] + shop.lag
    new[END] = max(new[END], done)
    new[LATE] = max(new[LATE], done - shop.deadline[k])
    return True


@compiled
def _raise_to(new: FloatArray, low: FloatArray, lag: float) -> None:
    """Raise the machines to when the next cut job could reach them."""
    new[UP] = max(new[UP], new[DEVICE] + low[0])
    reach = max(new[UP] + low[1], new[DEVICE] + low[2]) + lag
    for t in range(THREADS, len(new)):
        new[t] = max(new[t], reach)
    new[DOWN] = max(new[DOWN], new[THREADS] + low[3])


@compiled
def _bound(new: FloatArray, low: FloatArray, lag: float, rows: FloatArray, rest: FloatArray, enough: float) -> float:
    """No end of the schedule is earlier, by any of the rows; what comes to `enough` is not looked at further."""
    found = new[END]
    mean = new[THREADS:].sum() / (len(new) - THREADS)
    for x in range(len(rows)):
        found = max(
            found,
            rows[x, 0] * new[DEVICE_ALL]
            + rows[x, 1] * (new[DEVICE] + low[4])
            + rows[x, 2] * (new[UP] + low[5])
            + rows[x, 3] * (mean + low[6])
            + rows[x, 4] * (new[DOWN] + lag)
            + rest[x],
        )
        if found >= enough:
            break
    return float(found)


@compiled
def _longer(a: FloatArray, size: int) -> FloatArray:
    b = np.empty((size, a.shape[1]))
    b[: len(a)] = a
    return b


@compiled
def _longer_of(a: IntArray, size: int) -> IntArray:
    b = np.empty(size, np.int64)
    b[: len(a)] = a
    return b


@compiled
def _longer_at(a: FloatArray, size: int) -> FloatArray:
    b = np.empty(size)
    b[: len(a)] = a
    return b


@compiled
def undominated(labels: FloatArray, keys: IntArray, near: float, most: int) -> IntArray:
    """The labels that no other one of the same jobs replaces, in ascending order.

    Those of least total go first; each is compared with the first `most` kept ones of its jobs, so that some that could
    be replaced may stay. O(labels x most).
    """
    n, wide = labels.shape
    total = np.empty(n)
    for i in range(n):
        total[i] = labels[i].sum()
    order = np.argsort(total, kind="mergesort")
    order = order[np.argsort(keys[order], kind="mergesort")]
    stays = np.zeros(n, np.bool_)
    kept = np.empty(n, np.int64)
    count, group = 0, np.int64(-1)
    for i in order:
        if keys[i] != group:
            group, count = keys[i], 0
        beaten = False
        for a in range(min(count, most)):
            beaten = True
            for c in range(wide):
                if labels[kept[a], c] > labels[i, c] + near:
                    beaten = False
                    break
            if beaten:
                break
        if not beaten:
            stays[i] = True
            kept[count] = i
            count += 1
    return np.flatnonzero(stays)
