"""No cuts and order can be faster than this.

Let the makespan be M. If some job is not wholly on the device, the first one of those in the order is f and the last one
l (perhaps the same). Then, with d, u, s, w the seconds of a job's cut and L the lag of a transfer,

    device                    M >= sum of d of all jobs
    device, then l's rest     M >= sum of d of jobs that are cut  + u(l) + L + s(l) + w(l) + L
    uplink                    M >= d(f)                  + sum of u + L + s(l) + w(l) + L
    server, T threads         M >= d(f) + u(f) + L       + sum of s / T     + w(l) + L
    downlink                  M >= d(f) + u(f) + L + s(f) + sum of w             + L
    a job j alone             M >= d(j) + u(j) + L + s(j) + w(j) + L,  or d(j) where it is not cut

Every convex combination of these with weights is a bound as well, and for given weights the least right side is a sum
of one minimum over cuts a job, which candidates (where they are complete) or a minimum cut (over all downsets) give. So
the bound holds for all cuts. The weights come from the linear program over the candidates, whose dual they are; where
candidates are not complete, the minimum cuts for these weights join them, and the program is solved again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from partita.nouns.graph import FloatArray, IntArray
from partita.offload.plan.shop import Floor

ROUNDS = 40  #: of weights
SAFE = 1 - 1e-12  #: floating-point sums differ in the last digits


@dataclass(frozen=True)
class Bound:
    """No plan is faster than `value_s`."""

    value_s: float
    name: str
    weights: FloatArray  #: [5] of device, device and rest, uplink, server, downlink: which of them bind
    mix: tuple[dict[int, float], ...] = ()  #: [kinds] cut -> how many jobs have it in the linear program


def bound_of(floor: Floor) -> Bound:
    """The bound, valid for every cut; candidates may join the floor's. O(rounds x kinds) minimum cuts and small programs."""
    best = Bound(-1.0, "", np.zeros(5))
    count, network = floor.kinds.count, floor.kinds.network
    device_only = float(sum(n * floor.cuts[m].times[0, 0] for n, m in zip(count, network, strict=True)))
    active: list[set[int]] = [{0} for _ in network]
    weights, alone, value = np.full(5, 0.2), np.zeros(len(network)), np.inf
    mix: tuple[dict[int, float], ...] = tuple({0: float(n)} for n in count)
    solved = -1  # how many cuts were active in the last program
    for _ in range(ROUNDS):
        cut_s = _least_sum(floor, weights, alone, active)
        if min(cut_s, device_only) > best.value_s:
            best = Bound(min(cut_s, device_only), _name(weights, alone, device_only, cut_s), weights)
        looked_at = sum(map(len, active))
        if value <= best.value_s * (1 + 1e-7) or device_only <= cut_s or looked_at == solved:
            break
        found = _program(floor, [sorted(a) for a in active])
        if found is None:
            break
        weights, alone, value, mix = found
        solved = looked_at
    release = min(j.release_s for j in floor.problem.jobs)
    return Bound((best.value_s + release) * SAFE, best.name, best.weights, mix)


def _name(weights: FloatArray, alone: FloatArray, device_only: float, cut_s: float) -> str:
    if device_only <= cut_s:
        return "device only"
    if alone.sum() > 0.5:
        return "critical path of one job"
    names = ("device", "device", "uplink", "server", "downlink")
    shares = {n: sum(float(w) for m, w in zip(names, weights, strict=True) if m == n) for n in names}
    binding = [n for n in sorted(shares, key=lambda n: -shares[n]) if shares[n] > 0.02]
    return f"load of {' and '.join(binding)} over all cuts"


