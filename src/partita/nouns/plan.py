"""Plan: the decision, small and readable.

A family of small types, one per way of splitting work; `PlanFile` is what is written to disk: the plan first, then the
problem it answers, so that a plan can be explained, simulated and run from its file alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from partita.errors import InternalError, PlanError, refuse
from partita.files import dump_json, read_json, write_whole
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import TaskGraph

Schedule = Literal["1f1b", "gpipe"]
Objective = Literal["throughput", "latency", "step"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a planner claims for its plan."""

    value_s: float  #: predicted seconds of the objective
    lower_bound_s: float  #: no plan of this family can be faster
    bound: str  #: how the bound was obtained: "exact", "linear relaxation", "critical path", ...
    method: str  #: the planner
    seconds_spent: float
    objective: Objective = "step"

    @property
    def gap(self) -> float:
        """How far from the bound, as a share of the bound."""
        return (
            self.value_s / self.lower_bound_s - 1.0
            if self.lower_bound_s > 0
            else (0.0 if self.value_s == 0 else math.inf)
        )


def checked_bound(value_s: float, bound_s: float) -> float:
    """A raw lower bound, fit to be printed beside the value of a plan that it must not exceed.

    Raises InternalError where it does by more than rounding: then the bound or the value is wrong.

    >>> checked_bound(2.0, 1.5)
    1.5
    """
    if not bound_s <= value_s * (1 + 1e-9) + 1e-12:
        raise InternalError(
            f"a lower bound of {bound_s!r} s is above the plan's {value_s!r} s", hint="report this with the input files"
        )
    return min(bound_s, value_s)


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive tasks that share their devices; with several devices, micro-batch i runs on device i mod m."""

    tasks: tuple[str, ...]  #: ids of forward tasks (a backward task follows its forward)
    devices: tuple[str, ...]
    recompute: bool = False  #: run the forward again before the backward instead of keeping its activations

    @property
    def replicas(self) -> int:
        return len(self.devices)


@dataclass(frozen=True)
class PipelinePlan:
    """Stages in pipeline order, and how a batch flows through them."""

    graph: str  #: fingerprint of the graph it was made for
    stages: tuple[Stage, ...]
    micro_batches: int
    in_flight: int  #: micro-batches whose forward may have run on the first stage while their backward has not
    schedule: Schedule
    verdict: Verdict
    kind: Literal["pipeline"] = field(default="pipeline", init=False)

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """Forward task id -> stage number."""
        return {t: k for k, s in enumerate(self.stages) for t in s.tasks}

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device used, stage by stage. Rank r runs the r-th."""
        return tuple(d for s in self.stages for d in s.devices)

    def check(self, graph: TaskGraph, cluster: Cluster) -> list[str]:
        """Every fault at once; empty when the plan is sound and fits the graph and the cluster."""
        if self.graph != graph.fingerprint:
            return [f"it was made for graph {self.graph}, this is graph {graph.fingerprint}"]
        wanted = {t.id for t in graph.tasks if t.phase in ("forward", "stage")}
        faults = [
            f"stage {k} has no {what}"
            for k, s in enumerate(self.stages)
            for what in ("tasks", "devices")
            if not getattr(s, what)
        ]
        faults += _pairing("task", [t for s in self.stages for t in s.tasks], wanted, all_needed=True)
        faults += _pairing("device", list(self.devices), set(cluster.by_name), all_needed=False)
        if self.micro_batches < 1 or self.in_flight < 1:
            faults.append(
                f"{self.micro_batches} micro-batches with {self.in_flight} in flight; both must be at least 1"
            )
        if self.schedule not in get_args(Schedule):
            faults.append(f"unknown schedule {self.schedule!r}")
        return faults or self._order_faults(graph)

    def _order_faults(self, graph: TaskGraph) -> list[str]:
        """Forward edges that run to an earlier stage, colocation groups that are torn apart."""
        at = [self.stage_of.get(t.id, -1) for t in graph.tasks]
        ids = [t.id for t in graph.tasks]
        faults = [
            f"edge {ids[u]} -> {ids[v]} runs from stage {at[u]} back to {at[v]}"
            for u, v in graph.edges
            if at[u] > at[v] >= 0
        ]
        groups: dict[str, set[int]] = {}
        for t, k in zip(graph.tasks, at, strict=True):
            if t.group is not None and k >= 0:
                groups.setdefault(t.group, set()).add(k)
        return faults + [
            f"colocation group {g!r} is spread over stages {sorted(ks)}" for g, ks in groups.items() if len(ks) > 1
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "graph": self.graph,
            **_verdict_json(self.verdict),
            "micro_batches": self.micro_batches,
            "in_flight": self.in_flight,
            "schedule": self.schedule,
            "stages": [
                {
                    "tasks": list(s.tasks),
                    "replicas": s.replicas,
                    "devices": list(s.devices),
                    **({"recompute": True} if s.recompute else {}),
                }
                for s in self.stages
            ],
        }


