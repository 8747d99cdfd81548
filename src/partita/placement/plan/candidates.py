"""Candidates: what the free placements for throughput and for latency share: where to begin, and what to hand back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from partita.errors import Infeasible, PlanError, refuse
from partita.nouns.graph import IntArray
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile, Verdict
from partita.placement.plan.contiguous_plan import plan_contiguous
from partita.placement.plan.from_arrays import device_numbers, placement_plan
from partita.placement.plan.line_starts import starts
from partita.placement.plan.load import LoadModel
from partita.solve.downsets import every_downset
from partita.solve.units import contract

MOST_FOR_CONTIGUOUS = 3_000  # atoms up to which the contiguous plan is cheap beside the search
MOST_DOWNSETS = 50_000  # up to which the exact one takes less than a second ...
FAR_TOO_MANY = 400_000  # ... and from which it does not try, so that it is fast again
Start = Mapping[str, str]  #: task id -> device name


def candidates(
    problem: PlacementProblem, model: LoadModel, start: Start | None, objective: str = "throughput"
) -> Iterator[tuple[IntArray, str]]:
    """([atoms], name) placements to begin with; not all need be feasible."""
    for c in range(model.work_s.shape[1]):
        yield np.full(model.atoms, int(np.flatnonzero(model.class_of == c)[0]), np.int64), "single"
    for where in starts(model, problem.graph):
        yield where, "chunks"
    found = _contiguous(problem, model, objective)
    if found is not None:
        yield _given(problem, model, found.placement), "contiguous"
    if start is not None:
        yield _given(problem, model, start), "start"


def _contiguous(problem: PlacementProblem, model: LoadModel, objective: str) -> PlacementPlan | None:
    """The contiguous plan, exact where that is cheap; None where there is none, or none at that price."""
    if model.atoms > MOST_FOR_CONTIGUOUS:
        return None
    states = every_downset(contract(problem.graph), FAR_TOO_MANY) if objective == "throughput" else None
    slow = states is not None and len(states) > MOST_DOWNSETS
    method = "linear" if slow else "auto"
    try:
        plan = plan_contiguous(problem, objective, method=method, budget_s=1.0, replicas=False).plan
    except Infeasible:  # no chain of stages fits; a free placement may
        return None
    return plan if isinstance(plan, PlacementPlan) else None


def _given(problem: PlacementProblem, model: LoadModel, start: Start) -> IntArray:
    """[atoms] a placement handed in. Raises PlanError where it does not fit the problem."""
    plan = PlacementPlan(problem.graph.fingerprint, start)
    refuse(PlanError, plan.check(problem.graph, problem.cluster), "the start does not fit")
    where = np.zeros(model.atoms, np.int64)
    where[model.atom_of] = device_numbers(problem, plan)
    return where


def nothing_fits(model: LoadModel) -> Infeasible:
    """The error for a problem in which every task fits somewhere, but no placement of all of them was found."""
    need, room = float(model.memory_bytes.sum()), float(model.room_bytes.sum())
    return Infeasible(
        f"no placement was found that fits: the tasks hold {need:.4g} bytes, the devices {room:.4g}, but not in pieces that go together",
        constraint="memory",
        relaxation="more memory a device, one more device, or smaller colocation groups",
    )


def plan_file(
    problem: PlacementProblem, device_of: IntArray, verdict: Verdict, order: IntArray | None = None
) -> PlanFile:
    """The plan with its verdict and its problem. `device_of` is [tasks]."""
    return PlanFile(placement_plan(problem, device_of, order), verdict, problem)
