"""What a plan's own problem says that it will take."""

from __future__ import annotations

from partita.nouns.plan import GraphPlan, GraphProblem
from partita.nouns.timeline import Timeline
from partita.simulate.lower import program_of
from partita.simulate.simulator import durations, simulate


def predicted(problem: GraphProblem, plan: GraphPlan) -> Timeline:
    """The timeline of one step, or of one sample through a placement.

    Raises PlanError where the plan does not fit or a task cannot run where it is placed, ProgramError where devices wait
    for each other in a circle.
    """
    program = program_of(problem, plan)
    return simulate(program, durations(program, problem.graph, problem.costs, problem.cluster))
