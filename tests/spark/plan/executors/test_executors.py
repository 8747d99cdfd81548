"""The cluster of executors against a plain simulator written here, and by laws."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.errors import BadInput, CostError
from partita.solve.random import seeded
from partita.spark.capture.traces import Query, read_traces
from partita.spark.plan.executors.episodes import Catalogue, Setting, run, simulate, tuned
from partita.spark.plan.executors.policies import POLICIES, SHARES, _share, episode, weights
from partita.spark.plan.executors.world import MOVE_S, advance, fresh_state, send, wanted

TRACES = os.environ.get("PARTITA_TPCH", "")


def query(stages: list[tuple[int, tuple[int, ...], float, float, float]], name: str = "q") -> Query:
    """Stages of (tasks, parents, fresh, first, rest): every task of a wave takes the same time."""

    def waves(*times: float) -> Any:
        return tuple(tuple(np.array([t]) for t in times) for _ in range(8))

    return Query(name, tuple(s[1] for s in stages), tuple(s[0] for s in stages), tuple(waves(*s[2:]) for s in stages))


CHAIN = query([(4, (), 5.0, 3.0, 1.0), (2, (0,), 7.0, 2.0, 1.0)])


def test_a_chain_on_two_executors_takes_what_one_counts() -> None:
    """Both move 2 s, run a fresh task of 5 s and one of the rest; then the second stage: no move, a first wave of 2 s."""
    work = Catalogue.of([CHAIN]).jobs([0], np.zeros(1))
    for policy in POLICIES:
        found = run(work, 2, policy, 1, 0.0)
        assert found.mean_job_s == pytest.approx(MOVE_S + 5 + 1 + 2)
        assert (found.moves, found.tasks, found.stages) == (2, 6, 2)


def test_one_executor_serves_two_jobs_in_turn() -> None:
    small = query([(1, (), 2.0, 1.0, 1.0)])
    work = Catalogue.of([CHAIN, small]).jobs([0, 1], np.array([0.0, 1.0]))
    first = MOVE_S + 5 + 3 * 1 + 2 + 1
    found = run(work, 1, "fifo", 1)
    assert found.makespan_s == pytest.approx(first + MOVE_S + 2)
    assert found.mean_job_s == pytest.approx((first + first + MOVE_S + 2 - 1) / 2)
    short = run(work._replace(arrival_s=np.zeros(2)), 1, "sjf-cp", 1)
    assert short.mean_job_s == pytest.approx((MOVE_S + 2 + MOVE_S + 2 + first) / 2)


def random_queries(seed: int) -> list[Query]:
    dice = np.random.default_rng(seed)

    def stage(s: int) -> tuple[int, tuple[int, ...], float, float, float]:
        fresh, first, rest = dice.uniform(0.1, 9, 3).tolist()
        return int(dice.integers(1, 30)), tuple(p for p in range(s) if dice.random() < 0.4), fresh, first, rest

    return [query([stage(s) for s in range(int(dice.integers(1, 7)))]) for _ in range(5)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("policy", POLICIES)
def test_laws(seed: int, policy: str) -> None:
    """Every task runs once; no executor does two things at once; parents are done first; nobody beats work / executors."""
    catalogue = Catalogue.of(random_queries(seed))
    setting = Setting(12, 7, 0.0 if seed % 2 else 20.0)
    work = catalogue.drawn(setting, seed)
    found = simulate(catalogue, setting, policy, seed=seed, exponent=-0.5)
    assert found.tasks == work.tasks.sum()
    assert found.stages == len(work.tasks)
    assert 0 < found.busy_share <= 1 + 1e-12
    least = [catalogue_path(work, j) for j in range(12)]
    assert found.mean_job_s >= np.mean(least) + MOVE_S - 1e-9
    assert found.mean_job_s <= found.makespan_s + 1e-9
    assert found == simulate_again(catalogue, setting, policy, seed, found.seconds_spent)


def catalogue_path(work: Any, job: int) -> float:
    """The longest way of a job if every task took the least time that any of its stage's does."""
    a, b = work.first[job], work.first[job + 1]
    way = np.zeros(b - a)
    for s in range(b - 1, a - 1, -1):
        children = work.child[work.child_first[s] : work.child_first[s + 1]] - a
        way[s - a] = min(work.durations[work.draws[s, 0, w, 0]] for w in range(3)) + max(way[children], default=0.0)
    return float(way.max())


def simulate_again(catalogue: Catalogue, setting: Setting, policy: str, seed: int, spent_s: float) -> Any:
    return replace(simulate(catalogue, setting, policy, seed=seed, exponent=-0.5), seconds_spent=spent_s)


