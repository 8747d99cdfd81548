"""Mappings run for real: searched for while training, then in turn with one process, and with copies of the whole job.

    python benchmarks/mapping_run.py [--only MODEL,MODEL] [--search-budget-s 60] [--rounds 18] [--blocks 2] [--json]
    python benchmarks/mapping_run.py --by-lot 100 [--lot-rounds 4] [--only inception]

Models of tests/jobs/branchy.py with random weights and data, the whole batch at once: two Inceptions, a narrow one and one with the
channels and the 17 x 17 images of Inception-v3's middle blocks. The limit is what copies of the whole job
side by side reach, one a core, in the same run. With --by-lot so many mappings drawn by lot are tried on training steps
instead, and what was predicted is compared with what was measured; surrogates are learned from the same measurements.

`gradient_error` is that of a block's first step, `loss_error` the largest of all steps, in which rounding grows where training is
chaotic: both Inceptions about double a difference in every step. In float64 the losses of the wide one, on two random images a batch,
are 6e-15 off after 12 steps, 1e-10 after 24 and 0.2 after 60, and one process whose weights were moved by a rounding diverges as far.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from engines import WARMUP, compare_in_turn
from harness import Json, Machine, parser, run_script, said
from intervals import WITHIN_ROUNDS, Claim

from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.mapping.plan.jobs import plan_job
from partita.mapping.plan.surrogates import rank_correlation
from partita.mapping.report.history import History, ending, surrogate_table
from partita.mapping.run import steered
from partita.mapping.run.search import train_searching
from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.probe import Readings, row_means
from partita.page.text import percent, seconds, table
from partita.pipeline.run.loop import check_rounds
from partita.training.job import batch_size, load_job
from partita.training.measure.job import measure_job
from partita.training.runtime.spec import Spec

JOBS = Path(__file__).parents[1] / "tests" / "jobs" / "branchy.py"
MODELS: dict[str, dict[str, str]] = {
    "inception": {"batch": "16", "width": "32", "blocks": "4", "size": "32"},
    "inception-v3": {"batch": "2", "width": "192", "blocks": "4", "size": "34"},
    "resnet": {"batch": "16", "width": "32", "each": "2", "size": "32"},
    "alexnet": {"batch": "64", "width": "16"},
    "towers": {"batch": "512", "width": "256"},
    "softmax": {"batch": "512", "width": "784"},
}
NEVER_SLOWER = Claim("the mapping found is at least 0.97x one process", low=0.97, most_drift=WITHIN_ROUNDS)
NEAR_THE_LIMIT = Claim(
    "the mapping found reaches at least 0.8 of the machine's own limit", low=0.8, most_drift=WITHIN_ROUNDS
)
MOST_EPOCHS = 10_000
ABOUT = 12  #: readings that tell of a step among others by other plans
KINDS = {
    "raw": "as measured",
    "at_run_speed": "at the speed of each minute",
    "computing_as_measured": "with computing as it was",
}


def source_of(model: str) -> str:
    """The job: the name before a hyphen."""
    return f"{JOBS}:{model.partition('-')[0]}"


def measured(model: str, options: argparse.Namespace, talk: Talk) -> PlanFile:
    """The model profiled at its whole batch, and planned by heft."""
    source, settings = source_of(model), MODELS[model]
    size = batch_size(load_job(source, settings).example())
    profile = measure_job(
        source, settings, devices=options.devices, sizes=(size,), budget_s=10.0, progress=talk.progress
    )
    return plan_job(profile, method="heft")


def row(model: str, out: Path, options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    """A model: searched for, then compared."""
    since = len(machine.probed)
    machine.look_again(5.0)
    source, settings = source_of(model), MODELS[model]
    first = measured(model, options, talk)
    steps = 60 + int(1.2 * options.search_budget_s / max(first.verdict.value_s, 2e-3))  # enough for the search to end
    talk.progress(f"{model}: searching", 0, 1)
    train_searching(first, source, settings, out, budget_s=options.search_budget_s, seed=options.seed, steps=steps)
    history, file = History.read(out).to_json(), PlanFile.read(out / "plan.json")
    found = compare_in_turn(
        machine, file, source, ("single", "pipeline"), settings=settings,
        rounds=options.rounds, blocks=options.blocks, talk=talk, with_copies=True,
    )  # fmt: skip
    machine.look("after")
    gain, limit = found.ratio("single", "pipeline"), found.limit
    near = found.share_of_limit()
    return {
        "model": model, "single_step_s": found.median_s("single"), "step_s": found.median_s("pipeline"),
        "predicted_step_s": file.verdict.value_s, "speedup": gain.value, "speedup_interval": gain.ends,
        "limit": limit.value, "limit_interval": limit.ends, "share_of_limit": near.value, "method": file.verdict.method,
        "devices": len(getattr(file.plan, "devices", ())), "segments": len(getattr(file.plan, "stages", ())),
        "search": history, "gradient_error": found.gradient_errors["pipeline"], "loss_error": max(b.largest_loss_error for b in found.blocks), "samples": found.raw(),
        "verdicts": machine.verdicts({"never_slower": (NEVER_SLOWER, gain), "near_the_limit": (NEAR_THE_LIMIT, near)}, since),
    }  # fmt: skip


def by_lot(model: str, out: Path, options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    """A model's mappings drawn by lot, all of them in several rounds: predicted against the median that was measured."""
    machine.look_again(5.0)
    first = measured(model, options, talk)
    talk.progress(f"{model}: {options.by_lot} mappings", 0, 1)
    each = 2 + min(steered.MOST_STEPS, math.ceil(1.5 * steered.ENOUGH_S / first.verdict.value_s))
    train_searching(
        first, source_of(model), MODELS[model], out, budget_s=1.0, seed=options.seed,
        by_lot=(options.by_lot, options.lot_rounds), epochs=MOST_EPOCHS, steps=each * options.by_lot * options.lot_rounds + 200,
    )  # fmt: skip
    machine.look("after")
    history = History.read(out).to_json()
    rows = [r for r in history["history"] if r["phase"] != "finals"]
    mappings = len(rows) // options.lot_rounds
    foreseen, took, settled = (
        np.array([f(r) for r in rows]).reshape(options.lot_rounds, mappings)
        for f in (lambda r: r["predicted_s"], lambda r: r["measured_s"], lambda r: r["measured_s"] / r["slower"])
    )
    slower = slower_in(first, Readings.read(out / "readings.json"), [r["step"] for r in rows]).reshape(took.shape)
    kinds = {"raw": took, "at_run_speed": took / slower, "computing_as_measured": settled}
    return {
        "model": model, "mappings": mappings, "rounds": options.lot_rounds,
        **{name: _agreement(foreseen[0], values) for name, values in kinds.items()},
        "range_s": [float(np.median(took, axis=0).min()), float(np.median(took, axis=0).max())],
        "search": history, "settled": history["settled"],
    }  # fmt: skip


