"""The exploration of flow.py: three nested levels over images or rows, as plain functions and as a flow.

load -> prepare (3 ways) -> features (4 kernels) -> moments -> model (3 kinds x 4 strengths) -> accuracy: 144 configurations
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.kernel_approximation import Nystroem

from partita.dataflow import choose, explore, largest, step
from partita.errors import BadInput
from partita.files import read_bytes

SETS = ("digits", "mnist", "cifar10", "a9a")
PREPARED = ("turned", "moved", "noisy")
FEATURES = ("rbf", "polynomial", "laplacian", "sigmoid")
STRENGTHS = {"ridge": (1e-4, 1e-3, 1e-2, 1e-1), "lda": (0.01, 0.1, 0.3, 0.9), "bayes": (1e-4, 1e-3, 1e-2, 1e-1)}

Split = tuple[Any, Any, Any, Any]  #: train X [n, d], train y [n], test X, test y


@dataclass(frozen=True)
class Source:
    """Where the data come from, and how many training rows are taken."""

    name: str
    folder: str = ""  #: that holds mnist/, cifar10/, a9a/
    rows: int = 1300
    components: int = 400  #: of a kernel


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
    """Each training row and four more of its kind: images turned or moved, rows that are no images rolled; or with noise."""
    x, y, test, test_y = data
    dice = np.random.default_rng(1)
    if how == "noisy":
        more = [x + 0.1 * dice.standard_normal(x.shape) for _ in range(4)]
    elif _side(x) is None:
        more = [
            np.where(dice.random(x.shape) < share, 0.0, x)
            for share in ((0.05, 0.1, 0.15, 0.2) if how == "turned" else (0.3, 0.35, 0.4, 0.45))
        ]
    else:
        images = x.reshape(len(x), _side(x), _side(x))
        turned = (
            [ndimage.rotate(images, angle, axes=(1, 2), reshape=False, order=3) for angle in (-16, -8, 8, 16)]
            if how == "turned"
            else []
        )
        moved = (
            [ndimage.shift(images, (0, *by), order=3) for by in ((0.7, 0), (-0.7, 0), (0, 0.7), (0, -0.7))]
            if how == "moved"
            else []
        )
        more = [m.reshape(x.shape) for m in (*turned, *moved)]
    return np.concatenate([x, *more]), np.concatenate([y] * 5), test, test_y


def _side(x: Any) -> int | None:
    """Of square images; None where rows are none."""
    side = math.isqrt(x.shape[1])
    return side if side * side == x.shape[1] else None


def features(data: Split, how: str, components: int) -> Split:
    """What a kernel makes of the rows (Nystroem's approximation)."""
    x, y, test, test_y = data
    gamma = 0.5 / (x.var() * x.shape[1])
    params = {"rbf": {"gamma": gamma}, "polynomial": {"gamma": gamma, "degree": 3, "coef0": 1.0}, "laplacian": {"gamma": gamma**0.5 / 5}, "sigmoid": {"gamma": gamma / 10}}  # fmt: skip
    made = Nystroem(kernel=how, n_components=components, random_state=0, **params[how])
    return made.fit_transform(x), y, made.transform(test), test_y


@dataclass(frozen=True)
class Moments:
    """All that the models need to know of the training rows."""

    total: Any  #: covariance of all rows [d, d]
    within: Any  #: covariance around their classes' means [d, d]
    mean: Any  #: [d]
    means: Any  #: of each class [c, d]
    variances: Any  #: [c, d]
    shares: Any  #: [c]
    classes: Any  #: [c]


def moments(data: Split) -> Moments:
    x, y, *_ = data
    classes, of, counts = np.unique(y, return_inverse=True, return_counts=True)
    means = np.stack([x[of == k].mean(axis=0) for k in range(len(classes))])
    variances = np.stack([x[of == k].var(axis=0) for k in range(len(classes))])
    around, inside = x - x.mean(axis=0), x - means[of]
    return Moments(
        around.T @ around / len(x),
        inside.T @ inside / len(x),
        x.mean(axis=0),
        means,
        variances,
        counts / len(x),
        classes,
    )


def fit(m: Moments, kind: str, strength: float) -> Any:
    """(kind, numbers) of a ridge regression on the classes, a discriminant analysis with shrinkage, or naive Bayes."""
    d = len(m.mean)
    if kind == "bayes":
        return kind, (m.means, m.variances + strength * m.variances.mean(), np.log(m.shares), m.classes)
    if kind == "ridge":
        targets = 2 * m.shares[:, None] * (m.means - m.mean)
        weights = np.linalg.solve(m.total + strength * np.trace(m.total) / d * np.eye(d), targets.T)
        return kind, (weights, 2 * m.shares - 1 - m.mean @ weights, m.classes)
    shrunk = (1 - strength) * m.within + strength * np.trace(m.within) / d * np.eye(d)
    weights = np.linalg.solve(shrunk, m.means.T)
    return kind, (weights, np.log(m.shares) - 0.5 * (m.means.T * weights).sum(axis=0), m.classes)


def accuracy(model: Any, data: Split) -> float:
    """Of the test rows, the share that is told right."""
    kind, numbers = model
    *_, test, test_y = data
    if kind == "bayes":
        means, variances, prior, classes = numbers
        scores = np.stack(
            [
                p - 0.5 * (np.log(v) + (test - m) ** 2 / v).sum(axis=1)
                for m, v, p in zip(means, variances, prior, strict=True)
            ],
            axis=1,
        )
    else:
        weights, offset, classes = numbers
        scores = test @ weights + offset
    return float(np.mean(classes[scores.argmax(axis=1)] == test_y))


def alone(source: Source, c: Config) -> float:
    """The score of one configuration, from its beginning."""
    data = features(prepare(load(source), c.prepared), c.features, source.components)
    return accuracy(fit(moments(data), c.model, c.strength), data)


# ---- the same as a flow

_load, _prepare, _features, _moments, _fit, _accuracy = map(step, (load, prepare, features, moments, fit, accuracy))


def flow(source: Source, strengths: dict[str, tuple[float, ...]] | None = None) -> Any:
    """The best model of each kind of features, of those the best features, of those the best preparation."""
    data = _features(
        _prepare(_load(source), explore("prepared", PREPARED)), explore("features", FEATURES), source.components
    )
    known = _moments(data)
    models = {
        k: _fit(known, k, explore(f"strength of {k}", s, ordered=True)) for k, s in (strengths or STRENGTHS).items()
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
