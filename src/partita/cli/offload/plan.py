"""partita offload plan: where to cut each job, and in which order to serve them."""

from __future__ import annotations

import argparse
from typing import Any

from partita.cli.settings import check_budget
from partita.cli.talk import Talk
from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.nouns.plan import OffloadFile
from partita.offload.plan.lower import lateness, part_times
from partita.offload.plan.planner import METHODS, plan_offload
from partita.offload.report.text import cut_words
from partita.page.text import Kind, facts, percent, seconds, table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--costs", required=True, metavar="JSON", help="link, server and jobs with their times")
    parser.add_argument("--method", default="auto", metavar="NAME", help=f"{', '.join(METHODS)}; default: auto")
    parser.add_argument("--budget-s", type=float, default=1.0, metavar="S", help="seconds to search; default: 1")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed gives the same plan; default: 0"
    )
    parser.add_argument("-o", "--out", metavar="JSON", help="write the plan, with the problem it answers")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read, plan, write. Raises CostError for costs that cannot be used, BadInput for an unknown method."""
    check_budget(options.budget_s)
    problem = OffloadProblem.read(options.costs)
    talk.step(f"planning {len(problem.jobs)} jobs")
    file = plan_offload(problem, options.method, budget_s=options.budget_s, seed=options.seed)
    if options.out:
        file.write(options.out)
        talk.say(f"   plan written to {options.out}")
    return document(file, options.out)


def document(file: OffloadFile, out: str | None = None) -> dict[str, Any]:
    """What is printed: the plan, how far from the bound it is at most, cuts by model, jobs that are late."""
    plan, verdict, problem = file.plan, file.verdict, file.problem
    return {
        "makespan_s": verdict.value_s,
        "lower_bound_s": verdict.lower_bound_s,
        "bound": verdict.bound,
        "order": list(plan.order),
        "cuts": [[t.id for t in j.tasks if t.id in c] for j, c in zip(problem.jobs, plan.cuts, strict=True)],
        "method": verdict.method,
        "seconds_spent": verdict.seconds_spent,
        "gap": 1 - verdict.lower_bound_s / verdict.value_s if verdict.value_s > 0 else 0.0,
        "late": lateness(problem, plan),
        "cuts_by_model": in_words(problem, plan),
        "plan": out,
    }


def in_words(problem: OffloadProblem, plan: OffloadPlan) -> list[dict[str, Any]]:
    """For every set of equal jobs and every cut of it: how many, what stays, and what that takes on each machine."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for j, (job, cut) in enumerate(zip(problem.jobs, plan.cuts, strict=True)):
        groups.setdefault((job.input_bytes, job.tasks, cut), []).append(j)
    times = part_times(problem, plan)[0]
    rows = []
    for (_, tasks, cut), jobs in groups.items():
        row = dict(zip(("device_s", "uplink_s", "server_s", "downlink_s"), times[jobs[0]].tolist(), strict=True))
        first = problem.jobs[jobs[0]].name
        rows.append(
            {
                "jobs": len(jobs),
                "first": first,
                "on_device": len(cut),
                "tasks": len(tasks),
                "cut": cut_words(tasks, cut),
                **row,
            }
        )
    return rows


def text(document: dict[str, Any]) -> str:
    gap = document["gap"]
    head = [
        ("makespan", f"{seconds(document['makespan_s'])}, predicted"),
        ("bound", f"{seconds(document['lower_bound_s'])} ({document['bound']})"),
        ("gap", "none, it is optimal" if gap < 5e-10 else f"at most {percent(gap)}"),
        ("method", f"{document['method']}, {seconds(document['seconds_spent'])}"),
        *((f"late: {r['job']}", f"by {seconds(r['late_s'])}") for r in document["late"]),
    ]
    return f"{facts(head)}\n\n{cut_table(document['cuts_by_model'])}"


def cut_table(rows: list[dict[str, Any]]) -> str:
    """Cuts by model, and what a job so cut takes."""
    columns: list[tuple[str, Kind]] = [
        ("jobs", "count"), ("first", "text"), ("cut", "text"), ("on device", "text"),
        ("device", "s"), ("uplink", "s"), ("server", "s"), ("downlink", "s"),
    ]  # fmt: skip
    return table(
        columns,
        [
            [r["jobs"], r["first"], r["cut"], f"{r['on_device']} of {r['tasks']}", r["device_s"], r["uplink_s"], r["server_s"], r["downlink_s"]]
            for r in rows
        ],
    )  # fmt: skip
