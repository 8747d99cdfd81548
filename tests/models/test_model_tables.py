"""Tables with known laws (benchmarks/model_tables.py): never much worse than the best plain regressor, mostly far better."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_scripts import loaded

from partita.models.compare import Fitter, judge
from partita.models.opponents import OPPONENTS, threadpool_limits
from partita.models.study import prepare

TABLES = loaded("model_tables").TABLES


def errors(
    name: str, column: str, up_to: float, *, plain: tuple[str, ...], seed: int = 0
) -> tuple[float, float, float]:
    """(mean error of the hybrid, least of the plain regressors', share of intervals that held)."""
    pytest.importorskip("sklearn")
    make, target, _ = TABLES[name]
    p = prepare(make(np.random.default_rng(seed)), target, split_by=column, up_to=up_to)
    with threadpool_limits(1):
        ours, *others = judge(Fitter(p.roles, column), ("hybrid", *plain), p.table, p.times, p.splits[0]).scores
    return ours.mape, min(o.mape for o in others), float(ours.inside.mean())


@pytest.mark.parametrize(
    ("name", "column", "up_to"),
    [
        pytest.param("gpt sizes", "hidden_size", 1024, marks=pytest.mark.slow),
        pytest.param("weak scaling", "GPUs", 32, marks=pytest.mark.slow),
        pytest.param("epochs", "workers", 2, marks=pytest.mark.slow),
        ("anonymous", "x1", 3),
    ],
)
def test_what_was_once_counted_twice_or_misread(name: str, column: str, up_to: float) -> None:
    """Derived columns, models that grow with the devices, a batch of which nobody says whose, columns without meaning."""
    ours, plain, _ = errors(name, column, up_to, plain=("log-linear",))
    assert ours < 0.7 * plain
    assert ours < 0.25


@pytest.mark.slow
@pytest.mark.timeout(3600)  # about 8 minutes on an idle core
def test_over_all_tables_split_by_devices_by_size_and_by_batch() -> None:
    rows = [
        errors(name, column, up_to, plain=tuple(OPPONENTS), seed=2)
        for name, (_, _, splits) in TABLES.items()
        for column, up_to in splits[::2]
        if column is not None
    ]
    ours, plain, inside = np.array(rows).T
    worse = (ours > 1.15 * plain) & (ours > plain + 0.02)
    assert worse.mean() <= 0.25
    assert np.median(ours / plain) < 0.8
    assert 0.85 <= inside.mean() <= 0.97
