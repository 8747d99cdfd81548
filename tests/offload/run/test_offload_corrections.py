"""What the jobs of a run say of those that are still to do."""

from __future__ import annotations

import time

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


def test_models_that_have_not_run_since_are_as_many_times_slower() -> None:
    tally = Tally()
    for _ in range(10):
        tally.add("rare", 0.6, 0.2)
    told(tally, 1.0, 100)
    told(tally, 4.0, LATEST)
    assert tally.of("rare") == pytest.approx(12.0)


def quiet(tally: Tally) -> bool:
    """Whether hardly any change was seen since a model took what was planned."""
    return 0.8 < tally.of("still") < 1.2


def with_a_still_one() -> Tally:
    tally = Tally()
    for _ in range(LATEST):
        tally.add("still", 1.0, 1.0)
    return tally


def test_chance_is_no_change() -> None:
    for seed in range(50):
        tally = with_a_still_one()
        told(tally, 1.0, 200, np.random.default_rng(seed))
        assert quiet(tally)


def test_one_outlier_is_no_change() -> None:
    tally = with_a_still_one()
    told(tally, 1.0, 100)
    tally.add("a", 5000.0, 1.0)
    assert tally.of("a") < 1.5
    told(tally, 1.0, 100)
    assert quiet(tally)


@pytest.mark.parametrize("before", [3, 5, 30])
def test_one_pause_hardly_counts_however_few_came_before(before: int) -> None:
    tally = Tally()
    for _ in range(before):
        tally.add("a", 1.0, 1.0)
    tally.add("a", 150.0, 1.0)
    tally.add("once", 150.0, 1.0)
    assert max(tally.of("a"), tally.of("once"), tally.slower) < 1.4


def test_waiting_for_a_quota_now_and_then_is_no_change() -> None:
    tally = with_a_still_one()
    for k in range(700):
        tally.add("a", 20.0 if k % 7 == 6 else 1.0, 1.0)
    assert quiet(tally)
    assert tally.of("a") == pytest.approx(26 / 7, rel=0.25)


def test_a_stranger_among_the_latest_does_not_hide_a_change() -> None:
    """Every fourth job is of a model, or a cut, that has not run yet."""
    tally = Tally()
    told(tally, 1.0, 30)
    for k in range(8):
        tally.add("ab"[k % 2], 3.0 * (1 + k % 2), 1.0)
        if k % 3 == 0:
            tally.add(f"new {k}", 3.0, 1.0)
    assert tally.of("a") == pytest.approx(3.0)
    assert tally.seen("new 0") == pytest.approx(3.0)
    assert tally.of("new 0") == tally.slower  # until it has run more often


def test_all_models_are_corrected_quickly_however_many_there_are() -> None:
    tally = Tally()
    for k in range(20):
        told(tally, 1.0, 25 * (k < 2))
        for _ in range(25):
            tally.add(f"model {k}", 1.0, 1.0)
    began = time.process_time()
    for _ in range(1000):
        assert tally.slower > 0
        tally.add("model 3", 1.0, 1.0)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("blocks", [1, 7, 30])
def test_cuts_of_a_model_that_are_priced_unlike_are_no_change(blocks: int) -> None:
    tally = with_a_still_one()
    for k in range(20 * blocks):
        price_s = 1.0 if (k // blocks) % 2 else 0.3
        tally.add("a", 1.0, price_s)
    assert quiet(tally)


def test_small_changes_are_followed_however_many_jobs_came_before() -> None:
    tally = Tally()
    told(tally, 1.0, 1000)
    told(tally, 1.35, 200)
    assert tally.of("a") == pytest.approx(1.35, rel=0.01)


def test_a_side_that_jumps_and_comes_back_slowly_is_no_slower_in_the_end() -> None:
    tally = with_a_still_one()
    told(tally, 1.0, 20)
    for _ in range(6):
        for k in range(140):
            tally.add("ab"[k % 2], max(1.0, 2.0 * 0.99**k) * (1 + k % 2), 1.0)
    assert tally.of("a") == pytest.approx(1.0, rel=0.02)
    assert quiet(tally)
    assert tally.of("never ran") == pytest.approx(tally.slower)


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
    assert (tally.slower, tally.seen("a")) == (1.0, None)
