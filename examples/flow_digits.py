"""Handwritten digits: which scaling, how many components, which classifier with which settings?

    partita flow run examples/flow_digits.py

The digits are those that scikit-learn carries. What several configurations have in common is computed once; a classifier
that has lost is dropped, with its data, as soon as that is certain.
"""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC

from partita.dataflow import choose, explore, largest, step

Split = dict[str, Any]


@step
def load(seed: int) -> Split:
    """Images and digits, a quarter of them kept for testing."""
    x, y = load_digits(return_X_y=True)
    train, test, train_y, test_y = train_test_split(x, y, test_size=0.25, random_state=seed)
    return {"train": train, "test": test, "train_y": train_y, "test_y": test_y}


@step
def scale(data: Split, how: str) -> Split:
    if how == "none":
        return data
    scaler = StandardScaler() if how == "standard" else MinMaxScaler()
    return {**data, "train": scaler.fit_transform(data["train"]), "test": scaler.transform(data["test"])}


@step
def reduce(data: Split, components: int) -> Split:
    pca = PCA(components, random_state=0)
    return {**data, "train": pca.fit_transform(data["train"]), "test": pca.transform(data["test"])}


@step
def linear(data: Split, C: float) -> RidgeClassifier:
    return RidgeClassifier(alpha=1.0 / C).fit(data["train"], data["train_y"])


@step
def kernel(data: Split, C: float, gamma: float) -> SVC:
    return SVC(C=C, gamma=gamma / data["train"].var()).fit(data["train"], data["train_y"])


@step
def accuracy(model: Any, data: Split) -> float:
    return float(np.mean(model.predict(data["test"]) == data["test_y"]))


def flow() -> Any:
    data = load(0)
    scaled = scale(data, explore("scaling", ["none", "standard", "minmax"]))
    small = reduce(scaled, explore("components", [8, 16, 32, 48], ordered=True))
    strength = explore("C", [0.01, 0.1, 1.0, 10.0], ordered=True)
    width = explore("gamma", [0.003, 0.01, 0.03, 0.1], ordered=True)
    model = explore("model", {"linear": linear(small, strength), "kernel": kernel(small, strength, width)})
    return choose(model, by=accuracy(model, small), select=largest())
