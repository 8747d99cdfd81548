"""Devices that a planner need not tell apart."""

from __future__ import annotations

from dataclasses import dataclass

from partita.nouns.cluster import Cluster, Device


@dataclass(frozen=True, slots=True)
class DeviceType:
    """Devices that a planner need not tell apart."""

    kind: str
    speed: float
    memory_bytes: float
    names: tuple[str, ...]  #: in the cluster's order


def device_types(cluster: Cluster) -> tuple[DeviceType, ...]:
    """The types of a cluster's devices, in the order of their first device."""
    groups: dict[tuple[str, float, float, tuple[float, ...]], list[Device]] = {}
    for d in cluster.devices:
        beside_s = tuple(d.beside_tasks_s.values())
        groups.setdefault((d.kind, d.speed, d.memory_bytes, beside_s), []).append(d)
    return tuple(DeviceType(*key[:3], tuple(d.name for d in ds)) for key, ds in groups.items())
