"""A new plan for devices that are not as fast as they were when the plan was made, or not there any more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace

from partita.errors import Infeasible
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.simulate.predicted import predicted
from partita.simulate.run_speed import DeviceSpeed, as_they_ran

WORTH = 0.03  #: a new plan that saves less of the step than this share is no better


@dataclass(frozen=True)
class Replan:
    """What a new plan would bring."""

    file: PlanFile  #: the better one of the two, its problem's devices as fast as they are
    old_s: float  #: a step by the old plan on these devices
    new_s: float  #: by the new one

    @property
    def worth_it(self) -> bool:
        return self.new_s < (1 - WORTH) * self.old_s


def replanned(file: PlanFile, devices: tuple[DeviceSpeed, ...]) -> Replan:
    """Plan again, with the same wishes, for devices of these speeds; the old plan stays where the new one is no better."""
    from partita.pipeline.plan.planner import pays_beside, plan_pipeline  # its kernels take a second to load

    problem = file.problem
    assert isinstance(problem, PipelineProblem)
    assert isinstance(file.plan, PipelinePlan)
    cluster = as_they_ran(problem, devices)
    old = replace(file, problem=problem.on(cluster))
    old_s = predicted(old.problem, old.plan).duration_s
    new = plan_pipeline(problem.profile, cluster, pays=pays_beside(file.plan), **asdict(problem.wish))
    found = Replan(new, old_s, new.verdict.value_s)
    return found if found.worth_it else Replan(old, old_s, new.verdict.value_s)


def planned_without(file: PlanFile, gone: Collection[str]) -> PlanFile:
    """The plan for the devices that are left, with the same wishes as far as they can be granted: no more stages than devices,
    another schedule where the wished one needs more of them. Raises Infeasible where none is left, or where the model does not
    fit into those that are.
    """
    from partita.pipeline.plan.planner import pays_beside, plan_pipeline

    problem = file.problem
    assert isinstance(problem, PipelineProblem)
    assert isinstance(file.plan, PipelinePlan)
    pays = pays_beside(file.plan)
    left = [d.name for d in problem.cluster.devices if d.name not in gone]
    if not left:
        raise Infeasible("no device is left", constraint="devices", relaxation="replace workers that die")
    cluster, wish = problem.cluster.only(left), problem.wish
    if wish.stages is not None:
        wish = replace(wish, stages=min(wish.stages, len(left)))
    try:
        return plan_pipeline(problem.profile, cluster, pays=pays, **asdict(wish))
    except Infeasible:
        if wish.schedule is None:
            raise
        return plan_pipeline(problem.profile, cluster, pays=pays, **asdict(replace(wish, schedule="auto")))
