"""Plans of every kind, one after the other in one training run, against one process: losses and weights stay the same."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from training.runtime.helpers import captured_job, source_of
from training.runtime.ranks import on_ranks, pipeline

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Slot, Stage
from partita.nouns.program import Op
from partita.nouns.splits import Split
from partita.simulate.segments import stages_of
from partita.training.job import Batch, TrainingJob, load_job
from partita.training.runtime import checkpoint, interpreter
from partita.training.runtime.pipeline import Assignment
from partita.training.runtime.single import SingleProcess

WORLD = ("cpu0", "cpu1", "cpu2")
ROUNDING = 0.1  # below this a weight may be nothing but rounding: the gradient of attention's key.bias is 0 in exact arithmetic
SIZE = 2
Run = tuple[str, list[PipelinePlan], list[int]]  #: job, plan after plan, steps by each


def cut(graph: TaskGraph, devices: Sequence[Sequence[str]], **how: Any) -> PipelinePlan:
    """Equal parts of the tasks, the k-th on devices[k]; 8 samples in 4 micro-batches."""
    tasks = [graph.tasks[i].id for i in graph.order if graph.tasks[i].phase == "forward"]
    ends = [round(k * len(tasks) / len(devices)) for k in range(len(devices) + 1)]
    shares, recompute = how.pop("shares", {}), how.pop("recompute", ())
    stages = tuple(
        Stage(tuple(tasks[a:b]), tuple(ds), k in recompute, shares.get(k, ()))
        for k, (a, b, ds) in enumerate(zip(ends, ends[1:], devices, strict=False))
    )
    in_flight = how.pop("in_flight", len(devices) + 1)
    return PipelinePlan(graph.fingerprint, stages, 4, in_flight, how.pop("schedule", "1f1b"), **how)


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
        cut(graph, [[a], [b], [c]], recompute=(0, 1), in_flight=1),
        cut(graph, [[a], [c], [b]], in_flight=9),
        cut(graph, [[c]]),  # up to here every sum is made in the order of one process; replicas round differently
        cut(graph, [[a, c], [b]], shares={0: (3, 1)}),
        cut(graph, [[a, b, c]]),
    ]


def stream(job: TrainingJob) -> Iterator[Batch]:
    return (batch for epoch in itertools.count() for batch in job.batches(epoch))


def deployed(
    rank: int,
    ranks: int,
    source: str,
    chosen: list[PipelinePlan],
    steps: list[int],
    size: int = SIZE,
    splits: tuple[Split, ...] = (),
) -> Any:
    """(losses, weights at the end) of a run that goes from plan to plan."""
    job = load_job(source, {})
    cluster = Cluster.uniform(ranks, rate_bytes_per_s=1e9)
    engine = pipeline(job, Assignment(chosen[0], cluster, size, rank, WORLD[:ranks], splits))
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


def by_itself(source: str, steps: int, size: int = SIZE) -> tuple[list[float], dict[str, Tensor]]:
    torch.set_num_threads(1)  # as the ranks: other kernels round differently
    job = load_job(source, {})
    engine = SingleProcess(job, size, torch.device("cpu"))
    batches = stream(job)
    losses = [engine.step(next(batches), k).loss for k in range(steps)]
    return losses, {n: p.detach() for n, p in engine.model.named_parameters()}


def together(rank: int, ranks: int, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What function(rank, ranks, *arguments) of each (function, *arguments) returns, by processes that start once."""
    return [function(rank, ranks, *arguments) for function, *arguments in calls]


def check(run: Run, found: tuple[list[float], dict[str, Any]], size: int = SIZE, limit: float = 1e-5) -> None:
    """What a run came to, against one process; `limit`: of what weights differ by, as a share."""
    source, _, steps = run
    losses, weights = found
    wanted, reference = by_itself(source, sum(steps), size)
    assert losses == pytest.approx(wanted, rel=1e-5), source
    for name, p in reference.items():
        scale = max(float(p.abs().max()), ROUNDING)
        assert float((torch.from_numpy(weights[name]) - p).abs().max()) <= limit * scale, (source, name)


@pytest.mark.slow
@pytest.mark.parametrize("models", [("gpt2",), ("resnet", "bert")], ids="+".join)
def test_a_run_goes_through_plans_of_every_kind(models: tuple[str, ...]) -> None:
    pytest.importorskip("transformers")
    runs: list[Run] = []
    for model in models:
        graph = captured_job(model, SIZE).graph
        runs.append((source_of(model), plans(graph), [2, 2, 2, 2, 3, 2, 2, 2, 1, 2, 1]))
    for run, found in zip(runs, on_ranks(together, 3, [(deployed, *run) for run in runs]), strict=True):
        check(run, found)


def left_over(rank: int, ranks: int, source: str, plans: list[PipelinePlan]) -> Any:
    """(losses, gradients that each update finds not yet sent or dropped) of a step by each plan."""
    held: list[int] = []

    def update(self: interpreter.Interpreter, s: interpreter.Step, line: interpreter.Line) -> None:
        held.append(len(s.owed) + len(s.made) + sum(map(len, s.returned.values())))
        interpreter.Interpreter.update(self, s, line)

    handlers = {**interpreter.HANDLERS, (Op.UPDATE, "update"): update}
    with mock.patch.object(interpreter, "HANDLERS", handlers):
        losses, _ = deployed(rank, ranks, source, plans, [1] * len(plans))
    return losses, held


@pytest.mark.slow
def test_messages_come_in_another_order_than_they_are_wanted_and_nothing_stays_behind() -> None:
    source, graph = source_of("trained:decoder"), captured_job("trained:decoder", SIZE).graph
    a, b, _ = WORLD
    chosen = [cut(graph, [[a], [b]] * 3, in_flight=n) for n in (1, 2, 4)]
    chosen.append(cut(graph, [[b], [a]] * 3, schedule="gpipe"))
    losses, held = on_ranks(left_over, 2, source, chosen)
    assert losses == pytest.approx(by_itself(source, 4)[0], rel=1e-5)
    assert held == [0] * 4


def refused(rank: int, ranks: int, source: str, plan: PipelinePlan, wrong: PipelinePlan) -> Any:
    job = load_job(source, {})
    engine = pipeline(job, Assignment(plan, Cluster.uniform(ranks), SIZE, rank, WORLD[:ranks]))
    batch = job.example()
    before = engine.step(batch, 0).loss
    with pytest.raises(PlanError, match="cpu3"):
        engine.deploy(wrong)
    return before, engine.step(batch, 1).loss


@pytest.mark.slow
def test_groups_schedules_clipping_and_casts_move_along() -> None:
    """And a plan for devices that are not there changes nothing."""
    a, b, c = WORLD
    runs: list[Run] = []
    for kind in ("groups", "clipped", "bfloat16"):
        graph = captured_job(f"trained:{kind}", SIZE).graph
        chosen = [cut(graph, [[a], [b]]), cut(graph, [[b, c]]), cut(graph, [[c], [a], [b]])]
        runs.append((source_of(f"trained:{kind}"), chosen, [2, 2, 2]))
    good, wrong = cut(graph, [[a]]), cut(graph, [[a], ["cpu3"]])
    *found, (before, after) = on_ranks(
        together, 3, [*((deployed, *run) for run in runs), (refused, runs[-1][0], good, wrong)]
    )
    for run, one in zip(runs, found, strict=True):
        check(run, one)
    assert after < before
