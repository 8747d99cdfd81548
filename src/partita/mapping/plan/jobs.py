"""Plan a measured job as a mapping: every operator on a device of its own choice, one micro-batch, one iteration.

    profile -> placement problem -> mappings of the methods -> segments -> simulate each as it will run -> the fastest

A search sees tasks one by one, and a message costs it what it will cost the devices: receiving, posting, and the call of the
segment that it cuts off. What it finds is then cut and joined into segments (`runnable`) and lowered, and that prediction,
which the run is compared with, decides; the best one's weights' gradients are then put off where that makes it shorter. One device is always among the candidates of a search.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.errors import BadInput, CostError
from partita.mapping.plan.deferred import GAPS, deferred
from partita.mapping.plan.limit import FREELY, Limit, simulation_s
from partita.mapping.plan.parts import beside, shared_by_parts, with_sums
from partita.mapping.plan.planner import METHODS, SEARCHES, SEEDS, begun_with, compile_kernels, no_room, plan_mapping
from partita.mapping.plan.question import Mapped, Question
from partita.mapping.plan.runnable import runnable
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem, Wish
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile, Verdict, checked_bound
from partita.nouns.profile import Profile
from partita.nouns.stage_memory import bytes_per_parameter_byte
from partita.placement.plan.latency import latency_bound
from partita.simulate.lower_placement import task_order
from partita.simulate.predicted import predicted

SIMULATED = 0.4  #: share of a search's budget that simulating whole steps may take: half for joining, half for putting gradients off
LEAST = 0.25  #: share of it that the search itself has, where single simulations are long
SWEPT = 2  #: times that every backward is tried in all gaps, as a rule
FEWEST = 2  #: simulations of a mapping that is not improved


@dataclass(frozen=True)
class Candidate:
    """A mapping as a plan, and what a step by it is predicted to take."""

    name: str  #: who found it
    plan: PipelinePlan
    step_s: float


def plan_job(
    profile: Profile, cluster: Cluster | None = None, *, method: str = "auto", budget_s: float = 10.0, seed: int = 0
) -> PlanFile:
    """The mapping with the fastest predicted step, and a lower bound of every mapping's.

    `single`, `intuitive`, `heft` and `heft-links` are what they are; every other method has them among its candidates.
    Deterministic for a seed. Raises BadInput for an unknown method or a profile without the whole batch, Infeasible where
    nothing fits.
    """
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r} for a mapping", hint=f"known: {', '.join(METHODS)}")
    began = time.perf_counter()
    problem = whole_batch(profile, cluster, budget_s, seed)
    found = list(candidates(problem, method, budget_s, seed))
    best = min(found, key=lambda c: c.step_s)
    if method in SEARCHES:
        best = Candidate(best.name, *deferred(problem, best.plan, Limit(SIMULATED / 2 * budget_s)))
    compared: dict[str, float] = {}
    for c in found:
        compared[c.name] = min(c.step_s, compared.get(c.name, c.step_s))
    if method in SEARCHES:
        compared[method] = best.step_s
    name = method if best.name == method else f"{method} ({best.name})"
    bound, how = step_bound(problem)
    spent = time.perf_counter() - began
    verdict = Verdict(best.step_s, checked_bound(best.step_s, bound), how, name, spent, "step", compared)
    return PlanFile(best.plan, verdict, problem)


def whole_batch(
    profile: Profile, cluster: Cluster | None = None, budget_s: float = 10.0, seed: int = 0
) -> PipelineProblem:
    """The job as a problem of one micro-batch. Raises BadInput where the profile does not hold it."""
    try:
        sample = profile.sample(profile.batch_size)
    except CostError as error:
        raise BadInput(
            f"a mapping runs the whole batch of {profile.batch_size} at once, and the profile does not hold that size",
            hint=f"run: partita measure {profile.job} --micro-batch-sizes {profile.batch_size}",
        ) from error
    return PipelineProblem(
        sample.graph, cluster or profile.cluster, sample.costs, profile.job, profile.batch_size, profile.batch_size,
        profile.optimizer_bytes_per_parameter_byte, profile.clips, Wish(budget_s=budget_s, seed=seed), sample.probe, profile.splits,
    )  # fmt: skip


def candidates(problem: PipelineProblem, method: str, budget_s: float, seed: int) -> Iterator[Candidate]:
    """What a method proposes; of a search also the simple mappings that it begins with. Joining their segments is a part of the
    budget, as `deferred` is of it by whoever calls that afterwards. Raises Infeasible where nothing fits, or not what the method is."""
    asked = as_placement(problem)
    asked.expect_fit()
    compile_kernels()
    question = Question.of(asked)
    if method not in SEARCHES:
        known = [m for m in SEEDS[method](question) if np.isfinite(m.value_s)]
        if not known:
            raise no_room(question, method)
        yield from (candidate(problem, asked, m, Limit(budget_s / len(known))) for m in known)
        return
    known = begun_with(question)
    known += [m for m in [beside(problem, question)] if np.isfinite(m.value_s)] if problem.splits else []
    joining = Limit(SIMULATED / 2 * budget_s / (len(known) + 1))
    found = [candidate(problem, asked, m, joining) for m in known]
    yield from found
    rest_s = max(budget_s - simulating_s(problem, [c.plan for c in found], budget_s), LEAST * budget_s)
    plan = plan_mapping(asked, method=method, budget_s=rest_s, seed=seed).plan
    assert isinstance(plan, PlacementPlan)
    yield of_placement(problem, asked.graph, plan, method, joining)


def simulating_s(problem: PipelineProblem, plans: Sequence[PipelinePlan], budget_s: float) -> float:
    """What of a search's budget is kept for whole steps: joining these plans and one more like them, and putting off the
    gradients of that one; no more than SIMULATED of it, but for one simulation of each."""
    tasks, segments = len(problem.graph), max((len(p.stages) for p in plans), default=1)
    each_s = simulation_s(tasks, segments)
    wanted = each_s * segments * (len(plans) + 1 + SWEPT * GAPS)
    return FEWEST * each_s * (len(plans) + 1) + min(SIMULATED * budget_s, wanted)


def candidate(problem: PipelineProblem, asked: PlacementProblem, mapped: Mapped, limit: Limit = FREELY) -> Candidate:
    """A mapping of `as_placement(problem)` as a plan."""
    tasks, names = asked.graph.tasks, [d.name for d in asked.cluster.devices]
    where = mapped.where[asked.graph.atom].tolist()
    forward = [i for i in mapped.order.tolist() if tasks[i].phase == "forward"]
    homes = {tasks[i].id: names[where[i]] for i in forward}
    plan = runnable(problem, homes, [tasks[i].id for i in forward], limit)
    return Candidate(mapped.name, plan, predicted(problem, plan).duration_s)


def of_placement(
    problem: PipelineProblem, graph: TaskGraph, plan: PlacementPlan, name: str, limit: Limit = FREELY
) -> Candidate:
    """A placement of all tasks as a plan; forwards keep its order."""
    order = [graph.tasks[i].id for i in task_order(graph, plan) if graph.tasks[i].phase == "forward"]
    found = runnable(problem, plan.placement, order, limit)
    return Candidate(name, found, predicted(problem, found).duration_s)


def as_placement(problem: PipelineProblem) -> PlacementProblem:
    """The question that the searches know: tasks one by one, a message with all that it takes of the devices.

    Tasks that share a parameter stay together here: apart, its gradient would be summed in every step. Parts of an operator
    may be apart: what each sends for the sum is one more tensor here.
    """
    graph, costs = with_sums(problem, _with_shared_together(problem))
    call_s = float(np.mean([d.instruction_s for d in problem.cluster.devices]))
    dearer = [
        replace(k, message_s=k.message_s + k.send_s + call_s, rate_bytes_per_s=k.delivered_bytes_per_s) for k in (problem.cluster.default_link, *problem.cluster.links)
    ]  # fmt: skip
    cluster = replace(problem.cluster, default_link=dearer[0], links=tuple(dearer[1:]))
    per_byte = bytes_per_parameter_byte(graph, problem.optimizer_bytes_per_parameter_byte)
    memory = np.array([t.parameter_bytes * per_byte + t.activation_bytes for t in graph.tasks])
    return PlacementProblem(graph, cluster, costs, memory, source_format="profile", source=problem.job)


def _with_shared_together(problem: PipelineProblem) -> TaskGraph:
    """The graph with the tasks of every shared parameter in one colocation group, but for parts of operators."""
    graph, apart = problem.graph, shared_by_parts(problem)
    if len(apart) == len(graph.shared):
        return graph
    group = {t.id: t.group for t in graph.tasks}
    for s in graph.shared:
        if s in apart:
            continue
        mine = {group[t] for t in s.tasks} - {None}
        for task, g in group.items():
            if task in s.tasks or g in mine:
                group[task] = f"parameter {s.name}"
    return replace(graph, tasks=tuple(replace(t, group=group[t.id]) for t in graph.tasks))


def step_bound(problem: PipelineProblem) -> tuple[float, str]:
    """(seconds that no mapping's step is below, how that is known): tasks in their order, weights' gradients at any time, and shared
    out evenly, messages for nothing; or all of them on one device that works alone."""
    links = [replace(k, latency_s=0.0) for k in (problem.cluster.default_link, *problem.cluster.links)]
    cluster = replace(problem.cluster, default_link=links[0], links=tuple(links[1:]))
    memory = np.zeros(len(problem.graph))
    free = PlacementProblem(problem.graph, cluster, problem.costs, memory)
    bound, how = latency_bound(replace(free, costs=_without_weights(problem)), Question.of(free).model)
    alone = problem.cluster_alone.devices
    seconds = problem.costs.seconds
    least = min(float(seconds[:, problem.costs.column(d.kind)].sum()) / d.speed for d in alone)
    return (bound, how) if bound <= least else (least, "one device")


def _without_weights(problem: PipelineProblem) -> CostTable:
    """Costs of what others may wait for: of a backward, the gradients of its inputs."""
    costs, backward = problem.costs, np.array([[t.phase == "backward"] for t in problem.graph.tasks])
    parted = backward & np.isfinite(costs.seconds)
    return replace(costs, seconds=costs.seconds * np.where(parted, 1.0 - costs.shares_of_weights, 1.0))
