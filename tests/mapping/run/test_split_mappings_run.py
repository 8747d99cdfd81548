"""Operators in parts on several processes: exact splits train what one process trains, whatever is split and wherever it lies."""

from __future__ import annotations

import random
from typing import Any

import pytest
from mapping.worlds import forward_tasks, mapped_problem, random_placement
from training.runtime.helpers import source_of
from training.runtime.ranks import on_ranks
from training.runtime.test_deploy import Run, by_itself, check, deployed, together

from partita.mapping.plan.jobs import as_placement, candidates
from partita.mapping.plan.parts import BESIDE, beside
from partita.mapping.plan.question import Question
from partita.mapping.plan.runnable import segments
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.splits import Split
from partita.training.capture.model import capture
from partita.training.capture.split import Tasks, splittable
from partita.training.job import batch_size, load_job

WORLD = ("cpu0", "cpu1", "cpu2")


def split_problem(
    source: str, chance: random.Random, share: float, ranks: int = 2, allowed: tuple[str, ...] = ("none", "moments")
) -> PipelineProblem:
    """A job some of whose operators are in parts, its whole batch at once."""
    job = load_job(source, {})
    model, batch = job.build(), job.example()
    plain = capture(model, job.loss, batch)
    tasks = Tasks(plain.task_nodes, plain.meta)
    drawn = [Split(t, chance.choice(["batch", "channel"]), chance.choice([2, 3])) for t in plain.task_nodes]
    able = [s for d in drawn if isinstance(s := splittable(plain.code, tasks, d), Split) and s.change in allowed]
    found = capture(model, job.loss, batch, splits=[s for s in able if chance.random() < share])
    return mapped_problem(found.graph, WORLD[:ranks], source, batch_size(batch), found.splits)


def mappings(problem: PipelineProblem, chance: random.Random, n: int) -> list[PipelinePlan]:
    """Parts beside each other first, then by lot; as finely cut as messages ask for."""
    graph, names = problem.graph, [d.name for d in problem.cluster.devices]
    mapped = beside(problem, Question.of(as_placement(problem)))
    homes = {t.id: names[mapped.where[k]] for t, k in zip(graph.tasks, graph.atom.tolist(), strict=True)}
    order = forward_tasks(graph)
    places = [homes, *(random_placement(graph, names, chance) for _ in range(n - 1))]
    return [segments(graph, where, order).plan(graph) for where in places]


def trained(ranks: int, names: tuple[str, ...], n: int, limit: float = 1e-5) -> None:
    """A training run of each job, another mapping for every step, against one process."""
    chance, runs, calls = random.Random(7), list[Run](), []
    for name in names:
        problem = split_problem(source_of(name), chance, 0.7, ranks)
        assert len(problem.splits) > 4
        plans = mappings(problem, chance, n)
        assert set(plans[0].devices) >= set(WORLD[:2])
        runs.append((problem.job, plans, [1] * n))
        calls.append((deployed, *runs[-1], problem.batch_size, problem.splits))
    for run, call, found in zip(runs, calls, on_ranks(together, ranks, calls), strict=True):
        check(run, found, call[-2], limit)


@pytest.mark.slow
def test_exact_splits_train_what_one_process_trains() -> None:
    trained(2, ("branchy:alexnet", "branchy:towers", "normed:whole"), 3)


@pytest.mark.slow
def test_tied_weights_stay_one_weight() -> None:
    """GPT-2's embedding and its head, both in parts."""
    pytest.importorskip("transformers")
    trained(2, ("gpt2",), 2)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "names"), [(2, ("branchy:inception", "vit", "trained:clipped")), (3, ("branchy:alexnet", "bert"))])  # fmt: skip
def test_of_many_jobs_too(ranks: int, names: tuple[str, ...]) -> None:
    pytest.importorskip("transformers")
    trained(
        ranks, names, 5, 1e-3
    )  # gradients of an attention's key biases are 0 but for rounding, and Adam takes them for large


def ghosts(chance: random.Random) -> tuple[PipelineProblem, list[PipelinePlan]]:
    """The small normed job, all of it in two parts."""
    source = source_of("normed:whole")
    job = load_job(source, {})
    found = capture(job.build(), job.loss, job.example(), splits=[Split("*", "ghost", 2)])
    problem = mapped_problem(found.graph, WORLD[:2], source, batch_size(job.example()), found.splits)
    return problem, mappings(problem, chance, 3)


@pytest.mark.slow
def test_ghosts_train_what_half_batches_train() -> None:
    problem, plans = ghosts(random.Random(3))
    assert {s.change for s in problem.splits} == {"none", "statistics"}
    run: Any = (source_of("normed:halves"), plans, [2, 2, 2])
    (found,) = on_ranks(together, 2, [(deployed, problem.job, *run[1:], problem.batch_size, problem.splits)])
    check(run, found, problem.batch_size)
    losses, _ = by_itself(problem.job, 6, problem.batch_size)
    assert max(abs(a - b) for a, b in zip(losses, found[0], strict=True)) > 1e-3, "of whole batches they differ"


def test_searches_see_parts_as_tasks_that_may_be_apart() -> None:
    """A chain gains nothing from a mapping; in parts it does."""
    source = source_of("branchy:alexnet")
    job = load_job(source, {})
    steps = {}
    for words in ((), (Split("*", "batch", 2),)):
        found = capture(job.build(), job.loss, job.example(), splits=words)
        problem = mapped_problem(found.graph, WORLD[:2], source, 4, found.splits)
        names = {c.name: c for c in candidates(problem, "polish", 0.1, 0)}
        steps[len(words)] = min(c.step_s for c in names.values()) / names["single"].step_s
        if words:
            assert names[BESIDE].step_s < 0.8 * names["single"].step_s
            assert len(names[BESIDE].plan.devices) == 2
    assert steps[1] < 0.8 * steps[0]
