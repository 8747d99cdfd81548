"""The performance models on measured data: extrapolation to more devices, folds, a campaign, ten seeds.

    python benchmarks/models.py [--timings VTRAIN.csv] [--campaign ROWS.parquet] [--json]

VTRAIN.csv holds 1,440 measured GPT iterations on 2, 4 and 8 GPUs (vTrain, MIT licence; not part of this project);
ROWS.parquet is what `partita measure --campaign examples/campaign.toml` wrote, by default benchmarks/results/campaign.parquet.
Whatever is missing is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import Machine, parser, run_script, said
from intervals import Claim, Interval, bootstrap

from partita.cli.talk import Talk
from partita.models.capture.table import Table
from partita.models.compare import Fitter
from partita.models.opponents import threadpool_limits
from partita.models.study import Prepared, prepare, study
from partita.page.text import table

HERE = Path(__file__).parent
SEEDS = range(10)
#: What each run is judged by; README.md gives the figures of one run. No time is in them: they hold on any machine.
COVERED = Claim(
    "90 % intervals hold between 80 and 98 % of the held-out rows", low=0.8, high=0.98, most_drift=float("inf")
)
BEST = Claim("the hybrid's errors are at most 1.1 of those of the best other model", high=1.1, most_drift=float("inf"))
SMALL = Claim("the best explainable model's errors are at most 5 % on average", high=0.05, most_drift=float("inf"))
AT_SPEED = "own campaign at the rows' speeds, five folds"
TARGET, DEVICES = "iteration time (ms)", "# GPUs"


def judged(name: str, prepared: Prepared, talk: Talk) -> dict[str, Any]:
    """Every model on one question; errors are relative, one a held-out row."""
    talk.say(f"   {name} ...")
    found = study(prepared)
    models = [
        {
            "name": s.name, "explainable": s.explainable, "mape": s.mape, "median": float(np.median(np.abs(s.errors))),
            "coverage": float(np.mean(s.inside)), "fit_s": s.fit_s, "errors": [round(e, 6) for e in s.errors.tolist()],
        }
        for s in found.scores
    ]  # fmt: skip
    inside = next(s.inside for s in found.scores if s.name == found.best)
    return {
        "question": name, "rows": len(prepared.times), "best_explainable": found.best, "models": models,
        "inside": inside.astype(int).tolist(),
    }  # fmt: skip


def seeds_apart(prepared: Prepared, talk: Talk) -> dict[str, float]:
    """Ten seeds, all rows: the largest and the median relative difference of a prediction from the seeds' mean."""
    talk.say("   ten seeds ...")
    rows, times, roles = prepared.table, prepared.times, prepared.roles
    began = time.perf_counter()
    found = []
    for seed in SEEDS:
        fitter = Fitter(roles, seed=seed)
        found.append(fitter.fit("hybrid", rows, times, fitter.settle(rows, times)).predict(rows).time)
    spent = (time.perf_counter() - began) / len(SEEDS)
    away = np.abs(np.stack(found) / np.mean(found, axis=0) - 1)
    return {"largest": float(away.max()), "median": float(np.median(away)), "settle_and_fit_s": spent}


def claimed(question: dict[str, Any]) -> dict[str, tuple[Claim, Interval]]:
    """What is claimed of one question; a round of the bootstrap is a held-out row."""
    sizes = {m["name"]: np.abs(m["errors"]).tolist() for m in question["models"]}
    others = {m["name"]: m["mape"] for m in question["models"] if m["name"] != "hybrid"}
    best = min(others, key=lambda n: others[n])
    near = bootstrap(lambda a, b: a / b, sizes["hybrid"], sizes[best], middle=np.mean)
    held = bootstrap(lambda a: a, question["inside"], middle=np.mean)
    name = question["question"]
    found = {f"{name}: error": (BEST, near), f"{name}: coverage": (COVERED, held)}
    if name == AT_SPEED:
        found[f"{name}: size"] = SMALL, bootstrap(lambda a: a, sizes[question["best_explainable"]], middle=np.mean)
    return found


def measured(options: argparse.Namespace, machine: Machine, talk: Talk) -> dict[str, Any]:
    """The whole document."""
    cpu = time.process_time()
    found: dict[str, Any] = {"questions": []}

    def ask(name: str, prepared: Prepared) -> None:
        found["questions"].append(judged(name, prepared, talk))
        machine.look_again(20.0)

    if options.timings is not None:
        data = Table.read(options.timings)
        for most, name in ((2, "GPT on 2 GPUs -> 4 and 8"), (4, "GPT on 2 and 4 GPUs -> 8")):
            ask(name, prepare(data, TARGET, split_by=DEVICES, up_to=most))
        whole = prepare(data, TARGET)
        ask("GPT, five folds", whole)
        found["seeds"] = seeds_apart(whole, talk)
    if options.campaign.is_file():
        rows = Table.read(options.campaign)
        ask("own campaign, five folds", prepare(rows, "step_s"))
        ask(AT_SPEED, prepare(rows, "corrected_s"))
    claims = {n: c for q in found["questions"] for n, c in claimed(q).items()}
    record = machine.finished()
    return {
        "facts": record["facts"], "load": record["facts"]["load"], **found, "cpu_s": time.process_time() - cpu,
        "verdicts": machine.verdicts(claims), "machine_record": record,
    }  # fmt: skip


def text(document: dict[str, Any]) -> str:
    rows = [
        [q["question"], m["name"], m["mape"], m["median"], m["coverage"], m["fit_s"]]
        for q in document["questions"]
        for m in q["models"]
    ]
    columns = [
        ("question", "text"),
        ("model", "text"),
        ("mean error", "share"),
        ("median", "share"),
        ("90 % hold", "share"),
        ("fit", "s"),
    ]
    return "\n".join([table(columns, rows), json.dumps(document.get("seeds")), said(document)])  # type: ignore[arg-type]


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--timings", type=Path, metavar="CSV")
    options.add_argument("--campaign", type=Path, default=HERE / "results" / "campaign.parquet", metavar="PARQUET")
    given = options.parse_args()
    with threadpool_limits(1):
        return run_script(given, lambda m, t: measured(given, m, t), text, packages=("scipy", "scikit-learn"))


if __name__ == "__main__":
    sys.exit(main())
