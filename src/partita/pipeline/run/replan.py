"""A new plan for devices that are not as fast as they were when the plan was made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

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
    from partita.pipeline.plan.planner import plan_pipeline  # its kernels take a second to load: not for every run

    problem = file.problem
    assert isinstance(problem, PipelineProblem)
    cluster = as_they_ran(problem, devices)
    old = replace(file, problem=problem.on(cluster))
    old_s = predicted(old.problem, old.plan).duration_s
    new = plan_pipeline(problem.profile, cluster, **asdict(problem.wish))
    found = Replan(new, old_s, new.verdict.value_s)
    return found if found.worth_it else Replan(old, old_s, new.verdict.value_s)
