"""Ready flows: cross-validation, grid and random search over scikit-learn pipelines, Optuna as a source of options."""

from partita.dataflow.flows.rounds import Round, optuna_rounds
from partita.dataflow.flows.search import candidates_flow, cross_validation_flow, score_flow, scores_flow, search_flow

__all__ = [
    "Round",
    "candidates_flow",
    "cross_validation_flow",
    "optuna_rounds",
    "score_flow",
    "scores_flow",
    "search_flow",
]
