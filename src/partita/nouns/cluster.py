"""Cluster: the machines, as devices and the links between them. Kept in a TOML file that a person can edit.

[[device]]
name = "cpu0"
kind = "cpu"
memory_bytes = 8e9
cores = [0]

[link]                          # between every two devices that no [[link]] names
rate_bytes_per_s = 1.2e9
latency_s = 60e-6

[[links]]                       # one direction; `medium` names what several links share
source = "cpu0"
target = "cpu1"
rate_bytes_per_s = 1.25e8
latency_s = 0.001
medium = "bus"
fair = true                     # transfers share the rate; false: they are served in order
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.errors import ClusterError, refuse
from partita.files import read_toml
from partita.nouns.costs import MOST_SECONDS
from partita.records import lean, record

SECONDS_OF_A_DEVICE = ("instruction_s", "step_s", "update_s", "cold_s")
SECONDS_OF_A_LINK = (
    "latency_s",
    "message_s",
    "message_s_per_byte",
    "send_s",
    "send_s_per_byte",
    "sum_s",
    "sum_s_per_byte",
)


#: Or as slow, as a device of speed 1: speeds may be given in operations a second. Beyond it is damage.
MOST_TIMES_AS_FAST = 1e18


@dataclass(frozen=True, slots=True)
class Device:
    """Something that executes tasks, one at a time."""

    name: str
    kind: str = "cpu"  #: devices of one kind share a column of the CostTable
    memory_bytes: float = math.inf
    speed: float = 1.0  #: a task takes its kind's time divided by this
    host: str = "localhost"
    cores: tuple[int, ...] = ()  #: CPU cores its worker is pinned to; empty: not pinned
    instruction_s: float = 0.0  #: that a call of a stage's forward or backward takes whatever it holds, at speed 1
    step_s: float = 0.0  #: that comes once a step, before its first computation unless it receives a message before that, at speed 1
    update_s: float = 0.0  #: that the optimizer's step takes whatever it updates, at speed 1
    cold_s: float = 0.0  #: that what it does behind a long wait takes longer, its caches being cold, at speed 1

    @property
    def beside_tasks_s(self) -> dict[str, float]:
        """SECONDS_OF_A_DEVICE by their names."""
        return {w: getattr(self, w) for w in SECONDS_OF_A_DEVICE}


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two devices."""

    source: str = ""  #: "" of the link that serves every pair that no other one does
    target: str = ""
    rate_bytes_per_s: float = math.inf
    latency_s: float = 0.0
    medium: str = ""  #: links that name one medium share it; empty: this direction has its own
    fair: bool = False  #: transfers on the medium share its rate; otherwise they are served in order
    message_s: float = 0.0  #: time that receiving a message takes of the receiving *device*,
    message_s_per_byte: float = 0.0  #: and every byte of it
    send_s: float = 0.0  #: that posting it takes of the sending one; through memory both together no more than its way,
    send_s_per_byte: float = 0.0  #: and every byte of it
    sum_s: float = 0.0  #: that a sum of gradients over devices takes beyond its messages,
    sum_s_per_byte: float = 0.0  #: and every byte that it sends: copying and adding

    @property
    def known(self) -> bool:
        """Whether anything is known of how long a transfer takes."""
        return math.isfinite(self.rate_bytes_per_s) or self.latency_s > 0

    @property
    def queue(self) -> str:
        """What its transfers wait for."""
        return self.medium or f"{self.source}->{self.target}"

    def transfer_s(self, size_bytes: float) -> float:
        """Seconds during which a transfer occupies the link (its latency comes after)."""
        return size_bytes / self.rate_bytes_per_s

    @property
    def delivered_bytes_per_s(self) -> float:
        """The rate at which one message goes from device to device, both of which have a part in it."""
        per_byte = 1 / self.rate_bytes_per_s + self.send_s_per_byte + self.message_s_per_byte
        return 1 / per_byte if per_byte > 0 else math.inf

    @property
    def exchange_bytes_per_s(self) -> float:
        """The rate at which gradients are summed over it, copying and adding included."""
        per_byte = 1 / self.rate_bytes_per_s + self.sum_s_per_byte
        return 1 / per_byte if per_byte > 0 else math.inf


def expect_known(links: Iterable[Link]) -> None:
    """Raise ClusterError where nothing is known of one of them."""
    unknown = next((k for k in links if not k.known), None)
    if unknown:
        which = f"the link {unknown.source} -> {unknown.target}" if unknown.source else "links that no [[links]] names"
        raise ClusterError(
            f"nothing is known of {which}",
            hint="give a cluster file with a [link] for all pairs, or [[links]] for each, or a bandwidth",
        )