@pytest.mark.parametrize("seed", range(6))
def test_the_state_is_sound_at_every_decision(seed: int) -> None:
    """Whoever decides: here, by chance. Executors may be left idle as long as something is under way."""
    dice = np.random.default_rng(seed)
    work = Catalogue.of(random_queries(seed)).drawn(Setting(8, 5, 10.0), seed)
    state = fresh_state(work, 5, seeded(seed))
    while advance(work, state):
        heap, free = state.heap[: state.size[0]], int((state.doing == 0).sum())
        assert free == state.size[1] == 5 - len(set(heap.tolist()))
        assert (state.until_s[heap] >= state.now[0]).all()
        assert (state.begun <= work.tasks).all()
        assert (state.over <= state.begun).all()
        for j in range(8):
            assert state.held[j] == (state.home == j).sum()
            assert state.running[j] == ((state.home == j) & (state.doing == 1)).sum()
        begun = state.begun > 0
        assert all((state.over == work.tasks)[p] for s in np.flatnonzero(begun) for p in parents(work, s))
        open_ = [s for j in state.active[: state.size[2]] for s in range(work.first[j], work.first[j + 1]) if wanted(work, state, s)]  # fmt: skip
        if open_ and (dice.random() < 0.7 or state.size[0] == 0):
            assert send(work, state, int(dice.choice(open_)), int(dice.integers(1, 4))) >= 1
    assert state.counts[1] == 8
    assert np.allclose(state.left_s, 0.0, atol=1e-6)


def parents(work: Any, stage: int) -> list[int]:
    return [p for p in range(len(work.tasks)) if stage in work.child[work.child_first[p] : work.child_first[p + 1]]]


def test_shares_follow_the_weights() -> None:
    """Two endless jobs, one with thrice the weight: 6 of 8 executors are its own."""
    long = query([(400, (), 1.0, 1.0, 1.0)])
    work = Catalogue.of([long]).jobs([0, 0], np.zeros(2))
    state = fresh_state(work, 8, seeded(1))
    assert advance(work, state)
    assert state.counts[0] == 2
    _share(work, state, np.array([3.0, 1.0]))
    assert state.moving.tolist() == [6, 2]
    episode(work, state, SHARES, weights(work, 0.0))
    assert state.counts[1] == 2


def test_an_exponent_is_tuned_on_other_episodes() -> None:
    catalogue = Catalogue.of(random_queries(1))
    setting = Setting(10, 5)
    exponent = tuned(catalogue, setting, 3)
    assert simulate(catalogue, setting, "weighted-fair", seed=3).exponent == exponent
    with pytest.raises(BadInput, match="unknown policy 'best'"):
        simulate(catalogue, setting, "best")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "it has no queries"),
        ('{"1": {"edges": [], "stages": []}}', "has 0 stages"),
        ('{"1": {"edges": [[0, 1]], "stages": [{"fresh_durations": {"5": [1]}, "first_wave": {"5": [1]}, "rest_wave": {"5": []}}]}}', "an edge 0 -> 1"),
        ('{"1": {"edges": [[0, 0]], "stages": [{"fresh_durations": {"5": [1]}, "first_wave": {"5": [1]}, "rest_wave": {"5": []}}]}}', "a circle"),
        ('{"1": {"edges": [], "stages": [{"fresh_durations": {"5": []}, "first_wave": {"5": []}, "rest_wave": {"5": [1]}}]}}', "neither fresh durations"),
        ('{"1": {"edges": [], "stages": [{"fresh_durations": {"5": [1]}, "first_wave": {"5": []}, "rest_wave": {"5": []}}]}}', "has no task"),
        ('{"1": {"edges": [], "stages": [{"fresh_durations": {"5": [1]}, "first_wave": {"5": [-1]}, "rest_wave": {"5": []}}]}}', "outside of 0 to"),
        ('{"1": {"edges": [], "stages": [{"fresh_durations": {"5": [1]}, "first_wave": {"4": [1]}, "rest_wave": {"5": []}}]}}', "the same numbers of executors"),
    ],
)  # fmt: skip
def test_traces_that_cannot_be_used_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "1g.json").write_text(text)
    with pytest.raises(CostError, match=words):
        read_traces(tmp_path)


def test_a_job_of_many_more_stages_than_tasks_or_executors_runs_learned() -> None:
    catalogue = Catalogue.of([query([(1, (), 1.0, 1.0, 1.0)] * 120)])
    assert simulate(catalogue, Setting(1, 2), "learned", seed=0).stages == 120


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CostError, match="has no"):
        read_traces(tmp_path)


@pytest.mark.skipif(not TRACES, reason="PARTITA_TPCH names no folder of traces")
def test_the_traces_of_tpch_run_and_fair_shares_beat_fifo() -> None:
    catalogue = Catalogue.of(read_traces(TRACES))
    means = {p: np.mean([simulate(catalogue, Setting(20, 50), p, seed=s).mean_job_s for s in range(3)]) for p in POLICIES}  # fmt: skip
    assert means["weighted-fair"] < means["fair"] < means["fifo"]
