"""Plans from arrays: what planners compute with, written as the nouns say it, and judged by the simulator."""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import IntArray
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import GraphPlan
from partita.simulate.predicted import predicted


def placement_plan(problem: PlacementProblem, device_of: IntArray, order: IntArray | None = None) -> PlacementPlan:
    """Task i on device number device_of[i]; every device runs its tasks as they come in `order`, if one is given."""
    names, tasks = [d.name for d in problem.cluster.devices], problem.graph.tasks
    queues: dict[str, list[str]] = {}
    for i in [] if order is None else order.tolist():
        queues.setdefault(names[device_of[i]], []).append(tasks[i].id)
    placement = {t.id: names[d] for t, d in zip(tasks, device_of.tolist(), strict=True)}
    return PlacementPlan(problem.graph.fingerprint, placement, {d: tuple(ids) for d, ids in queues.items()})


def device_numbers(problem: PlacementProblem, plan: GraphPlan) -> IntArray:
    """[tasks] the number of each task's device in a placement."""
    assert isinstance(plan, PlacementPlan)
    number = {d.name: i for i, d in enumerate(problem.cluster.devices)}
    return np.array([number[plan.placement[t.id]] for t in problem.graph.tasks], np.int64)


def simulated_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """The makespan of one sample."""
    return predicted(problem, plan).duration_s
