"""The cut of least weighted time, by minimum cut, where a network has too many cuts to look at each.

For weights a, b, c, e >= 0 of device, uplink, server and downlink, a cut of least a d + b u + c s + e w is a minimum cut
of this network (that of DADS, Hu et al. 2019, with the answers added; the device is on the source's side):

    v -> sink    a device(v)                     source -> v  c server(v) + e down(v)
    v -> v'      b up(v), v' -> readers  inf     source -> input'  b input, input' -> tasks that read the input  inf
    reader -> what it reads  inf: what the device computes never needs the server

Capacities are whole numbers, rounded down, so that the least found is a bound; it is low by at most 1e-10 of the total.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.offload.plan.network import Network
from partita.solve.max_flow import ENDLESS, GRAIN, max_flow


@dataclass(frozen=True, eq=False)
class CutNetwork:
    """The arcs of a network's minimum cuts, in pairs; nodes: tasks, outputs, the input, source, sink."""

    network: Network
    start: IntArray  #: [nodes + 1]
    arcs: IntArray  #: arcs that leave a node
    head: IntArray  #: [arcs] where an arc ends; arc i ^ 1 is its reverse

    @staticmethod
    def of(network: Network) -> CutNetwork:
        """O((tasks + edges) log) once a network."""
        n = len(network)
        task = np.arange(n)
        reader = np.repeat(task, np.diff(network.reads.start))
        producer = network.reads.items
        first = np.flatnonzero(np.diff(network.reads.start) == 0)
        given, source, sink = 2 * n, 2 * n + 1, 2 * n + 2
        tail = np.concatenate(
            [task, np.full(n, source), task, n + producer, reader, [source], np.full(len(first), given)]
        )
        head = np.concatenate([np.full(n, sink), task, n + task, reader, producer, [given], first])
        both, ends = np.stack([tail, head], axis=1).ravel(), np.stack([head, tail], axis=1).ravel()
        start = np.zeros(2 * n + 4, np.int64)
        start[1:] = np.cumsum(np.bincount(both, minlength=2 * n + 3))
        return CutNetwork(network, start, np.argsort(both, kind="stable").astype(np.int64), ends.astype(np.int64))

    def least(self, weights: FloatArray) -> tuple[float, BoolArray]:
        """(a lower bound on the least weighted seconds of a cut, the cut that attains it) for [4] weights >= 0."""
        net = self.network
        a, b, c, e = weights
        # a byte takes of device and server too; what a message takes whatever its size is left out
        b = b + a * net.send_share + c * net.receive_share
        edges = len(net.reads.items)
        first = int((np.diff(net.reads.start) == 0).sum())
        seconds = np.concatenate([a * net.device_s, c * net.server_s + e * net.down_s, b * net.up_s])
        asks = b * net.input_up_s
        total = float(seconds.sum()) + asks or 1.0
        grain = GRAIN / total
        whole = np.concatenate(
            [np.floor(seconds * grain), np.full(2 * edges, ENDLESS), [np.floor(asks * grain)], np.full(first, ENDLESS)]
        ).astype(np.int64)
        capacity = np.stack([whole, np.zeros(len(whole), np.int64)], axis=1).ravel()
        nodes = len(self.start) - 1
        flow, side = max_flow(
            self.start, self.arcs, self.head, capacity, nodes - 2, nodes - 1, ENDLESS, np.zeros(1, np.int64)
        )
        return float(flow) / grain, side[: len(net)]
