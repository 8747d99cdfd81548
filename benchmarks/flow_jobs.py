"""The exploration of flow.py: three nested levels over images or rows, as plain functions and as a flow.

load -> prepare (3 ways) -> features (4 ways) -> model (3 kinds x 4 strengths) -> accuracy: 144 configurations
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeClassifier
from sklearn.naive_bayes import GaussianNB

from partita.dataflow import choose, explore, largest, step
from partita.errors import BadInput
from partita.files import read_bytes

SETS = ("digits", "mnist", "cifar10", "a9a")
PREPARED = ("plain", "widened", "sharpened")
FEATURES = ("raw", "pca", "nystroem", "products")
STRENGTHS = {"ridge": (0.1, 1.0, 10.0, 100.0), "lda": (0.01, 0.1, 0.3, 0.9), "bayes": (1e-6, 1e-4, 1e-2, 1.0)}

Split = tuple[Any, Any, Any, Any]  #: train X [n, d], train y [n], test X, test y


@dataclass(frozen=True)
class Source:
    """Where the data come from, and how many training rows are taken."""

    name: str
    folder: str = ""  #: that holds mnist/, cifar10/, a9a/
    rows: int = 1300


@dataclass(frozen=True)
class Config:
    """One configuration."""

    prepared: str
    features: str
    model: str
    strength: float


def configs() -> Iterator[Config]:
    """All of them, in the order in which the flow has them."""
    for prepared, features, model in product(PREPARED, FEATURES, STRENGTHS):
        for strength in STRENGTHS[model]:
            yield Config(prepared, features, model, strength)


# ---- the steps, as plain functions


def load(source: Source) -> Split:
    """Rows between 0 and 1, a quarter of as many again for testing; image by image from its file where it is one."""
    if source.name == "digits":
        x, y = load_digits(return_X_y=True)
        x = x / 16.0
    elif source.name == "a9a":
        rows, y = load_svmlight_file(str(Path(source.folder) / "a9a" / "a9a"), n_features=123)
        x = rows[: 2 * source.rows].toarray()
    else:
        x, y = _images(Path(source.folder) / source.name / "train.parquet", source.rows + source.rows // 4)
    order = np.random.default_rng(0).permutation(len(x))[: source.rows + source.rows // 4]
    x, y = np.asarray(x, np.float64)[order], np.asarray(y)[order].astype(np.int64)
    cut = min(source.rows, int(0.8 * len(x)))
    return x[:cut], y[:cut], x[cut:], y[cut:]


def _images(path: Path, many: int) -> tuple[Any, Any]:
    """Grey images [n, pixels] and labels of a Parquet file in the hub's form."""
    import pyarrow.parquet as pq
    from PIL import Image

    table = pq.read_table(io.BytesIO(read_bytes(path, BadInput))).slice(0, many)
    column = next(c for c in table.column_names if c in ("img", "image"))
    images = [Image.open(io.BytesIO(row["bytes"])).convert("L") for row in table[column].to_pylist()]
    return np.stack([np.asarray(i, np.float64).ravel() / 255.0 for i in images]), np.array(table["label"])


def prepare(data: Split, how: str) -> Split:
    """`widened`: each training row again with noise and moved by one, four times; `sharpened`: by its neighbours' mean."""
    x, y, test, test_y = data
    if how == "plain":
        return data
    if how == "sharpened":
        return _sharp(x), y, _sharp(test), test_y
    dice = np.random.default_rng(1)
    moved = [np.roll(x, shift, axis=1) + 0.05 * dice.standard_normal(x.shape) for shift in (-2, -1, 1, 2)]
    return np.concatenate([x, *moved]), np.concatenate([y] * 5), test, test_y


def _sharp(x: Any) -> Any:
    """Each value against the median of those around it, in windows of 9."""
    around = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (4, 4)), mode="edge"), 9, axis=1)
    return x - 0.5 * np.median(around, axis=2)


def features(data: Split, how: str) -> Split:
    x, y, test, test_y = data
    if how == "raw":
        return data
    if how == "products":
        dice = np.random.default_rng(2)
        one, two = dice.integers(0, x.shape[1], (2, 400))
        return np.hstack([x, x[:, one] * x[:, two]]), y, np.hstack([test, test[:, one] * test[:, two]]), test_y
    made = (
        PCA(min(40, x.shape[1] - 1), svd_solver="full")
        if how == "pca"
        else Nystroem(n_components=300, gamma=0.5 / x.var() / x.shape[1], random_state=0)
    )
    return made.fit_transform(x), y, made.transform(test), test_y


def fit(data: Split, kind: str, strength: float) -> Any:
    x, y, *_ = data
    if kind == "ridge":
        return RidgeClassifier(alpha=strength, solver="cholesky").fit(x, y)
    if kind == "lda":
        return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=strength).fit(x, y)
    return GaussianNB(var_smoothing=strength).fit(x, y)


def accuracy(model: Any, data: Split) -> float:
    *_, test, test_y = data
    return float(np.mean(model.predict(test) == test_y))


def alone(source: Source, c: Config) -> float:
    """The score of one configuration, from its beginning."""
    data = features(prepare(load(source), c.prepared), c.features)
    return accuracy(fit(data, c.model, c.strength), data)


# ---- the same as a flow

_load, _prepare, _features, _fit, _accuracy = map(step, (load, prepare, features, fit, accuracy))


def flow(source: Source, strengths: dict[str, tuple[float, ...]] | None = None) -> Any:
    """The best model of each kind of features, of those the best features, of those the best preparation."""
    data = _features(_prepare(_load(source), explore("prepared", PREPARED)), explore("features", FEATURES))
    models = {
        k: _fit(data, k, explore(f"strength of {k}", s, ordered=True)) for k, s in (strengths or STRENGTHS).items()
    }
    model = explore("model", models)
    score = _accuracy(model, data)
    names = [f"strength of {k}" for k in models]
    best = choose(model, by=score, over=["model", *names], select=largest(), name="model")
    reached = _accuracy(best, data)
    of_features = choose(best, by=reached, over="features", select=largest(), name="features")
    its_data = choose(data, by=reached, over="features", select=largest(), name="data of the features")
    return choose(
        of_features, by=_accuracy(of_features, its_data), over="prepared", select=largest(), name="preparation"
    )
