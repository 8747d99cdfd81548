"""The opponents: plain regressors under the same contract, at settings that suit tables of this size.

They learn the logarithm of the time from the logarithms of the numbers and an indicator for each level of a kind. Their
intervals come from the errors of five inner folds. A linear model in logarithms is a product of powers, and so explainable.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import MissingDependency
from partita.models.capture.inputs import Scale, scale_of
from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.model import Prediction, widening
from partita.models.splits import folds
from partita.nouns.graph import FloatArray


@dataclass(frozen=True, eq=False)
class Regressor:
    """A fitted regressor of scikit-learn."""

    name: str
    explainable: bool
    roles: Mapping[str, Role]
    scale: Scale
    fitted: Any
    log_sd: float

    def predict(self, table: Table) -> Prediction:
        log_time = self.fitted.predict(features(table, self.roles, self.scale))
        return Prediction.around(log_time, np.full(len(table), self.log_sd))


def features(table: Table, roles: Mapping[str, Role], scale: Scale) -> FloatArray:
    """[rows, features]: logarithms and indicators."""
    columns = []
    for name, role in roles.items():
        if role == "kind":
            columns += list(scale.indicators(table, name).values())
        else:
            columns.append(scale.log(table, name))
    return np.stack(columns, axis=1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without scikit-learn's remarks on bounds that its own search came close to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@_quiet()
def fit_regressor(name: str, table: Table, times: FloatArray, roles: Mapping[str, Role], *, seed: int) -> Regressor:
    """One of OPPONENTS, fitted. Raises MissingDependency without scikit-learn."""
    scale, target = scale_of(table, roles), np.log(times)
    x, make = features(table, roles, scale), OPPONENTS[name]
    errors = np.concatenate(
        [
            target[s.test] - make(seed).fit(x[s.train], target[s.train]).predict(x[s.test])
            for s in folds(len(x), seed=seed)
        ]
    )
    sd = float(np.std(errors)) + 1e-9
    return Regressor(
        name, name == "log-linear", roles, scale, make(seed).fit(x, target), sd * widening(errors, np.full(len(x), sd))
    )


def _linear(seed: int) -> Any:
    return _sklearn("linear_model").RidgeCV(np.logspace(-4, 2, 13))


def _boosting(seed: int) -> Any:
    return _sklearn("ensemble").GradientBoostingRegressor(
        n_estimators=600, max_depth=4, learning_rate=0.05, subsample=0.8, random_state=seed
    )


def _process(seed: int) -> Any:
    return _Process(seed)


class _Process:
    """A Gaussian process whose kernel is found on at most SAMPLE rows and then used on all of them: the search is O(rows^3)
    a step, and the kernel of a few hundred rows is that of a thousand."""

    SAMPLE = 400

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.found: Any = None

    def fit(self, x: FloatArray, y: FloatArray) -> Any:
        parts, module = _sklearn("gaussian_process.kernels"), _sklearn("gaussian_process")
        length = parts.RBF(np.full(x.shape[1], 2.0), (0.05, 100.0))
        kernel = parts.ConstantKernel(1.0, (1e-3, 1e3)) * length + parts.WhiteKernel(1e-2, (1e-8, 1.0))
        keep = np.random.default_rng(self.seed).permutation(len(x))[: self.SAMPLE]
        searched = module.GaussianProcessRegressor(kernel, normalize_y=True).fit(x[keep], y[keep])
        self.found = module.GaussianProcessRegressor(searched.kernel_, optimizer=None, normalize_y=True).fit(x, y)
        return self

    def predict(self, x: FloatArray) -> FloatArray:
        return np.asarray(self.found.predict(x), np.float64)


def threadpool_limits(threads: int) -> contextlib.AbstractContextManager[Any]:
    """At most so many threads of linear algebra inside the block; no limit where threadpoolctl is not installed."""
    try:
        import threadpoolctl
    except ImportError:
        return contextlib.nullcontext()
    limits: contextlib.AbstractContextManager[Any] = threadpoolctl.threadpool_limits(threads)
    return limits


def _sklearn(module: str) -> Any:
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise MissingDependency(
            "the plain regressors need scikit-learn, which is not installed", hint="pip install 'partita[predict]'"
        ) from error


OPPONENTS: Mapping[str, Callable[[int], Any]] = {
    "log-linear": _linear,
    "gradient boosting": _boosting,
    "gaussian process": _process,
}
