"""A lower bound of the training step, valid for every pipeline plan of a profile on a cluster.

Let a plan run M micro-batches, and one of its stages be the segment (i, j) on m devices of type t. One of these devices
runs at least ceil(M / m) micro-batches. It waits, runs them, and then the step is not over yet:

    head(i)   before its first forward, some unit u that is next behind cut i gets its inputs: every chain of units that
              leads to u has run for that micro-batch, on the fastest device each, and one message has come in
    busy      ceil(M / m) times forward and backward of the segment, and handling one message each where i is not empty
    tail(i)   after its last backward, a gradient goes back from u, and the backwards of a chain that led to u run;
              meanwhile the device updates its own parameters, after their gradients were summed over the m replicas

    step >= head(i) + busy + max(tail(i), reduce(m) + update(i -> j))

The stage is made of units, so it holds at least one unit u all of whose predecessors are before cut i; taking the least
head and tail over such u makes them depend on i alone. The largest of these over the stages of a plan bounds its step;
the least of that over all chains of downsets and all ways to deal out devices, found by the same dynamic program that
plans, bounds every plan; and the least over all micro-batch sizes measured bounds the profile. A stage with d
devices from itself to the end keeps at least d micro-batches in flight under 1F1B (fewer only where the caller asks), and
must fit with them into memory. Order and links can only add to it.

Where there are too many states for the program, a weaker form remains: the busiest of the devices before the last stage
has at least its share of their work, and the last stage is bounded as above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.pipeline.plan.stage import StageCosts, gradient_edges
from partita.simulate.exchange import ring_s
from partita.solve.chain_dp import Option
from partita.solve.compiled import compiled
from partita.solve.units import Units, Words


@dataclass(frozen=True, eq=False)
class Edges:
    """What every stage that begins at a state must wait for at least."""

    head_s: FloatArray  #: [states] before its first forward
    tail_s: FloatArray  #: [states] after its last backward
    fed: FloatArray  #: [states] 1 where it receives a message for every micro-batch, else 0


def edges(costs: StageCosts, units: Units, unit_forward_s: FloatArray, unit_backward_s: FloatArray) -> Edges:
    """Head and tail of every state. `unit_*_s` [units]: least time of a unit over the types of device.

    O(readers + states x units)."""
    graph = costs.graph
    owner = np.repeat(np.arange(len(graph.producer)), np.diff(graph.readers.start))
    source, target = units.unit_of[graph.producer[owner]], units.unit_of[graph.readers.items]
    forward = np.array([t.phase not in ("backward", "update") for t in graph.tasks], np.bool_)
    ahead = forward[graph.producer[owner]] & forward[graph.readers.items] & (source != target)
    message = graph.size_bytes[owner] / costs.wire.best_rate + costs.wire.best_latency_s
    back = ahead & gradient_edges(graph)
    head = _longest(len(units), unit_forward_s, source[ahead], target[ahead], message[ahead])
    tail = _longest(len(units), unit_backward_s, source[back], target[back], message[back])
    fed = np.zeros(len(units))
    fed[target[ahead]] = 1.0
    least = _least_over_next(
        costs.states.members, units.before.start, units.before.items, np.stack([head, tail, fed], axis=1)
    )
    return Edges(least[:, 0], least[:, 1], least[:, 2])


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


def bound_cost(costs: StageCosts, wait: Edges, options: Sequence[Option]) -> FloatArray:
    """[types, options, states, states] the bound of a step that has this stage; inf: no such stage."""
    own_bytes = costs.parameter_bytes - costs.shared @ costs.shared_bytes
    weights = np.maximum(own_bytes[None, :] - own_bytes[:, None], 0)
    out = np.empty((len(costs.types), len(options), len(costs.states), len(costs.states)))
    for t in range(len(costs.types)):
        seconds = costs.seconds(t) + (wait.fed * costs.wire.message_s)[:, None]
        forward = costs.forward_s[None, :, t] - costs.forward_s[:, None, t]
        update = costs.update_s[None, :, t] - costs.update_s[:, None, t]
        for o, option in enumerate(options):
            reduced = reduce_s(
                costs, weights, option.replicas, costs.wire.best_exchange_rate, costs.wire.best_latency_s
            )
            after = np.maximum(update + reduced, wait.tail_s[:, None])
            turns = -(-costs.micro_batches // option.replicas)
            out[t, o] = wait.head_s[:, None] + turns * (seconds + forward * option.recompute) + after
    return out


def reduce_s(
    costs: StageCosts, weights: FloatArray, replicas: int, rate: float, latency_s: float
) -> FloatArray | float:
    """Seconds of summing gradients of `weights` bytes over replicas by a ring; 0 where there is nothing to sum or update."""
    if replicas == 1 or not costs.update_s[-1].any():
        return 0.0
    # these are differences of totals: what is next to nothing is their rounding, not a gradient that pays latencies
    return np.where(weights > 1e-9 * weights.max(), ring_s(replicas, weights, rate, latency_s), 0.0)


def simple_bound(costs: StageCosts, wait: Edges, unit_s: FloatArray, single_s: float) -> float:
    """The weaker form over all chains of the states, which must be complete; one device (`single_s`) beside it.

    `unit_s` [units]: least time of a unit, forward and backward. O(states x devices)."""
    m_batches, devices = costs.micro_batches, sum(len(t.names) for t in costs.types)
    work = costs.states.totals(unit_s)[:, 0]
    best = single_s
    for m in range(1, devices):
        last = -(-m_batches // m) * (work[-1] - work) + wait.head_s + wait.tail_s
        best = min(best, float(np.maximum(last, m_batches * work / (devices - m))[:-1].min()))
    return max(best, m_batches * float(work[-1]) / devices) if devices > 1 else single_s
