"""Cross-validation, grid and random search over scikit-learn pipelines as flows.

    run_flow(search_flow(pipeline, {"pca__n_components": [8, 16], "svc__C": [0.1, 1, 10]}, X, y, cv=5))

A pipeline is taken apart: each of its steps is a task of its own in each fold, and has only its own parameters among its
arguments. So steps with equal parameters behind equal steps are the same task: a prefix is fitted once a fold, however many
candidates begin with it. The result is the best candidate fitted to all data; which one it is, and its score, tell
the options and scores of the run.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from partita.dataflow.flow import Value, choose, explore, gather, step
from partita.errors import FlowError

Grid: TypeAlias = Mapping[str, Sequence[Any]]
Data: TypeAlias = tuple[Any, Any, Any, Any]  #: train X and y, test X and y


def search_flow(
    pipeline: Any,
    grid: Grid | Sequence[Grid],
    X: Any,
    y: Any = None,
    *,
    cv: Any = 5,
    n_iter: int | None = None,
    scoring: Any = None,
    seed: int = 0,
) -> Any:
    """The best of a grid's candidates by the mean of their scores over the folds, fitted to all data.

    `grid`, `cv` and `scoring` as scikit-learn's searches take them: a list of grids holds the candidates of all of them.
    With `n_iter`, so many candidates drawn by lot (distributions are allowed then; the same `seed`, the same candidates).
    Raises FlowError for parameters that the pipeline does not have, MissingDependency-like ImportError without scikit-learn.
    """
    if n_iter is None and isinstance(grid, Mapping):
        return best_of(pipeline, _explored(_checked(pipeline, grid)), X, y, cv=cv, scoring=scoring)
    candidates = drawn(grid, n_iter, seed) if n_iter is not None else listed(grid)
    return candidates_flow(pipeline, candidates, X, y, cv=cv, scoring=scoring)


def candidates_flow(
    pipeline: Any, candidates: Sequence[Mapping[str, Any]], X: Any, y: Any = None, *, cv: Any = 5, scoring: Any = None
) -> Any:
    """The best of these candidates, parameters by name, fitted to all data; what they have in common runs once."""
    each = {label: _checked(pipeline, c) for label, c in labelled(candidates).items()}
    scores = scores_flow(pipeline, list(each.values()), X, y, cv=cv, scoring=scoring)
    told = explore("candidate", {label: _plain(params=dict(c)) for label, c in each.items()})
    score = explore("candidate", dict(zip(each, scores, strict=True)))
    return _refitted(pipeline, choose(told, by=score, over="candidate"), _whole(X, y))


def best_of(pipeline: Any, params: Mapping[str, Any], X: Any, y: Any, *, cv: Any = 5, scoring: Any = None) -> Any:
    """The best of the options that `params` explore, fitted to all data."""
    score = score_flow(pipeline, params, X, y, cv=cv, scoring=scoring)
    names = [p.name for p in params.values() if isinstance(p, Value) and hasattr(p, "name")]
    if not names:
        return _refitted(pipeline, _plain(params=dict(params)), _whole(X, y))
    return _refitted(
        pipeline, choose(_plain(params=dict(params)), by=score, over=names, name="best candidate"), _whole(X, y)
    )


def cross_validation_flow(pipeline: Any, X: Any, y: Any = None, *, cv: Any = 5, scoring: Any = None) -> Any:
    """The list of the scores of a pipeline, one a fold."""
    return gather(_fold_score(pipeline, {}, X, y, cv, scoring), over="fold")


def score_flow(pipeline: Any, params: Mapping[str, Any], X: Any, y: Any, *, cv: Any = 5, scoring: Any = None) -> Any:
    """The mean score over the folds; `params` may hold explores."""
    return _mean(gather(_fold_score(pipeline, params, X, y, cv, scoring), over="fold"))


def scores_flow(pipeline: Any, candidates: Sequence[Mapping[str, Any]], X: Any, y: Any, *, cv: Any = 5, scoring: Any = None) -> list[Any]:  # fmt: skip
    """The mean score of each candidate."""
    fold = _folds(pipeline, X, y, cv)
    return [_mean(gather(_scored_in(pipeline, c, fold, scoring), over="fold")) for c in candidates]


def listed(grids: Grid | Sequence[Grid]) -> list[dict[str, Any]]:
    """All candidates of one or several grids.

    >>> listed([{"a": [1, 2]}, {"b": [3]}])
    [{'a': 1}, {'a': 2}, {'b': 3}]
    """
    from sklearn.model_selection import ParameterGrid

    return [dict(p) for p in ParameterGrid(grids)]


def drawn(grid: Grid | Sequence[Grid], n_iter: int, seed: int) -> list[dict[str, Any]]:
    """Candidates by lot: from lists and from distributions that have `rvs`."""
    from sklearn.model_selection import ParameterSampler

    if n_iter < 1:
        raise FlowError(f"{n_iter} candidates by lot", hint="draw at least 1")
    return [dict(p) for p in ParameterSampler(grid, min(n_iter, _ways(grid, n_iter)), random_state=seed)]


def _ways(grid: Grid | Sequence[Grid], most: int) -> int:
    """How many candidates there are; `most` where a distribution has no end."""
    grids = [grid] if isinstance(grid, Mapping) else list(grid)
    if any(hasattr(v, "rvs") for g in grids for v in g.values()):
        return most
    return sum(int(np.prod([len(v) for v in g.values()])) for g in grids)


# ---- the flow of one candidate


def _fold_score(pipeline: Any, params: Mapping[str, Any], X: Any, y: Any, cv: Any, scoring: Any) -> Any:
    return _scored_in(pipeline, _checked(pipeline, params), _folds(pipeline, X, y, cv), scoring)


def _folds(pipeline: Any, X: Any, y: Any, cv: Any) -> Any:
    """The data of a fold, train and test: an explore by the name "fold"."""
    from sklearn.base import is_classifier
    from sklearn.model_selection import check_cv

    splits = list(check_cv(cv, y, classifier=is_classifier(pipeline)).split(X, y))
    if not splits:
        raise FlowError("cv has no folds", hint="give a number of folds, at least 2")
    return _part(_whole(X, y), explore("fold", {str(k): split for k, split in enumerate(splits)}))


def _scored_in(pipeline: Any, params: Mapping[str, Any], data: Value, scoring: Any) -> Any:
    """The pipeline's steps one after the other, each with its own parameters, and the score of the last."""
    *before, (name, last) = _stages(pipeline)
    for stage, estimator in before:
        data = _transformed(params.get(stage, estimator), _own(params, stage), data)
    return _scored(params.get(name, last), _own(params, name), data, scoring)


