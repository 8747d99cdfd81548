"""Before a run's workers start: what its folder holds, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.errors import PlanError
from partita.files import made_folder
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.page.machine import machine_facts
from partita.simulate.predicted import predicted
from partita.training.runtime.spec import Spec

#: What a run measures, and what tells of it: of an earlier run in the same folder it must not stand beside a new one.
MEASURED = ("measured.json", "readings.json", "summary.json")


def prepared(out: str | Path, file: PlanFile) -> Path:
    """The run's folder with plan.json and predicted.json in it. Raises PlanError where the plan cannot be trained."""
    expect_trainable(file)
    folder = made_folder(out)
    file.write(folder / "plan.json")
    predicted(file.problem, file.plan).write(folder / "predicted.json")
    return folder


def expect_trainable(file: PlanFile) -> None:
    """Raise PlanError for a plan that cannot be trained."""
    if not isinstance(file.plan, PipelinePlan):
        raise PlanError(
            "this plan places tasks; it does not say how to train a job",
            hint="plan from a profile that `partita measure` wrote",
        )


def forget_earlier(folder: Path, *others: str) -> None:
    """Remove what an earlier run in the folder measured, and other files of it."""
    for name in (*MEASURED, *others):
        (folder / name).unlink(missing_ok=True)


def training_spec(
    folder: Path, job: str, settings: Mapping[str, str], *, plan: str = "plan.json", **options: Any
) -> Spec:
    """What the workers of a training run are told; `plan`: the file in its folder by which they begin."""
    checkpoints = str(folder / "checkpoints") if options.get("engine") == "pipeline" else ""
    return Spec(
        job,
        dict(settings),
        str(folder / plan),
        str(folder),
        checkpoints=checkpoints,
        facts=machine_facts(),
        **options,
    )
