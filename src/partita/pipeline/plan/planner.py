"""Plan a training pipeline: which cuts, how many devices and replicas, micro-batches and how many of them in flight.

    profile -> units -> state sequence -> stage costs -> proposals of the methods -> simulate each -> the fastest

A method proposes candidates (see `methods`); every candidate is lowered and simulated, and the fastest predicted step
wins, so that fill and drain, messages, updates and gradient sums count as they will in the run and not only the busiest
stage. One device is always among the candidates of `auto`, and where costs were measured the others must be faster by what
predictions miss. `proof` says how much better any plan of the family could be.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from partita.errors import BadInput, ClusterError, CostError, Infeasible, refuse
from partita.nouns.cluster import SECONDS_OF_A_DEVICE, Cluster
from partita.nouns.pipeline_plan import Asked, PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem, Wish
from partita.nouns.plan import PlanFile, Verdict, checked_bound
from partita.nouns.profile import Profile
from partita.pipeline.plan import methods
from partita.pipeline.plan.bench import Candidate
from partita.pipeline.plan.infeasible import does_not_fit, leanest
from partita.pipeline.plan.orders import FLOWN, arranged, why_none
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.pipeline.plan.proof import any_plan, lower_bound
from partita.pipeline.plan.stage_costs import check_phases
from partita.pipeline.plan.stage_costs import micro_batches as micro_batches_of
from partita.simulate.predicted import predicted

SIMPLER = 0.005  #: share of the step by which another schedule must beat the simple one
PAYS = 0.05  #: share of a measured job's step that further devices must save: predictions miss as much, either way
#: Of what calls, messages, the beginning and the end of a step take, as much may come on top: in ten models with steps of 1 to 6 ms on two devices they took up to
#: 0.3 ms more than was measured (2-core EPYC, 2026-11-25, benchmarks/small.py; the end of a step was not among them then).
DOUBT = 0.5


def plan_pipeline(
    profile: Profile,
    cluster: Cluster | None = None,
    *,
    method: str = "auto",
    micro_batches: int | None = None,
    in_flight: int | None = None,
    schedule: Asked | None = None,
    budget_s: float = 10.0,
    seed: int = 0,
    stages: int | None = None,
    allow_replicas: bool = True,
    allow_recompute: bool = True,
    pays: float = PAYS,
) -> PlanFile:
    """The pipeline plan with the fastest predicted step, and a lower bound of every such plan's step.

    `method` "auto" asks all methods and names the one that won. The same inputs give the same plan: the search is
    limited by `budget_s` worth of instructions simulated, not by a clock, and draws its lots from `seed`. Raises BadInput for
    wishes that name nothing there is, Infeasible where no plan fits: it names the stage that does not and what would do.
    `schedule`: None is 1F1B, "auto" the fastest of all, see `orders`. `pays`: share of a measured job's step that further
    devices must save where "auto" may take one, beside DOUBT; 0: they need not save anything.
    """
    began = time.perf_counter()
    wish = Wish(micro_batches, in_flight, schedule, stages, allow_replicas, allow_recompute, budget_s, seed)
    task = PipelineTask(profile, cluster or profile.cluster, wish)
    _check(task, method)
    found = {name: fastest(task, propose) for name, propose in methods.named(method).items()}
    winner = min(found, key=lambda name: found[name][0])
    best = found[winner][1]
    if best is None:
        winner, best = _leanest(task, method)
    compared = {name: v for name, (v, _) in found.items() if math.isfinite(v)}
    (plan, problem, value), by, schedules = _scheduled(task, best)
    written = best.written is not None and not by
    if by and method == "auto":
        winner = by
    one_s, one = found.get("single", (math.inf, None))
    may_fall_back = one is not None and len(plan.devices) > 1 and _may_fall_back(task)
    doubt_s = DOUBT * _beside_tasks_s(problem, plan) if may_fall_back and pays else 0.0
    if one and may_fall_back and one_s * (1 - pays) <= value + doubt_s:
        winner, written, by = "single", False, ""
        plan, problem, value = _as_it_is(task, one)
    bound, how = any_plan(task) if written else lower_bound(task)
    compared |= schedules if by else {**schedules, winner: value}
    spent = time.perf_counter() - began
    verdict = Verdict(value, checked_bound(value, bound), how, winner, spent, "step", compared)
    return PlanFile(plan, verdict, problem)


Answer = tuple[PipelinePlan, PipelineProblem, float]


def _as_it_is(task: PipelineTask, candidate: Candidate) -> Answer:
    plan, problem = task.bench(candidate).plan(candidate), problem_of(task, candidate)
    return plan, problem, predicted(problem, plan).duration_s


def _scheduled(task: PipelineTask, best: Candidate) -> tuple[Answer, str, dict[str, float]]:
    """(the fastest of the best candidate under its own schedule and of what other schedules make of it, which other schedule it is,
    "" if none, what each takes), all as simulated. A plan of another schedule must be better by SIMPLER."""
    wish = task.wish
    answer, by = _as_it_is(task, best), ""
    plan, _, value = answer
    if wish.schedule in (None, "1f1b", "gpipe"):
        return answer, by, {}
    least = value * (1 - SIMPLER) if wish.schedule == "auto" else math.inf
    compared: dict[str, float] = {} if best.written else {plan.schedule: value}
    for other in arranged(task):
        bench = task.bench(other.candidate)
        plan, problem = other.plan(bench), problem_of(task, other.candidate)
        compared[other.asked] = value = predicted(problem, plan).duration_s
        if value < least:
            answer, by, least = (plan, problem, value), other.asked, value
    if not math.isfinite(least):
        raise Infeasible(
            f"no plan of schedule {wish.schedule} fits{why_none(task)}",
            constraint="schedule",
            relaxation="leave --schedule out: auto takes what there is",
        )
    return answer, by, compared


def _beside_tasks_s(problem: PipelineProblem, plan: PipelinePlan) -> float:
    """What of a step calls, messages, its beginning and its end take of the devices, whatever they carry: it would be so much shorter
    without. What waits cost is no part of that."""
    cluster = problem.cluster
    warm = replace(cluster, devices=tuple(replace(d, cold_s=0.0) for d in cluster.devices))
    nothing: dict[str, Any] = dict.fromkeys(SECONDS_OF_A_DEVICE, 0.0)
    devices = tuple(replace(d, **nothing) for d in cluster.devices)
    default, *links = (replace(k, message_s=0.0, send_s=0.0, sum_s=0.0) for k in (cluster.default_link, *cluster.links))
    bare = replace(cluster, devices=devices, links=tuple(links), default_link=default)
    whole_s, tasks_s = (predicted(problem.on(c), plan).duration_s for c in (warm, bare))
    return max(0.0, whole_s - tasks_s)


def pays_beside(running: PipelinePlan) -> float:
    """What `pays` is beside a plan that runs: nothing where further devices are there already."""
    return PAYS if len(running.devices) == 1 else 0.0


def _may_fall_back(task: PipelineTask) -> bool:
    """Whether one device may do for several: costs are measured (what is given is taken at its word), and no schedule is asked
    for that needs several."""
    return any(s.probe for s in task.profile.samples) and task.wish.schedule in (None, "auto", "1f1b", "gpipe")


def problem_of(task: PipelineTask, candidate: Candidate) -> PipelineProblem:
    """What a plan of this candidate answers."""
    profile, sample = task.profile, task.bench(candidate).sample
    return PipelineProblem(
        sample.graph, task.whole_cluster, sample.costs, profile.job, profile.batch_size, sample.micro_batch_size,
        profile.optimizer_bytes_per_parameter_byte, profile.clips, task.wish, sample.probe, profile.splits,
    )  # fmt: skip


def _leanest(task: PipelineTask, method: str) -> tuple[str, Candidate]:
    """The plan of least memory, where no method found one that fits. Raises Infeasible where it does not fit either."""
    lean = leanest(task)
    if lean is None:
        raise does_not_fit(task)
    if method != "auto":
        raise Infeasible(
            f"no plan of method {method!r} fits", constraint="method", relaxation="ask for method auto; it finds one"
        )
    return "least memory", lean


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
    refuse(ClusterError, task.whole_cluster.check(), "the cluster")
    refuse(CostError, task.profile.check(), "the profile")
    check_phases(task.profile)
    methods.named(method)
    wish, profile = task.wish, task.profile
    there = sorted({micro_batches_of(profile, s) for s in profile.samples})
    if wish.micro_batches is not None and wish.micro_batches not in there:
        raise BadInput(
            f"{wish.micro_batches} micro-batches were not measured; measured: {', '.join(map(str, there))}",
            hint="ask for one of these, or measure again with that micro-batch size",
        )
    if not task.benches:
        raise BadInput(
            f"a batch of {profile.batch_size} makes {wish.micro_batches or there[0]} micro-batches at least; "
            f"{task.most_micro_batches} can be planned in a budget of {wish.budget_s} s",
            hint="measure with larger micro-batches, or give a larger budget",
        )
    if wish.in_flight is not None and wish.schedule not in (None, "auto", *FLOWN):
        raise BadInput(
            f"schedule {wish.schedule} decides by itself how many micro-batches are in flight; {wish.in_flight} were asked for",
            hint=f"leave --in-flight out, or ask for --schedule {', '.join(FLOWN)} or auto",
        )
    for name, number in (("stages", wish.stages), ("in_flight", wish.in_flight)):
        if number is not None and number < 1:
            raise BadInput(f"{name} is {number}; it must be at least 1")
