"""Weights in files, and training that can be stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from spark.plan.executors.test_executors import random_queries

from partita.errors import BadInput, CheckpointError
from partita.spark.plan.executors.episodes import Catalogue, Setting, run_learned, simulate
from partita.spark.plan.learned.lessons import Lesson, cluster_lesson, shop_lesson
from partita.spark.plan.learned.policy import FORMAT, LENGTHS, Policy, shipped
from partita.spark.plan.learned.train import Training, trained


def no_file(_: Training) -> None:
    """Nothing is kept."""


def small(mode: str) -> Lesson:
    if mode == "shop":
        return shop_lesson(None, 1)
    return cluster_lesson(Catalogue.of(random_queries(1)), 5, 1)


@pytest.mark.parametrize("mode", ["shop", "executors"])
def test_a_stopped_training_ends_where_an_unbroken_one_does(mode: Any, tmp_path: Path) -> None:
    lesson = small(mode)
    whole = trained(lesson, Training.begun(lesson, 1), budget_s=1e9, keep=no_file, most_generations=4)
    half = trained(lesson, Training.begun(lesson, 1), budget_s=1e9, keep=no_file, most_generations=2)
    again = Training.read(half.write(tmp_path / "t"), mode, 1)
    rest = trained(lesson, again, budget_s=1e9, keep=no_file, most_generations=4, threads=2)
    assert np.array_equal(whole.search.mean, rest.search.mean)
    assert rest.spent_s > half.spent_s
    with pytest.raises(CheckpointError, match="seed 1"):
        Training.read(tmp_path / "t", mode, 2)


def test_the_shipped_policy_beats_the_rules_on_jobs_of_its_kind() -> None:
    assert small("shop").exam(shipped().weights("shop")) < 0.95


def test_weights_come_back_and_misfits_are_told(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    policy = Policy(shop=np.arange(LENGTHS["shop"], dtype=float))
    found = Policy.read(policy.write(path))
    assert np.array_equal(found.weights("shop"), np.arange(LENGTHS["shop"]))
    with pytest.raises(BadInput, match="no weights for the mode 'executors'"):
        found.weights("executors")
    good = {"format": FORMAT, "version": "1"}
    row = np.zeros(LENGTHS["shop"], np.float32)
    for tensors, says, why in (
        ({"shop": row}, {"format": FORMAT, "version": "2"}, "has version '2'; this Partita reads version 1"),
        ({"shop": row}, {"format": "other"}, f"is no {FORMAT}"),
        ({"shop": row[1:]}, good, "its weights 'shop' are"),
        ({"shop": row + np.float32(np.nan)}, good, "not all finite"),
        ({"other": row}, good, "unknown weights"),
        ({}, good, "it has no weights"),
    ):
        path.write_bytes(save(tensors, says))
        with pytest.raises(BadInput, match=why):
            Policy.read(path)
    path.write_bytes(b"no such file")
    with pytest.raises(BadInput, match="damaged"):
        Policy.read(path)


def test_any_weights_finish_all_jobs() -> None:
    """Also those that would leave every executor free for ever."""
    catalogue = Catalogue.of(random_queries(2))
    for seed in range(12):
        dice = np.random.default_rng(seed)
        work = catalogue.drawn(Setting(9, 4, 0.0 if seed % 2 else 15.0), seed)
        weights = dice.normal(size=LENGTHS["executors"]) * 3
        weights[24] -= 30.0 * (seed % 3)
        found = run_learned(work, 4, weights, seed)
        assert found.tasks == work.tasks.sum()
        again = run_learned(work, 4, weights, seed)
        assert (again.mean_job_s, again.moves) == (found.mean_job_s, found.moves)


def test_learned_is_a_policy_like_others() -> None:
    catalogue, setting = Catalogue.of(random_queries(3)), Setting(8, 5)
    one, two = (simulate(catalogue, setting, "learned", seed=4) for _ in range(2))
    assert one.mean_job_s == two.mean_job_s > 0
    assert one.exponent is None
