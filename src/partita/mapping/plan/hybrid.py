"""The framework in steps: what comes to mind and Bayesian optimisation, then generations, then a polish; the best of all.

    step        begins with                         share of the budget
    bayes       single, intuitive, heft             8 %     (TPE; left out without Optuna)
    genetic     all of the above                    17 %
    polish      the best of all                     75 %

Source: "Deep Learning Performance Optimization via Model Parallelization", UC Irvine; its evaluations are of real steps,
these of the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from partita.mapping.plan import bayes
from partita.mapping.plan.genetic import genetic
from partita.mapping.plan.polish import polished
from partita.mapping.plan.question import Finding, Mapped, Question, Search, best_of

STEPS: Mapping[str, tuple[Search, float]] = MappingProxyType(
    {"bayes": (bayes.with_sampler("tpe"), 0.08), "genetic": (genetic, 0.17), "polish": (polished, 0.75)}
)


def hybrid(question: Question, known: Sequence[Mapped], budget_s: float, seed: int) -> Finding:
    """The best of the steps in turn."""
    found, tried, phases = list(known), 0, []
    for name, (search, share) in STEPS.items():
        if name == "bayes" and not bayes.available():
            continue
        step = search(question, found, share * budget_s, seed)
        found.append(step.best)
        tried += step.tried
        phases.append((name, step.best.value_s))
    return Finding(best_of(found), 0.0, tried, tuple(phases))
