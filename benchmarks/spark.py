"""The DAG shop against what is proven best and against its bound; the executors' simulator.

    python benchmarks/spark.py [--instances 500] [--traces DIR] [--json]

Random problems of tests/spark/plan/shop_brute.py with up to 12 stages: local search against the exact method, both objectives; layers
of 50 to 1,000 stages against the bound. With traces (the TPC-H ones of Decima's simulator): four policies in the same
episodes, and events a second on one core.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

from harness import Json, Machine, loaded, parser, run_script, said
from intervals import MOST_DRIFT_ALONE, Claim, Interval, bootstrap

from partita.cli.talk import Talk
from partita.spark.capture.traces import read_traces
from partita.spark.plan.executors.episodes import Catalogue, Setting, simulate
from partita.spark.plan.executors.policies import POLICIES
from partita.spark.plan.planner import OBJECTIVES, plan_spark
from partita.spark.problem import ShopProblem

brute = loaded(Path(__file__).parents[1] / "tests" / "spark" / "plan" / "shop_brute.py")

ANY = float("inf")
MEAN = Claim("search is at most 1 % above the optimum on average", high=0.01, most_drift=ANY)
WORST = Claim("search is at most 5 % above the optimum at worst", high=0.05, most_drift=ANY)
PROVEN = Claim("the exact method proves all but one in a hundred", high=0.01, most_drift=ANY)
ABOVE = Claim("no bound is above what was found", high=0.0, most_drift=ANY)
LAYERS = Claim("layers are planned at most 5 % above the bound", high=0.05, most_drift=ANY)
QUICK = Claim("1,000 stages are planned within 5 s", high=5.0, most_drift=MOST_DRIFT_ALONE)
EVENTS = Claim("at least 200,000 events a second", low=200_000.0, most_drift=MOST_DRIFT_ALONE)
NEAR = 1e-9
LAYERS_S = 1.0  #: the search of layers
SIZES = ((50, 1, False), (50, 1, True), (200, 1, False), (200, 1, True), (500, 1, False), (1000, 1, False), (1000, 1, True), (1000, 20, False))  # fmt: skip


def against_exact(instances: int, budget_s: float, machine: Machine, talk: Talk) -> list[Json]:
    """A row for each objective."""
    rows = []
    for objective in OBJECTIVES:
        gaps, above, open_ = [], 0, 0
        for seed in range(instances):
            talk.progress(f"{objective} against exact", seed, instances)
            problem = ShopProblem.from_json(brute.instance(seed))
            exact = plan_spark(problem, "exact", objective, budget_s=10.0).verdict
            found = plan_spark(problem, "search", objective, budget_s=budget_s).verdict
            best = min(exact.value_s, found.value_s)
            above += int(max(exact.lower_bound_s, found.lower_bound_s) > best * (1 + NEAR))
            open_ += int(exact.gap > 1e-6)
            gaps.append(found.value_s / best - 1 if best > 0 else 0.0)
            machine.look_again(20.0)
        rows.append({"objective": objective, "instances": instances, "mean_gap": statistics.fmean(gaps), "worst_gap": max(gaps), "bound_above": above, "not_proven": open_})  # fmt: skip
    return rows


def against_bound(machine: Machine, talk: Talk) -> list[Json]:
    """Layers; a row for each size, objective and seed."""
    rows = []
    for k, (n, jobs, dense) in enumerate(SIZES):
        talk.progress("layers against the bound", k, len(SIZES))
        for objective in OBJECTIVES if jobs > 1 else OBJECTIVES[:1]:
            for seed in range(3):
                problem = ShopProblem.from_json(brute.layered(n, seed, jobs, dense))
                began = time.perf_counter()
                verdict = plan_spark(problem, objective=objective, budget_s=LAYERS_S).verdict
                spent = time.perf_counter() - began
                rows.append({"stages": n, "jobs": jobs, "dense": dense, "objective": objective, "gap": verdict.gap, "bound": verdict.bound, "wall_s": spent, "compared_s": dict(verdict.compared_s), "value_s": verdict.value_s})  # fmt: skip
        machine.look_again(20.0)
    return rows


def executors(folder: str, machine: Machine) -> list[Json]:
    """A row for each policy and setting, over the same episodes."""
    catalogue = Catalogue.of(read_traces(folder))
    apart = catalogue.work_s / (50 * 0.8)
    rows = []
    for name, setting in (("20 at once", Setting(20, 50)), ("a stream", Setting(200, 50, apart))):
        for policy in POLICIES:
            exponent = simulate(catalogue, setting, policy, seed=0).exponent
            found = [simulate(catalogue, setting, policy, seed=s, exponent=exponent) for s in range(1, 11)]
            rows.append({"setting": name, "policy": policy, "exponent": exponent, "mean_job_s": statistics.fmean(f.mean_job_s for f in found), "events_per_s": [f.events / f.seconds_spent for f in found], "episodes": [asdict(f) for f in found]})  # fmt: skip
            machine.look_again(20.0)
    return rows


def benchmark(instances: int, budget_s: float, traces: str | None, machine: Machine, talk: Talk) -> Json:
    rows, layers = against_exact(instances, budget_s, machine, talk), against_bound(machine, talk)
    cluster = executors(traces, machine) if traces else []
    claims = {
        "mean_gap": (MEAN, Interval.exact(max(r["mean_gap"] for r in rows))),
        "worst_gap": (WORST, Interval.exact(max(r["worst_gap"] for r in rows))),
        "not_proven": (PROVEN, Interval.exact(sum(r["not_proven"] for r in rows) / (2 * instances))),
        "bound_above": (ABOVE, Interval.exact(sum(r["bound_above"] for r in rows))),
        "layers_gap": (LAYERS, Interval.exact(max(r["gap"] for r in layers))),
        "wall_s": (QUICK, bootstrap(lambda s: s, [r["wall_s"] for r in layers if r["stages"] == 1000])),
    }
    if cluster:
        claims["events_per_s"] = (EVENTS, bootstrap(lambda s: s, [e for r in cluster for e in r["events_per_s"]]))
    record = machine.finished()
    return {"against_exact": rows, "layers": layers, "executors": cluster, "budget_s": budget_s, "layers_budget_s": LAYERS_S, "verdicts": machine.verdicts(claims), "machine_record": record}  # fmt: skip


def text(document: Json) -> str:
    lines = [f"{r['objective']}: {r['instances']} problems, mean gap {r['mean_gap']:.3%}, worst {r['worst_gap']:.2%}, {r['not_proven']} not proven" for r in document["against_exact"]]  # fmt: skip
    lines += [f"{r['stages']} stages, {r['jobs']} jobs{', dense' if r['dense'] else ''}, {r['objective']}: {r['gap']:.2%} above the bound ({r['bound']}), {r['wall_s']:.2f} s" for r in document["layers"]]  # fmt: skip
    lines += [f"{r['setting']}, {r['policy']}: mean job {r['mean_job_s']:.1f} s, {statistics.median(r['events_per_s']):,.0f} events a second" for r in document["executors"]]  # fmt: skip
    return "\n".join([*lines, said(document)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--instances", type=int, default=500)
    options.add_argument("--budget-s", type=float, default=0.3, help="of the search for one; default: 0.3")
    options.add_argument("--traces", help="folder of TPC-H traces")
    given = options.parse_args()
    return run_script(given, lambda m, t: benchmark(given.instances, given.budget_s, given.traces, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
