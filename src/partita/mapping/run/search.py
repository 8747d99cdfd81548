"""Train a job and search for its mapping meanwhile: begin with a simple one, try others on live steps, go on with the best."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from partita.errors import BadInput, Infeasible
from partita.files import made_folder
from partita.mapping.plan.jobs import plan_job, whole_batch
from partita.nouns.metrics import METRICS
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.profile import Profile
from partita.simulate.lower import program_of
from partita.training.runtime.elastic import FAILURES
from partita.training.runtime.folder import held, kept_if_refused
from partita.training.runtime.launch import Ended, Watch, launch
from partita.training.runtime.prepare import forget_earlier, prepared, training_spec

WORKER = "partita.mapping.run.worker"
FIRST_PLAN = "first-plan.json"
FIRST = ("heft", "single")  #: a run begins with the better of these, by prediction
ELSE = "polish"  #: where neither has room


def first_mapping(profile: Profile) -> PlanFile:
    """The plan that a searched run begins with. Raises BadInput where the profile does not hold the whole batch, Infeasible where
    no mapping has room."""
    found = []
    for method in FIRST:
        with contextlib.suppress(Infeasible):
            found.append(plan_job(profile, method=method))
    return min(found, key=lambda f: f.verdict.value_s) if found else plan_job(profile, method=ELSE, budget_s=1.0)


def expect_mapping(file: PlanFile) -> None:
    """Raise BadInput unless the plan is of a job's whole batch, which is what mappings run."""
    problem = file.problem
    if not isinstance(problem, PipelineProblem) or not isinstance(file.plan, PipelinePlan):
        raise BadInput("this plan places tasks; it does not train a job", hint="plan from a profile")
    if problem.micro_batch_size != problem.batch_size or file.plan.micro_batches != 1:
        whole_batch(problem.profile)
        raise BadInput(
            "the plan cuts the batch into micro-batches", hint="give one that partita plan --method heft made"
        )


def train_searching(
    file: PlanFile,
    job: str,
    settings: Mapping[str, str],
    out: str | Path,
    *,
    budget_s: float,
    seed: int = 0,
    by_lot: tuple[int, int] = (0, 0),
    adapt: bool = False,
    steps: int | None = None,
    epochs: int = 1,
    checkpoint_every: int = 0,
    resume: str = "",
    threads: int = 1,
    timeout_s: float = 300.0,
    watch: Watch | None = None,
) -> Ended:
    """Train on all devices of the plan's problem, and search for the mapping during `budget_s` of the run.

    plan.json is then the one found. With `by_lot`, (so many mappings, so many rounds) drawn by lot are tried instead, however long it takes;
    with `adapt`, devices are watched once the search has settled. Raises BadInput for a plan that is no mapping, and what a
    worker failed with.
    """
    expect_mapping(file)
    with held(folder := made_folder(out)), kept_if_refused(folder):
        forget_earlier(folder, "search.json", "search.jsonl", "drift.jsonl", FAILURES, *([] if resume else [METRICS]))
        prepared(folder, file)
        file.write(folder / FIRST_PLAN)
        spec = training_spec(
            folder, job, settings, plan=FIRST_PLAN, engine="pipeline", steps=steps, epochs=epochs,
            checkpoint_every=checkpoint_every, resume=resume, threads=threads, timeout_s=timeout_s,
            steered={"budget_s": budget_s, "seed": seed, "by_lot": by_lot, "adapt": adapt},
        )  # fmt: skip
        ranks = len(file.cluster.devices)
        return launch(spec, file, program_of(file.problem, file.plan), watch, ranks=ranks, worker=WORKER)
