"""The pipeline against one process, torch's own engine, and the limit of the machine, on CIFAR-10, in turn on the same batches.

    python benchmarks/pipeline.py --data DIR [--devices 2] [--micro-batches 16] [--rounds 24] [--blocks 3] [--json]

DIR holds train.parquet as examples/cifar_resnet.py wants it. ResNet of 1,084,586 parameters, batch 64. Each engine runs
the same plan on the same workers, one thread each, pinned; a step is timed over rows of them, on the worker that takes longest.
One process takes the batch in as many micro-batches, and once more all at once, as users train. The limit is what copies of the
whole job side by side reach, one a core, in the same run.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import side_by_side
from engines import Compared, add_turns, plans_in_turn
from harness import Json, Machine, parser, run_script, said
from intervals import WITHIN_ROUNDS, Claim, Interval

from partita.cli.talk import Talk
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.page.text import seconds, table, times
from partita.pipeline.plan.planner import plan_pipeline
from partita.training.measure.job import measure_job

JOB = Path(__file__).parents[1] / "examples" / "cifar_resnet.py"
ENGINES = ("single", "pipeline", "torch")
BATCH = 64
AT_ONCE = "at once"

#: What this project says of its pipeline (README.md), and what each run is judged by.
AS_FAST_AS_TORCH = Claim("torch's engine needs at least 0.97 of a step of ours", low=0.97, most_drift=WITHIN_ROUNDS)
NEAR_THE_LIMIT = Claim("at least 0.9 of what machine and micro-batches allow", low=0.9, most_drift=WITHIN_ROUNDS)


def benchmark(options: Any, out: Path, machine: Machine, talk: Talk) -> Json:
    """Measure, plan, compare; medians over blocks taken in turn."""
    settings = {"data": str(Path(options.data).resolve()), "images_used": "2048"}
    devices, micro_batches = options.devices, options.micro_batches
    profile = measure_job(
        f"{JOB}:job", settings, devices=devices, sizes=(BATCH // micro_batches, BATCH), progress=talk.progress
    )
    file = plan_pipeline(
        profile, micro_batches=micro_batches, stages=devices, allow_replicas=False, allow_recompute=False
    )
    at_once = plan_pipeline(profile, micro_batches=1, stages=1, allow_replicas=False)
    runs = plans_in_turn(
        machine, {"": file, AT_ONCE: at_once}, f"{JOB}:job", {"": ENGINES, AT_ONCE: ("single",)}, settings=settings,
        rounds=options.rounds, blocks=options.blocks, talk=talk, with_copies=True, out=out,
    )  # fmt: skip
    found, record = runs[""], machine.finished()
    return figures(file, found) | {
        "single_at_once_step_s": runs[AT_ONCE].median_s("single"), "verdicts": machine.verdicts(claimed(file, found)), "samples": found.raw(), "machine_record": record,
        "load": record["load"][0], "facts": record["facts"],
    }  # fmt: skip


def filling(plan: PipelinePlan) -> float:
    """The share of a step in which all stages work, where they are equal: micro-batches over slots."""
    return plan.micro_batches / (plan.micro_batches + len(plan.stages) - 1)


def figures(file: PlanFile, found: Compared) -> Json:
    """Medians, ratios and their intervals."""
    assert isinstance(file.plan, PipelinePlan)
    single, pipeline, torch = (found.median_s(e) for e in ENGINES)
    slots = len(file.plan.devices) * filling(file.plan)
    pairs = (("single", "pipeline"), ("torch", "pipeline"), ("single", "torch"))
    ratios = {f"{a}/{b}": found.ratio(a, b) for a, b in pairs}
    return {
        "single_step_s": single,
        "pipeline_step_s": pipeline,
        "torch_step_s": torch,
        "predicted_step_s": file.verdict.value_s,
        "predicted_at_run_speed_s": found.at_run_speed_s,
        "speedup": ratios["single/pipeline"].value,
        "torch_speedup": ratios["single/torch"].value,
        "faster_than_torch": ratios["torch/pipeline"].value,
        "ratio_interval": {name: r.ends for name, r in ratios.items()},
        **_limits(found, slots),
        "fill_limit": slots,
        "cpu_s": {e: statistics.median(found.cpu_s(e)) for e in ENGINES},
        "range_s": {e: [min(found.steps(e)), max(found.steps(e))] for e in ENGINES},
        "gradient_errors": found.gradient_errors,
        "largest_loss_error": max(b.largest_loss_error for b in found.blocks),
        "plan": {
            "stages": [len(s.tasks) for s in file.plan.stages],
            "in_flight": file.plan.in_flight,
            "micro_batches": file.plan.micro_batches,
        },
    }


def _limits(found: Compared, slots: float) -> Json:
    """The limit that was measured; without copies, the one of slots."""
    if not found.copies:
        return {"limit": slots}
    medians = [statistics.median(c) for c in found.copies]
    return {
        "side_by_side_step_s": side_by_side.step_s(medians),
        "side_by_side_each_s": medians,
        "limit": found.limit.value,
        "limit_interval": found.limit.ends,
        "of_side_by_side": asdict(found.share_of_limit()),
        "of_side_by_side_evenly": asdict(found.share_of_limit(even=True)),
        "uneven_s": statistics.median(found.uneven_s),
    }


def claimed(file: PlanFile, found: Compared) -> dict[str, tuple[Claim, Interval]]:
    """Every claimed figure of this run with its interval."""
    assert isinstance(file.plan, PipelinePlan)
    claims = {"faster_than_torch": (AS_FAST_AS_TORCH, found.ratio("torch", "pipeline"))}
    claims |= found.foreseen(file.verdict.value_s)
    if found.copies:  # the single process cancels out of speed-up over limit
        claims["share_of_limit"] = (NEAR_THE_LIMIT, found.share_of_limit(filling(file.plan)))
    return claims


def text(result: Json) -> str:
    single = result["single_step_s"]
    rows = [[e, result[f"{e}_step_s"], single / result[f"{e}_step_s"], result["cpu_s"][e]] for e in ENGINES]
    rows.append([f"single, {AT_ONCE}", result["single_at_once_step_s"], single / result["single_at_once_step_s"], None])
    if "side_by_side_step_s" in result:
        rows.append(["side by side, each", result["side_by_side_step_s"], result["limit"], None])
    end = (
        f"limit {times(result['limit'])} side by side, {times(result['fill_limit'])} by filling and draining; "
        f"predicted {seconds(result['predicted_step_s'])}"
    )
    return f"{table([('engine', 'text'), ('a step', 's'), ('speed-up', 'ratio'), ('CPU', 's')], rows)}\n{end}\n{said(result)}"


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--data", required=True, metavar="DIR")
    options.add_argument("--devices", type=int, default=2)
    options.add_argument("--micro-batches", type=int, default=16)
    add_turns(options, rounds=24, blocks=3)
    options.add_argument("--out", metavar="DIR", help="keep the timelines here")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run_script(given, lambda m, t: benchmark(given, Path(given.out or folder), m, t), text)


if __name__ == "__main__":
    sys.exit(main())
