"""What exchanging gradients takes: the formulas that simulator, planner and predictor share.

Symbols of every formula here

    n   devices that exchange           S   bytes of the gradient on each of them
    B   bytes/s of one direction of a device's link, copying and adding what it brings included
    a   seconds of latency of a message over that link
    k   parameter servers               p   steps over which a partial exchange spreads a gradient

Messages take a + bytes / B, and one device exchanges nothing. Reconstructed from
Shi et al., arXiv 1805.03812 (a DAG model of synchronous SGD), and the abstract of Kavarakuntla, "Performance modelling
for scalable deep learning", thesis, Manchester Metropolitan 2023; the source of each scheme stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from partita.nouns.cluster import Cluster, Link, expect_known
from partita.nouns.graph import FloatArray

Scheme = Literal["ring", "tree", "ps", "partial"]

Bytes = TypeVar("Bytes", float, FloatArray)


def ring_share(devices: int) -> float:
    """Bytes that each device of a ring sends for every byte of the gradient: 2 (n - 1) / n.

    >>> ring_share(1), ring_share(2), ring_share(4)
    (0.0, 1.0, 1.5)
    """
    return 2 * (devices - 1) / devices


def ring_steps(devices: int) -> int:
    """Messages one after another, each of S / n: 2 (n - 1), half of them reduce-scatter and half all-gather.

    >>> ring_steps(1), ring_steps(2), ring_steps(4)
    (0, 2, 6)
    """
    return 2 * (devices - 1)


def ring_s(devices: int, size_bytes: Bytes, rate: float, latency_s: float) -> Bytes:
    """Ring all-reduce: 2 (n - 1) / n S / B + 2 (n - 1) a.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009.

    >>> ring_s(4, 8.0, 2.0, 0.5)
    9.0
    """
    return ring_share(devices) * size_bytes / rate + ring_steps(devices) * latency_s


def tree_s(devices: int, size_bytes: float, rate: float, latency_s: float) -> float:
    """Binomial tree, reduce to one device and broadcast from it, not pipelined: 2 ceil(log2 n) (S / B + a).

    Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005
    (the minimum spanning tree; double and pipelined trees are faster).

    >>> tree_s(4, 8.0, 2.0, 0.5)
    18.0
    """
    return 2 * math.ceil(math.log2(devices)) * (size_bytes / rate + latency_s)


def server_s(devices: int, size_bytes: float, rate: float, latency_s: float, servers: int, server_rate: float) -> float:
    """Parameter servers that hold S / k each: 2 max( S / B, n S / (k B_server) ) + 2 a.

    Every worker sends its gradient and then fetches the weights; the servers are machines of their own. The worker's link
    limits where servers are many, the server's, which carries all n workers, where they are few.
    Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.

    >>> server_s(4, 8.0, 2.0, 0.5, 1, 2.0), server_s(4, 8.0, 2.0, 0.5, 4, 2.0), server_s(1, 8.0, 2.0, 0.5, 1, 2.0)
    (33.0, 9.0, 0.0)
    """
    if devices == 1:
        return 0.0
    return 2 * max(size_bytes / rate, devices * size_bytes / (servers * server_rate)) + 2 * latency_s


def partial_s(devices: int, size_bytes: float, rate: float, latency_s: float, parts: int) -> float:
    """Every device sends every other one of p parts of its gradient: (n - 1) S / (p B) + a; p = 1 is the full exchange.

    Its messages leave one behind the other, so that their latencies pass together. Source: Watcharapichat et al., "Ako",
    SoCC 2016. What the weights lose by the late parts is no matter of time, and not priced here.

    >>> partial_s(4, 8.0, 2.0, 0.5, 1), partial_s(4, 8.0, 2.0, 0.5, 4), partial_s(1, 8.0, 2.0, 0.5, 1)
    (12.5, 3.5, 0.0)
    """
    return (devices - 1) * size_bytes / (parts * rate) + latency_s if devices > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """How gradients are exchanged."""

    scheme: Scheme = "ring"
    servers: int = 1  #: scheme "ps": parameter servers
    server_rate_bytes_per_s: float | None = None  #: scheme "ps": of one server's link; None: that of the workers'
    parts: int = 1  #: scheme "partial": steps over which a gradient is spread

    def check(self) -> list[str]:
        """Every fault at once; empty when it is sound."""
        faults = [] if self.scheme in get_args(Scheme) else [f"unknown scheme {self.scheme!r}"]
        faults += [f"{n} is {v}" for n, v in (("servers", self.servers), ("parts", self.parts)) if v < 1]
        rate = self.server_rate_bytes_per_s
        return faults + ([f"the servers' rate is {rate} bytes/s"] if rate is not None and not rate > 0 else [])

    def seconds(self, wires: Wires, size_bytes: float) -> float:
        """Seconds of exchanging a gradient of so many bytes. O(1)."""
        n, rate, latency = wires.devices, wires.rate_bytes_per_s, wires.latency_s
        if self.scheme == "ring":
            return max((ring_s(n, size_bytes, *hop) for hop in wires.ring), default=0.0)
        if self.scheme == "tree":
            return tree_s(n, size_bytes, rate, latency)
        if self.scheme == "ps":
            server_rate = self.server_rate_bytes_per_s or rate
            return server_s(n, size_bytes, rate, latency, self.servers, server_rate)
        return partial_s(n, size_bytes, rate, latency, self.parts)


@dataclass(frozen=True, slots=True)
class Wires:
    """The links over which some devices exchange, in the few numbers that the formulas take.

    Of h devices that send at once over one medium, each has the h-th part of its rate.
    """

    devices: int
    ring: tuple[tuple[float, float], ...]  #: the different (B, a) along a ring through the devices, in their order
    rate_bytes_per_s: float  #: of the slowest link between two of the devices
    latency_s: float  #: of the link with the longest

    @staticmethod
    def of(cluster: Cluster) -> Wires:
        """The links among all devices of a cluster. Raises ClusterError where nothing is known of one in the ring. O(devices + links)."""
        names = [d.name for d in cluster.devices]
        if len(names) == 1:
            return Wires(1, (), math.inf, 0.0)
        hops = [cluster.link(a, b) for a, b in zip(names, [*names[1:], names[0]], strict=True)]
        expect_known(hops)
        queues: dict[str, list[Link]] = {}
        for hop in hops:
            queues.setdefault(hop.queue, []).append(hop)
        links = _links(cluster, names)
        return Wires(
            len(names),
            tuple(dict.fromkeys((_shared_rate(q), max(x.latency_s for x in q)) for q in queues.values())),
            min(x.exchange_bytes_per_s / len(queues.get(x.queue, (x,))) for x in links),
            max(x.latency_s for x in links),
        )


def _shared_rate(hops: Sequence[Link]) -> float:
    """Rate of one of several hops that take turns on a medium."""
    per_byte = sum(1 / x.exchange_bytes_per_s for x in hops)
    return 1 / per_byte if per_byte > 0 else math.inf


def _links(cluster: Cluster, names: Sequence[str]) -> list[Link]:
    """The links between the devices: those the cluster names, and the default one where it serves any pair."""
    among = set(names)
    named = [x for x in cluster.links if x.source in among and x.target in among]
    return named if len(named) == len(names) * (len(names) - 1) else [*named, cluster.default_link]
