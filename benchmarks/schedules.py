"""Schedules against 1F1B and against torch's engines: a ResNet and a transformer on two workers, with 4 and 16 micro-batches.

    python benchmarks/schedules.py [--data DIR] [--only resnet,bert] [--micro-batches 4,16] [--rounds 24] [--blocks 2] [--json]

DIR holds CIFAR-10's train.parquet as examples/cifar_resnet.py wants it; without it the ResNet sees scikit-learn's digits. Each job is
measured once; its plans then take turns round by round, the engines of a plan each step in turn:

    1f1b          our 1F1B with the cuts and micro-batches in flight that are best for it, and torch's 1F1B under the same plan
    textbook      the same with two in flight, as torch's 1F1B has it
    chosen        what `partita plan` chooses among all schedules
    interleaved   the best plan of that schedule, by us, by torch's Interleaved1F1B and by its InterleavedZeroBubble
    zb-h1, zb-v   likewise, by us and by torch's InterleavedZeroBubble with one stage a worker, and ZBVZeroBubble

Every engine's gradients are compared with those of one process on the first step of each block.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engines import Compared, add_turns, plans_in_turn, with_models
from harness import Json, Machine, parser, run_script, said
from intervals import WITHIN_ROUNDS, Claim, Interval, ratio_within_rounds
from schedule_jobs import BATCH

from partita.cli.talk import Talk
from partita.errors import Infeasible
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.profile import Profile
from partita.page.schedule_words import schedules_compared
from partita.page.text import table
from partita.pipeline.plan.planner import plan_pipeline
from partita.training.measure.job import measure_job

JOBS = Path(__file__).with_name("schedule_jobs.py")
SIZES = MappingProxyType({"resnet": BATCH, "bert": 16})  #: batch of each job
ENGINES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "1f1b": ("single", "pipeline", "torch"),
        "textbook": ("single", "pipeline"),
        "chosen": ("single", "pipeline"),
        "interleaved": ("single", "pipeline", "torch", "torch-zb"),
        "zb-h1": ("single", "pipeline", "torch"),
        "zb-v": ("single", "pipeline", "torch"),
    }
)  #: of each plan

#: What is claimed of the chosen schedule with so many micro-batches, by ratios within rounds: no drift is in them.
FASTER = MappingProxyType(
    {
        4: Claim("1F1B needs at least 1.10 of a step of the chosen schedule", low=1.10, most_drift=WITHIN_ROUNDS),
        16: Claim("1F1B needs at least 1.04 of a step of the chosen schedule", low=1.04, most_drift=WITHIN_ROUNDS),
    }
)
AS_FAST_AS_TORCH = Claim(
    "torch's best engine needs at least as long as the chosen schedule", low=1.0, most_drift=WITHIN_ROUNDS
)
ALIKE = 1e-5  #: largest difference of gradients


def plans(profile: Profile, micro_batches: int) -> dict[str, PlanFile]:
    """The plans that take turns; a schedule of which no plan is found is left out."""
    wishes: dict[str, dict[str, Any]] = {
        "1f1b": {"schedule": "1f1b", "stages": 2},
        "textbook": {"schedule": "1f1b", "stages": 2, "in_flight": 2},
        "chosen": {"schedule": "auto"},
        **{name: {"schedule": name} for name in ("interleaved", "zb-h1", "zb-v")},
    }
    found = {}
    for name, wish in wishes.items():
        try:
            found[name] = plan_pipeline(
                profile, micro_batches=micro_batches, allow_replicas=False, allow_recompute=False, **wish
            )
        except Infeasible:
            continue
    return found


def figures(files: Mapping[str, PlanFile], runs: Mapping[str, Compared]) -> Json:
    """Of one job and number of micro-batches: medians, ratios to the chosen schedule with their intervals, predictions."""
    steps = {f"{p} by {e}": r.steps(e) for p, r in runs.items() for e in ENGINES[p] if e != "single"}
    ours = steps["chosen by pipeline"]
    ratios = {name: ratio_within_rounds(s, ours) for name, s in steps.items()}
    best = best_of_torch(runs)
    return {
        "median_s": {name: statistics.median(s) for name, s in steps.items()},
        "ratio": {name: [r.value, *r.ends] if r.ends else [r.value] for name, r in ratios.items()},
        "best_of_torch": best,
        "predicted_s": {name: f.verdict.value_s for name, f in files.items()},
        "foreseen": schedules_compared(files["chosen"].verdict.compared_s),
        "bound_s": files["chosen"].verdict.lower_bound_s,
        "plans": {name: _shape(f) for name, f in files.items()},
        "gradient_errors": {name: dict(r.gradient_errors) for name, r in runs.items()},
        "samples": {name: r.raw() for name, r in runs.items()},
    }


def _shape(file: PlanFile) -> Json:
    plan = file.plan
    assert isinstance(plan, PipelinePlan)
    return {
        "stages": [[s.devices[0], len(s.tasks)] for s in plan.stages], "schedule": plan.schedule, "in_flight": plan.in_flight,
        "parted": sum(s.part == "W" for slots in plan.orders.values() for s in slots),
    }  # fmt: skip


def best_of_torch(runs: Mapping[str, Compared]) -> str:
    """The plan and engine of torch's shortest median step."""
    medians = {
        f"{p} by {e}": r.median_s(e) for p, r in runs.items() for e in ENGINES[p] if e.startswith("torch")
    }  # fmt: skip
    return min(medians, key=lambda name: medians[name])


