"""How long each size of micro-batches is measured, by a made-up clock."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from partita.training.measure import job as measuring
from partita.training.measure.job import Asked, CallCosts, Measuring
from partita.training.measure.times import BETWEEN


class Sizes(Measuring):
    """Of which every one takes what it is given, and those that are restless twice that."""

    def __init__(self, restless: set[int], by_itself: bool = True, read: float = 0.0) -> None:
        self._asked, self.sizes, self._restless = (
            Asked("job.py:job", sizes=(1, 2, 4), by_itself=by_itself),
            (1, 2, 4),
            False,
        )
        self.samples, self._calls, self._company = [], [CallCosts(0.0, 0.0, 0.0, 0.0)], [np.ones(2)]
        self.readings = [(float(k), 1.0) for k in range(2 * BETWEEN)]
        self.now, self.given = 0.0, dict[int, float]()
        self._unsteady, self._read_s, self._reads = restless, 0.0, read

    def take(self, size: int, budget_s: float, asleep: Any) -> None:
        longer = self._restless
        whole = np.array([1.0, 2.0]) if size in self._unsteady else np.array([1.0, 1.0])
        steady = self._is_steady(0, longer, whole)
        self.given[size] = budget_s * (1 if steady else 2)
        self.now += self.given[size]
        self._read_s = self._reads * self.now


@pytest.mark.parametrize(
    ("restless", "by_itself", "given"),
    [
        (set[int](), True, [5.0, 5.0, 5.0]),
        ({1}, True, [10.0, 10.0, 10.0]),
        ({2}, True, [5.0, 10.0, 15.0]),
        ({1, 2, 4}, True, [10.0, 10.0, 10.0]),
        ({1, 2, 4}, False, [5.0, 5.0, 5.0]),
    ],
)
def test_a_restless_machine_is_measured_for_twice_the_budget(
    monkeypatch: pytest.MonkeyPatch, restless: set[int], by_itself: bool, given: list[float]
) -> None:
    sizes = Sizes(restless, by_itself)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: sizes.now))
    sizes.take_all(contextlib.nullcontext, lambda what, done, total: None)
    assert [*sizes.given.values()] == pytest.approx(given)
    assert sizes.now <= 2 * 15.0


@pytest.mark.parametrize(("read", "whole_s"), [(0.05, 30.0), (0.12, 25.0), (0.3, 15.0)])
def test_no_longer_than_readings_take_three_seconds(
    monkeypatch: pytest.MonkeyPatch, read: float, whole_s: float
) -> None:
    """They take this share of the time; the budget is spent in any case."""
    sizes = Sizes({1}, read=read)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: sizes.now))
    sizes.take_all(contextlib.nullcontext, lambda what, done, total: None)
    assert sizes.now == pytest.approx(whole_s)
