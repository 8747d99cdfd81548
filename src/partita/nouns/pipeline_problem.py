"""PipelineProblem: what a planner of training pipelines was asked, as a plan file keeps it: one micro-batch size.

A profile holds several micro-batch sizes; a plan answers for the one it chose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from partita.errors import PlanError, refuse
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import Asked, PipelinePlan
from partita.nouns.probe import Probe
from partita.nouns.profile import Profile, Sample
from partita.nouns.splits import Split, read_splits, splits_json
from partita.records import record


@dataclass(frozen=True)
class Wish:
    """What the caller fixes; None leaves it to the planner."""

    micro_batches: int | None = None
    in_flight: int | None = None
    schedule: Asked | None = None  #: None: 1F1B
    stages: int | None = None
    allow_replicas: bool = True
    allow_recompute: bool = True
    budget_s: float = 10.0
    seed: int = 0

    def given(self) -> dict[str, Any]:
        """What differs from leaving everything to the planner; how many micro-batches does not, it is in the plan."""
        value = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return {k: v for k, v in value.items() if k not in ("micro_batches", "budget_s", "seed")}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Wish:
        """Raises PlanError for a wish that there is not, or of a wrong type."""
        return record(Wish, value, PlanError, "the plan's wishes", hint="make the plan again", known_only=True)


def alone_in(cluster: Cluster, probe: Probe | None) -> float:
    """How much faster a device of a cluster is while the others are idle: told where both were measured together."""
    return probe.alone if probe and cluster.source == "measured" else 1.0


@dataclass(frozen=True, eq=False)
class PipelineProblem:
    """A job measured at one micro-batch size, the machines, and what the caller fixed."""

    kind: ClassVar[str] = "pipeline"
    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    job: str  #: file.py:function
    batch_size: int
    micro_batch_size: int
    optimizer_bytes_per_parameter_byte: float = 0.0  #: 0 plain SGD, 1 momentum, 2 Adam
    clips: bool = False  #: the norm of all gradients is summed over the stages before every update
    wish: Wish = Wish()
    probe: Probe | None = None  #: how fast the machine was when the costs were measured; None: unknown
    splits: tuple[Split, ...] = ()  #: operators in parts: the graph is that of the job with these

    @property
    def profile(self) -> Profile:
        """What is left of the profile: the sample that was planned for."""
        sample = Sample(self.micro_batch_size, self.graph, self.costs, probe=self.probe)
        state = self.optimizer_bytes_per_parameter_byte
        return Profile(self.job, self.batch_size, (sample,), self.cluster, state, clips=self.clips, splits=self.splits)

    def cluster_of(self, plan: PipelinePlan) -> Cluster:
        """The machines as a plan finds them: where they were measured in company, a device that works alone is as fast as it
        is without."""
        return self.cluster if len(plan.devices) > 1 else self.cluster_alone

    @property
    def cluster_alone(self) -> Cluster:
        """The machines as one finds them that works while the others are idle."""
        alone = alone_in(self.cluster, self.probe)
        return replace(self.cluster, devices=tuple(replace(d, speed=d.speed * alone) for d in self.cluster.devices))

    def on(self, cluster: Cluster) -> PipelineProblem:
        """The same question for other machines."""
        return replace(self, cluster=cluster)

    def shown(self) -> dict[str, Any]:
        """What of it stands beside the plan, for scripts."""
        return {
            "job": self.job,
            "batch_size": self.batch_size,
            "micro_batch_size": self.micro_batch_size,
            "optimizer_bytes_per_parameter_byte": self.optimizer_bytes_per_parameter_byte,
            "clips": self.clips,
            "wishes": self.wish.given(),
            "splits": splits_json(self.splits),
        }

    def to_json(self) -> dict[str, Any]:
        parts = {"graph": self.graph.to_json(), "cluster": self.cluster.to_json(), "costs": self.costs.to_json()}
        return {"kind": self.kind, **self.shown(), **parts, "probe": self.probe.to_json() if self.probe else None}

    @staticmethod
    def from_json(value: Mapping[str, Any], what: str) -> PipelineProblem:
        """Raises PlanError, GraphError, ClusterError or CostError, KeyError or TypeError where it is damaged."""
        graph = TaskGraph.from_json(value["graph"], f"{what}: graph")
        problem = PipelineProblem(
            graph,
            Cluster.from_json(value["cluster"], f"{what}: cluster"),
            CostTable.from_json(value["costs"], graph, f"{what}: costs"),
            str(value["job"]),
            int(value["batch_size"]),
            int(value["micro_batch_size"]),
            float(value["optimizer_bytes_per_parameter_byte"]),
            bool(value["clips"]),
            Wish.from_json(value["wishes"]),
            Probe.from_json(value.get("probe"), f"{what}: probe"),
            read_splits(value.get("splits"), PlanError, f"{what}: splits"),
        )
        refuse(PlanError, problem.profile.check(), what, hint="make the plan again")
        return problem