@dataclass(frozen=True)
class PlacementPlan:
    """Any task on any device."""

    graph: str  #: fingerprint of the graph it was made for
    placement: Mapping[str, str]  #: task id -> device name
    verdict: Verdict
    kind: Literal["placement"] = field(default="placement", init=False)

    def check(self, graph: TaskGraph, cluster: Cluster) -> list[str]:
        """Every fault at once; empty when the plan is sound and fits the graph and the cluster."""
        if self.graph != graph.fingerprint:
            return [f"it was made for graph {self.graph}, this is graph {graph.fingerprint}"]
        faults = _pairing("task", list(self.placement), {t.id for t in graph.tasks}, all_needed=True)
        faults += [f"unknown device {d!r}" for d in sorted(set(self.placement.values()) - set(cluster.by_name))]
        groups: dict[str, set[str]] = {}
        for t in graph.tasks:
            if t.group is not None and t.id in self.placement:
                groups.setdefault(t.group, set()).add(self.placement[t.id])
        return faults + [
            f"colocation group {g!r} is spread over {sorted(ds)}" for g, ds in groups.items() if len(ds) > 1
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "graph": self.graph,
            **_verdict_json(self.verdict),
            "placement": dict(self.placement),
        }


Plan = PipelinePlan | PlacementPlan


@dataclass(frozen=True)
class PlanFile:
    """A plan together with the problem it answers."""

    plan: Plan
    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    facts: Mapping[str, Any] = field(default_factory=dict)  #: more top-level keys, e.g. {"bandwidth_bytes_per_s": 1e9}

    def to_json(self) -> dict[str, Any]:
        problem = {"graph": self.graph.to_json(), "cluster": self.cluster.to_json(), "costs": self.costs.to_json()}
        return {"format": "partita-plan", "version": 1, **self.plan.to_json(), **self.facts, "problem": problem}

    def write(self, path: str | Path) -> Path:
        return write_whole(path, dump_json(self.to_json()))

    @staticmethod
    def read(path: str | Path) -> PlanFile:
        """The plan in a file. Raises PlanError with every fault at once."""
        value = read_json(path, PlanError, "partita-plan")
        try:
            problem = value["problem"]
            graph = TaskGraph.from_json(problem["graph"], f"{path}: graph")
            cluster = Cluster.from_json(problem["cluster"], f"{path}: cluster")
            costs = CostTable.from_json(problem["costs"], graph, f"{path}: costs")
            plan = _plan_in(value, str(path))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PlanError(
                f"{path} is damaged: {type(error).__name__}: {error}", hint="make the plan again"
            ) from error
        refuse(PlanError, plan.check(graph, cluster), str(path), hint="plan again for this model and cluster")
        known = {*plan.to_json(), "format", "version", "problem"}
        return PlanFile(plan, graph, cluster, costs, {k: v for k, v in value.items() if k not in known})


def _plan_in(value: Mapping[str, Any], what: str) -> Plan:
    try:
        return plan_from_json(value)
    except PlanError as error:
        raise PlanError(f"{what}: {error.message}", hint=error.hint) from error


def plan_from_json(value: Mapping[str, Any]) -> Plan:
    """The plan in a parsed JSON object. Raises PlanError for an unknown kind, KeyError or TypeError for a damaged one."""
    seconds = {k: float(value[k]) for k in ("value_s", "lower_bound_s", "seconds_spent")}
    faults = [f"{k} is {v}" for k, v in seconds.items() if not (math.isfinite(v) and v >= 0)]
    if value["objective"] not in get_args(Objective):
        faults.append(f"unknown objective {value['objective']!r}")
    refuse(PlanError, faults, "the plan's verdict", hint="make the plan again")
    verdict = Verdict(
        seconds["value_s"], seconds["lower_bound_s"], str(value["bound"]), str(value["method"]),
        seconds["seconds_spent"], value["objective"],
    )  # fmt: skip
    if value["kind"] == "placement":
        return PlacementPlan(str(value["graph"]), {str(k): str(v) for k, v in value["placement"].items()}, verdict)
    if value["kind"] == "pipeline":
        stages = tuple(
            Stage(
                tuple(str(t) for t in s["tasks"]), tuple(str(d) for d in s["devices"]), bool(s.get("recompute", False))
            )
            for s in value["stages"]
        )
        return PipelinePlan(
            str(value["graph"]),
            stages,
            int(value["micro_batches"]),
            int(value["in_flight"]),
            value["schedule"],
            verdict,
        )
    raise PlanError(f"unknown kind of plan {value['kind']!r}", hint="known: pipeline, placement")


def _verdict_json(v: Verdict) -> dict[str, Any]:
    return {
        "objective": v.objective,
        "value_s": v.value_s,
        "lower_bound_s": v.lower_bound_s,
        "bound": v.bound,
        "method": v.method,
        "seconds_spent": v.seconds_spent,
    }


def _pairing(what: str, used: list[str], known: set[str], *, all_needed: bool) -> list[str]:
    """Names used twice, names unknown, and (where all are needed) names missing."""
    faults = (
        [f"{what} {n!r} is used {used.count(n)} times" for n in sorted({n for n in used if used.count(n) > 1})]
        if len(set(used)) < len(used)
        else []
    )
    faults += [f"unknown {what} {n!r}" for n in sorted(set(used) - known)]
    missing = sorted(known - set(used)) if all_needed else []
    return faults + [f"{what} {n!r} is in no stage" for n in missing]
