"""Where the ranks of a measurement run: which of them share a host, and the device that each of them is."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from partita.errors import ClusterError
from partita.nouns.cluster import Device
from partita.training.measure.machine import local_devices
from partita.training.runtime.join import own_address
from partita.training.runtime.mailbox import this_host
from partita.training.runtime.worker_status import this_boot


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs."""

    host: int  #: a number for its host: ranks of one host speak through memory
    machine: int  #: a number for its machine, on which there may be several hosts: containers, or a test bed
    name: str  #: its host's
    address: str  #: of its host, on the way to the meeting point; "" where that is not known

    @staticmethod
    def here() -> Place:
        return Place(this_host(), this_boot(), socket.gethostname(), own_address())


def host_names(places: Sequence[Place]) -> tuple[str, ...]:
    """[ranks] the name of each one's host: what it calls itself, or its address where that tells the hosts apart and names do not.

    Raises ClusterError where neither does.

    >>> host_names([Place(1, 5, "box", "10.0.0.1"), Place(2, 5, "box", "10.0.0.2"), Place(2, 5, "box", "10.0.0.2")])
    ('10.0.0.1', '10.0.0.2', '10.0.0.2')
    """
    hosts = {p.host for p in places}
    for names in ([p.name for p in places], [p.address for p in places]):
        if len(set(zip((p.host for p in places), names, strict=True))) == len(hosts) == len(set(names)):
            return tuple(names)
    raise ClusterError(
        f"{len(hosts)} hosts cannot be told apart: they are called {', '.join(sorted({p.name for p in places}))}",
        hint="give every host a name of its own",
    )


def own_device(places: Sequence[Place], rank: int) -> Device:
    """The device that a rank is, named among all; to be called on its host, which gives each of its ranks one.

    Where the machine has other hosts too, nobody knows whose its cores are.
    """
    mine = places[rank]
    on_host = [r for r, p in enumerate(places) if p.host == mine.host]
    on_machine = [r for r, p in enumerate(places) if p.machine == mine.machine]
    device = local_devices(len(on_host))[on_host.index(rank)]
    if device.kind == "cpu" and len(on_machine) > len(on_host):
        device = replace(device, cores=(), memory_bytes=device.memory_bytes * len(on_host) / len(on_machine))
    if len(on_host) == len(places):
        return device
    host = host_names(places)[rank]
    return replace(device, name=f"{host}:{device.name}", host=host)
