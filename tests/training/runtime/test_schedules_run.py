"""Every schedule executed: losses and weights are those of one process, also in orders drawn by lot."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from simulate.lots import order_by_lot
from training.runtime.helpers import captured_job, source_of
from training.runtime.ranks import on_ranks
from training.runtime.test_deploy import SIZE, WORLD, Run, check, cut, deployed, together

from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan

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


def test_every_schedule_trains_like_one_process() -> None:
    """BatchNorm, a tied weight over stages, a skip over all of them, a frozen layer and a parameter without a gradient."""
    pytest.importorskip("transformers")
    runs: list[Run] = []
    for model in ("resnet", "gpt2", "long_skip", "trained:groups"):
        chosen = schedules(captured_job(model, SIZE).graph)
        runs.append((source_of(model), chosen, [1] * len(chosen)))
    for run, found in zip(runs, on_ranks(together, 2, [(deployed, *run) for run in runs]), strict=True):
        check(run, found)


def test_zero_bubble_with_replicas_of_a_stage() -> None:
    source, graph = source_of("trained:decoder"), captured_job("trained:decoder", SIZE).graph
    a, b, c = WORLD
    chosen = [cut(graph, [[a, b], [c]], schedule=s, in_flight=3) for s in ("zb-h1", "zb-h2")]
    run = (source, chosen, [1, 1])
    check(run, on_ranks(deployed, 3, *run))


def test_orders_by_lot_run_to_their_end_and_train_alike() -> None:
    source, graph = source_of("trained:decoder"), captured_job("trained:decoder", SIZE).graph
    chosen = []
    for seed in range(LOTS):
        lots = random.Random(seed)
        plan = cut(graph, [[lots.choice((A, B))] for _ in range(lots.randint(2, 4))])
        chosen.append(replace(plan, schedule="given", orders=order_by_lot(plan, lots)))
    run = (source, chosen, [1] * LOTS)
    check(run, on_ranks(deployed, 2, *run))
