"""partita spark capture LOG: jobs and stages of a Spark application, from its event log."""

from __future__ import annotations

import argparse
from typing import Any

from partita.cli.talk import Talk
from partita.files import dump_json, write_whole
from partita.page.text import facts, seconds, table
from partita.spark.capture.event_log import read_event_log
from partita.spark.capture.shop import capture
from partita.testbed.units import parse_rate


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="an event log of Spark 3: a file, or a folder eventlog_v2_*")
    parser.add_argument("-o", "--out", metavar="JSON", help="write the problem, for partita spark plan")
    parser.add_argument(
        "--rate",
        metavar="RATE",
        help="of the hosts' links, e.g. 1gbit: fetching lasts bytes / rate; default: as logged",
    )
    parser.add_argument(
        "--together", action="store_true", help="release all jobs at 0; default: when they were submitted"
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read, divide, write. Raises CaptureError for what is no event log, or lacks what is needed."""
    rate = None if options.rate is None else parse_rate(options.rate) / 8
    log = read_event_log(options.log)
    found = capture(log, rate_bytes_per_s=rate, together=options.together)
    for note in found.notes:
        talk.say(f"   {note}")
    problem = found.problem.to_json()
    if options.out:
        write_whole(options.out, dump_json(problem))
        talk.say(f"   problem written to {options.out}")
    return {**problem, "source": found.source, "spark": log.version, "notes": list(found.notes), "problem": options.out}


def text(document: dict[str, Any]) -> str:
    rows = []
    for j, job in enumerate(document["jobs"]):
        for s, stage in enumerate(job["stages"]):
            rows.append(
                [
                    f"{job.get('name', j)}.{s}",
                    stage.get("name", ""),
                    ", ".join(map(str, stage.get("parents", []))),
                    stage["network_s"],
                    _range(stage.get("network_range_s")),
                    stage["cpu_s"],
                    _range(stage.get("cpu_range_s")),
                ]
            )
    head = facts(
        [
            ("jobs", str(len(document["jobs"]))),
            ("stages", str(len(rows))),
            ("from", document["source"]),
            ("Spark", document["spark"]),
        ]
    )
    columns: Any = [
        ("stage", "text"),
        ("made at", "text"),
        ("parents", "text"),
        ("network", "s"),
        ("from .. to", "text"),
        ("cpu", "s"),
        ("from .. to", "text"),
    ]
    return "\n\n".join([head, table(columns, rows)])


def _range(ends: list[float] | None) -> str:
    return "" if ends is None else f"{seconds(ends[0])} .. {seconds(ends[1])}"
