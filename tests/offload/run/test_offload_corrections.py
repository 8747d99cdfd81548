"""What the jobs of a run say of those that are still to do."""

from __future__ import annotations

import numpy as np
import pytest

from partita.offload.run.corrections import LATEST, Corrections, Tally


def told(tally: Tally, slower: float, jobs: int, chance: np.random.Generator | None = None) -> None:
    """So many inferences of two models by turns, one planned rightly and one by half."""
    for k in range(jobs):
        scatter = 1.0 if chance is None else chance.lognormal(0.0, 0.15)
        tally.add("ab"[k % 2], slower * (1 + k % 2) * scatter, 1.0)


@pytest.mark.parametrize("before", [20, 2000])
@pytest.mark.parametrize("slower", [0.25, 0.5, 2.0, 10.0])
def test_a_change_is_believed_within_a_few_jobs_however_many_came_before(before: int, slower: float) -> None:
    tally = Tally()
    told(tally, 1.0, before)
    told(tally, slower, LATEST)
    assert tally.of("a") == pytest.approx(slower)
    assert tally.of("b") == pytest.approx(2 * slower)


def test_chance_is_no_change() -> None:
    for seed in range(50):
        tally = Tally()
        told(tally, 1.0, 200, np.random.default_rng(seed))
        assert tally.inferences == 200


def test_one_outlier_is_no_change() -> None:
    tally = Tally()
    told(tally, 1.0, 100)
    tally.add("a", 50.0, 1.0)
    told(tally, 1.0, 100)
    assert tally.inferences == 201


def test_a_plan_is_off_until_it_is_made_anew() -> None:
    corrections = Corrections()
    told(corrections.device, 1.0, 100)
    corrections.planned_by = corrections.device.slower, 1.0
    assert not corrections.drifted(0.2)
    told(corrections.device, 4.0, LATEST)
    assert corrections.drifted(0.2)


def test_what_took_no_time_teaches_nothing() -> None:
    tally = Tally()
    for _ in range(20):
        tally.add("a", 0.0, 1.0)
    assert (tally.slower, tally.inferences) == (1.0, 0)
