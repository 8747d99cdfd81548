"""Search without gradients where values are uncertain: CMA-ES (Hansen 2016, "The CMA Evolution Strategy: A Tutorial").

A normal distribution over points is moved towards the better half of what was drawn from it, and takes the shape of the steps that
helped. Points are drawn in mirrored pairs. Only the order of the values counts. A search is a value: `drawn` gives points,
`moved` the search after their values are known; the same search gives the same points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import FloatArray


@dataclass(frozen=True, eq=False)
class Evolution:
    """A search over n numbers; smaller values are better."""

    mean: FloatArray  #: [n] where it stands
    shape: FloatArray  #: [n, n] covariance of a step of size 1
    path: FloatArray  #: [n] of the shape
    size_path: FloatArray  #: [n] of the size
    size: float  #: of a step
    generation: int = 0
    seed: int = 0

    @staticmethod
    def at(mean: FloatArray, spread: FloatArray, seed: int = 0) -> Evolution:
        """A search that begins at `mean`, with standard deviations `spread`, both [n]."""
        n = len(mean)
        return Evolution(np.array(mean, np.float64), np.diag(np.square(spread)), np.zeros(n), np.zeros(n), 1.0, 0, seed)


def drawn(search: Evolution, points: int) -> FloatArray:
    """[points, n] an even number of points around the mean, the second half mirrored. O(n^3 + points n^2)."""
    chance = np.random.default_rng([search.seed, search.generation])
    lengths, axes = _axes(search.shape)
    half = chance.standard_normal((points // 2, len(search.mean)))
    steps = (np.concatenate([half, -half]) * lengths) @ axes.T
    return np.asarray(search.mean + search.size * steps, np.float64)


def moved(search: Evolution, points: FloatArray, values: FloatArray) -> Evolution:
    """The search after the values [points] of its points [points, n] are known. O(n^3 + points n^2)."""
    n, best = len(search.mean), len(points) // 2
    weight = np.log(best + 0.5) - np.log(np.arange(1, best + 1))
    weight /= weight.sum()
    many = 1.0 / float(np.square(weight).sum())
    steps = (points[np.argsort(values, kind="stable")[:best]] - search.mean) / search.size
    step = weight @ steps
    lengths, axes = _axes(search.shape)
    keep_size = (many + 2) / (n + many + 5)
    straight = axes @ ((axes.T @ step) / lengths)
    size_path = (1 - keep_size) * search.size_path + np.sqrt(keep_size * (2 - keep_size) * many) * straight
    expected = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    length = float(np.linalg.norm(size_path))
    damping = 1 + 2 * max(0.0, np.sqrt((many - 1) / (n + 1)) - 1) + keep_size
    still = length / np.sqrt(1 - (1 - keep_size) ** (2 * (search.generation + 1))) < (1.4 + 2 / (n + 1)) * expected
    keep = (4 + many / n) / (n + 4 + 2 * many / n)
    path = (1 - keep) * search.path + float(still) * np.sqrt(keep * (2 - keep) * many) * step
    one = 2 / ((n + 1.3) ** 2 + many)
    all_ = min(1 - one, 2 * (many - 2 + 1 / many) / ((n + 2) ** 2 + many))
    shape = (1 - one - all_) * search.shape + one * np.outer(path, path) + all_ * (steps.T * weight) @ steps
    size = search.size * float(np.exp(keep_size / damping * (length / expected - 1)))
    return Evolution(search.mean + search.size * step, shape, path, size_path, size, search.generation + 1, search.seed)


def _axes(shape: FloatArray) -> tuple[FloatArray, FloatArray]:
    """([n] standard deviations along the axes, [n, n] the axes in columns)."""
    squares, axes = np.linalg.eigh((shape + shape.T) / 2)
    return np.sqrt(np.maximum(squares, 1e-20)), axes
