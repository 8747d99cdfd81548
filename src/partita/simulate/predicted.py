"""What a plan's own problem says that it will take."""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import GraphPlan, GraphProblem
from partita.nouns.program import Op, Program
from partita.nouns.timeline import Timeline
from partita.simulate.cold_caches import chilled, cold_s
from partita.simulate.lower import program_of
from partita.simulate.overheads import begin_s, beginnings, overheads
from partita.simulate.simulator import Durations, durations, simulate


def predicted(problem: GraphProblem, plan: GraphPlan) -> Timeline:
    """The timeline of one step, or of one sample through a placement.

    Raises PlanError where the plan does not fit or a task cannot run where it is placed, ProgramError where devices wait
    for each other in a circle.
    """
    program = program_of(problem, plan)
    return simulate(program, durations_of(problem, plan, program))


def durations_of(problem: GraphProblem, plan: GraphPlan, program: Program) -> Durations:
    """What the instructions of a plan's program take; those of a pipeline with what they cost beside their tasks."""
    if not isinstance(problem, PipelineProblem) or not isinstance(plan, PipelinePlan):
        return durations(program, problem.graph, problem.costs, problem.cluster)
    warm = warm_durations_of(problem, plan, program)
    return Durations(warm.busy_s + chilled(program, warm, colds(problem, plan, program)), warm.lag_s)


def warm_durations_of(problem: PipelineProblem, plan: PipelinePlan, program: Program) -> Durations:
    """Likewise, if no device that waits found its caches cold."""
    cluster = problem.cluster_of(plan)
    known = durations(program, problem.graph, problem.costs, cluster)
    return Durations(known.busy_s + overheads(program, problem.graph, problem.costs, cluster), known.lag_s)


def colds(problem: PipelineProblem, plan: PipelinePlan, program: Program) -> FloatArray:
    """[devices of the program] seconds that what each does behind a long wait takes longer."""
    cluster = problem.cluster_of(plan)
    return np.array([cold_s(cluster.by_name[n]) for n in program.queues[: program.devices]])


def computing_s(problem: PipelineProblem, plan: PipelinePlan) -> dict[str, float]:
    """Device -> seconds of a step that it computes, without what begins it; those of the plan only."""
    program = program_of(problem, plan)
    busy, computes = durations_of(problem, plan, program).busy_s, program.op == Op.COMPUTE
    first, devices = beginnings(program), problem.cluster_of(plan).by_name
    busy[first] -= [begin_s(devices[program.queues[q]]) for q in program.queue[first].tolist()]
    queues = enumerate(program.queues[: program.devices])
    return {d: float(busy[computes & (program.queue == q)].sum()) for q, d in queues}