def _agreement(foreseen: FloatArray, took: FloatArray) -> Json:
    """Of predictions [mappings] with what was measured [rounds, mappings]; and of one half of the rounds with the other, than which
    no prediction can agree better."""
    middle = np.median(took, axis=0)
    odd, even = np.median(took[::2], axis=0), np.median(took[1::2], axis=0)
    return {
        "rank_correlation": rank_correlation(foreseen, middle),
        "median_error": float(np.median(np.abs(foreseen / middle - 1))),
        "halves_rank_correlation": rank_correlation(odd, even),
        "halves_median_error": float(np.median(np.abs(odd / even - 1))),
    }


def slower_in(file: PlanFile, readings: Readings, steps: Sequence[int]) -> FloatArray:
    """[steps] how many times as long as it was planned to take work took on the devices, on average, about those steps of the
    run: by the ABOUT readings next to each. The steps have many plans, and what these compute tells nothing beside each other."""
    problem = file.problem
    assert isinstance(problem, PipelineProblem)
    assert problem.probe is not None
    at, found = (np.array(steps) - 1) // readings.each - Spec.warmup, []
    for device, piece_s, share in zip(readings.devices, readings.piece_s, readings.core_share, strict=True):
        told = problem.probe.slowness(piece_s)
        read = np.flatnonzero(np.isfinite(told))
        near = read[np.argsort(np.abs(read - at[:, None]), axis=1, kind="stable")[:, :ABOUT]]
        ran = problem.probe.speed(told[near].mean(axis=1), row_means(share[near]))
        found.append(problem.cluster.by_name[device].speed / ran)
    return row_means(np.array(found).T)


def benchmark(options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    work = by_lot if options.by_lot else row
    rows = []
    for model in options.only.split(","):
        if model not in MODELS:
            raise BadInput(f"unknown model {model!r}", hint=f"known: {', '.join(MODELS)}")
        with tempfile.TemporaryDirectory() as folder:
            rows.append(work(model, Path(folder), options, machine, talk))
    verdicts = {f"{r['model']} {k}": v for r in rows for k, v in r.get("verdicts", {}).items()}
    return {"rows": rows, "by_lot": options.by_lot, "verdicts": verdicts, "machine_record": machine.finished()}


def text(document: Json) -> str:
    rows = document["rows"]
    lines = []
    if document["by_lot"]:
        for r in rows:
            lines.append(
                f"{r['model']}: {r['mappings']} mappings in {r['rounds']} rounds, {seconds(r['range_s'][0])} to {seconds(r['range_s'][1])} a step"
            )
            for kind, words in KINDS.items():
                a = r[kind]
                lines.append(
                    f"   {words}: rank correlation {a['rank_correlation']:.3f}, median error {percent(a['median_error'])}; "
                    f"one half of the rounds with the other {a['halves_rank_correlation']:.3f}, {percent(a['halves_median_error'])}"
                )
    else:
        body = [
            [r["model"], r["single_step_s"], r["step_s"], r["predicted_step_s"], r["speedup"], r["limit"], r["share_of_limit"], r["segments"], r["devices"]]
            for r in rows
        ]  # fmt: skip
        columns = [("model", "text"), ("one process", "s"), ("mapped", "s"), ("predicted", "s"), ("speed-up", "ratio"), ("limit", "ratio"), ("of the limit", "share"), ("segments", "count"), ("devices", "count")]  # fmt: skip
        lines.append(table(columns, body))  # type: ignore[arg-type]
    for r in rows:
        lines.append(f"{r['model']}: {ending(r['search'])}")
        if r["search"].get("surrogates"):
            lines.append(surrogate_table(r["search"]["surrogates"]))
    return "\n\n".join([*lines, said(document)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--only", default=",".join(MODELS), metavar="MODEL[,MODEL]")
    options.add_argument("--devices", type=int, default=2)
    options.add_argument("--search-budget-s", type=float, default=60.0)
    options.add_argument("--by-lot", type=int, default=0, metavar="N", help="try N mappings drawn by lot instead")
    options.add_argument(
        "--lot-rounds", type=int, default=4, metavar="N", help="each of them in so many rounds; default: 4"
    )
    options.add_argument("--rounds", type=int, default=18, help=f"{WARMUP} of them are not counted; default: 18")
    options.add_argument("--blocks", type=int, default=2, help="the rounds are taken in so many blocks; default: 2")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    check_rounds(given.rounds, WARMUP)
    return run_script(given, lambda m, t: benchmark(given, m, t), text, ("torch", "optuna", "scikit-learn"))


if __name__ == "__main__":
    sys.exit(main())
