"""The model as a line of places to cut, and the devices with their links, as the search for groups sees them.

A group's pipeline cuts the model along one topological order, at states that are prefixes of it; all groups cut the same line,
so that what two of them hold is comparable. What passes a cut goes to the next device of the group, also where a later one
reads it: the search counts like that, and what it proposes is simulated as it really runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.nouns.cluster import Cluster
from partita.nouns.graph import FloatArray, IntArray
from partita.pipeline.plan.bench import Bench
from partita.pipeline.plan.linear_cuts import prefixes
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.simulate.overheads import call_s
from partita.simulate.readings import forward_readings
from partita.solve.downsets import spans

MOST_PLACES = 64  #: to cut at; of more, some are chosen


class Line(NamedTuple):
    """S places (the first before everything, the last behind it), D devices. Times of one micro-batch."""

    state: IntArray  #: [S] which of the task's states
    forward_s: FloatArray  #: [D, S] before a place
    backward_s: FloatArray  #: [D, S]
    update_s: FloatArray  #: [D, S]
    cannot: FloatArray  #: [D, S] tasks that cannot run there
    call_s: FloatArray  #: [D] that a forward or a backward takes beside its tasks
    there_bytes: FloatArray  #: [S] that pass a cut, and
    back_bytes: FloatArray  #: [S] come back
    there_s: FloatArray  #: [S] that given times say for the rest
    back_s: FloatArray  #: [S]
    weights: FloatArray  #: [S, S] bytes that parameters, gradients and the optimizer take between two places
    kept: FloatArray  #: [S] bytes that a micro-batch keeps before a place
    gradient: FloatArray  #: [S] bytes of parameters before a place
    per_byte_s: FloatArray  #: [D, D] of the link from one device to another
    latency_s: FloatArray  #: [D, D]
    message_s: FloatArray  #: [D, D] that receiving takes of the device
    post_byte_s: FloatArray  #: [D, D] that a byte takes of the sender, and
    handle_byte_s: FloatArray  #: [D, D] of the receiver
    sum_byte_s: FloatArray  #: [D, D] for each byte of a sum that goes over it
    sum_s: FloatArray  #: [D, D] that a sum takes beyond its messages
    room: FloatArray  #: [D] bytes


def line_of(task: PipelineTask, bench: Bench, most: int = MOST_PLACES) -> Line:
    """The line of one micro-batch size. O(states + devices^2)."""
    costs, cluster = bench.costs, bench.cluster
    there, back, there_s, back_s = _sent(bench)
    work = (costs.forward_s + costs.backward_s)[:, 0]
    state = _chosen(prefixes(costs.states, costs.units), work, there + back, most)
    c, n = np.array(bench.class_of), len(cluster.devices)
    at = np.ix_(state, c)
    calls = np.array([call_s(d, 2) for d in cluster.devices])
    per_byte, latency, message, post_byte, handle_byte, sum_byte, sums = _links(cluster, n)
    return Line(
        state, costs.forward_s[at].T.copy(), costs.backward_s[at].T.copy(), costs.update_s[at].T.copy(),
        costs.cannot[at].T.copy(), calls, there[state], back[state], there_s[state], back_s[state],
        costs.weight_bytes[np.ix_(state, state)] * costs.per_parameter_byte, costs.activation_bytes[state],
        costs.own_bytes[state], per_byte, latency, message, post_byte, handle_byte, sum_byte, sums,
        np.array([d.memory_bytes for d in cluster.devices]),
    )  # fmt: skip


def _chosen(prefix: IntArray, work: FloatArray, sent: FloatArray, most: int) -> IntArray:
    """Both ends, and of the places between, in equal steps of work, those where least is sent."""
    if len(prefix) <= most:
        return prefix
    done = work[prefix] / max(float(work[prefix[-1]]), 1e-300)
    step = np.minimum((done * (most - 2)).astype(np.int64), most - 3)
    inner = np.arange(1, len(prefix) - 1)
    order = inner[np.lexsort((inner, sent[prefix[inner]], step[inner]))]
    first = order[np.flatnonzero(np.diff(step[order], prepend=-1))]
    return np.asarray(prefix[np.sort(np.concatenate([[0], first, [len(prefix) - 1]]))])


def _sent(bench: Bench) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """[states] bytes that cross behind each state, those whose gradients come back, and the same of given seconds."""
    graph, costs, read = bench.sample.graph, bench.costs, forward_readings(bench.sample.graph)
    given = bench.sample.costs.transfer_s
    there = np.bincount(read.tensor, minlength=len(given)) > 0
    back = np.bincount(read.tensor[read.back], minlength=len(given)) > 0
    size, seconds = np.where(np.isnan(given), graph.size_bytes, 0.0), np.where(np.isnan(given), 0.0, given)
    found = [
        costs.states.cuts(spans(graph, costs.units, what * mask, there)) for what in (size, seconds) for mask in (there, back)
    ]  # fmt: skip
    return found[0], found[1], found[2], found[3]


def _links(cluster: Cluster, n: int) -> FloatArray:
    """[7, D, D]: seconds for a byte, latency, handling, of a byte at either end, for a byte of a sum, of a sum. O(devices + links)."""
    number = {d.name: k for k, d in enumerate(cluster.devices)}
    default = cluster.default_link
    rows = [
        (
            1 / k.rate_bytes_per_s,
            k.latency_s,
            k.message_s + k.send_s,
            k.send_s_per_byte,
            k.message_s_per_byte,
            1 / k.exchange_bytes_per_s,
            k.sum_s,
        )
        for k in (default, *cluster.links)
    ]
    tables = np.tile(np.array(rows[0])[:, None, None], (1, n, n))
    for k, row in zip(cluster.links, rows[1:], strict=True):
        tables[:, number[k.source], number[k.target]] = row
    return tables
