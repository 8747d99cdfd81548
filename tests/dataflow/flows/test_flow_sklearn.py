"""Ready flows over scikit-learn pipelines: what scikit-learn's own searches find, with every prefix fitted once a fold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV, KFold, RandomizedSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from partita.dataflow.flows import candidates_flow, cross_validation_flow, optuna_rounds, scores_flow, search_flow
from partita.dataflow.flows.search import drawn, labelled
from partita.dataflow.graph import unfold
from partita.dataflow.run.launch import run_flow
from partita.errors import FlowError

X, Y = (a[:150] for a in load_digits(return_X_y=True))
PIPELINE = Pipeline([("scale", StandardScaler()), ("pca", PCA(random_state=0)), ("model", RidgeClassifier())])
GRID = {
    "scale": [StandardScaler(), MinMaxScaler(), "passthrough"],
    "pca__n_components": [4, 8],
    "model__alpha": [0.1, 1.0, 10.0],
}


def scores(outcome: Any) -> list[float]:
    return sorted(row.score for choice in outcome.record.choices for row in choice.scores)


def test_a_grid_search_finds_what_scikit_learn_finds() -> None:
    theirs = GridSearchCV(PIPELINE, GRID, cv=3).fit(X, Y)
    ours = run_flow(search_flow(PIPELINE, GRID, X, Y, cv=3), workers=0)
    assert scores(ours) == pytest.approx(sorted(theirs.cv_results_["mean_test_score"]))
    best = [r for c in ours.record.choices for r in c.scores if r.kept]
    assert best[0].score == pytest.approx(theirs.best_score_)
    assert (ours.value.predict(X) == theirs.best_estimator_.predict(X)).all()


def test_every_prefix_is_fitted_once_a_fold() -> None:
    graph = unfold(search_flow(PIPELINE, GRID, X, Y, cv=3))
    tasks = Counter(n.label for n in graph.nodes if n.kind == "call")
    assert tasks["_transformed"] == 3 * (3 + 3 * 2)  # a fold: three scalings, two sizes of each
    assert tasks["_scored"] == 3 * 18
    assert (tasks["_part"], tasks["_whole"]) == (3, 1)


def test_a_list_of_grids_and_a_step_that_is_an_option() -> None:
    grids = [
        {"model": [RidgeClassifier()], "model__alpha": [1.0, 10.0]},
        {"model": [GaussianNB()], "pca__n_components": [4, 6]},
    ]
    theirs = GridSearchCV(PIPELINE, grids, cv=3).fit(X, Y)
    ours = run_flow(search_flow(PIPELINE, grids, X, Y, cv=3), workers=0)
    assert scores(ours) == pytest.approx(sorted(theirs.cv_results_["mean_test_score"]))
    assert type(ours.value.named_steps["model"]) is type(theirs.best_estimator_.named_steps["model"])


def test_candidates_by_lot_are_those_of_scikit_learn() -> None:
    theirs = RandomizedSearchCV(PIPELINE, GRID, n_iter=5, cv=3, random_state=7).fit(X, Y)
    ours = run_flow(search_flow(PIPELINE, GRID, X, Y, cv=3, n_iter=5, seed=7), workers=0)
    assert scores(ours) == pytest.approx(sorted(theirs.cv_results_["mean_test_score"]))
    assert len(drawn({"a": [1, 2]}, 100, 0)) == 2


def test_cross_validation_of_a_plain_estimator_and_of_other_folds() -> None:
    folds = KFold(4, shuffle=True, random_state=0)
    found = run_flow(cross_validation_flow(GaussianNB(), X, Y, cv=folds, scoring="f1_macro"), workers=0).value
    assert found == pytest.approx(list(cross_val_score(GaussianNB(), X, Y, cv=folds, scoring="f1_macro")))


def test_frames_and_sparse_matrices_are_cut_by_rows() -> None:
    pd, sparse = pytest.importorskip("pandas"), pytest.importorskip("scipy.sparse")
    plain = run_flow(cross_validation_flow(RidgeClassifier(), X, Y, cv=3), workers=0).value
    for data, target in ((pd.DataFrame(X), pd.Series(Y)), (sparse.csr_matrix(X), Y.tolist())):
        assert run_flow(cross_validation_flow(RidgeClassifier(), data, target, cv=3), workers=0).value == pytest.approx(
            plain, abs=0.02
        )


def test_a_candidate_that_raises_loses_its_branch_only() -> None:
    ours = run_flow(
        candidates_flow(PIPELINE, [{"pca__n_components": 4}, {"pca__n_components": 4000}], X, Y, cv=3), workers=0
    )
    assert ours.value.named_steps["pca"].n_components == 4
    lost = [row for c in ours.record.choices for row in c.scores if row.score is None]
    assert "n_components" in lost[0].reason


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"pca__n_componentz": [1]}, r"no parameter 'pca__n_componentz'\. hint: did you mean pca__n_components"),
        ({"svc__C": [1]}, "no parameter 'svc__C'"),
        ({"memory": [None]}, "no parameter 'memory'"),
        ({"pca__n_components": []}, "no options for pca__n_components"),
        ({"pca__n_components": "48"}, "no options for pca__n_components"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(grid: Any, said: str) -> None:
    with pytest.raises(FlowError, match=said):
        search_flow(PIPELINE, grid, X, Y, cv=3)


def test_options_have_names_of_their_own() -> None:
    assert list(labelled([RidgeClassifier(), RidgeClassifier(alpha=2), RidgeClassifier()])) == [
        "RidgeClassifier()",
        "RidgeClassifier(alpha=2)",
        "RidgeClassifier() (2)",
    ]


def test_a_round_in_which_all_fail_is_told_and_the_next_one_runs() -> None:
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(direction="maximize")
    study.enqueue_trial({"n": 4000})
    study.enqueue_trial({"n": 4})
    rounds = optuna_rounds(
        study, lambda t: {"pca__n_components": t.suggest_categorical("n", [4000, 4])},
        lambda candidates: scores_flow(PIPELINE, candidates, X, Y, cv=3), rounds=2, each=1, workers=0,
    )  # fmt: skip
    assert [r.scores[0] is None for r in rounds] == [True, False]
    assert [t.state.name for t in study.trials] == ["FAIL", "COMPLETE"]


def test_what_one_after_another_would_call_counts_folds_and_only_the_candidate_taken() -> None:
    """Three folds of each of 20 candidates: split, two transformers' fits and their use, fit and score, and once the refit."""
    for n in (5, 20):
        graph = unfold(candidates_flow(PIPELINE, [{"model__alpha": float(k)} for k in range(n)], X, Y, cv=3))
        assert graph.configurations == n
        assert graph.applied % n == 0
        assert graph.applied // n < 30


def test_rounds_of_optuna_learn_and_share() -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    rounds = optuna_rounds(
        study,
        lambda t: {"pca__n_components": t.suggest_categorical("n", [4, 8, 4000]), "model__alpha": t.suggest_float("alpha", 0.1, 10.0, log=True)},
        lambda candidates: scores_flow(PIPELINE, candidates, X, Y, cv=3),
        rounds=2, each=6, workers=0,
    )  # fmt: skip
    told = [s for r in rounds for s in r.scores]
    assert [t.value for t in study.trials] == told
    assert any(s is None for s in told)  # 4000 components of 64
    assert study.best_value == max(s for s in told if s is not None)
    params = next(c for r in rounds for c, s in zip(r.candidates, r.scores, strict=True) if s == study.best_value)
    assert study.best_value == pytest.approx(np.mean(cross_val_score(PIPELINE.set_params(**params), X, Y, cv=3)))
    assert rounds[0].outcome is not None
    labels = Counter(t.label for t in rounds[0].outcome.record.tasks)
    assert labels["_transformed"] < 2 * 3 * 6
