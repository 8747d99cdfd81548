"""Every schedule executed: losses and weights are those of one process, also in orders drawn by lot."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from simulate.lots import order_by_lot
from training.runtime.helpers import captured_job, source_of
from training.runtime.ranks import on_ranks
from training.runtime.test_deploy import SIZE, WORLD, Run, check, cut, deployed, together

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan
from partita.training.job import load_job
from partita.training.runtime import checkpoint
from partita.training.runtime.pipeline import Assignment
from partita.training.runtime.single import SingleProcess

A, B = WORLD[:2]
LOTS = 8  #: random orders run for real


def schedules(graph: TaskGraph) -> list[PipelinePlan]:
    return [
        cut(graph, [[A], [B]], schedule="zb-h1", in_flight=2),
        cut(graph, [[A], [B]], schedule="zb-h2", in_flight=2, recompute=(1,)),
        cut(graph, [[B], [A], [B], [A]], schedule="interleaved"),
        cut(graph, [[A], [B], [B], [A]], schedule="zb-v"),
        cut(graph, [[A], [B], [B], [A]], schedule="zb-v", recompute=(0, 2)),
        cut(graph, [[A], [B], [A]], schedule="1f1b"),
    ]


@pytest.mark.parametrize(
    "models", [("resnet", "trained:groups"), pytest.param(("gpt2", "long_skip"), marks=pytest.mark.slow)], ids="+".join
)
def test_every_schedule_trains_like_one_process(models: tuple[str, ...]) -> None:
    """BatchNorm, a frozen layer and a parameter without a gradient; a tied weight over stages, a skip over all of them."""
    pytest.importorskip("transformers")
    runs: list[Run] = []
    for model in models:
        chosen = schedules(captured_job(model, SIZE).graph)
        runs.append((source_of(model), chosen, [1] * len(chosen)))
    for run, found in zip(runs, on_ranks(together, 2, [(deployed, *run) for run in runs]), strict=True):
        check(run, found)


def by_torch(rank: int, ranks: int, source: str, runs: list[tuple[PipelinePlan, bool]]) -> Any:
    """Gradients of the first step by torch's engine under each plan."""
    from partita.training.runtime.torch_engine import TorchPipelining

    job, found = load_job(source, {}), []
    for plan, zero_bubble in runs:
        assignment = Assignment(plan, Cluster.uniform(ranks), SIZE, rank, WORLD[:ranks])
        engine = TorchPipelining(job, assignment, torch.device("cpu"), zero_bubble=zero_bubble)
        loss = engine.step(job.example(), 0).loss
        assert engine.reports_loss == (loss == loss)
        gathered = checkpoint.gather_tensors(engine.gradients(), rank, ranks)
        found.append({n: t.numpy() for n, t in gathered.items()})
    return found


@pytest.mark.slow
def test_torch_runs_the_same_schedules() -> None:
    pytest.importorskip("transformers")
    source, graph = source_of("resnet"), captured_job("resnet", SIZE).graph
    round_and_round = cut(graph, [[A], [B], [A], [B]], schedule="interleaved")
    runs = [
        (cut(graph, [[A], [B]]), False), (round_and_round, False), (round_and_round, True),
        (cut(graph, [[A], [B]], schedule="zb-h1", in_flight=2), False), (cut(graph, [[A], [B], [B], [A]], schedule="zb-v"), False),
    ]  # fmt: skip
    job = load_job(source, {})
    single = SingleProcess(job, SIZE, torch.device("cpu"))
    single.step(job.example(), 0)
    wanted = single.gradients()
    for found in on_ranks(by_torch, 2, source, runs):
        assert found.keys() == wanted.keys()
        for name, g in wanted.items():
            scale = max(float(g.abs().max()), 1e-3)
            assert float((torch.from_numpy(found[name]) - g).abs().max()) <= 1e-5 * scale, name


def test_torch_refuses_stages_elsewhere() -> None:
    from partita.training.runtime.torch_engine import TorchPipelining

    source = source_of("trained:groups")
    graph, job = captured_job("trained:groups", SIZE).graph, load_job(source, {})
    for plan in (cut(graph, [[B], [A]]), cut(graph, [[A], [B], [A]])):
        assignment = Assignment(plan, Cluster.uniform(2), SIZE, 0, WORLD[:2])
        with pytest.raises(PlanError, match="torch's engine wants"):
            TorchPipelining(job, assignment, torch.device("cpu"))


@pytest.mark.slow
def test_zero_bubble_with_replicas_of_a_stage() -> None:
    source, graph = source_of("trained:decoder"), captured_job("trained:decoder", SIZE).graph
    a, b, c = WORLD
    chosen = [cut(graph, [[a, b], [c]], schedule=s, in_flight=3) for s in ("zb-h1", "zb-h2")]
    run = (source, chosen, [1, 1])
    check(run, on_ranks(deployed, 3, *run))


@pytest.mark.slow
def test_orders_by_lot_run_to_their_end_and_train_alike() -> None:
    source, graph = source_of("trained:decoder"), captured_job("trained:decoder", SIZE).graph
    chosen = []
    for seed in range(LOTS):
        lots = random.Random(seed)
        plan = cut(graph, [[lots.choice((A, B))] for _ in range(lots.randint(2, 4))])
        chosen.append(replace(plan, schedule="given", orders=order_by_lot(plan, lots)))
    run = (source, chosen, [1] * LOTS)
    check(run, on_ranks(deployed, 2, *run))
