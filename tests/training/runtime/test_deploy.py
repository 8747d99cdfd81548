"""Plans of every kind, one after the other in one training run, against one process: losses and weights stay the same."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from training.runtime.helpers import captured_job, source_of
from training.runtime.ranks import on_ranks, pipeline

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Slot, Stage
from partita.simulate.segments import stages_of
from partita.training.job import Batch, TrainingJob, load_job
from partita.training.runtime import checkpoint
from partita.training.runtime.pipeline import Assignment
from partita.training.runtime.single import SingleProcess

WORLD = ("cpu0", "cpu1", "cpu2")
ROUNDING = 0.1  # below this a weight may be nothing but rounding: the gradient of attention's key.bias is 0 in exact arithmetic
SIZE = 2


def cut(graph: TaskGraph, devices: Sequence[Sequence[str]], **how: Any) -> PipelinePlan:
    """Equal parts of the tasks, the k-th on devices[k]; 8 samples in 4 micro-batches."""
    tasks = [graph.tasks[i].id for i in graph.order if graph.tasks[i].phase == "forward"]
    ends = [round(k * len(tasks) / len(devices)) for k in range(len(devices) + 1)]
    shares, recompute = how.pop("shares", {}), how.pop("recompute", ())
    stages = tuple(
        Stage(tuple(tasks[a:b]), tuple(ds), k in recompute, shares.get(k, ()))
        for k, (a, b, ds) in enumerate(zip(ends, ends[1:], devices, strict=False))
    )
    return PipelinePlan(graph.fingerprint, stages, 4, len(devices) + 1, how.pop("schedule", "1f1b"), **how)


def split_backward(graph: TaskGraph) -> PipelinePlan:
    """Two stages whose weights' gradients fill the drain (ZB-H1's idea), the first stage's own after each backward."""
    one, two = [Slot("F", 0, 0), Slot("F", 0, 1)], []
    for m in range(4):
        one += [Slot("B", 0, m), *([Slot("W", 0, m)] if m % 2 else []), *([Slot("F", 0, m + 2)] if m < 2 else [])]
        two += [Slot("F", 1, m), Slot("B", 1, m)]
    one += [Slot("W", 0, m) for m in (0, 2)]
    two += [Slot("W", 1, m) for m in range(4)]
    return cut(graph, ["a", "b"], schedule="given", orders={"a": tuple(one), "b": tuple(two)})


