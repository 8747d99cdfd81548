"""Predicted against measured step time: four transformers models, two plans each.

    python benchmarks/prediction.py [--devices 2] [--rounds 26] [--blocks 2] [--only MODEL,MODEL] [--competitor SHARE] [--json]

Models are built from configs with random weights (nothing is downloaded) and trained on random data: only time matters
here. Each is measured once; the prediction is made before the run, from that measurement alone. The plans of a model take
turns, and in each turn the engines. With `--competitor` all plans run once more, beside a process that takes that share of the last
core and was not there when the job was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from engines import (
    WARMUP,
    Compared,
    add_turns,
    figures,
    figures_table,
    foretold,
    plans_in_turn,
    verdict_lines,
    with_models,
)
from harness import Json, Machine, machine_line, parser, run_script
from slowed import competitor, part_of_core

from partita.cli.talk import Talk
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
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
        for beside, context in competitions(options.competitor):
            with context:
                machine.look("between")
                compared = plans_in_turn(
                    machine,
                    files,
                    source,
                    dict.fromkeys(files, ENGINES),
                    rounds=options.rounds,
                    blocks=options.blocks,
                    talk=talk,
                )
                machine.look("between")
            for name, file in files.items():
                found.append(r := row(machine, since, model, name + beside, file, compared[name]))
                talk.say(f"   {model}, {r['plan']}: {foretold(r, 1)}")
    return found


def competitions(share: float) -> Iterator[tuple[str, contextlib.AbstractContextManager[None]]]:
    """(what is added to a plan's name, what lasts meanwhile): the machine as it is, and beside a competitor where one is wanted."""
    yield "", contextlib.nullcontext()
    if share:
        yield f", {share:.0%} of a core taken", competitor(sorted(os.sched_getaffinity(0))[-1], share)


def row(machine: Machine, since: int, model: str, name: str, file: PlanFile, run: Compared) -> Json:
    """All about one plan; its verdicts go by the probes of its model."""
    assert isinstance(file.plan, PipelinePlan)
    predicted = file.verdict.value_s
    return {
        "model": model,
        "plan": name,
        **figures(file, run),
        "ratio_interval": {
            "predicted/pipeline": run.over(predicted).ends,
            "single/pipeline": run.ratio("single", "pipeline").ends,
        },
        "verdicts": machine.verdicts(run.foreseen(predicted), since),
        "range_s": [min(run.steps("pipeline")), max(run.steps("pipeline"))],
        "cpu_s": statistics.median(run.cpu_s("pipeline")),
        "gradient_error": run.gradient_errors["pipeline"],
        "stages": [len(s.tasks) for s in file.plan.stages],
        "load": os.getloadavg()[0],
        "machine_record": machine.record(since),
    }


def text(found: list[Json]) -> str:
    return "\n".join([figures_table(found), *verdict_lines(found), machine_line(found[-1]["machine_record"])])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--devices", type=int, default=2)
    add_turns(options, 26, 2)
    options.add_argument(
        "--competitor", type=part_of_core, default=0.0, metavar="SHARE", help="of the last core; default: none"
    )
    given = with_models(options, MODELS)
    return run_script(given, lambda m, t: rows(given, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
