"""Surrogates: functions from the features of a mapping to the seconds of an iteration, learned from what was measured.

Six kinds from scikit-learn are compared on the same measurements by cross-validation, and the one with the least error is
fitted to all of them. All learn the logarithm of the time from scaled features: an error is a share, and no time is below 0.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from partita.errors import BadInput, MissingDependency
from partita.nouns.graph import FloatArray

FOLDS = 5
FEWEST = 2 * FOLDS  #: measurements that a comparison needs
Regressor = Any  #: of scikit-learn: fit(features, seconds), predict(features)


def available() -> bool:
    """Whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


@dataclass(frozen=True)
class Score:
    """How well a kind of surrogate predicts measurements that it has not seen."""

    name: str
    mape: float  #: mean absolute error as a share of the measured time
    median_error: float  #: the median of the same errors
    rank_correlation: float  #: Spearman's, over all held-out predictions
    fit_s: float  #: seconds of one fit, the mean over the folds

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compared(features: FloatArray, measured_s: FloatArray, seed: int = 0) -> tuple[Score, ...]:
    """Every kind's score by cross-validation over the same folds, the best first.

    `features` [mappings, features], `measured_s` [mappings]. Raises BadInput for fewer than FEWEST, MissingDependency
    without scikit-learn.
    """
    if not available():
        raise MissingDependency("surrogates need scikit-learn", hint="pip install 'partita[mapping]'")
    if len(measured_s) < FEWEST:
        raise BadInput(f"{len(measured_s)} measured mappings; a comparison needs {FEWEST}", hint="measure more of them")
    fold = np.random.default_rng(seed).permutation(len(measured_s)) % FOLDS
    scores = [_score(name, make, features, measured_s, fold, seed) for name, make in KINDS.items()]
    return tuple(sorted(scores, key=lambda s: s.mape))


def fitted(
    name: str, features: FloatArray, measured_s: FloatArray, seed: int = 0
) -> Callable[[FloatArray], FloatArray]:
    """The surrogate of a kind, fitted to all measurements: [mappings, features] -> [mappings] seconds."""
    from threadpoolctl import threadpool_limits

    model = _model(KINDS[name], len(measured_s), seed)
    _fit(model, features, measured_s)

    def predicted(asked: FloatArray) -> FloatArray:
        with threadpool_limits(1):
            return np.asarray(model.predict(asked), np.float64)

    return predicted


def _score(
    name: str, make: Callable[[int, int], Regressor], features: FloatArray, measured_s: FloatArray, fold: Any, seed: int
) -> Score:
    found, began = np.empty(len(measured_s)), time.perf_counter()
    for k in range(FOLDS):
        model = _model(make, int((fold != k).sum()), seed)
        _fit(model, features[fold != k], measured_s[fold != k])
        found[fold == k] = model.predict(features[fold == k])
    spent = (time.perf_counter() - began) / FOLDS
    off = np.abs(found / measured_s - 1)
    return Score(name, float(off.mean()), float(np.median(off)), rank_correlation(found, measured_s), spent)


def rank_correlation(found: FloatArray, wanted: FloatArray) -> float:
    """Spearman's; 0 where one of the two has no ranks.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 9.0]))
    1.0
    """
    from scipy.stats import rankdata

    a, b = rankdata(found), rankdata(wanted)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return round(float(a @ b) / scale, 12) if scale > 0 else 0.0


def _model(make: Callable[[int, int], Regressor], rows: int, seed: int) -> Regressor:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    inner = make_pipeline(StandardScaler(), make(rows, seed))
    scaled = TransformedTargetRegressor(inner, transformer=StandardScaler())
    return TransformedTargetRegressor(scaled, func=np.log, inverse_func=_bounded_exp)


def _bounded_exp(x: FloatArray) -> FloatArray:
    """A straight line may lead anywhere; no iteration takes a year."""
    return np.asarray(np.exp(np.clip(x, -20.0, 17.0)))


def _fit(model: Regressor, features: FloatArray, measured_s: FloatArray) -> None:
    from threadpoolctl import threadpool_limits  # scikit-learn brings it

    with warnings.catch_warnings(), threadpool_limits(1):  # tables this small are slower on several threads
        warnings.simplefilter("ignore")  # of a kernel's bound that was reached, a network that could go on learning
        model.fit(features, measured_s)


def _linear(rows: int, seed: int) -> Regressor:
    from sklearn.linear_model import Ridge

    return Ridge(1e-2)


def _nearest(rows: int, seed: int) -> Regressor:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(min(4, rows), weights="distance")


def _forest(rows: int, seed: int) -> Regressor:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(100, random_state=seed)


def _boosting(rows: int, seed: int) -> Regressor:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(
        n_estimators=150, max_depth=3, learning_rate=0.08, subsample=0.8, random_state=seed
    )


def _gaussian(rows: int, seed: int) -> Regressor:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel

    kernel = RBF(3.0, (0.3, 100.0)) + DotProduct(1.0) + WhiteKernel(0.05, (1e-4, 1.0))
    return GaussianProcessRegressor(kernel, random_state=seed)


def _network(rows: int, seed: int) -> Regressor:
    from sklearn.neural_network import MLPRegressor

    return MLPRegressor(hidden_layer_sizes=(16, 16), alpha=1e-2, solver="lbfgs", max_iter=300, random_state=seed)


#: Name -> how it is made, for so many rows and a seed.
KINDS: Mapping[str, Callable[[int, int], Regressor]] = MappingProxyType(
    {
        "linear": _linear,
        "nearest neighbours": _nearest,
        "random forest": _forest,
        "gradient boosting": _boosting,
        "Gaussian process": _gaussian,
        "neural network": _network,
    }
)
