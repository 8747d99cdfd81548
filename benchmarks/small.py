"""Small steps: predicted against measured where a step takes milliseconds; ten models, one worker and two.

    python benchmarks/small.py [--rounds 402] [--blocks 2] [--only MODEL,MODEL] [--json]

Each model is measured once. Three plans are made of it: for one device, for two in a row, and the planner's own choice. Each is
run in turn with one process (the user's model called eagerly), and the prediction at the speed of the run stands beside.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from engines import WARMUP, Compared, add_turns, figures, figures_table, plans_in_turn, with_models
from harness import Json, Machine, machine_line, parser, run_script
from small_jobs import MODELS

from partita.cli.talk import Talk
from partita.errors import Infeasible
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.profile import Profile
from partita.page.text import percent
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run.loop import check_rounds
from partita.training.measure.job import measure_job

JOBS = Path(__file__).parent / "small_jobs.py"
ENGINES = ("single", "pipeline")
IN_A_ROW = 8  #: steps of an engine before the next one's turn: the step after another engine's finds its caches cold


def rows(options: argparse.Namespace, machine: Machine, talk: Talk) -> list[Json]:
    """A row a model and plan."""
    check_rounds(options.rounds, WARMUP)
    found = []
    for model in options.only:
        since = len(machine.probed)
        profile = measure_job(f"{JOBS}:{model}", devices=2, budget_s=options.budget_s)
        files = plans(profile)
        runs = plans_in_turn(
            machine, files, f"{JOBS}:{model}", dict.fromkeys(files, ENGINES),
            rounds=options.rounds, blocks=options.blocks, talk=talk, in_a_row=IN_A_ROW,
        )  # fmt: skip
        for name, file in files.items():
            found.append(row(model, name, file, runs[name]) | {"machine_record": machine.record(since)})
            talk.say(sentence(found[-1]))
    return found


def plans(profile: Profile) -> dict[str, PlanFile]:
    """For one device, for two stages where the model can be cut, and what the planner chooses, where it is another."""
    found = {"chosen": plan_pipeline(profile), "one": plan_pipeline(profile, stages=1, allow_replicas=False)}
    with contextlib.suppress(Infeasible):  # a model of one task
        found["two"] = plan_pipeline(profile, stages=2, allow_replicas=False)
    return found


def row(model: str, name: str, file: PlanFile, run: Compared) -> Json:
    """All about one plan."""
    assert isinstance(file.plan, PipelinePlan)
    return {
        "model": model,
        "plan": name,
        "devices": len(file.plan.devices),
        "stages": len(file.plan.stages),
        "micro_batches": file.plan.micro_batches,
        **figures(file, run),
        "ratio_interval": {"pipeline/single": run.ratio("pipeline", "single").ends},
        "slower_than_one_process": run.median_s("pipeline") / run.median_s("single") - 1,
    }


def sentence(row: Json) -> str:
    at_run_speed = row["error_at_run_speed"]
    return (
        f"   {row['model']}, {row['plan']} ({row['devices']} devices, {row['micro_batches']} micro-batches): predicted "
        f"{row['predicted_step_s'] * 1e3:.2f} ms, measured {row['measured_step_s'] * 1e3:.2f} ms, {percent(row['error'], signed=True)}, "
        f"{percent(at_run_speed, signed=True) if at_run_speed is not None else '-'} at the run's speed; one process {row['single_step_s'] * 1e3:.2f} ms"
    )


def text(found: list[Json]) -> str:
    slower = [r["slower_than_one_process"] for r in found if r["plan"] == "chosen"]
    said = f"the chosen plan against one process: {percent(max(slower), signed=True)} at worst"
    return "\n".join([figures_table(found), said, machine_line(found[-1]["machine_record"])])


def main() -> int:
    options = parser(__doc__)
    add_turns(options, 402, 2)
    options.add_argument("--budget-s", type=float, default=6.0, help="for measuring a model; default: 6")
    given = with_models(options, MODELS)
    return run_script(given, lambda m, t: rows(given, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