@dataclass(frozen=True)
class Cluster:
    """Devices and links. `default_link` serves every pair that `links` does not name."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    default_link: Link = Link()
    source: str = "given"  #: "given", or "measured" with machine and date

    @cached_property
    def by_name(self) -> dict[str, Device]:
        return {d.name: d for d in self.devices}

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        return {(link.source, link.target): link for link in self.links}

    def link(self, source: str, target: str) -> Link:
        """The link from one device to another."""
        found = self._links.get((source, target))
        if found is not None:
            return found
        return replace(self.default_link, source=source, target=target)

    @cached_property
    def _rates(self) -> set[float]:
        """The rates between any two devices."""
        return {k.rate_bytes_per_s for k in self.links_in_use()}

    @property
    def best_rate_bytes_per_s(self) -> float:
        """The rate of the fastest link between two devices."""
        return max(self._rates)

    @property
    def worst_rate_bytes_per_s(self) -> float:
        """The rate of the slowest link between two devices."""
        return min(self._rates)

    @property
    def equal_rates(self) -> bool:
        """Whether all links between two devices have one rate."""
        return len(self._rates) == 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of device in the order they first appear."""
        return tuple(dict.fromkeys(d.kind for d in self.devices))

    def first(self, n: int) -> Cluster:
        """The same cluster with its first n devices only. Raises ClusterError where it has fewer."""
        if not 1 <= n <= len(self.devices):
            raise ClusterError(
                f"{n} devices asked for, {len(self.devices)} are there", hint=f"choose 1 to {len(self.devices)}"
            )
        return self.only({d.name for d in self.devices[:n]})

    def only(self, names: Collection[str]) -> Cluster:
        """The same cluster with these devices only, in its own order. O(devices + links) for a set of names."""
        devices = tuple(d for d in self.devices if d.name in names)
        links = tuple(k for k in self.links if k.source in names and k.target in names)
        return Cluster(devices, links, self.default_link, self.source)

    def links_in_use(self) -> tuple[Link, ...]:
        """Every link between two devices, the default one once where it serves any pair (or none is there). O(links)."""
        pairs = len(self.devices) * (len(self.devices) - 1)
        return self.links if self.links and len(self.links) == pairs else (*self.links, self.default_link)

    @staticmethod
    def uniform(
        n: int,
        *,
        kind: str = "cpu",
        rate_bytes_per_s: float = math.inf,
        latency_s: float = 0.0,
        memory_bytes: float = math.inf,
    ) -> Cluster:
        """n equal devices "cpu0" .. and equal links.

        >>> [d.name for d in Cluster.uniform(2).devices]
        ['cpu0', 'cpu1']
        """
        return Cluster(
            tuple(Device(f"{kind}{i}", kind, memory_bytes) for i in range(n)),
            (),
            Link("", "", rate_bytes_per_s, latency_s),
        )

    def check(self) -> list[str]:
        """Every fault at once; empty when the cluster is sound."""
        faults = [] if self.devices else ["it has no devices"]
        names = Counter(d.name for d in self.devices)
        faults += [f"device name {n!r} is used twice" for n in sorted(n for n, times in names.items() if times > 1)]
        for d in self.devices:
            sound = {
                "speed": 1 / MOST_TIMES_AS_FAST <= d.speed <= MOST_TIMES_AS_FAST,
                "memory_bytes": d.memory_bytes > 0,
                **{w: 0 <= v <= MOST_SECONDS for w, v in d.beside_tasks_s.items()},
            }
            faults += [f"device {d.name!r} has {w} = {getattr(d, w)}" for w, is_sound in sound.items() if not is_sound]
        for k in (*self.links, self.default_link):
            default = k is self.default_link
            where = "the default link" if default else f"link {k.source}->{k.target}"
            faults += [
                f"{where} names the unknown device {n!r}"
                for n in (k.source, k.target)
                if n not in names and (n or not default)
            ]
            if not k.rate_bytes_per_s >= 1 / MOST_SECONDS:
                faults.append(f"{where} has rate_bytes_per_s = {k.rate_bytes_per_s}")
            seconds = {w: getattr(k, w) for w in SECONDS_OF_A_LINK}
            faults += [f"{where} has {w} = {v}" for w, v in seconds.items() if not 0 <= v <= MOST_SECONDS]
            if k.medium in names:
                faults.append(f"{where} shares the medium {k.medium!r}, which is the name of a device")
        pairs = Counter((k.source, k.target) for k in self.links)
        faults += [f"link {a}->{b} is given twice" for (a, b), times in sorted(pairs.items()) if times > 1]
        fair = {(k.medium, k.fair) for k in (*self.links, self.default_link) if k.medium}
        faults += [
            f"medium {m!r} is fair for some of its links and not for others"
            for m in sorted({m for m, f in fair if (m, not f) in fair})
        ]
        return faults

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values; what is infinite or left at its default is left out."""
        return {
            "source": self.source,
            "device": [lean(d) for d in self.devices],
            "links": [lean(k) for k in self.links],
            "link": lean(self.default_link),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], what: str = "cluster") -> Cluster:
        """The cluster in a parsed TOML or JSON table. Raises ClusterError with every fault at once."""
        tables = record(_Tables, value, ClusterError, what, known_only=True)
        cluster = Cluster(tables.device, tables.links, tables.link, tables.source)
        refuse(ClusterError, cluster.check(), what)
        return cluster

    @staticmethod
    def read(path: str | Path) -> Cluster:
        """The cluster in a TOML file."""
        return Cluster.from_json(read_toml(path, ClusterError), str(path))


@dataclass(frozen=True)
class _Tables:
    """A cluster's file."""

    device: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    link: Link = Link()
    source: str = "given"
