"""A lower bound of the training step that holds for every pipeline plan with one stage a device.

Let a plan with step <= T run M micro-batches, and one of its stages be the segment (i, j) on m devices. Device r of them,
of class c, runs n_r micro-batches, the n_r sum to M, and

    head(i) + n_r t_c(i, j) + max( tail(i), reduce(m) + update ) <= T

    head(i)   before its first forward, some unit u that is next behind cut i gets its inputs: every chain of units that
              leads to u has run for that micro-batch, on the fastest device each, and one message has come in
    t_c       forward and backward of the segment, and handling a message where every such u needs one
    tail(i)   after its last backward, a gradient goes back from u, and the backwards of a chain that led to u run;
              meanwhile the device updates its own parameters, after their gradients were summed over the m replicas

The stage is made of units, so it holds at least one unit u all of whose predecessors are before cut i; taking the least
head and tail over such u makes them depend on i alone. Order, links and unequal shares can only add to it.

Now give every device a price y >= 0. By the inequality a stage alone on a device costs at least the least y_c of a class
that can hold it and is fast enough; m >= 2 devices cost at least M min_c(y_c t_c) / (T - head - ...) (each n_r t_r is at
most the bracket) and at least the m lowest prices. No device serves two stages, so the stages of a plan cost at most all
prices together. If even the cheapest chain of downsets costs more, no plan has a step of T: a shortest path for each T, and
bisection for the least T that is not refuted. Any prices give a bound; the devices' speeds and equal prices are tried.

Where there are too many states for that, the chain is cut in two: the last stage as above, and before it the work alone,
which costs M sum_u min_c(y_c t_c(u)) / T. Where the downsets cannot be listed, the work alone is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.nouns.profile import Sample
from partita.pipeline.plan.stage_costs import StageCosts, Wire, tensor_s
from partita.simulate.readings import forward_readings
from partita.solve.compiled import compiled
from partita.solve.units import Words

PRECISION = 1e-10  #: of the bisection, as a share
TINY = 1e-9  #: share of all parameters; less is the rounding of a difference and no gradient that pays latencies


@dataclass(frozen=True, eq=False)
class Waits:
    """What every stage that begins at a state must wait for at least."""

    head_s: FloatArray  #: [states] before its first forward
    tail_s: FloatArray  #: [states] after its last backward
    fed: FloatArray  #: [states] 1 where it receives a message for every micro-batch, else 0


def waits(costs: StageCosts, sample: Sample, best: Wire, unit_s: FloatArray) -> Waits:
    """Head and tail of every state. `unit_s` [units, 2]: least forward and backward of a unit over the devices.

    O(readers + states x units)."""
    units, read = costs.units, forward_readings(costs.graph)
    source, target = units.unit_of[read.producer], units.unit_of[read.reader]
    message = tensor_s(sample, best.rate)[read.tensor] + best.latency_s
    ahead = source != target
    back = ahead & read.back
    head = _longest(len(units), unit_s[:, 0], source[ahead], target[ahead], message[ahead])
    tail = _longest(len(units), unit_s[:, 1], source[back], target[back], message[back])
    fed = np.zeros(len(units))
    fed[target[ahead]] = 1.0
    rows = np.stack([head, tail, fed], axis=1)
    least = _least_over_next(costs.states.members, units.before.start, units.before.items, rows)
    return Waits(least[:, 0], least[:, 1], least[:, 2])


def _longest(n: int, own_s: FloatArray, source: IntArray, target: IntArray, message_s: FloatArray) -> FloatArray:
    """[units] seconds of the longest chain of units that leads to a unit, with the last message, without the unit itself.

    Within the chain, messages are left out: its units may share a device."""
    order = np.argsort(source, kind="stable")
    arrives, chain = np.zeros(n), np.zeros(n)  # at a unit: with and without the last message
    for e in order.tolist():  # units are numbered topologically: a source is final when its edges come
        u, v = int(source[e]), int(target[e])
        done = chain[u] + own_s[u]
        chain[v] = max(chain[v], done)
        arrives[v] = max(arrives[v], done + message_s[e])
    return arrives


@compiled
def _least_over_next(members: Words, before: IntArray, items: IntArray, of_units: FloatArray) -> FloatArray:
    """[states, columns] the least of a quantity over the units that may come next after a state."""
    units, columns = of_units.shape
    out = np.zeros((len(members), columns))
    one = np.uint64(1)
    for k in range(len(members)):
        first = True
        for u in range(units):
            if (members[k, u >> 6] >> np.uint64(u & 63)) & one != 0:
                continue
            ready = True
            for e in range(before[u], before[u + 1]):
                p = items[e]
                if (members[k, p >> 6] >> np.uint64(p & 63)) & one == 0:
                    ready = False
                    break
            if ready:
                for c in range(columns):
                    out[k, c] = of_units[u, c] if first else min(out[k, c], of_units[u, c])
                first = False
    return out


@dataclass(frozen=True, eq=False)
class Market:
    """The devices as the bound sees them: classes, and a price for each device."""

    memory_bytes: FloatArray  #: [classes] of the largest device in each
    prices: FloatArray  #: [classes] of the cheapest device in each
    cheapest: FloatArray  #: [devices + 1] the lowest prices summed


@dataclass(frozen=True, eq=False)
class BoundProblem:
    """What the bisection needs; `ends` are the states at which a stage may end."""

    costs: StageCosts
    waits: Waits
    best: Wire
    market: Market
    ends: IntArray  #: all states, or the last one only
    before_s: FloatArray  #: [states] M sum_u min_c(y_c t_c(u)) of the work before a state
    held: tuple[int, int]  #: least micro-batches in flight of a stage alone on a device, and of a replica of several
    recompute: bool  #: stages may recompute
    most: int  #: replicas of a stage
    stages: int  #: exactly so many; 0: any number

    @property
    def work_alone_s(self) -> float:
        """All devices at work all the time."""
        return float(self.before_s[-1] / self.market.cheapest[-1])


def least_step(p: BoundProblem, enough: float = math.inf) -> float:
    """No plan has a step below this; inf where no plan fits. Where it is above `enough`, that is what is returned.

    O(log(1 / PRECISION) stages segments classes)."""
    costs, total, last = p.costs, float(p.market.cheapest[-1]), len(p.costs.states) - 1
    segment = _segments(p)
    lone, team = (segment & p_fits for p_fits in _fits(p))
    # what nobody waits for, because nothing is updated, has no latency; without backwards there is nothing to sum
    latency = p.best.latency_s if costs.updating else 0.0
    own = costs.own_bytes if costs.training else np.zeros(last + 1)
    numbers = (p.best.exchange_rate, latency, TINY * float(costs.parameter_bytes[-1]))
    work = costs.forward_s + costs.backward_s

    def refuted(step_s: float) -> bool:
        price = _cheapest_chain(
            step_s, costs.micro_batches, lone, team, p.ends, work, costs.update_s, own,
            p.waits.head_s, p.waits.tail_s, p.waits.fed * p.best.message_s, p.before_s, p.market.prices,
            p.market.cheapest, p.most, p.stages, last, *numbers,
        )  # fmt: skip
        return bool(price > total * (1 + 1e-12))

    if refuted(min(enough, 1e300)):
        return enough
    low = p.work_alone_s * (1 - 1e-12)
    high = max(p.work_alone_s, 1e-300)
    while refuted(high):
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _segments(p: BoundProblem) -> BoolArray:
    """[states, ends, 1] which are segments."""
    if len(p.ends) == len(p.costs.states):
        return p.costs.states.contains[:, :, None]
    return (np.arange(len(p.costs.states)) < len(p.costs.states) - 1)[:, None, None]


def _fits(p: BoundProblem) -> tuple[BoolArray, BoolArray]:
    """[states, ends, classes] segments that run on a class and fit: alone on a device, and on several."""
    costs, room = p.costs, p.market.memory_bytes
    cannot = costs.cannot[p.ends][None, :, :] - costs.cannot[:, None, :]
    runs = np.asarray(cannot == 0)
    if not np.isfinite(room).any():
        return runs, runs
    if len(p.ends) < len(costs.states):  # a shared parameter is left out rather than counted twice
        weights, kept = ((a[-1] - a)[:, None] for a in (costs.own_bytes, costs.activation_bytes))
    else:
        weights, kept = costs.weight_bytes, costs.kept_bytes
    flown = [np.minimum(h, 1) if p.recompute else h for h in p.held]
    needs = [(np.maximum(weights, 0) * costs.per_parameter_byte + h * kept)[:, :, None] for h in flown]
    return runs & (needs[0] <= room * (1 + 1e-12)), runs & (needs[1] <= room * (1 + 1e-12))


@compiled
def _cheapest_chain(
    step_s: float, micro_batches: int, lone: BoolArray, team: BoolArray, ends: IntArray, work: FloatArray, update: FloatArray,
    own: FloatArray, head: FloatArray, tail: FloatArray, fed: FloatArray, before: FloatArray, prices: FloatArray,
    cheapest: FloatArray, most: int, stages: int, last: int, rate: float, latency: float, tiny: float,
) -> float:  # fmt: skip
    """The least price of a chain whose stages all keep within `step_s`; inf where it is above all prices together."""
    states, many, classes = lone.shape
    enough = cheapest[-1] * (1 + 1e-9)
    limit = step_s * (1 + 1e-12)
    layers = stages + 1 if stages > 0 and many == states else 1
    value = np.full((layers, states), np.inf)
    value[0, last] = 0.0
    total = np.inf
    for i in range(last - 1, -1, -1):
        for e in range(many):
            j = ends[e]
            if j <= i or (layers == 1 and many == states and value[0, j] >= min(value[0, i], enough)):
                continue
            # the stage alone on a device: the cheapest class that is fast enough
            price, t_least, yt_least, u_least = np.inf, np.inf, np.inf, np.inf
            for c in range(classes):
                if not team[i, e, c]:
                    continue
                t = work[j, c] - work[i, c] + fed[i]
                u = update[j, c] - update[i, c]
                t_least, yt_least, u_least = min(t_least, t), min(yt_least, prices[c] * t), min(u_least, u)
                if lone[i, e, c] and head[i] + micro_batches * t + max(tail[i], u) <= limit:
                    price = min(price, prices[c])
            # on several devices: the fewest that can be fast enough
            gradient = own[j] - own[i]
            m, turns = 2, micro_batches
            if t_least == np.inf:
                turns = 0
            elif t_least > 0:
                turns = int(min(micro_batches, limit / t_least))
            if turns > 0:
                m = max(m, -(-micro_batches // turns))
            while turns > 0 and m <= most and cheapest[m] < price:
                reduce = 2 * (m - 1) * (gradient / m / rate + latency) if gradient > tiny else 0.0
                left = limit - head[i] - max(tail[i], u_least + reduce)
                if left < 0:
                    break
                if -(-micro_batches // m) * t_least <= left:
                    spread = micro_batches * yt_least / left if yt_least > 0 else 0.0
                    price = min(price, max(spread, cheapest[m]))
                    break
                m += 1
            if price == np.inf:
                continue
            if many < states:
                total = min(total, price + before[i] / step_s)
            elif layers == 1:
                value[0, i] = min(value[0, i], price + value[0, j])
            else:
                for layer in range(1, layers):
                    value[layer, i] = min(value[layer, i], price + value[layer - 1, j])
    return total if many < states else value[layers - 1, 0]
