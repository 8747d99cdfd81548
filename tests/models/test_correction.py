"""The correction: left-out errors equal refits, it fades far away, it learns what a formula leaves over."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from models.synthetic import ROLES, runs

from partita.models.capture.inputs import scale_of
from partita.models.correction import Correction, fit_correction, points_of


def surface(rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, tuple[bool, ...], np.ndarray]:
    """Points (the last column a kind), and a residual that depends on one column and on a pair, with little noise."""
    chance = np.random.default_rng(seed)
    points = chance.integers(0, 5, (rows, columns)).astype(float)
    points[:, -1] = chance.integers(0, 2, rows)
    residual = 0.1 * np.sin(points[:, 0]) + 0.05 * points[:, 0] * points[:, -1] / 4 + 0.01 * chance.normal(size=rows)
    return points, tuple([False] * (columns - 1) + [True]), residual


@pytest.mark.parametrize("columns", [1, 2, 3, 5])
def test_left_out_equals_refits_without_each_row(columns: int) -> None:
    points, kinds, residual = surface(30, columns)
    found = fit_correction(points, kinds, residual, seed=0)
    errors, sds = found.left_out(residual)
    for i in range(len(points)):
        keep = np.arange(len(points)) != i
        covariance = found.covariance(points[keep], points[keep]) + found.noise * np.eye(keep.sum())
        without = Correction(
            points[keep], kinds, found.lengths, found.weights, found.noise, np.linalg.solve(covariance, residual[keep])
        )
        mean, sd = without.at(points[[i]])
        assert residual[i] - mean[0] == pytest.approx(errors[i], abs=1e-7)
        assert sd[0] == pytest.approx(sds[i], rel=1e-6)


def test_the_covariance_is_the_sum_over_single_columns_pairs_and_triples() -> None:
    points, kinds, residual = surface(8, 4)
    found = fit_correction(points, kinds, residual, seed=0)
    for a in points:
        for b in points:
            apart = [3.0 * (x != y) if k else abs(x - y) for x, y, k in zip(a, b, kinds, strict=True)]
            near = np.exp(-np.array(apart) / found.lengths)
            total = sum(
                w * sum(math.prod(c) for c in combinations(near, o)) / math.comb(4, o)
                for o, w in enumerate(found.weights, start=1)
            )
            assert found.covariance(a[None], b[None])[0, 0] == pytest.approx(total)


def test_it_learns_what_is_left_over_and_fades_far_away() -> None:
    points, kinds, residual = surface(150, 3)
    found = fit_correction(points[:100], kinds, residual[:100], seed=0)
    near, sd = found.at(points[100:])
    assert np.std(residual[100:] - near) < 0.3 * np.std(residual)
    far, unsure = found.at(np.array([[500.0, 500.0, -1.0]]))
    assert abs(far[0]) < 1e-3
    assert unsure[0] == pytest.approx(math.sqrt(found.weights.sum() + found.noise), rel=1e-3)
    assert unsure[0] > 3 * sd.mean()


def test_the_same_seed_gives_the_same_correction() -> None:
    points, kinds, residual = surface(60, 3)
    one, same = (fit_correction(points, kinds, residual, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.weighted, same.weighted)


def test_a_kind_never_seen_is_like_none_of_the_seen() -> None:
    world = runs(20)
    scale = scale_of(world.table, ROLES)
    points, kinds = points_of(world.table, ROLES, scale)
    assert kinds == (False, False, False, False, True)
    assert set(points[:, 4]) == {0.0, 1.0}
    new = points_of(type(world.table)({**world.table.columns, "optimizer": np.array(["lamb"] * 20)}), ROLES, scale)[0]
    assert set(new[:, 4]) == {-1.0}
    # numbers are apart by the logarithm, base 2, of their ratio
    layers = world.table.numbers("layers")
    np.testing.assert_allclose(points[0, 2] - points[:, 2], np.log2(layers[0] / layers))