def _parts(floor: Floor, times: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Per option [.., 4]: its load [.., 5], what it adds as the first one, as the last one [.., 5], and alone [..]."""
    d, u, s, w = times.T
    lag, none = floor.lag_s, np.zeros(len(times))
    load = np.stack([d, d, u, s / floor.problem.server_threads, w], axis=1)
    head = np.stack([none, none, d, d + u + lag, d + u + s + lag], axis=1)
    tail = np.stack([none, u + s + w + 2 * lag, s + w + 2 * lag, w + lag, none + lag], axis=1)
    return load, head, tail, d + u + s + w + 2 * lag


def _program(
    floor: Floor, active: list[list[int]]
) -> tuple[FloatArray, FloatArray, float, tuple[dict[int, float], ...]] | None:
    """(weights [5] of the machines, weights [kinds] of a job alone, the value, the mix) of the linear program; None where the solver
    finds no answer, as where no cut that sends is looked at.

    active: [kinds] the cuts looked at. Variables: how many jobs of a kind have a cut; whether one of them is the first,
    the last one; the makespan.
    """
    count = floor.kinds.count.astype(np.float64)
    times = np.concatenate([floor.cuts[m].times[a] for m, a in zip(floor.kinds.network, active, strict=True)])
    owner = np.repeat(np.arange(len(active)), [len(a) for a in active])
    local = np.concatenate([np.array(a) == 0 for a in active])
    load, head, tail, alone = _parts(floor, times)
    load[local, 1:], alone[local] = 0.0, times[local, 0]
    n, k, one = len(times), len(active), np.arange(len(times))
    scale = float(alone.max()) or 1.0
    machine = np.concatenate([load, head, tail]).T / scale
    path = coo_matrix((alone / count[owner] / scale, (owner, one)), (k, 3 * n))
    chosen = sparse.hstack([sparse.vstack([-sparse.eye(n)] * 2), sparse.eye(2 * n)])  # first, last <= all
    upper = sparse.vstack([sparse.csr_matrix(machine), path, chosen])
    makespan = np.concatenate([np.full(5 + k, -1.0), np.zeros(2 * n)])[:, None]
    equal = sparse.vstack([
        coo_matrix((np.ones(n), (owner, one)), (k, 3 * n)),
        coo_matrix((np.ones(2 * n), (np.repeat([0, 1], n), n + np.arange(2 * n))), (2, 3 * n)),
    ])  # fmt: skip
    most = np.concatenate([np.full(n, np.inf), np.tile(np.where(local, 0.0, np.inf), 2), [np.inf]])
    answer = linprog(
        np.append(np.zeros(3 * n), 1.0),
        A_ub=sparse.hstack([upper, makespan]).tocsr(),
        b_ub=np.zeros(5 + k + 2 * n),
        A_eq=sparse.hstack([equal, np.zeros((k + 2, 1))]).tocsr(),
        b_eq=np.append(count, [1.0, 1.0]),
        bounds=np.stack([np.zeros(3 * n + 1), most], axis=1),
        method="highs",
    )
    if answer.status != 0:
        return None
    dual = np.maximum(-answer.ineqlin.marginals[: 5 + k], 0.0)
    if not dual.sum():  # nothing takes any time
        return None
    amount = np.split(answer.x[:n], np.cumsum([len(a) for a in active])[:-1])
    mix = tuple(dict(zip(a, x.tolist(), strict=True)) for a, x in zip(active, amount, strict=True))
    return dual[:5] / dual.sum(), dual[5:] / dual.sum(), float(answer.fun) * scale, mix


def _least_sum(floor: Floor, weights: FloatArray, alone: FloatArray, active: list[set[int]]) -> float:
    """The least weighted sum of the right sides over all cuts, where some job is not wholly on the device.

    The cuts that attain it become active.
    """
    kinds, threads, lag = floor.kinds, floor.problem.server_threads, floor.lag_s
    w0, w1, w2, w3, w4 = weights
    load = np.array([w0 + w1, w2, w3 / threads, w4])
    head = np.array([w2 + w3 + w4, w3 + w4, w4, 0.0])
    tail = np.array([0.0, w1, w1 + w2, w1 + w2 + w3])
    lags = (w3 + w4) * lag + (2 * (w1 + w2) + w3 + w4) * lag
    count, total = kinds.count, 0.0
    ends: list[list[float]] = []  # [kinds] what being the first, the last, both adds to a job
    for k, m in enumerate(kinds.network):
        path = alone[k] / count[k]
        extra = path * 2 * lag
        costs = []
        for more in (np.zeros(4), head, tail, head + tail):
            value, at = floor.cuts[m].least(load + path + more, sent=True)
            costs.append(value + extra)
            active[k] |= {at} - {-1}
        plain = min((w0 + path) * float(floor.cuts[m].times[0, 0]), costs[0])
        total += plain * int(count[k])
        ends.append([c - plain for c in costs[1:]])
    both = min(e[2] for e in ends)
    firsts, lasts = np.array([e[0] for e in ends]), np.array([e[1] for e in ends])
    return float(total + lags + min(both, _least_pair(firsts, lasts, count)))


def _least_pair(firsts: FloatArray, lasts: FloatArray, count: IntArray) -> float:
    """The least firsts[a] + lasts[b] of two jobs; of one kind only where there are two of it. O(kinds)."""
    alike = np.where(count > 1, firsts + lasts, np.inf).min()
    least, second = np.partition(lasts, 1)[:2] if len(lasts) > 1 else (lasts[0], np.inf)
    others = np.full(len(lasts), least)
    others[int(lasts.argmin())] = second
    return float(min(alike, (firsts + others).min()))
