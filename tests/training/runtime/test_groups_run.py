"""Groups of pipelines that cut differently, run for real: losses and gradients of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from training.runtime.helpers import MODELS, plan_file

from partita.nouns.cluster import Cluster, Device
from partita.nouns.pipeline_plan import PipelinePlan, Slot, Stage
from partita.nouns.plan import PlanFile
from partita.pipeline.run.loop import compare_engines

pytest.importorskip("transformers")


def unequal_cuts() -> PlanFile:
    """cpu0 has the whole model and two of three micro-batches, cpu1 and cpu2 a pipeline for the third one, cut elsewhere than
    the stages' middle, so that cpu1 serves two of three stages."""
    file = plan_file("bert", stages=3)
    plan = file.plan
    assert isinstance(plan, PipelinePlan)
    crew = (("cpu0", "cpu1"), ("cpu0", "cpu1"), ("cpu0", "cpu2"))
    stages = tuple(Stage(s.tasks, d, shares=(2, 1)) for s, d in zip(plan.stages, crew, strict=True))
    turn, n = stages[0].turn, plan.micro_batches
    first = [m for m in range(n) if turn[m % 3] == 0]
    second = [m for m in range(n) if turn[m % 3] == 1]

    def one_by_one(ks: tuple[int, ...], ms: list[int]) -> tuple[Slot, ...]:
        whole = [[*(Slot("F", k, m) for k in ks), *(Slot("B", k, m) for k in ks[::-1])] for m in ms]
        return tuple(s for row in whole for s in row)

    orders = {"cpu0": one_by_one((0, 1, 2), first), "cpu1": one_by_one((0, 1), second), "cpu2": one_by_one((2,), second)}  # fmt: skip
    cluster = Cluster(tuple(Device(f"cpu{i}") for i in range(3)), (), file.cluster.default_link)
    made = replace(plan, stages=stages, schedule="given", orders=orders, in_flight=2)
    return replace(file, plan=made, problem=file.problem.on(cluster))


@pytest.mark.slow
def test_unequal_cuts_and_shares_train_alike(tmp_path: Path) -> None:
    file = unequal_cuts()
    assert file.plan.check(file.graph, file.cluster) == []
    found = compare_engines(file, f"{MODELS}:bert", {}, tmp_path, engines=("single", "pipeline"), rounds=5, warmup=0)
    assert found.gradient_errors["pipeline"] <= 1e-5
    assert found.largest_loss_error <= 1e-5
