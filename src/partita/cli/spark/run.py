"""partita spark run APP.py: run a program's jobs on a Spark cluster, by a plan or without one."""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from partita.cli.talk import Talk
from partita.errors import BadInput, Interrupted, JobError
from partita.files import dump_json, made_folder, write_whole
from partita.nouns.timeline import Timeline
from partita.page.agreement import relative_error
from partita.page.machine import machine_facts
from partita.page.text import Kind, draw, facts, percent, seconds, table
from partita.spark.capture.event_log import EventLog, read_event_log
from partita.spark.report.gantt import completions, measured, stages_of_jobs, timeline
from partita.spark.run.told import POLICIES, Answer, Policy, Told
from partita.spark.schedule import ShopFile, ends
from partita.temporary import temporary_folder
from partita.testbed.units import parse_rate

if TYPE_CHECKING:
    from partita.spark.run.cluster import SparkCluster

OURS = ("spark.eventLog.enabled", "spark.eventLog.dir", "spark.scheduler.mode", "spark.sql.adaptive.enabled", "spark.driver.host", "spark.driver.bindAddress", "spark.cores.max", "spark.executor.cores")  # fmt: skip
MOST_ROUNDS, MOST_HOSTS, MOST_SLOTS, MOST_MEMORY_MB = 1000, 60, 1024, 1 << 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", metavar="APP", help="a Python file with a function jobs(spark): name -> (RDD, action)")
    parser.add_argument("--order", metavar="PLAN", help="plan.json of partita spark plan -o: who has the network and the CPU when")  # fmt: skip
    parser.add_argument("--policy", choices=POLICIES, help="without a plan; default: one-by-one, one phase at a time, for partita spark capture")  # fmt: skip
    parser.add_argument("--master", metavar="URL", help="a standalone master that runs: spark://HOST:PORT")
    parser.add_argument("--rate", metavar="RATE", help="instead: hosts made on this machine, their links of this rate, e.g. 20mbit")  # fmt: skip
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="workers; with --master: executors to wait for; default: 2")  # fmt: skip
    parser.add_argument("--slots", type=int, default=8, metavar="N", help="tasks at once in an executor; default: 8")
    parser.add_argument("--memory-mb", type=int, default=1024, metavar="MB", help="of an executor; default: 1024")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="run everything so often; default: once")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark, or one that the program reads; may stand several times")  # fmt: skip
    parser.add_argument("-o", "--out", metavar="DIR", help="write the event log, plan.json, predicted.json, measured.json, run.json")  # fmt: skip


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Start, run, read the event log, end everything. Raises PartitaError and its kin where anything of that fails."""
    from partita.spark.run.execute import driver

    _check(options)
    file = ShopFile.read(options.order) if options.order else None
    if file and any(j.release_s for j in file.problem.jobs):
        last = max(j.release_s for j in file.problem.jobs)
        raise BadInput(
            f"{options.order} plans jobs that come later, the last at {seconds(last)}: here all are there at once",
            hint="capture with --together, and plan again",
        )
    if file and (file.problem.writes or file.problem.executors > 1):
        what = "writes" if file.problem.writes else f"{file.problem.executors} executors"
        raise BadInput(
            f"{options.order} plans {what}: under a plan each phase has the whole network or all CPUs to itself",
            hint="plan the problem that partita spark capture wrote",
        )
    policy: Policy = "plan" if file else options.policy or "one-by-one"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminated())
        folder = _folder(options, stack)
        cluster = stack.enter_context(_cluster(options, talk))
        told = Told(
            str(Path(options.app).absolute()), cluster.master, str(folder / "events"), cluster.address, options.slots,
            options.memory_mb, options.hosts, dict(pair.split("=", 1) for pair in options.conf),
        )  # fmt: skip
        plan = file.write(folder / "plan.json") if file else None
        with driver(cluster, told, folder) as asked:
            for k in range(options.rounds):
                talk.step(f"running, {policy}{f', round {k + 1} of {options.rounds}' if options.rounds > 1 else ''}")
                number, answer = asked.round(policy, plan)
                talk.say(f"   {seconds(answer.seconds)}")
        (written,) = (p for p in (folder / "events").iterdir() if not p.name.startswith("."))
        log = read_event_log(written)
        document = _document(options, policy, file, log, answer)
        return _kept(options, file, log, str(number), policy, document)


def _check(options: argparse.Namespace) -> None:
    if options.order and options.policy:
        raise BadInput("both --order and --policy", hint="give one of the two")
    if (options.master is None) == (options.rate is None):
        what = "neither --master nor --rate" if options.master is None else "both --master and --rate"
        raise BadInput(what, hint="give --master spark://HOST:PORT, or --rate 20mbit for hosts made on this machine")
    if options.rate is not None:
        parse_rate(options.rate)
    for name, least, most in (("rounds", 1, MOST_ROUNDS), ("hosts", 1, MOST_HOSTS), ("slots", 1, MOST_SLOTS), ("memory_mb", 512, MOST_MEMORY_MB)):  # fmt: skip
        if not least <= getattr(options, name) <= most:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(options, name)}", hint=f"give a whole number from {least} to {most:,}")  # fmt: skip
    for pair in options.conf:
        if "=" not in pair.strip("="):
            raise BadInput(
                f"--conf {pair!r}", hint="write KEY=VALUE, e.g. --conf spark.shuffle.io.numConnectionsPerPeer=2"
            )
        if pair.partition("=")[0].strip() in OURS:
            raise BadInput(f"--conf {pair!r}", hint="measuring and ordering need that as it is: leave it out")
    if not Path(options.app).is_file():
        raise BadInput(f"{options.app} is no file", hint="give a Python file with a function jobs(spark)")


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does, so that all that was started is ended."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted("ended by SIGTERM; what was started has been ended")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _folder(options: argparse.Namespace, stack: contextlib.ExitStack) -> Path:
    """Where the run's files go. Raises BadInput for a folder that holds another run, or cannot be made."""
    folder = Path(options.out or stack.enter_context(temporary_folder("spark-run"))).absolute()
    if any(made_folder(folder / "events").iterdir()):
        raise BadInput(f"{folder} holds a run already", hint="name another folder")
    return folder


