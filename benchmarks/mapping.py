"""Mappings by every method: value, bound and seconds, on published graphs, devices and rates.

    python benchmarks/mapping.py --graphs FOLDER [--names resnet50,..] [--devices 2,4] [--rates 12e9,50e9]
                                 [--methods heft,hybrid,..] [--seeds 5] [--budget-s 10] [--json]

FOLDER holds PipeDream profiles (NAME.txt), which are no part of this repository. Methods that draw lots run once a seed: the
median and the range are shown. Every method is compared with the best value that any of them, in any run, has found for the
same graph, and with the highest bound that any has proven. A value is the makespan of one iteration: every layer once, forward
and backward together. CPU seconds and load stand beside every wall-clock figure.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness import Json, Machine, cpu_seconds, parser, run_script, said
from intervals import MOST_DRIFT_ALONE, Claim, Interval

from partita.cli.talk import Talk
from partita.mapping.plan.planner import compile_kernels, plan_mapping
from partita.page.text import percent, seconds
from partita.placement.capture.pipedream import read

NAMES = "alexnet,vgg16,resnet50,inception_v3,gnmt,nasnetamobile"
CERTAIN = ("single", "intuitive", "heft", "heft-links", "cp-sat")  #: no lots are drawn, or they hardly matter
METHODS = ",".join((*CERTAIN, "bayes", "bayes-tpe", "bayes-random", "genetic", "hybrid"))

#: What each run is judged by.
NEAR = Claim("hybrid is within 2 % of the best found by any method", high=1.02, most_drift=float("inf"))
QUICK = Claim("hybrid takes at most 20 s", high=20.0, most_drift=MOST_DRIFT_ALONE)
BELOW = Claim("no bound lies above a value", high=1.0 + 1e-9, most_drift=float("inf"))


def case(path: Path, devices: int, rate: float, options: argparse.Namespace) -> Json:
    """Every method on one graph, devices and rate."""
    problem, rows = read(path, devices, rate), []
    for method in options.methods.split(","):
        runs = []
        for seed in range(1 if method in CERTAIN else options.seeds):
            began, used = time.perf_counter(), cpu_seconds()
            verdict = plan_mapping(problem, method=method, budget_s=options.budget_s, seed=seed).verdict
            runs.append(
                {"seed": seed, "value_s": verdict.value_s, "bound_s": verdict.lower_bound_s, "wall_s": time.perf_counter() - began, "cpu_s": cpu_seconds() - used}
            )  # fmt: skip
        rows.append({"method": method, "runs": runs})
    every = [r for row in rows for r in row["runs"]]
    best, bound = min(r["value_s"] for r in every), max(r["bound_s"] for r in every)
    return {"graph": path.stem, "tasks": len(problem.graph), "devices": devices, "rate": rate, "best_s": best, "bound_s": bound, "rows": rows}  # fmt: skip


def benchmark(options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    compile_kernels()
    asked = [
        (Path(options.graphs) / f"{n}.txt", int(d), float(b))
        for n in options.names.split(",")
        for d in options.devices.split(",")
        for b in options.rates.split(",")
    ]
    cases = []
    for k, (path, devices, rate) in enumerate(asked):
        talk.progress(f"{path.stem} on {devices}", k, len(asked))
        cases.append(case(path, devices, rate, options))
        machine.look_again(20.0)
    hybrid = [(c, r) for c in cases for row in c["rows"] if row["method"] == "hybrid" for r in row["runs"]]
    claims = {"bounds": (BELOW, Interval.exact(max(c["bound_s"] / c["best_s"] for c in cases)))}
    if hybrid:
        claims["near"] = (NEAR, Interval.exact(max(r["value_s"] / c["best_s"] for c, r in hybrid)))
        claims["quick"] = (QUICK, Interval.exact(max(r["wall_s"] for _, r in hybrid)))
    return {
        "cases": cases,
        "budget_s": options.budget_s,
        "machine_record": machine.finished(),
        "verdicts": machine.verdicts(claims),
    }


def lines(document: Json) -> Sequence[str]:
    """A line a graph and method."""
    head = f"{'graph':<14} {'on':>2} {'GB/s':>4}  {'method':<12} {'median':>10} {'range over seeds':>21} {'above best':>10} {'wall':>8} {'CPU':>8}"
    found = [head]
    for c in document["cases"]:
        for row in c["rows"]:
            values = [r["value_s"] for r in row["runs"]]
            middle = statistics.median(values)
            found.append(
                f"{c['graph']:<14} {c['devices']:>2} {c['rate'] / 1e9:>4.0f}  {row['method']:<12} {seconds(middle):>10} "
                f"{seconds(min(values)) + ' to ' + seconds(max(values)):>21} {percent(middle / c['best_s'] - 1):>10} "
                f"{seconds(statistics.median(r['wall_s'] for r in row['runs'])):>8} {seconds(statistics.median(r['cpu_s'] for r in row['runs'])):>8}"
            )  # fmt: skip
        proven = c["best_s"] <= c["bound_s"] * (1 + 1e-6)
        found.append(f"{'':<14} {'':>2} {'':>4}  {'bound':<12} {seconds(c['bound_s']):>10} " + ("the best is optimal" if proven else f"the best is at most {percent(c['best_s'] / c['bound_s'] - 1)} above"))  # fmt: skip
    return found


def text(document: Json) -> str:
    return "\n".join([*lines(document), "", said(document)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--graphs", required=True, metavar="FOLDER", help="with PipeDream profiles, NAME.txt")
    options.add_argument("--names", default=NAMES, help=f"default: {NAMES}")
    options.add_argument("--devices", default="2,4")
    options.add_argument("--rates", default="12e9,50e9", help="bytes/s between devices; default: 12e9,50e9")
    options.add_argument("--methods", default=METHODS, help=f"default: {METHODS}")
    options.add_argument("--seeds", type=int, default=5, help="of methods that draw lots; default: 5")
    options.add_argument("--budget-s", type=float, default=10.0, help="of each search; default: 10")
    given = options.parse_args()
    return run_script(given, lambda m, t: benchmark(given, m, t), text, ("optuna", "ortools", "numba"))


if __name__ == "__main__":
    sys.exit(main())
