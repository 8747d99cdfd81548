"""Operators that a mapping cannot part, and what keeps them together: a person who wonders why they do not move finds it here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.page.plan_rows import is_mapping

MOST, NAMED = 6, 4  #: lines, and operators in one of them


def together(file: PlanFile) -> dict[str, list[str]]:
    """What is shared -> the operators that stay on one device for it: a buffer that the forward changes ("buffer mean"), a value
    whose shape is known only when it runs ("value nonzero"), a weight ("parameter embedding.weight"), unless it is shared by the
    parts of operators, whose gradients are summed. Empty where the plan is no mapping."""
    problem = file.problem
    if not is_mapping(file) or not isinstance(problem, PipelineProblem):
        return {}
    found: dict[str, list[str]] = {}
    for t in problem.graph.tasks:
        if t.group is not None and t.phase == "forward":
            found.setdefault(t.group, []).append(t.id)
    parts = {t for s in problem.splits for t in s.tasks}
    for s in problem.graph.shared:
        if not parts.issuperset(s.tasks):
            found[f"parameter {s.name}"] = list(s.tasks)
    return {why: tasks for why, tasks in found.items() if len(tasks) > 1}


def lines(found: Mapping[str, Sequence[str]]) -> list[str]:
    """A line each, the first few.

    >>> lines({"buffer mean": ["conv", "norm"]})
    ['conv, norm: buffer mean']
    """
    said = [
        f"{', '.join(tasks[:NAMED])}{f' and {len(tasks) - NAMED} more' if len(tasks) > NAMED else ''}: {why}"
        for why, tasks in found.items()
    ]
    return said[:MOST] + ([f"and {len(said) - MOST} groups more"] if len(said) > MOST else [])
