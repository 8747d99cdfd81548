"""The runtime against one process: same losses, same gradients, 20 steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from training.runtime.helpers import MODELS, plan_file

from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.plan import PlanFile
from partita.pipeline.run.loop import compare_engines
from partita.simulate.boundaries import boundaries
from partita.simulate.lower import program_of

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


def test_sparse_gradients_are_compared_too(tmp_path: Path) -> None:
    engines = ("single", "pipeline")
    found = compare_engines(plan_file("sparse", stages=2), f"{MODELS}:sparse", {}, tmp_path, engines=engines, rounds=3)
    assert found.gradient_errors["pipeline"] <= 1e-5


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


def test_what_two_stages_of_a_device_read_crosses_once(tmp_path: Path) -> None:
    """The skip's tensor is read behind it and at the far end, both on cpu1: one message there, one gradient back."""
    file = plan_file("long_skip", stages=4)
    assert isinstance(file.plan, PipelinePlan)
    tasks = [t for s in file.plan.stages for t in s.tasks]
    cuts = (0, 1, len(tasks) // 3, 2 * len(tasks) // 3, len(tasks))
    stages = tuple(Stage(tuple(tasks[a:b]), (f"cpu{k % 2}",)) for k, (a, b) in enumerate(pairwise(cuts)))
    problem = replace(file.problem, cluster=replace(file.problem.cluster, devices=file.problem.cluster.devices[:2]))
    file = PlanFile(replace(file.plan, stages=stages), file.verdict, problem)
    program = program_of(file.problem, file.plan)
    sent = Counter((t, p.route) for p in program.pieces if p.kind in ("values", "gradients") for t in p.tensors)
    reads = [t for b in boundaries(file.graph, file.plan) if (b.target - b.source) % 2 for t in b.tensors]
    assert len(set(reads)) < len(reads)
    assert set(sent.values()) == {1}
    comparison = compare_engines(
        file, f"{MODELS}:long_skip", {}, tmp_path, engines=("single", "pipeline"), rounds=6, warmup=0
    )
    assert comparison.gradient_errors["pipeline"] <= 1e-5
    assert comparison.largest_loss_error <= 1e-5


@pytest.mark.slow
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
