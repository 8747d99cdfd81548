"""Predicted against measured step time: four transformers models, two plans each.

    python benchmarks/prediction.py [--devices 2] [--rounds 14] [--json]

Models are built from configs with random weights (nothing is downloaded) and trained on random data: only time matters
here. Each is measured once; the prediction is made before the run, from that measurement alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from partita.cli.talk import Talk
from partita.errors import PartitaError
from partita.nouns.pipeline_plan import PipelinePlan
from partita.page.text import table
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run.loop import compare_engines
from partita.training.measure.job import measure_job

JOBS = Path(__file__).parent / "prediction_jobs.py"
MODELS = ("resnet", "vit", "bert", "gpt2")
PLANS = {"best": {"micro_batches": 8}, "even": {"micro_batches": 8, "method": "even"}}


def rows(devices: int, rounds: int, talk: Talk) -> list[dict[str, Any]]:
    """One row a model and plan."""
    found = []
    for model in MODELS:
        source = f"{JOBS}:{model}"
        profile = measure_job(
            source, devices=devices, sizes=(2,), progress=lambda w, d, t, m=model: talk.progress(f"{m}: {w}", d, t)
        )
        for name, wish in PLANS.items():
            file = plan_pipeline(profile, stages=devices, allow_replicas=False, allow_recompute=False, **wish)
            assert isinstance(file.plan, PipelinePlan)
            with tempfile.TemporaryDirectory() as folder:
                run = compare_engines(file, source, {}, folder, engines=("single", "pipeline"), rounds=rounds)
            predicted, measured = file.verdict.value_s, run.median_s("pipeline")
            found.append(
                {
                    "model": model,
                    "plan": name,
                    "predicted_step_s": predicted,
                    "measured_step_s": measured,
                    "error": predicted / measured - 1,
                    "single_step_s": run.median_s("single"),
                    "range_s": [min(run.step_s["pipeline"]), max(run.step_s["pipeline"])],
                    "cpu_s": statistics.median(run.cpu_s["pipeline"]),
                    "gradient_error": run.gradient_errors["pipeline"],
                    "stages": [len(s.tasks) for s in file.plan.stages],
                    "load": os.getloadavg()[0],
                }
            )
            talk.say(
                f"   {model}, {name}: predicted {predicted * 1e3:.1f} ms, measured {measured * 1e3:.1f} ms, {100 * (predicted / measured - 1):+.1f} %"
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    talk = Talk.to_stderr()
    try:
        found = rows(options.devices, options.rounds, talk)
    except PartitaError as error:
        talk.error(str(error))
        return error.exit_code
    if options.json:
        print(json.dumps(found))
        return 0
    print(
        table(
            [
                ("model", "text"),
                ("plan", "text"),
                ("predicted", "s"),
                ("measured", "s"),
                ("error", "error"),
                ("one process", "s"),
            ],
            [
                [r["model"], r["plan"], r["predicted_step_s"], r["measured_step_s"], r["error"], r["single_step_s"]]
                for r in found
            ],
        )
    )
    errors = sorted(abs(r["error"]) for r in found)
    print(f"median error {100 * statistics.median(errors):.1f} %, worst {100 * errors[-1]:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
