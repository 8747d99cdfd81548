"""Turns are fair, samples belong to their rounds, probes see a machine that changes."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from benchmark_scripts import loaded
from hypothesis import given
from hypothesis import strategies as st

from partita.simulate.run_speed import RunSpeed

harness, engines, probe = loaded("harness"), loaded("engines"), loaded("machine_probe")
side_by_side = loaded("side_by_side")


@given(st.integers(1, 6), st.integers(-3, 40))
def test_everybody_has_a_turn_in_every_round(n: int, turn: int) -> None:
    assert sorted(harness.order(range(n), turn)) == list(range(n))


@given(st.integers(1, 6))
def test_everybody_is_first_and_last_equally_often(n: int) -> None:
    rounds = [harness.order(range(n), k) for k in range(2 * n)]
    for place in (0, -1):
        assert set(Counter(r[place] for r in rounds).values()) == {2}


@given(st.integers(2, 6))
def test_everybody_follows_from_both_sides(n: int) -> None:
    pairs = Counter(p for k in range(2 * n) for p in itertools.pairwise(harness.order(range(n), k)))
    assert all(pairs[a, b] == pairs[b, a] for a, b in pairs)


def test_alternatives_are_called_in_turn_and_warm_up_is_not_counted() -> None:
    called: list[str] = []
    works = {n: lambda n=n: called.append(n) or len(called) for n in "ab"}
    found = harness.in_turn(works, 4, warmup=1, between=lambda: called.append("|"))
    assert "".join(called)[2:] == "|ab|ba|ba|ab"
    assert sorted(called[:2]) == ["a", "b"]
    assert all(len(s.wall_s) == len(s.cpu_s) == len(s.results) == 4 for s in found.values())
    assert found["a"].results[0] < found["b"].results[0]  # a round's samples stand at its place


def test_cpu_time_is_counted_as_it_is_told() -> None:
    spent = itertools.count(0.0, 2.0)  # two calls a turn
    found = harness.in_turn({"a": lambda: None}, 3, cpu=lambda: next(spent))
    assert found["a"].cpu_s == [2.0, 2.0, 2.0]


@given(st.integers(1, 60), st.integers(1, 9))
def test_blocks_share_the_rounds_evenly(rounds: int, blocks: int) -> None:
    found = engines.shares(rounds, blocks)
    assert sum(found) == rounds
    assert max(found) - min(found) <= 1 <= min(found)


def core(seconds: float, received: float = 1.0) -> dict[str, Any]:
    """A core in a probe: every piece of it takes so long."""
    return {n: {"wall_s": [seconds] * 3, "cpu_s": [received * seconds] * 3} for n in ("product", "memory", "python")}


def probed(first: float, second: float, received: float = 1.0) -> dict[str, Any]:
    cores = {"0": core(first), "1": core(second, received)}
    return {"when": "now", "alone": cores, "together": cores}


def test_a_calm_machine_does_not_drift() -> None:
    found = probe.drift_of([probed(0.01, 0.012)] * 3)
    assert found["drift"] == pytest.approx(0.0)
    assert found["together"] == pytest.approx(2.0)


def test_a_core_that_becomes_slower_is_drift() -> None:
    found = probe.drift_of([probed(0.01, 0.01), probed(0.01, 0.01), probed(0.01, 0.02)])
    assert found["spread"] == pytest.approx(0.5)


def test_a_core_that_others_have_is_drift_although_it_never_changes() -> None:
    found = probe.drift_of([probed(0.01, 0.01, received=0.6)] * 3)
    assert found["spread"] == pytest.approx(0.0)
    assert found["least_share"] == pytest.approx(0.6)
    assert found["drift"] == pytest.approx(0.4)


def test_copies_of_unequal_speed_count_by_what_they_do_together() -> None:
    assert side_by_side.step_s([1.0, 1.0]) == pytest.approx(1.0)
    assert 2 / side_by_side.step_s([1.0, 3.0]) == pytest.approx(1 / 1.0 + 1 / 3.0)


def comparison(pipeline_s: float) -> Any:
    """A block of six rounds as `compare_engines` gives it."""
    step_s = {"single": [1.0] * 6, "pipeline": [pipeline_s] * 6, "torch": [0.6] * 6}
    return SimpleNamespace(
        step_s=step_s, median_s=lambda e: statistics.median(step_s[e]), cpu_s=step_s, gradient_errors={"pipeline": 0.1}, largest_loss_error=0.0, load=0.5,
    )  # fmt: skip


def test_blocks_together_give_ratios_the_limit_and_the_prediction_at_run_speed() -> None:
    copies = [side_by_side.Steps([1.25] * 6, [1.0] * 6)] * 2
    ran = [RunSpeed(s, 0.9 * s, 1.1 * s, (), 0.0) for s in (0.48, 0.52)]
    found = engines.Compared([comparison(0.5), comparison(0.5)], [copies, copies], [*ran])
    assert found.ratio("single", "pipeline").ends == [2.0, 2.0]
    assert found.limit.value == pytest.approx(2 * 1.0 / 1.25)
    assert found.at_run_speed_s == pytest.approx(0.5)
    assert found.held == [True, True]
    assert set(found.foreseen(0.5)) == {"prediction", "prediction_at_run_speed"}
    assert len(found.steps("torch")) == len(found.copies[0]) == 12
    assert json.loads(json.dumps(found.raw()))["run_speed"][0]["predicted_at_run_speed_s"] == 0.48


def test_a_comparison_that_knows_no_run_speed_has_no_claim_about_it() -> None:
    found = engines.Compared([comparison(0.5)], ran=[None])
    assert found.at_run_speed_s is None
    assert set(found.foreseen(0.5)) == {"prediction"}
    assert found.copies == []


def test_what_is_sandwiched_is_compared_with_what_ran_beside_it() -> None:
    now, called = [1.0], list[str]()

    def work(name: str) -> Any:
        def run() -> None:
            called.append(name)
            now[0] *= 1.5
            time.sleep(0.001 * now[0] if name == "ours" else 0.002 * now[0])

        return run

    found, beside = harness.sandwiched("ours", {n: work(n) for n in ("a", "b", "ours")}, 2, cpu=lambda: 0.0)
    assert called[:3] == ["a", "b", "ours"]  # to warm up
    assert called[3:] == ["ours", "a", "ours", "b", "ours", "ours", "b", "ours", "a", "ours"]
    assert len(found["ours"].wall_s) == 6
    assert beside["a"] == [sum(found["ours"].wall_s[:2]) / 2, sum(found["ours"].wall_s[4:]) / 2]
