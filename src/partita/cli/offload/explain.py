"""partita offload explain plan.json: why this plan, and what would help."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from partita.cli.offload.plan import cut_table, document
from partita.cli.settings import check_budget
from partita.cli.talk import Talk
from partita.nouns.offload import OffloadProblem
from partita.nouns.plan import OffloadFile
from partita.offload.plan.lower import DOWNLINK, UPLINK, part_times
from partita.offload.plan.planner import baselines, plan_offload
from partita.page.text import facts, percent, seconds, table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json, as partita offload plan -o wrote it")
    parser.add_argument("--budget-s", type=float, default=1.0, metavar="S", help="for each question; default: 1")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read the plan, compare, ask again with one thing changed at a time. Raises PlanError where the file is damaged."""
    check_budget(options.budget_s)
    file = OffloadFile.read(options.plan)
    problem, shown = file.problem, document(file, options.plan)
    d, u, s, w = part_times(problem, file.plan)[0].sum(axis=0).tolist()
    busy = {"device": d, UPLINK: u, "server": s / problem.server_threads, DOWNLINK: w}
    value = file.verdict.value_s
    talk.step("planning again with a faster link, a faster device, one more thread")
    rows = []
    for change, other in changes(problem).items():
        found = plan_offload(other, budget_s=options.budget_s).verdict.value_s
        rows.append({"change": change, "makespan_s": found, "gain": _gain(value, found)})
    return {
        **shown,
        "busy_s": busy,
        "bottleneck": max(busy, key=lambda m: busy[m]),
        "baselines": [
            {"method": name, "makespan_s": m, "ratio": m / value if value > 0 else None}
            for name, m in baselines(problem).items()
        ],
        "what_if": rows,
    }


def changes(problem: OffloadProblem) -> dict[str, OffloadProblem]:
    """The problem with one thing better."""
    link = problem.link
    twice = replace(link, up_bytes_per_s=2 * link.up_bytes_per_s, down_bytes_per_s=2 * link.down_bytes_per_s)
    jobs = tuple(replace(j, tasks=tuple(replace(t, device_s=t.device_s / 2) for t in j.tasks)) for j in problem.jobs)
    return {
        "a link twice as fast": replace(problem, link=twice),
        "half the round trip": replace(problem, link=replace(link, round_trip_s=link.round_trip_s / 2)),
        "a device twice as fast": replace(problem, jobs=jobs),
        "one more server thread": replace(problem, server_threads=problem.server_threads + 1),
    }


def _gain(value: float, other: float) -> float:
    return 1 - other / value if value > 0 else 0.0


def text(document: dict[str, Any]) -> str:
    name, value, gap = document["bottleneck"], document["makespan_s"], document["gap"]
    share = document["busy_s"][name] / value if value > 0 else 0.0
    head = [
        ("makespan", f"{seconds(value)}, predicted, by {document['method']}"),
        ("bound", f"{seconds(document['lower_bound_s'])} ({document['bound']})"),
        ("gap", "none, it is optimal" if gap < 5e-10 else f"at most {percent(gap)}"),
        ("bottleneck", f"{name}, busy {percent(share)} of the time"),
        *((f"late: {r['job']}", f"by {seconds(r['late_s'])}") for r in document["late"]),
    ]
    others = [[r["method"], r["makespan_s"], r["ratio"]] for r in document["baselines"]]
    what_if = [[r["change"], r["makespan_s"], -r["gain"]] for r in document["what_if"]]
    return "\n\n".join(
        [
            facts(head),
            cut_table(document["cuts_by_model"]),
            table([("baseline", "text"), ("makespan", "s"), ("against the plan", "ratio")], others),
            table([("what if", "text"), ("makespan", "s"), ("change", "error")], what_if),
        ]
    )
