"""Jobs that keep arriving: the learned policies against rules, planning anew, and who knows all jobs beforehand.

    python benchmarks/spark_learned.py [--traces DIR] [--trained-on DIR --held-out DIR] [--episodes 10] [--jobs 200] [--json]

The DAG shop: Poisson arrivals of random jobs (those that the shipped policy was trained on, unseen seeds) and of jobs of another
kind (uniform lengths, any edges), at loads of 0.5, 0.8 and 0.95 of the busier machine. Executors, with traces: 20 jobs at once
and streams on 50 executors; weighted fair with the exponent that is best in the very episodes that are compared. `--trained-on` and
`--held-out` are folders with the sizes of data that the policy was and was not trained on.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np
from harness import Json, Machine, loaded, parser, run_script, said
from intervals import MOST_DRIFT_ALONE, Claim, Interval, bootstrap

from partita.cli.talk import Talk
from partita.spark.capture.traces import read_traces
from partita.spark.plan.bounds import bound_of
from partita.spark.plan.executors.episodes import EXPONENTS, Catalogue, Setting, simulate
from partita.spark.plan.online.episodes import SHOP_POLICIES, Arrivals, mean_job_s, run_shop
from partita.spark.plan.online.policies import RULES
from partita.spark.plan.online.streams import stream
from partita.spark.problem import ShopProblem

brute = loaded(Path(__file__).parents[1] / "tests" / "spark" / "plan" / "shop_brute.py")

ANY = float("inf")
LOADS = (0.5, 0.8, 0.95)
KINDS = 300  #: jobs of the other kind
FIRST_SEED = 100  #: no training has seen these
EVENTS = Claim("at least 200,000 events a second", low=200_000.0, most_drift=MOST_DRIFT_ALONE)


def other_jobs() -> ShopProblem:
    """Jobs of tests/spark/plan/shop_brute.py with lengths that are uniform and exponential."""
    return ShopProblem.from_json({"jobs": [j for k in range(KINDS // 2) for j in brute.instance(k, 12, "plain")["jobs"]][:KINDS]})  # fmt: skip


def shop(episodes: int, jobs: int, machine: Machine, talk: Talk) -> list[Json]:
    """A row for each kind of jobs and load: mean job times by policy, an episode each."""
    rows = []
    for kind, kinds in (("random", None), ("other", other_jobs().jobs)):
        for load in LOADS:
            took: dict[str, list[float]] = {p: [] for p in SHOP_POLICIES}
            spent: dict[str, float] = dict.fromkeys(SHOP_POLICIES, 0.0)
            bounds = []
            for seed in range(FIRST_SEED, FIRST_SEED + episodes):
                talk.progress(f"the shop, {kind} jobs, load {load:g}", seed - FIRST_SEED, episodes)
                arrivals = Arrivals.of(stream(kinds, jobs, load, seed))
                bounds.append(bound_of(arrivals.work.shop, True).value_s)
                for policy in SHOP_POLICIES:
                    began = time.perf_counter()
                    line = run_shop(arrivals, policy, seed=seed)
                    spent[policy] += time.perf_counter() - began
                    took[policy].append(mean_job_s(arrivals.work.shop, line))
                machine.look_again(20.0)
            rule = min(RULES, key=lambda p: statistics.fmean(took[p]))
            rows.append({"jobs": kind, "load": load, "best_rule": rule, "mean_job_s": took, "bound_s": bounds, "seconds_a_job": {p: s / episodes / jobs for p, s in spent.items()}})  # fmt: skip
    return rows


def executors(folders: dict[str, str], episodes: int, machine: Machine, talk: Talk) -> list[Json]:
    """A row for each folder of traces and setting."""
    rows = []
    for name, folder in folders.items():
        catalogue = Catalogue.of(read_traces(folder))
        apart = catalogue.work_s / (50 * 0.8)
        for what, setting in (("20 at once", Setting(20, 50)), ("a stream", Setting(200, 50, apart)), ("10 at once, 25 executors", Setting(10, 25)), ("40 at once, 100 executors", Setting(40, 100))):  # fmt: skip
            talk.progress(f"executors, {name}", 0, 1)
            seeds = range(FIRST_SEED, FIRST_SEED + episodes)

            def runs(
                policy: str, exponent: float | None, catalogue: Catalogue = catalogue, setting: Setting = setting, seeds: range = seeds
            ) -> tuple[list[float], list[float]]:  # fmt: skip
                found = [simulate(catalogue, setting, policy, seed=s, exponent=exponent) for s in seeds]
                return [f.mean_job_s for f in found], [f.events / f.seconds_spent for f in found]

            took = {p: runs(p, None)[0] for p in ("fifo", "sjf-cp", "fair")}
            tries = {e: runs("weighted-fair", e) for e in EXPONENTS}
            exponent = min(EXPONENTS, key=lambda e: statistics.fmean(tries[e][0]))
            took["weighted-fair"], speed = tries[exponent]
            took["learned"], learned_speed = runs("learned", None)
            rows.append({"traces": name, "setting": what, "exponent": exponent, "mean_job_s": took, "events_per_s": speed, "learned_events_per_s": learned_speed})  # fmt: skip
            machine.look_again(20.0)
    return rows


def lower(took: Json, policy: str, than: str) -> Interval:
    """By what share the mean job time of a policy is lower than another's, in the same episodes."""
    return bootstrap(lambda a, b: 1 - a / b, took[policy], took[than], middle=np.mean)


