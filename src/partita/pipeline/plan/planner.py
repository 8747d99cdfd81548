"""Plan a training pipeline: which cuts, how many devices and replicas, micro-batches and how many of them in flight.

    profile -> units -> state sequence -> stage costs -> proposals of the methods -> simulate each -> the fastest

A method proposes candidates (see `methods`); every candidate is lowered and simulated, and the fastest predicted step
wins, so that fill and drain, messages, updates and gradient sums count as they will in the run and not only the busiest
stage. One device is always among the candidates of `auto`. `step_bound` says how much better any plan of the family could be.
"""

from __future__ import annotations

import math
import time

from partita.errors import BadInput, ClusterError, refuse
from partita.nouns.cluster import Cluster
from partita.nouns.pipeline_plan import Schedule
from partita.nouns.pipeline_problem import PipelineProblem, Wish
from partita.nouns.plan import PlanFile, Verdict
from partita.nouns.profile import Profile
from partita.pipeline.plan import methods
from partita.pipeline.plan.relaxation import does_not_fit
from partita.pipeline.plan.step_time import Candidate
from partita.pipeline.plan.task import PipelineTask


def plan_pipeline(
    profile: Profile,
    cluster: Cluster | None = None,
    *,
    method: str = "auto",
    micro_batches: int | None = None,
    in_flight: int | None = None,
    schedule: Schedule | None = None,
    budget_s: float = 10.0,
    seed: int = 0,
    stages: int | None = None,
    allow_replicas: bool = True,
    allow_recompute: bool = True,
) -> PlanFile:
    """The pipeline plan with the fastest predicted step, and a lower bound of every such plan's step.

    `method` "auto" asks all methods and names the one that won. The same inputs give the same plan: the search is limited by
    counts, and `seed` and `budget_s` are there for methods that draw lots. Raises BadInput for
    wishes that name nothing there is, Infeasible where no plan fits: it names the stage that does not and what would do.
    """
    began = time.perf_counter()
    wish = Wish(micro_batches, in_flight, schedule, stages, allow_replicas, allow_recompute, budget_s, seed)
    task = PipelineTask(profile, cluster or profile.cluster, wish)
    _check(task, method)
    found = {name: fastest(task, propose) for name, propose in methods.named(method).items()}
    winner = min(found, key=lambda name: found[name][0])
    value, best = found[winner]
    if best is None:
        raise does_not_fit(task)
    bound, how = task.lower_bound(fastest(task, methods.METHODS["single"])[0])
    compared = {name: v for name, (v, _) in found.items() if math.isfinite(v)}
    verdict = Verdict(value, min(bound, value), how, winner, time.perf_counter() - began, "step", compared)
    bench = task.bench(best)
    problem = PipelineProblem(
        bench.sample.graph, task.cluster, bench.sample.costs, profile.job, profile.batch_size,
        bench.sample.micro_batch_size, profile.optimizer_bytes_per_parameter_byte, profile.clips, wish,
    )  # fmt: skip
    return PlanFile(bench.plan(best), verdict, problem)


def fastest(task: PipelineTask, propose: methods.Method) -> tuple[float, Candidate | None]:
    """(step in seconds, candidate) of a method's best candidate; (inf, None) where none fits. The first of equals wins."""
    best, value = None, math.inf
    for candidate in propose(task):
        seconds = task.bench(candidate).step_s(candidate)
        if seconds < value:
            best, value = candidate, seconds
    return value, best


def _check(task: PipelineTask, method: str) -> None:
    """Raise BadInput for wishes that name nothing there is."""
    refuse(ClusterError, task.cluster.check(), "the cluster")
    methods.named(method)
    wish, profile = task.wish, task.profile
    if wish.micro_batches is not None and not task.benches:
        there = sorted({-(-profile.batch_size // s.micro_batch_size) for s in profile.samples})
        raise BadInput(
            f"{wish.micro_batches} micro-batches were not measured; measured: {', '.join(map(str, there))}",
            hint="ask for one of these, or measure again with that micro-batch size",
        )
    for name, number in (("stages", wish.stages), ("in_flight", wish.in_flight)):
        if number is not None and number < 1:
            raise BadInput(f"{name} is {number}; it must be at least 1")
