"""CMA-ES finds what it must, and the same search gives the same points."""

from __future__ import annotations

import numpy as np

from partita.solve.evolution import Evolution, drawn, moved


def test_a_bent_valley_is_followed_to_its_end() -> None:
    """Rosenbrock's function in four dimensions."""
    search = Evolution.at(np.zeros(4), np.full(4, 0.5), seed=1)
    for _ in range(400):
        points = drawn(search, 12)
        a, b = points[:, :-1], points[:, 1:]
        search = moved(search, points, (100 * (b - a * a) ** 2 + (1 - a) ** 2).sum(axis=1))
    assert np.allclose(search.mean, 1.0, atol=1e-4)


def test_only_the_order_of_values_counts() -> None:
    search = Evolution.at(np.ones(3), np.ones(3), seed=2)
    points = drawn(search, 8)
    assert np.array_equal(points, drawn(search, 8))
    assert np.allclose(points.mean(axis=0), 1.0)
    values = (points**2).sum(axis=1)
    one, two = moved(search, points, values), moved(search, points, np.exp(values))
    assert np.array_equal(one.mean, two.mean)
    assert one.size == two.size
    assert one.generation == 1
