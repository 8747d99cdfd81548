"""The runtime against one process: same losses, same gradients, 20 steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from training.runtime.helpers import MODELS, plan_file

from partita.nouns.plan import PlanFile
from partita.pipeline.run.loop import compare_engines

pytest.importorskip("transformers")

QUICK = (("long_skip", 3),)  # test_deploy takes GPT-2 through plans of every kind
CASES = [
    pytest.param(m, k, marks=[] if (m, k) in QUICK else pytest.mark.slow)
    for m in ("resnet", "vit", "bert", "gpt2", "long_skip")
    for k in (2, 3)
]


@pytest.mark.parametrize(("model", "stages"), CASES)
def test_losses_and_gradients_are_those_of_one_process(model: str, stages: int, tmp_path: Path) -> None:
    comparison = compare_engines(
        plan_file(model, stages=stages),
        f"{MODELS}:{model}",
        {},
        tmp_path,
        engines=("single", "pipeline"),
        rounds=20,
        warmup=0,
    )
    assert len(comparison.losses["pipeline"]) == 20
    assert comparison.gradient_errors["pipeline"] <= 1e-5
    assert comparison.largest_loss_error <= 1e-5


@pytest.mark.slow  # through `partita run`'s workers; test_deploy has such plans in one start of its ranks
@pytest.mark.parametrize(
    "change",
    [
        {"stages": 2, "replicas": (2, 1)},
        {"stages": 1, "replicas": (2,)},
        {"stages": 3, "schedule": "gpipe"},
        {"stages": 3, "recompute": (0, 1)},
        {"stages": 3, "in_flight": 1},
        {"stages": 3, "in_flight": 9},
    ],
    ids=["replicas-first", "data-parallel", "gpipe", "recompute", "one-in-flight", "many-in-flight"],
)
def test_every_kind_of_plan_trains_alike(change: dict[str, object], tmp_path: Path) -> None:
    trains_alike(plan_file("bert", **change), tmp_path)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_last_micro_batch_may_be_smaller(tmp_path: Path) -> None:
    """8 = 3 + 3 + 2."""
    trains_alike(plan_file("bert", stages=2, size=3), tmp_path)


def trains_alike(file: PlanFile, tmp_path: Path) -> None:
    comparison = compare_engines(
        file, f"{MODELS}:bert", {}, tmp_path, engines=("single", "pipeline"), rounds=6, warmup=0
    )
    assert comparison.gradient_errors["pipeline"] <= 1e-5
    assert comparison.largest_loss_error <= 1e-5


def test_torch_engine_runs_the_same_plan_with_a_long_skip(tmp_path: Path) -> None:
    comparison = compare_engines(
        plan_file("long_skip", stages=3),
        f"{MODELS}:long_skip",
        {},
        tmp_path,
        engines=("single", "pipeline", "torch"),
        rounds=4,
        warmup=1,
    )
    assert comparison.gradient_errors["torch"] <= 1e-5
    assert comparison.gradient_errors["pipeline"] <= 1e-5
