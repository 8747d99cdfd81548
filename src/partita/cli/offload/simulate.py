"""partita offload simulate plan.json: the predicted timeline of the four machines; or a stream of such jobs."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.nouns.plan import OffloadFile
from partita.offload.plan.lower import DOWNLINK, UPLINK, part_times, simulate_offload
from partita.offload.plan.online import POLICIES, poisson, stream
from partita.page.text import Kind, draw, facts, percent, seconds, table

MOST_ARRIVALS = 1_000_000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json, as partita offload plan -o wrote it")
    parser.add_argument("-o", "--out", metavar="JSON", help="write the timeline (Perfetto reads it)")
    parser.add_argument(
        "--arrivals", metavar="poisson:RATE", help="instead: jobs like these come at random, RATE a second, one by one"
    )
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="with --arrivals: so many; default: 1000")
    parser.add_argument(
        "--queue", type=int, default=32, metavar="N", help="with --arrivals: so many may wait; default: 32"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="with --arrivals; default: 0")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Lower the plan, simulate the program. Raises PlanError where the file is damaged."""
    file = OffloadFile.read(options.plan)
    problem, plan = file.problem, file.plan
    if options.arrivals:
        return _streamed(options, problem)
    timeline = simulate_offload(problem, plan)
    if options.out:
        timeline.write(options.out)
        talk.say(f"   timeline written to {options.out}")
    d, u, s, w = part_times(problem, plan)[0].sum(axis=0).tolist()
    busy = {"device": d, UPLINK: u, "server": s / problem.server_threads, DOWNLINK: w}
    total = timeline.duration_s or 1.0
    return {
        "makespan_s": timeline.duration_s,
        "planned_s": file.verdict.value_s,
        "busy_share": {m: x / total for m, x in busy.items()},
        "bottleneck": max(busy, key=lambda m: busy[m]),
        "timeline": options.out,
        "drawing": draw(timeline, min(140, max(60, shutil.get_terminal_size((100, 24)).columns))),
    }


def _streamed(options: argparse.Namespace, problem: Any) -> dict[str, Any]:
    kind, _, rate = options.arrivals.partition(":")
    try:
        per_s = float(rate)
    except ValueError:
        per_s = 0.0
    if kind != "poisson" or not 1e-9 < per_s < 1e9 or not 1 <= options.count <= MOST_ARRIVALS or options.queue < 1:
        raise BadInput(
            f"arrivals {options.arrivals!r}, {options.count} of them, a queue of {options.queue}",
            hint=f"say e.g. --arrivals poisson:2.5 --count 1000 --queue 32; at most {MOST_ARRIVALS} arrivals",
        )
    arrivals = poisson(per_s, options.count, len(problem.jobs), options.seed)
    rows = [{"policy": name, **stream(problem, arrivals, name, options.queue).summary()} for name in POLICIES]
    return {"arrivals_per_s": per_s, "count": options.count, "queue": options.queue, "policies": rows}


def text(document: dict[str, Any]) -> str:
    if "policies" in document:
        columns: list[tuple[str, Kind]] = [
            ("policy", "text"), ("answered", "count"), ("refused", "count"), ("mean", "s"), ("p95", "s"), ("p99", "s"),
        ]  # fmt: skip
        keys = ("policy", "answered", "refused", "mean_s", "p95_s", "p99_s")
        return table(columns, [[r[k] for k in keys] for r in document["policies"]])
    name, busy = document["bottleneck"], document["busy_share"]
    head = [
        ("makespan", f"{seconds(document['makespan_s'])}, predicted"),
        ("bottleneck", f"{name}, busy {percent(busy[name])}"),
    ]
    shares = table([("machine", "text"), ("busy", "share")], [[m, x] for m, x in busy.items()])
    return "\n\n".join([facts(head), shares, document["drawing"]])
