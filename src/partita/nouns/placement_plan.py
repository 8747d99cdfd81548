"""PlacementPlan: any task on any device, and the order in which each device runs its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import pairing
from partita.records import lean, record


@dataclass(frozen=True)
class PlacementPlan:
    """Every task once, on its device, in its device's order."""

    graph: str  #: fingerprint of the graph it was made for
    placement: Mapping[str, str]  #: task id -> device name
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: device -> task ids; empty: topological order
    kind: Literal["placement"] = field(default="placement", init=False)

    def check(self, graph: TaskGraph, cluster: Cluster) -> list[str]:
        """Every fault at once; empty when the plan is sound and fits the graph and the cluster.

        Whether the devices' orders wait for each other in a circle, lowering tells.
        """
        if self.graph != graph.fingerprint:
            return [f"it was made for graph {self.graph}, this is graph {graph.fingerprint}"]
        faults = pairing("task", list(self.placement), {t.id for t in graph.tasks}, missing="is placed nowhere")
        faults += [f"unknown device {d!r}" for d in sorted(set(self.placement.values()) - set(cluster.by_name))]
        groups: dict[str, set[str]] = {}
        for t in graph.tasks:
            if t.group is not None and t.id in self.placement:
                groups.setdefault(t.group, set()).add(self.placement[t.id])
        faults += [f"colocation group {g!r} is spread over {sorted(ds)}" for g, ds in groups.items() if len(ds) > 1]
        return faults or self._order_faults()

    def _order_faults(self) -> list[str]:
        if not self.order:
            return []
        mine: dict[str, set[str]] = {}
        for task, device in self.placement.items():
            mine.setdefault(device, set()).add(task)
        return [
            f"the order of {d!r} holds {len(self.order.get(d, ()))} tasks, {len(mine.get(d, ()))} are placed there"
            for d in sorted({*mine, *self.order})
            if sorted(self.order.get(d, ())) != sorted(mine.get(d, ()))
        ]

    def to_json(self) -> dict[str, Any]:
        return lean(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> PlacementPlan:
        """Raises PlanError where it is damaged."""
        return record(PlacementPlan, value, PlanError, "the plan", hint="make the plan again")
