"""Options that come in rounds, from somebody who learns from the scores: Optuna's samplers, asked and told.

    study = optuna.create_study(direction="maximize")
    optuna_rounds(study, suggest, lambda candidates: scores_flow(pipeline, candidates, X, y), rounds=5, each=20)

Each round asks for some candidates, runs them as one flow, so that what they have in common runs once, and tells the scores.
With a store, what earlier rounds have computed is not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partita.dataflow.flow import Value
from partita.dataflow.run.engine import AllLost, Outcome
from partita.dataflow.run.launch import run_flow
from partita.errors import FlowError

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Round:
    """What was asked in a round, and what came of it; a score is None where the candidate failed."""

    candidates: tuple[Params, ...]
    scores: tuple[float | None, ...]
    outcome: Outcome | None  #: None where all failed


def optuna_rounds(
    study: Any,
    suggest: Callable[[Any], Params],
    scores: Callable[[Sequence[Params]], Sequence[Value]],
    *,
    rounds: int,
    each: int,
    **how: Any,
) -> list[Round]:
    """Ask for `each` candidates, score them, tell the scores, so many `rounds`; the study knows the best afterwards.

    `suggest(trial)` gives a candidate, `scores(candidates)` a value of a flow for each, `how` goes to `run_flow`. A candidate
    whose steps raise is told as failed. Raises FlowError for no rounds, or where `scores` gives another number of values.
    """
    from optuna.trial import TrialState

    if rounds < 1 or each < 1:
        raise FlowError(f"{rounds} rounds of {each} candidates", hint="ask for at least 1 of both")
    found = []
    for _ in range(rounds):
        trials = [study.ask() for _ in range(each)]
        candidates = tuple(suggest(t) for t in trials)
        told = scored(candidates, scores(candidates), **how)
        for trial, score in zip(trials, told.scores, strict=True):
            study.tell(trial, score) if score is not None else study.tell(trial, state=TrialState.FAIL)
        found.append(told)
    return found


def scored(candidates: Sequence[Params], values: Sequence[Value], **how: Any) -> Round:
    """The scores of candidates, run as one flow; equal candidates run once."""
    if len(values) != len(candidates):
        raise FlowError(
            f"{len(values)} scores for {len(candidates)} candidates", hint="give one value for each, in their order"
        )
    try:
        outcome = run_flow(list(values), **how)
    except AllLost:
        return Round(tuple(candidates), (None,) * len(candidates), None)
    scores = [None if v is None else float(v) for v in outcome.values]
    return Round(tuple(candidates), tuple(scores), outcome)
