"""Adaptive: a mapping that is searched for again when a device is not as fast as it was; see `simulate.adapting`."""

from __future__ import annotations

import itertools

from partita.mapping.plan.jobs import candidates
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.simulate.adapting import Adapting
from partita.simulate.adapting import adapting as adapting_by

SEARCH_S = 1.0


def adapting(problem: PipelineProblem, plan: PipelinePlan, seed: int = 0) -> Adapting:
    """Decisions without end, from what each step took. Every search has a seed of its own."""
    seeds = itertools.count(seed)

    def best(problem: PipelineProblem) -> tuple[PipelinePlan, float]:
        found = min(candidates(problem, "polish", SEARCH_S, next(seeds)), key=lambda c: c.step_s)
        return found.plan, found.step_s

    return adapting_by(problem, plan, best)