def _cluster(options: argparse.Namespace, talk: Talk) -> contextlib.AbstractContextManager[SparkCluster]:
    from partita.spark.run.cluster import existing, shaped

    if options.master:
        return contextlib.nullcontext(existing(options.master))
    talk.step(f"starting a master and {options.hosts} workers, links of {options.rate}")
    return shaped(options.hosts, options.rate, options.slots, options.memory_mb)


def _document(options: argparse.Namespace, policy: str, file: ShopFile | None, log: EventLog, answer: Answer) -> dict[str, Any]:  # fmt: skip
    rounds = [completions(log, str(k)) for k in range(options.rounds)]
    ends = rounds[-1]
    if idle := [n for n in answer.jobs if n not in ends]:
        raise JobError(
            f"job {idle[0]!r} started nothing on Spark", hint="its action has to read the RDD, e.g. rdd.count()"
        )
    predicted = _predicted(file) if file else None
    last = {"makespan_s": max(ends.values()), "mean_completion_s": statistics.fmean(ends.values())}
    return {
        "policy": policy,
        **last,
        "predicted_makespan_s": predicted[0] if predicted else None,
        "predicted_mean_completion_s": predicted[1] if predicted else None,
        "error": relative_error(predicted[0], last["makespan_s"]) if predicted else None,
        "jobs": [
            {"name": n, "completion_s": ends[n], "result": r} for n, r in zip(answer.jobs, answer.results, strict=True)
        ],
        "rounds": [{"makespan_s": max(r.values()), "mean_completion_s": statistics.fmean(r.values())} for r in rounds],
        "settings": {
            "hosts": options.hosts,
            "rate": options.rate,
            "slots": options.slots,
            "max_requests_in_flight": log.conf.get("spark.reducer.maxReqsInFlight", "no limit"),
            "connections_per_peer": int(log.conf.get("spark.shuffle.io.numConnectionsPerPeer", "1")),
        },
        "spark": log.version,
        "machine": machine_facts(),
    }


def _predicted(file: ShopFile) -> tuple[float, float]:
    """(makespan, mean completion) that a plan promises; jobs count from 0 on, for that is when they are released here."""
    done = ends(file.problem, file.schedule)
    return max(done), statistics.fmean(done)


def _kept(options: argparse.Namespace, file: ShopFile | None, log: EventLog, number: str, policy: str, document: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """The document with its drawing; the timelines written."""
    told = {k: document[k] for k in ("policy", "settings", "spark", "machine")}
    done: Timeline
    if policy in ("fifo", "fair"):
        done = stages_of_jobs(log, number, told)
    else:
        from partita.spark.capture.shop import capture

        done = measured(file.problem if file else capture(log).problem, log, number, told)
    if options.out:
        folder = Path(options.out)
        done.write(folder / "measured.json")
        if file:
            timeline(file).write(folder / "predicted.json")
        write_whole(folder / "run.json", dump_json(document))
    return {**document, "drawing": draw(done, 100), "out": options.out}


def text(document: dict[str, Any]) -> str:
    d = document
    rows = [("makespan", seconds(d["makespan_s"])), ("mean completion", seconds(d["mean_completion_s"]))]
    if d["predicted_makespan_s"] is not None:
        rows.append(("predicted", f"{seconds(d['predicted_makespan_s'])}, {percent(d['error'], signed=True)}; mean {seconds(d['predicted_mean_completion_s'])}"))  # fmt: skip
    s = d["settings"]
    rows.append(("policy", d["policy"]))
    rows.append(("settings", f"{s['hosts']} hosts, {s['rate'] or 'links as they are'}, {s['slots']} slots each, {s['connections_per_peer']} connections per peer, requests in flight: {s['max_requests_in_flight']}"))  # fmt: skip
    columns: list[tuple[str, Kind]] = [("job", "text"), ("done", "s"), ("result", "text")]
    jobs = table(columns, [[j["name"], j["completion_s"], j["result"]] for j in d["jobs"]])
    return "\n\n".join([facts(rows), jobs, d["drawing"]])
