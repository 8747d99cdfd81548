"""partita spark plan PROBLEM.json: which stage has the network and the CPU when."""

from __future__ import annotations

import argparse
import math
import shutil
from typing import Any

from partita.cli.settings import check_budget
from partita.cli.talk import Talk
from partita.page.text import Kind, draw, facts, percent, seconds, table
from partita.spark.plan.planner import METHODS, OBJECTIVES, plan_spark
from partita.spark.problem import ShopProblem
from partita.spark.report.gantt import BASELINE_NAMES, OPTIMAL, timeline
from partita.spark.schedule import ShopFile


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("problem", metavar="PROBLEM", help="JSON: jobs with release times, stages with both phases and parents")  # fmt: skip
    parser.add_argument("--objective", default="makespan", choices=OBJECTIVES, help="default: makespan")
    parser.add_argument("--method", default="auto", metavar="NAME", help=f"{', '.join(METHODS)}; default: auto")
    parser.add_argument("--budget-s", type=float, default=1.0, metavar="S", help="seconds to search; default: 1")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed gives the same plan; default: 0"
    )
    parser.add_argument("-o", "--out", metavar="JSON", help="write the plan, with the problem it answers")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read, plan, write. Raises CostError for a problem that cannot be used, BadInput for an unknown method."""
    check_budget(options.budget_s)
    problem = ShopProblem.read(options.problem)
    talk.step(f"planning {len(problem)} stages of {len(problem.jobs)} job{'s' * (len(problem.jobs) > 1)}")
    file = plan_spark(problem, options.method, options.objective, budget_s=options.budget_s, seed=options.seed)
    if options.out:
        file.write(options.out)
        talk.say(f"   plan written to {options.out}")
    return document(file, options.out)


def document(file: ShopFile, out: str | None = None) -> dict[str, Any]:
    """What is printed: the schedule and what is claimed for it, and a drawing of both machines."""
    width = min(140, max(60, shutil.get_terminal_size((100, 24)).columns))
    return {**file.shown(), "gap": file.verdict.gap, "jobs": len(file.problem.jobs), "drawing": draw(timeline(file), width), "plan": out}  # fmt: skip


def text(document: dict[str, Any]) -> str:
    value, gap, jobs = document["value_s"], document["gap"], document["jobs"]
    what = document["objective"]
    head = [
        (what.replace("-", " "), f"{seconds(value)}, predicted"),
        ("bound", f"{seconds(document['lower_bound_s'])} ({document['bound']})"),
        ("gap", "none, it is optimal" if gap < OPTIMAL else f"at most {percent(gap)}"),
        ("method", f"{document['method']}, {seconds(document['seconds_spent'])}"),
        ("numbers below", "jobs" if jobs > 1 else "stages"),
    ]
    columns: list[tuple[str, Kind]] = [("without a plan", "text"), (what.replace("-", " "), "s"), ("against the plan", "ratio")]  # fmt: skip
    rows = [
        [BASELINE_NAMES.get(n, n), v, v / value if value > 0 else math.nan]
        for n, v in document.get("compared_s", {}).items()
    ]
    return "\n\n".join([facts(head), document["drawing"], table(columns, rows)])
