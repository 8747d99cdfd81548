"""The performance models on measured data: extrapolation to more devices, folds, a campaign, ten seeds.

    python benchmarks/models.py [--timings VTRAIN.csv] [--campaign ROWS.parquet] [--json]

VTRAIN.csv holds 1,440 measured GPT iterations on 2, 4 and 8 GPUs (vTrain, MIT licence; not part of this project);
ROWS.parquet is what `partita measure --campaign examples/campaign.toml` wrote, by default benchmarks/results/campaign.parquet.
Whatever is missing is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from partita.models.capture.table import Table
from partita.models.compare import Fitter
from partita.models.opponents import threadpool_limits
from partita.models.study import Prepared, prepare, study
from partita.page.machine import machine_facts
from partita.page.text import table

HERE = Path(__file__).parent
SEEDS = range(10)
TARGET, DEVICES = "iteration time (ms)", "# GPUs"


def judged(name: str, prepared: Prepared) -> dict[str, Any]:
    """Every model on one question."""
    print(f"   {name} ...", file=sys.stderr)
    found = study(prepared)
    models = [
        {
            "name": s.name, "explainable": s.explainable, "mape": s.mape, "median": float(np.median(np.abs(s.errors))),
            "coverage": float(np.mean(s.inside)), "fit_s": s.fit_s,
        }
        for s in found.scores
    ]  # fmt: skip
    return {"question": name, "rows": len(prepared.times), "best_explainable": found.best, "models": models}


def seeds_apart(prepared: Prepared) -> dict[str, float]:
    """Ten seeds, all rows: the largest and the median relative difference of a prediction from the seeds' mean."""
    print("   ten seeds ...", file=sys.stderr)
    rows, times, roles = prepared.table, prepared.times, prepared.roles
    began = time.perf_counter()
    found = []
    for seed in SEEDS:
        fitter = Fitter(roles, seed=seed)
        found.append(fitter.fit("hybrid", rows, times, fitter.settle(rows, times)).predict(rows).time)
    spent = (time.perf_counter() - began) / len(SEEDS)
    away = np.abs(np.stack(found) / np.mean(found, axis=0) - 1)
    return {"largest": float(away.max()), "median": float(np.median(away)), "settle_and_fit_s": spent}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The whole document."""
    load, cpu = list(os.getloadavg()), time.process_time()
    document: dict[str, Any] = {"facts": machine_facts(), "load": load, "questions": []}
    if options.timings is not None:
        data = Table.read(options.timings)
        for most, name in ((2, "GPT on 2 GPUs -> 4 and 8"), (4, "GPT on 2 and 4 GPUs -> 8")):
            document["questions"].append(judged(name, prepare(data, TARGET, split_by=DEVICES, up_to=most)))
        whole = prepare(data, TARGET)
        document["questions"].append(judged("GPT, five folds", whole))
        document["seeds"] = seeds_apart(whole)
    if options.campaign.is_file():
        document["questions"].append(
            judged("own campaign, five folds", prepare(Table.read(options.campaign), "step_s"))
        )
    return document | {"cpu_s": time.process_time() - cpu}


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
    return table(columns, rows) + f"\n\n{json.dumps(document.get('seeds'))}"  # type: ignore[arg-type]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timings", type=Path, metavar="CSV")
    parser.add_argument("--campaign", type=Path, default=HERE / "results" / "campaign.parquet", metavar="PARQUET")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with threadpool_limits(1):
        document = measured(options)
    print(json.dumps(document, indent=1) if options.json else text(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