def scattered(graph: TaskGraph) -> PipelinePlan:
    """A placement whose devices wait for each other in a circle: every third task moves on to the next device."""
    tasks = [graph.tasks[i].id for i in graph.order if graph.tasks[i].phase == "forward"]
    stages = stages_of(graph, {t: WORLD[i // 3 % 3] for i, t in enumerate(tasks)})
    assert len(stages) > 4
    return PipelinePlan(graph.fingerprint, stages, 4, 4, "1f1b")


def renamed(plan: PipelinePlan, names: dict[str, str]) -> PipelinePlan:
    stages = tuple(dataclasses.replace(s, devices=tuple(names.get(d, d) for d in s.devices)) for s in plan.stages)
    return dataclasses.replace(plan, stages=stages, orders={names.get(d, d): o for d, o in plan.orders.items()})


def plans(graph: TaskGraph) -> list[PipelinePlan]:
    a, b, c = WORLD
    return [
        cut(graph, [[a], [b]]),
        cut(graph, [[a], [b], [b], [a]]),  # V
        cut(graph, [[c], [b], [c], [b]]),  # interleaved
        renamed(split_backward(graph), {"a": b, "b": a}),
        scattered(graph),
        cut(graph, [[b], [a], [c]], recompute=(0, 2), schedule="gpipe"),
        cut(graph, [[c]]),  # up to here every sum is made in the order of one process; replicas round differently
        cut(graph, [[a, c], [b]], shares={0: (3, 1)}),
        cut(graph, [[a, b, c]]),
    ]


def stream(job: TrainingJob) -> Iterator[Batch]:
    return (batch for epoch in itertools.count() for batch in job.batches(epoch))


def deployed(rank: int, ranks: int, source: str, chosen: list[PipelinePlan], steps: list[int], size: int) -> Any:
    """(losses, weights at the end) of a run that goes from plan to plan."""
    job = load_job(source, {})
    cluster = Cluster.uniform(ranks, rate_bytes_per_s=1e9)
    engine = pipeline(job, Assignment(chosen[0], cluster, size, rank, WORLD[:ranks]))
    losses, step = [], 0
    batches = stream(job)
    for plan, n in zip(chosen, steps, strict=True):
        if step:
            engine.deploy(plan)
        for _ in range(n):
            loss = engine.step(next(batches), step).loss
            told = torch.tensor([loss if engine.reports_loss else 0.0], dtype=torch.float64)
            torch.distributed.all_reduce(told)
            losses.append(float(told))
            step += 1
    return losses, {n: t.numpy() for n, t in checkpoint.gather_tensors(dict(engine.parameters), rank, ranks).items()}


def by_itself(source: str, steps: int, size: int) -> tuple[list[float], dict[str, Tensor]]:
    torch.set_num_threads(1)  # as the ranks: other kernels round differently
    job = load_job(source, {})
    engine = SingleProcess(job, size, torch.device("cpu"))
    batches = stream(job)
    losses = [engine.step(next(batches), k).loss for k in range(steps)]
    return losses, {n: p.detach() for n, p in engine.model.named_parameters()}


def compare(source: str, chosen: list[PipelinePlan], steps: list[int], ranks: int = 3, size: int = SIZE) -> None:
    losses, weights = on_ranks(deployed, ranks, source, chosen, steps, size)
    wanted, reference = by_itself(source, sum(steps), size)
    assert losses == pytest.approx(wanted, rel=1e-5)
    for name, p in reference.items():
        scale = max(float(p.abs().max()), ROUNDING)
        assert float((torch.from_numpy(weights[name]) - p).abs().max()) <= 1e-5 * scale, name


@pytest.mark.parametrize("model", ["resnet", "gpt2", "bert"])
def test_a_run_goes_through_plans_of_every_kind(model: str) -> None:
    pytest.importorskip("transformers")
    graph = captured_job(model, SIZE).graph
    compare(source_of(model), plans(graph), [2, 3, 3, 3, 3, 2, 1, 2, 1])


def test_messages_may_be_wanted_in_another_order_than_they_are_sent() -> None:
    """More of them than are received ahead."""
    graph = captured_job("failing:good", 1).graph
    a, b = WORLD[:2]
    one = [Slot("F", 0, m) for m in range(8)] + [Slot("B", 0, m) for m in (3, 0, 1, 2, 4, 5, 6, 7)]
    two = [Slot(part, 1, m) for m in reversed(range(8)) for part in ("F", "B")]
    plan = cut(graph, [[a], [b]], schedule="given", orders={a: tuple(one), b: tuple(two)})
    plan = dataclasses.replace(plan, micro_batches=8, in_flight=1)
    compare(source_of("failing:good"), [plan], [2], ranks=2, size=1)


@pytest.mark.parametrize("kind", ["groups", "clipped", "bfloat16"])
def test_groups_schedules_clipping_and_casts_move_along(kind: str) -> None:
    source = source_of(f"trained:{kind}")
    graph = captured_job(f"trained:{kind}", SIZE).graph
    a, b, c = WORLD
    chosen = [cut(graph, [[a], [b]]), cut(graph, [[b, c]]), cut(graph, [[c], [a], [b]])]
    compare(source, chosen, [2, 2, 2])


def test_an_idle_rank_that_keeps_what_nothing_reads_keeps_up() -> None:
    source, graph = source_of("trained:unread"), captured_job("trained:unread", SIZE).graph
    a, b, c = WORLD
    compare(source, [cut(graph, [[b], [c]]), cut(graph, [[c], [a]])], [3, 2])


def refused(rank: int, ranks: int, source: str, plan: PipelinePlan, wrong: PipelinePlan) -> Any:
    job = load_job(source, {})
    engine = pipeline(job, Assignment(plan, Cluster.uniform(2), SIZE, rank, WORLD[:2]))
    batch = job.example()
    before = engine.step(batch, 0).loss
    with pytest.raises(PlanError, match="cpu2"):
        engine.deploy(wrong)
    return before, engine.step(batch, 1).loss


def test_a_plan_for_devices_that_are_not_there_changes_nothing() -> None:
    source, graph = source_of("trained:groups"), captured_job("trained:groups", SIZE).graph
    good, wrong = cut(graph, [["cpu0"]]), cut(graph, [["cpu0"], ["cpu2"]])
    before, after = on_ranks(refused, 2, source, good, wrong)
    assert after < before
