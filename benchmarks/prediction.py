"""Predicted against measured step time: four transformers models, two plans each.

    python benchmarks/prediction.py [--devices 2] [--rounds 14] [--blocks 2] [--only MODEL,MODEL] [--json]

Models are built from configs with random weights (nothing is downloaded) and trained on random data: only time matters
here. Each is measured once; the prediction is made before the run, from that measurement alone. The plans of a model take
turns, and in each turn the engines.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from engines import WARMUP, Compared, plans_in_turn
from harness import Json, Machine, machine_line, parser, run_script
from intervals import over_median, sentences

from partita.cli.talk import Talk
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.page.text import table
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run.loop import check_rounds
from partita.training.measure.job import measure_job

JOBS = Path(__file__).parent / "prediction_jobs.py"
MODELS = ("resnet", "vit", "bert", "gpt2")
PLANS = {"best": {"micro_batches": 8}, "even": {"micro_batches": 8, "method": "even"}}
ENGINES = ("single", "pipeline")


def rows(options: argparse.Namespace, machine: Machine, talk: Talk) -> list[Json]:
    """One row a model and plan."""
    check_rounds(options.rounds, WARMUP)
    found = []
    for model in options.only:
        since = len(machine.probed)
        machine.look_again()
        source = f"{JOBS}:{model}"
        profile = measure_job(
            source,
            devices=options.devices,
            sizes=(2,),
            progress=lambda w, d, t, m=model: talk.progress(f"{m}: {w}", d, t),
        )
        files = {
            n: plan_pipeline(profile, stages=options.devices, allow_replicas=False, allow_recompute=False, **wish)
            for n, wish in PLANS.items()
        }
        compared = plans_in_turn(
            machine, files, source, ENGINES, rounds=options.rounds, blocks=options.blocks, talk=talk
        )
        machine.look("after")
        found += [row(machine, since, model, name, file, compared[name]) for name, file in files.items()]
        for r in found[-len(files) :]:
            talk.say(
                f"   {model}, {r['plan']}: predicted {r['predicted_step_s'] * 1e3:.1f} ms, measured {r['measured_step_s'] * 1e3:.1f} ms, "
                f"{100 * r['error']:+.1f} %, {100 * (r['error_at_run_speed'] or math.nan):+.1f} % at the run's speed"
            )
    return found


def row(machine: Machine, since: int, model: str, name: str, file: PlanFile, run: Compared) -> Json:
    """All about one plan; its verdicts go by the probes of its model."""
    assert isinstance(file.plan, PipelinePlan)
    predicted, measured, steps = file.verdict.value_s, run.median_s("pipeline"), run.steps("pipeline")
    return {
        "model": model,
        "plan": name,
        "predicted_step_s": predicted,
        "predicted_at_run_speed_s": run.at_run_speed_s,
        "interval_held": run.held,
        "measured_step_s": measured,
        "error": predicted / measured - 1,
        "error_at_run_speed": run.at_run_speed_s / measured - 1 if run.at_run_speed_s else None,
        "ratio_interval": {
            "predicted/pipeline": over_median(predicted, steps).ends,
            "single/pipeline": run.ratio("single", "pipeline").ends,
        },
        "verdicts": machine.verdicts(run.foreseen(predicted), since),
        "single_step_s": run.median_s("single"),
        "range_s": [min(steps), max(steps)],
        "cpu_s": statistics.median(run.cpu_s("pipeline")),
        "gradient_error": run.gradient_errors["pipeline"],
        "stages": [len(s.tasks) for s in file.plan.stages],
        "load": os.getloadavg()[0],
        "samples": run.raw(),
        "machine_record": machine.record(since),
    }


def text(found: list[Json]) -> str:
    columns = [("model", "text"), ("plan", "text"), ("predicted", "s"), ("measured", "s"), ("error", "error"), ("at the run's speed", "error"), ("one process", "s")]  # fmt: skip
    keys = ("model", "plan", "predicted_step_s", "measured_step_s", "error", "error_at_run_speed", "single_step_s")
    said: dict[str, Any] = {f"{r['model']}, {r['plan']}": r["verdicts"]["prediction"] for r in found}
    lines = [f"{name}: {line}" for name, line in zip(said, sentences(said).splitlines(), strict=True)]
    end = "\n".join(
        f"median error{what} {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %"
        for what, key in (("", "error"), (" at the run's speed", "error_at_run_speed"))
        if (errors := [abs(r[key]) for r in found if r[key] is not None])
    )
    held = [h for r in found for h in r["interval_held"]]
    end += f"\nthe 90 % intervals at the run's speed held in {sum(held)} of {len(held)} blocks"
    body = table(columns, [[r[k] for k in keys] for r in found])  # type: ignore[arg-type]
    return "\n".join([body, end, *lines, machine_line(found[0]["machine_record"])])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--devices", type=int, default=2)
    options.add_argument("--rounds", type=int, default=14, help=f"{WARMUP} of them are not counted; default: 14")
    options.add_argument("--blocks", type=int, default=2, help="the rounds are taken in so many blocks; default: 2")
    options.add_argument("--only", default=",".join(MODELS), metavar="MODEL[,MODEL]")
    given = options.parse_args()
    given.only = given.only.split(",")
    if unknown := set(given.only) - set(MODELS):
        options.error(f"--only {', '.join(sorted(unknown))}: known are {', '.join(MODELS)}")
    return run_script(given, lambda m, t: rows(given, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
