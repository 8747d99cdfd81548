"""partita spark explain plan.json, and partita explain of a Spark plan: why this order, and what would help."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from partita.cli.settings import check_budget
from partita.cli.spark.plan import document
from partita.cli.spark.plan import text as plan_text
from partita.cli.talk import Talk
from partita.page.text import Kind, facts, percent, seconds, table
from partita.spark.plan.bounds import bound_of
from partita.spark.plan.planner import plan_spark
from partita.spark.plan.shop import numbered
from partita.spark.plan.writes import without_writes
from partita.spark.problem import ShopJob, ShopProblem, ShopStage, in_order
from partita.spark.report.gantt import names_of
from partita.spark.schedule import ShopFile, ends, value

BINDING = {"network twice as fast": "network", "CPU twice as fast": "CPU", "all jobs there at 0": "the jobs' releases"}
NOTICEABLE = 0.01  #: a change that brings less is said to bring nothing


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json, as partita spark plan -o wrote it")
    parser.add_argument("--budget-s", type=float, default=1.0, metavar="S", help="for each question; default: 1")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read the plan, ask again with one thing better at a time. Raises PlanError where the file is damaged."""
    check_budget(options.budget_s)
    file = ShopFile.read(options.plan)
    problem, objective = file.problem, file.verdict.objective
    mean = objective == "mean-completion"
    work = numbered(without_writes(problem))
    end = value(problem, file.schedule, "makespan") or 1.0
    busy = {"network": float(work.shop.net.sum()), "cpu": float(work.shop.cpu.sum()) / problem.executors}
    talk.step("planning again with a faster network, a faster CPU")
    rows: list[dict[str, Any]] = []

    def best_s(asked: ShopProblem) -> float:
        return plan_spark(asked, objective="mean-completion" if mean else "makespan", budget_s=options.budget_s).verdict.value_s  # fmt: skip

    now_s = min(file.verdict.value_s, best_s(problem))  # what a better method brings is not the machine's
    for change, other in changes(problem).items():
        found = best_s(other)
        gain = 1 - found / now_s if now_s > 0 else 0.0
        rows.append({"change": change, "value_s": found, "gain": gain})
    best = max(rows, key=lambda r: r["gain"])
    return {
        **document(file, options.plan),
        "busy_s": busy,
        "busy_share": {m: s / end for m, s in busy.items()},
        "bottleneck": max(busy, key=lambda m: busy[m]),
        "binding": BINDING[best["change"]] if best["gain"] > NOTICEABLE else "both machines",
        "bound_part": bound_of(work.shop, mean).name,
        "ends": _ends(file),
        "what_if": rows,
    }


def changes(problem: ShopProblem) -> dict[str, ShopProblem]:
    """The problem with one machine twice as fast, and without waiting for releases."""

    def with_(network: float, cpu: float) -> ShopProblem:
        def faster(s: ShopStage) -> ShopStage:
            return ShopStage(s.network_s * network, s.cpu_s * cpu, s.parents, s.name, write_s=s.write_s * network)

        return replace(problem, jobs=tuple(replace(j, stages=tuple(map(faster, j.stages))) for j in problem.jobs))

    at_once = replace(problem, jobs=tuple(replace(j, release_s=0.0) for j in problem.jobs))
    others = {
        "network twice as fast": with_(0.5, 1.0),
        "CPU twice as fast": with_(1.0, 0.5),
        "all jobs there at 0": at_once,
    }
    return {change: other for change, other in others.items() if other != problem}


def _ends(file: ShopFile) -> list[dict[str, Any]]:
    """When each job is done, the last first."""
    of_jobs = zip(names_of(file.problem), ends(file.problem, file.schedule), file.problem.jobs, strict=True)
    rows = [{"job": name, "end_s": end_s, "alone_s": _alone(job)} for name, end_s, job in of_jobs]
    return sorted(rows, key=lambda r: -r["end_s"])


def _alone(job: ShopJob) -> float:
    """Seconds of a job's longest way: what it takes at least, alone."""
    way: dict[int, float] = {}
    for s in in_order(job.stages)[0]:
        stage = job.stages[s]
        before = max((way[p] for p in stage.parents), default=0.0)
        way[s] = before + stage.network_s + stage.cpu_s + stage.write_s
    return max(way.values(), default=0.0)


def text(document: dict[str, Any]) -> str:
    d = document
    share = d["busy_share"]
    head = facts(
        [
            ("busy", f"network {percent(share['network'])}, CPU {percent(share['cpu'])} of the makespan"),
            ("binding", d["binding"]),
            ("bound", f"{seconds(d['lower_bound_s'])}: {d['bound']}; of its parts, {d['bound_part']} binds"),
        ]
    )
    what = d["objective"].replace("-", " ")
    asked_columns: list[tuple[str, Kind]] = [("with", "text"), (what, "s"), ("change", "error")]
    asked = table(asked_columns, [[r["change"], r["value_s"], -r["gain"]] for r in d["what_if"]])
    end_columns: list[tuple[str, Kind]] = [("job", "text"), ("done", "s"), ("alone", "s")]
    done = table(end_columns, [[r["job"], r["end_s"], r["alone_s"]] for r in d["ends"][:30]])
    return "\n\n".join([plan_text(d), head, asked, done])