def claimed(runs: Mapping[str, Compared], micro_batches: int, what: str) -> dict[str, tuple[Claim, Interval]]:
    """What is claimed of this job, with its interval; gradients are no matter of time, see `wrong`."""
    ours = runs["chosen"].steps("pipeline")
    plan, engine = best_of_torch(runs).split(" by ")
    found = {f"{what}_as_fast_as_torch": (AS_FAST_AS_TORCH, ratio_within_rounds(runs[plan].steps(engine), ours))}
    if micro_batches in FASTER:
        found[f"{what}_faster_than_1f1b"] = (
            FASTER[micro_batches],
            ratio_within_rounds(runs["1f1b"].steps("pipeline"), ours),
        )
    return found


def wrong(document: Json) -> bool:
    """Whether some engine's gradients are not those of one process."""
    errors = [e for f in document["jobs"].values() for r in f["gradient_errors"].values() for e in r.values()]
    return max(errors, default=0.0) > ALIKE


def benchmark(options: Any, machine: Machine, talk: Talk) -> Json:
    jobs: Json = {}
    claims: dict[str, tuple[Claim, Interval]] = {}
    for name in options.only:
        source = f"{JOBS}:{name}"
        settings = {"data": str(Path(options.data).resolve())} if name == "resnet" and options.data else {}
        sizes = [SIZES[name] // m for m in options.micro_batches]
        profile = measure_job(source, settings, devices=2, sizes=sizes, progress=talk.progress)
        for m in options.micro_batches:
            files = plans(profile, m)
            runs = plans_in_turn(
                machine, files, source, ENGINES, settings=settings, rounds=options.rounds, blocks=options.blocks, talk=talk
            )  # fmt: skip
            jobs[f"{name} {m}"] = {"single_s": runs["chosen"].median_s("single"), **figures(files, runs)}
            claims |= claimed(runs, m, f"{name}_{m}")
    record = machine.finished()
    return {"jobs": jobs, "verdicts": machine.verdicts(claims), "machine_record": record}


def text(document: Json) -> str:
    parts = []
    for name, found in document["jobs"].items():
        rows = []
        for what, median in found["median_s"].items():
            value, *ends = found["ratio"][what]
            predicted = found["predicted_s"][what.split(" by ")[0]] if what.endswith("pipeline") else None
            rows.append([what, median, predicted, value, f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else ""])
        columns = [("plan and engine", "text"), ("a step", "s"), ("predicted", "s"), ("against chosen", "ratio"), ("interval", "text")]  # fmt: skip
        chosen = found["plans"]["chosen"]
        head = f"{name} micro-batches: chosen {chosen['schedule']}, {len(chosen['stages'])} stages, {chosen['parted']} backwards parted; torch's best: {found['best_of_torch']}"
        worst = max(e for r in found["gradient_errors"].values() for e in r.values())
        parts.append(f"{head}\n{table(columns, rows)}\nlargest difference of gradients {worst:.1e}")  # type: ignore[arg-type]
    return "\n\n".join([*parts, said(document)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--data", default="", metavar="DIR", help="CIFAR-10; default: digits")
    options.add_argument(
        "--micro-batches",
        type=lambda s: [int(m) for m in s.split(",")],
        default=[4, 16],
        metavar="M[,M]",
        help="default: 4,16",
    )
    add_turns(options, 24, 2)
    given = with_models(options, list(SIZES))
    return run_script(given, lambda m, t: benchmark(given, m, t), text, ("torch", "transformers"), wrong)


if __name__ == "__main__":
    sys.exit(main())