def _stages(pipeline: Any) -> list[tuple[str, Any]]:
    """(name, estimator) of a pipeline's steps; an estimator that is no pipeline is one step without a name."""
    steps = getattr(pipeline, "steps", None)
    return [(str(n), e) for n, e in steps] if isinstance(steps, list) and steps else [("", pipeline)]


def _own(params: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """The parameters of one step, without its name; a plain estimator has all."""
    head = f"{stage}__" if stage else ""
    return {n.removeprefix(head): v for n, v in sorted(params.items()) if n.startswith(head)}


def _checked(pipeline: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, in the order of the pipeline's steps. Raises FlowError for those it has not."""
    stages = [name for name, _ in _stages(pipeline)]
    known = pipeline.get_params(deep=True)
    for name in params:
        stage = name.partition("__")[0]
        sound = name in known or (
            stage in params and stage in stages
        )  # of a step that is an option itself: told when it is set
        if not sound or (stages != [""] and stage not in stages):
            near = difflib.get_close_matches(name, [k for k in known if "__" in k or stages == [""]], 3)
            raise FlowError(
                f"{type(pipeline).__name__} has no parameter {name!r}",
                hint=f"did you mean {' or '.join(near)}?"
                if near
                else f"its steps are {', '.join(stages)}: name STEP__PARAMETER",
            )
    place = {name: k for k, name in enumerate(stages)}
    return dict(sorted(params.items(), key=lambda p: (place.get(p[0].partition("__")[0], 0), p[0])))


def _explored(grid: Grid) -> dict[str, Any]:
    """An explore for each parameter. Raises FlowError for one that has no options."""
    for name, options in grid.items():
        if isinstance(options, str) or not hasattr(options, "__len__") or not len(options):
            raise FlowError(f"the grid has no options for {name}", hint="give a list; distributions need n_iter")
    return {name: explore(name, labelled(options), ordered=_ordered(options)) for name, options in grid.items()}


def _ordered(options: Sequence[Any]) -> bool:
    """Whether they are numbers that rise."""
    numbers = all(isinstance(o, int | float | np.number) and not isinstance(o, bool) for o in options)
    return numbers and all(a < b for a, b in itertools.pairwise(options))


def labelled(options: Sequence[Any]) -> dict[str, Any]:
    """Short names for options, each its own.

    >>> labelled([1, "a", {"C": 1.0, "gamma": 0.5}, 1])
    {'1': 1, 'a': 'a', 'C 1.0, gamma 0.5': {'C': 1.0, 'gamma': 0.5}, '1 (2)': 1}
    """
    found: dict[str, Any] = {}
    for option in options:
        base, k = label(option), 1
        name = base
        while name in found:
            k += 1
            name = f"{base} ({k})"
        found[name] = option
    return found


def label(option: Any) -> str:
    if isinstance(option, Mapping):
        return ", ".join(f"{k.rpartition('__')[2]} {label(v)}" for k, v in option.items())[:80] or "as it is"
    if isinstance(option, float | np.floating):
        return f"{option:.4g}" if option != round(float(option), 1) else str(option)
    return " ".join(str(option).split())[:60]


# ---- what runs


@step
def _whole(X: Any, y: Any) -> tuple[Any, Any]:
    """The data, handed to the workers once."""
    return X, y


@step
def _part(whole: tuple[Any, Any], split: tuple[Any, Any]) -> Data:
    X, y = whole
    train, test = split
    return _rows(X, train), _rows(y, train), _rows(X, test), _rows(y, test)


def _rows(table: Any, rows: Any) -> Any:
    if table is None:
        return None
    if hasattr(table, "iloc"):
        return table.iloc[rows]
    return table[rows] if hasattr(table, "shape") else np.asarray(table)[rows]


def _set(estimator: Any, params: Mapping[str, Any]) -> Any:
    from sklearn.base import clone

    return clone(estimator).set_params(**{k: _fresh(v) for k, v in params.items()})


def _fresh(value: Any) -> Any:
    """A parameter that may be an estimator, unfitted."""
    from sklearn.base import clone

    return clone(value, safe=False) if hasattr(value, "get_params") else value


@step
def _transformed(estimator: Any, params: Mapping[str, Any], data: Data) -> Data:
    """Fitted to the training rows, applied to all."""
    if estimator is None or isinstance(estimator, str):  # "passthrough"
        return data
    X, y, test, test_y = data
    made = _set(estimator, params)
    fitted = made.fit_transform(X, y) if hasattr(made, "fit_transform") else made.fit(X, y).transform(X)
    return fitted, y, made.transform(test), test_y


@step
def _scored(estimator: Any, params: Mapping[str, Any], data: Data, scoring: Any) -> float:
    from sklearn.metrics import check_scoring

    X, y, test, test_y = data
    made = _set(estimator, params).fit(X, y)
    return float(check_scoring(made, scoring)(made, test, test_y))


@step
def _mean(scores: list[float]) -> float:
    return float(np.mean(scores))


@step
def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return dict(params)


@step
def _refitted(pipeline: Any, params: Mapping[str, Any], whole: tuple[Any, Any]) -> Any:
    """The chosen candidate, fitted to all data."""
    return _set(pipeline, params).fit(*whole)
