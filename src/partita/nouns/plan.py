"""PlanFile: a decision, what its planner claims for it, and the problem it answers.

Plans are a family of small types, one for each way of splitting work: `pipeline_plan`, `placement_plan`, `offload`. A plan
can be explained, simulated and run from its file alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from partita.errors import InternalError, PlanError, refuse
from partita.files import dump_json, read_json, write_whole
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import TaskGraph
from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.records import lean, record

Objective = Literal["throughput", "latency", "step", "makespan", "mean-completion"]
GraphPlan = PipelinePlan | PlacementPlan
GraphProblem = PipelineProblem | PlacementProblem
Plan = GraphPlan | OffloadPlan
Problem = GraphProblem | OffloadProblem
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a planner claims for its plan."""

    value_s: float  #: predicted seconds of the objective
    lower_bound_s: float  #: no plan of this family can be faster
    bound: str  #: how the bound was obtained: "exact", "linear relaxation", "critical path", ...
    method: str  #: the planner
    seconds_spent: float
    objective: Objective = "step"
    compared_s: Mapping[str, float] = field(default_factory=dict)  #: other methods' values

    @property
    def gap(self) -> float:
        """How far from the bound, as a share of the bound."""
        return (
            self.value_s / self.lower_bound_s - 1.0
            if self.lower_bound_s > 0
            else (0.0 if self.value_s == 0 else math.inf)
        )

    def to_json(self) -> dict[str, Any]:
        return {"objective": self.objective, **lean(self)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Verdict:
        """Raises PlanError for values that cannot be."""
        what, hint = "the plan's verdict", "make the plan again"
        verdict = record(Verdict, value, PlanError, what, hint=hint)
        seconds = {k: getattr(verdict, k) for k in ("value_s", "lower_bound_s", "seconds_spent")}
        seconds |= dict(verdict.compared_s)
        faults = [f"{k} is {v}" for k, v in seconds.items() if not (math.isfinite(v) and v >= 0)]
        if not faults and verdict.lower_bound_s > verdict.value_s * (1 + 1e-9):
            faults.append(f"its lower bound {verdict.lower_bound_s} is above its value {verdict.value_s}")
        refuse(PlanError, faults, what, hint=hint)
        return verdict


def checked_bound(value_s: float, bound_s: float) -> float:
    """The lower bound of a plan's objective, once it is seen not to be above the value that the plan reaches.

    Above by rounding (a share of 1e-9) it is the value. Raises InternalError where it is above by more: then the bound
    or the value is wrong, and no plan must be handed out as if it were proven.

    >>> checked_bound(2.0, 1.5)
    1.5
    """
    if not bound_s <= value_s + max(1e-9 * abs(value_s), 1e-15):
        raise InternalError(
            f"a lower bound of {bound_s!r} s is above a plan that takes {value_s!r} s",
            hint="this is a fault of Partita; please report it with the problem",
        )
    return bound_s if bound_s < value_s else value_s


@dataclass(frozen=True)
class AnyPlanFile:
    """A plan, its verdict, and the problem it answers; the problem's kind says what was asked."""

    plan: Plan
    verdict: Verdict
    problem: Problem

    def to_json(self) -> dict[str, Any]:
        head = {"format": "partita-plan", "version": 2}
        return {**head, **self.shown(), "problem": self.problem.to_json()}

    def shown(self) -> dict[str, Any]:
        """The plan, what is claimed for it and what was asked, without graph and costs: what scripts read."""
        return {**self.plan.to_json(), **self.verdict.to_json(), **self.problem.shown()}

    def write(self, path: str | Path) -> Path:
        return write_whole(path, dump_json(self.to_json()))


@dataclass(frozen=True)
class PlanFile(AnyPlanFile):
    """A plan file about one task graph."""

    plan: GraphPlan
    problem: GraphProblem

    @property
    def graph(self) -> TaskGraph:
        return self.problem.graph

    @property
    def cluster(self) -> Cluster:
        return self.problem.cluster

    @property
    def costs(self) -> CostTable:
        return self.problem.costs

    @staticmethod
    def read(path: str | Path) -> PlanFile:
        """The plan in a file. Raises PlanError with every fault at once, also for a plan of offloading."""
        file = read_plan(path)
        if not isinstance(file, PlanFile):
            raise PlanError(
                f"{path} is a plan of offloading", hint="use partita offload explain, simulate, run, report"
            )
        return file


@dataclass(frozen=True)
class OffloadFile(AnyPlanFile):
    """A plan file about jobs between a device and a server."""

    plan: OffloadPlan
    problem: OffloadProblem

    def shown(self) -> dict[str, Any]:
        return {"makespan_s": self.verdict.value_s, **super().shown()}

    @staticmethod
    def read(path: str | Path) -> OffloadFile:
        """The plan in a file. Raises PlanError with every fault at once, also for a plan of another kind."""
        file = read_plan(path)
        if not isinstance(file, OffloadFile):
            raise PlanError(
                f"{path} is a {file.plan.kind} plan, not one of offloading", hint="use partita explain, simulate, run"
            )
        return file


def read_plan(path: str | Path) -> PlanFile | OffloadFile:
    """The plan in a file, of whatever kind. Raises PlanError with every fault at once."""
    value = read_json(path, PlanError, "partita-plan", version=2)
    try:
        plan = plan_from_json(value)
        verdict = Verdict.from_json(value)
        problem = problem_from_json(value["problem"], str(path))
    except PlanError as error:
        raise PlanError(f"{path}: {error.message}", hint=error.hint) from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PlanError(f"{path} is damaged: {type(error).__name__}: {error}", hint="make the plan again") from error
    asked = _ASKED[problem.kind]
    if verdict.objective not in asked:
        raise PlanError(
            f"{path}: the objective is {verdict.objective}; for a {problem.kind} it is {' or '.join(asked)}",
            hint="make the plan again",
        )
    if isinstance(plan, OffloadPlan) and isinstance(problem, OffloadProblem):
        refuse(PlanError, plan.check(problem), str(path), hint="plan again for these jobs")
        return OffloadFile(plan, verdict, problem)
    if isinstance(plan, OffloadPlan) or isinstance(problem, OffloadProblem):
        raise PlanError(
            f"{path}: a plan of kind {plan.kind} for a problem of kind {problem.kind}", hint="make the plan again"
        )
    refuse(
        PlanError, plan.check(problem.graph, problem.cluster), str(path), hint="plan again for this model and cluster"
    )
    return PlanFile(plan, verdict, problem)


#: Kind of problem -> what can be asked of it.
_ASKED: Mapping[str, tuple[Objective, ...]] = MappingProxyType(
    {"pipeline": ("step",), "placement": ("throughput", "latency"), "offload": ("makespan",)}
)
_PLANS: Mapping[str, Callable[[Mapping[str, Any]], Plan]] = MappingProxyType(
    {p.kind: p.from_json for p in (PipelinePlan, PlacementPlan, OffloadPlan)}
)
_PROBLEMS: Mapping[str, Callable[[Mapping[str, Any], str], Problem]] = MappingProxyType(
    {p.kind: p.from_json for p in (PipelineProblem, PlacementProblem, OffloadProblem)}
)


def plan_from_json(value: Mapping[str, Any]) -> Plan:
    """The plan in a parsed JSON object. Raises PlanError for an unknown kind, KeyError or the like for a damaged one."""
    return _of_kind(value, _PLANS, "plan")(value)


def problem_from_json(value: Mapping[str, Any], what: str) -> Problem:
    """The problem in a parsed JSON object. Raises PlanError for an unknown kind."""
    return _of_kind(value, _PROBLEMS, "problem")(value, what)


def _of_kind(value: Mapping[str, Any], readers: Mapping[str, T], what: str) -> T:
    found = readers.get(str(value["kind"]))
    if found is None:
        raise PlanError(f"unknown kind of {what} {value['kind']!r}", hint=f"known: {', '.join(readers)}")
    return found
