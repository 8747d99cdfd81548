"""What would help: the same question asked again with one more device, faster links, more memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from partita.errors import InternalError, PartitaError
from partita.mapping.plan.jobs import plan_job
from partita.mapping.plan.planner import METHODS as MAPPINGS
from partita.mapping.plan.planner import plan_mapping
from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable
from partita.nouns.pipeline_problem import PipelineProblem, Wish
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile
from partita.page.plan_rows import is_mapping
from partita.pipeline.plan.planner import plan_pipeline
from partita.placement.plan.contiguous_plan import plan_contiguous


@dataclass(frozen=True, slots=True)
class Answer:
    """What a change would bring."""

    change: str  #: e.g. "one more device"
    value_s: float  #: nan: no plan
    lower_bound_s: float
    devices: int  #: that the new plan uses


def answers(file: PlanFile, budget_s: float = 3.0) -> list[Answer]:
    """The plan's value under each change, by planning again; as it stands first.

    The graph, the costs and the wishes are those in the file; of a profile only the micro-batch size of the plan is there,
    so that a better one is not found here. `budget_s` for each change is spent on mappings and free placements only.
    """
    cluster = file.cluster
    changes: list[tuple[str, Cluster, float]] = [
        ("as it is", cluster, 1.0),
        ("one more device", with_one_more(cluster), 1.0),
        ("twice the bandwidth", with_rate(cluster, 2.0), 2.0),
    ]
    if any(math.isfinite(d.memory_bytes) for d in cluster.devices):
        changes.append(("twice the memory", with_memory(cluster, 2.0), 1.0))
    return [_answer(change, _planner(file, changed, faster, budget_s)) for change, changed, faster in changes]


def _answer(change: str, plan: Callable[[], PlanFile]) -> Answer:
    try:
        file = plan()
    except InternalError:
        raise
    except PartitaError:
        return Answer(change, math.nan, math.nan, 0)
    verdict = file.verdict
    return Answer(change, verdict.value_s, verdict.lower_bound_s, len(devices_used(file)))


def devices_used(file: PlanFile) -> set[str]:
    """The devices that have anything to do."""
    plan = file.plan
    return set(plan.devices) if plan.kind == "pipeline" else set(plan.placement.values())


def _planner(file: PlanFile, cluster: Cluster, faster: float, budget_s: float) -> Callable[[], PlanFile]:
    """How the file's question is asked for another cluster, whose links are so many times faster."""
    verdict, problem = file.verdict, file.problem
    method = verdict.method.partition(" ")[0]
    if isinstance(problem, PipelineProblem) and is_mapping(file) and method in MAPPINGS:
        return lambda: plan_job(problem.profile, cluster, method=method, budget_s=budget_s, seed=problem.wish.seed)
    if isinstance(problem, PipelineProblem):
        wish = _grown(problem, cluster)
        return lambda: plan_pipeline(problem.profile, cluster, **wish.given())
    faster_problem = with_links(problem.on(cluster), faster)
    if verdict.objective == "latency" and method in MAPPINGS and method != "single":
        return lambda: plan_mapping(faster_problem, method=method, budget_s=budget_s)
    if verdict.method.startswith("free"):
        from partita.placement.plan.free import plan_free  # it needs optional solvers

        return lambda: plan_free(faster_problem, verdict.objective, budget_s=budget_s)
    return lambda: plan_contiguous(faster_problem, verdict.objective, replicas=file.plan.kind == "pipeline")


def _grown(problem: PipelineProblem, cluster: Cluster) -> Wish:
    """What was asked for when the plan was made; a fixed number of stages grows with the devices."""
    stages, devices = problem.wish.stages, len(cluster.devices)
    if stages is None or devices <= len(problem.cluster.devices):
        return problem.wish
    return replace(problem.wish, stages=min(stages + 1, devices))


def with_one_more(cluster: Cluster) -> Cluster:
    """The cluster with a copy of its first device, which talks over the default link."""
    first, names = cluster.devices[0], {d.name for d in cluster.devices}
    stem = first.name.rstrip("0123456789") or first.name
    name = next(n for k in range(len(names) + 1) if (n := f"{stem}{k}") not in names)
    alike = [i for i, d in enumerate(cluster.devices) if d.kind == first.kind]
    devices = list(cluster.devices)
    devices.insert(alike[-1] + 1, replace(first, name=name, cores=()))
    return replace(cluster, devices=tuple(devices))


def with_rate(cluster: Cluster, faster: float) -> Cluster:
    """The cluster with every link so many times faster."""
    return replace(
        cluster,
        links=tuple(replace(k, rate_bytes_per_s=k.rate_bytes_per_s * faster) for k in cluster.links),
        default_link=replace(cluster.default_link, rate_bytes_per_s=cluster.default_link.rate_bytes_per_s * faster),
    )


def with_memory(cluster: Cluster, more: float) -> Cluster:
    """The cluster with so many times the memory on every device."""

    def grown(d: Device) -> Device:
        return replace(d, memory_bytes=d.memory_bytes * more)

    return replace(cluster, devices=tuple(map(grown, cluster.devices)))


def with_links(problem: PlacementProblem, faster: float) -> PlacementProblem:
    """The problem with every given transfer so many times faster."""
    costs = problem.costs
    table = CostTable(
        costs.kinds, costs.seconds, costs.low, costs.high, costs.source, np.asarray(costs.transfer_s / faster)
    )
    return replace(problem, costs=table)