def benchmark(folders: dict[str, str], episodes: int, jobs: int, machine: Machine, talk: Talk) -> Json:
    rows = shop(episodes, jobs, machine, talk) if jobs else []
    cluster = executors(folders, episodes, machine, talk)
    claims: dict[str, tuple[Claim, Interval]] = {}
    for r in rows:
        least = -0.02 if r["load"] == 0.5 else 0.15
        for than in (r["best_rule"], "replan"):
            words = f"{r['jobs']} jobs, load {r['load']:g}: learned at least {least:.0%} lower than {than}"
            claims[f"shop {r['jobs']} {r['load']:g} {than}"] = (Claim(words, low=least, most_drift=ANY), lower(r["mean_job_s"], "learned", than))  # fmt: skip
    for r in cluster:
        words = f"{r['traces']}, {r['setting']}: learned at least 15 % lower than weighted fair at its best"
        claims[f"executors {r['traces']} {r['setting']}"] = (Claim(words, low=0.15, most_drift=ANY), lower(r["mean_job_s"], "learned", "weighted-fair"))  # fmt: skip
    if cluster:
        claims["events_per_s"] = (EVENTS, bootstrap(lambda s: s, [e for r in cluster for e in r["events_per_s"]]))
        claims["learned_events_per_s"] = (EVENTS, bootstrap(lambda s: s, [e for r in cluster for e in r["learned_events_per_s"]]))  # fmt: skip
    record = machine.finished()
    return {"shop": rows, "executors": cluster, "verdicts": machine.verdicts(claims), "machine_record": record}


def text(document: Json) -> str:
    lines = []
    for r in document["shop"]:
        means = ", ".join(f"{p} {statistics.fmean(v):.1f}" for p, v in r["mean_job_s"].items())
        lines.append(f"shop, {r['jobs']} jobs, load {r['load']:g}: {means}; bound {statistics.fmean(r['bound_s']):.1f} s; learned takes {r['seconds_a_job']['learned'] * 1e3:.1f} ms a job")  # fmt: skip
    for r in document["executors"]:
        means = ", ".join(f"{p} {statistics.fmean(v):.1f}" for p, v in r["mean_job_s"].items())
        lines.append(f"executors, {r['traces']}, {r['setting']}: {means} s (exponent {r['exponent']:g})")
    return "\n".join([*lines, said(document)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--episodes", type=int, default=10)
    options.add_argument("--jobs", type=int, default=200, help="that come to the shop in an episode; 0: no shop")
    options.add_argument("--traces", help="folder of TPC-H traces")
    options.add_argument("--trained-on", help="folder of those that the policy was trained on")
    options.add_argument("--held-out", help="folder of those that it was not")
    given = options.parse_args()
    asked = {"all sizes": given.traces, "trained on": given.trained_on, "held out": given.held_out}
    folders = {name: folder for name, folder in asked.items() if folder}
    return run_script(given, lambda m, t: benchmark(folders, given.episodes, given.jobs, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
