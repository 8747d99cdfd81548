"""Links of different rates: plans made as if all had one rate, then judged and improved by what each crossing really takes.

No crossing takes less than over the best link, so a bound for a cluster of best links holds. Plans come from that cluster
and from one of slowest links; which device takes which part, and where single tasks go, is then searched by true loads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from partita.nouns.cluster import Cluster
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import GraphPlan, PlanFile, Verdict, checked_bound
from partita.placement.plan.from_arrays import device_numbers, placement_plan
from partita.solve.device_types import device_types

Planner = Callable[[PlacementProblem], PlanFile]
MOST_EXCHANGES = 3_000  #: trials of two devices changing places


def at_one_rate(problem: PlacementProblem, rate_bytes_per_s: float) -> PlacementProblem:
    """The problem with all links at one rate; latencies stay out of loads anyway."""
    cluster = problem.cluster
    link = replace(cluster.default_link, rate_bytes_per_s=rate_bytes_per_s)
    return replace(problem, cluster=Cluster(cluster.devices, (), link, cluster.source))


def contiguous_over_unequal_links(problem: PlacementProblem, plan: Planner) -> PlanFile:
    """The best contiguous plan found, and the bound of best links. Raises Infeasible as the planner does."""
    rates = problem.cluster.best_rate_bytes_per_s, problem.cluster.worst_rate_bytes_per_s
    best, slow = (plan(at_one_rate(problem, rate)) for rate in rates)
    spent = best.verdict.seconds_spent + slow.verdict.seconds_spent
    bound, how = best.verdict.lower_bound_s, best.verdict.bound
    if isinstance(slow.plan, PipelinePlan):  # what several replicas exchange goes at the pace of the slowest link
        return PlanFile(slow.plan, judged(slow.verdict, slow.verdict.value_s, bound, how, spent), problem)
    dealt = [(dealt_out(problem, f.plan), f.verdict) for f in (best, slow) if isinstance(f.plan, PlacementPlan)]
    device_of, said = min(dealt, key=lambda d: float(problem.loads(d[0]).max()))
    verdict = judged(said, float(problem.loads(device_of).max()), bound, how, spent)
    return PlanFile(placement_plan(problem, device_of), verdict, problem)


def judged(said: Verdict, value_s: float, bound_s: float, how: str, spent_s: float) -> Verdict:
    bound_s = checked_bound(value_s, bound_s)
    return replace(said, value_s=value_s, lower_bound_s=bound_s, bound=f"{how}, best links", seconds_spent=spent_s)


def dealt_out(problem: PlacementProblem, plan: GraphPlan) -> IntArray:
    """[tasks] device numbers of a plan, after devices of one type have changed places as long as that lowers the largest
    load, or one of two equal largest."""
    device_of = device_numbers(problem, plan)
    number = {d.name: i for i, d in enumerate(problem.cluster.devices)}
    groups = [[number[n] for n in t.names] for t in device_types(problem.cluster)]
    value, tried, better = _ranked(problem, device_of), 0, True
    while better and tried < MOST_EXCHANGES:
        better = False
        used = set(device_of.tolist())
        pairs = [(a, b) for g in groups for i, a in enumerate(g) for b in g[i + 1 :] if a in used or b in used]
        for a, b in pairs[: MOST_EXCHANGES - tried]:
            swapped = np.where(device_of == a, b, np.where(device_of == b, a, device_of))
            then = _ranked(problem, swapped)
            tried += 1
            if then < value:
                device_of, value, better = swapped, then, True
    return device_of


def _ranked(problem: PlacementProblem, device_of: IntArray) -> tuple[float, ...]:
    """The three largest loads."""
    loads: FloatArray = np.sort(problem.loads(device_of))[::-1]
    return tuple(loads[:3].tolist())
