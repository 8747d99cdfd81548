"""partita explain plan.json: why this plan, and what would help."""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import asdict
from typing import Any

import numpy as np

from partita.cli.plan import bound_facts, choice_facts, document, load_table, split_facts, step_table
from partita.cli.settings import check_budget
from partita.cli.spark import explain as spark
from partita.cli.talk import Talk
from partita.cli.what_if import Answer, answers
from partita.errors import PlanError
from partita.files import read_json
from partita.nouns.graph import FloatArray
from partita.nouns.plan import PlanFile
from partita.nouns.program import Op, Program
from partita.nouns.timeline import Timeline
from partita.page.text import draw, facts, percent, seconds, table
from partita.simulate.lower import program_of
from partita.simulate.predicted import durations_of
from partita.simulate.simulator import simulate
from partita.spark.schedule import FORMAT

NOTICEABLE = 0.01  #: a change that brings less is said to bring nothing


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json, as partita plan or partita spark plan wrote it")
    parser.add_argument(
        "--budget-s", type=float, default=3.0, metavar="S", help="for each question about a free placement"
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read the plan, ask again with one thing changed at a time. Raises PlanError where the file is damaged."""
    check_budget(options.budget_s)
    if spark_plan(options.plan):
        return spark.run(options, talk)
    file = PlanFile.read(options.plan)
    talk.step("planning again with one more device, twice the bandwidth, more memory")
    found = answers(file, options.budget_s)
    value = file.verdict.value_s
    rows = [{**asdict(a), "value_s": _finite(a.value_s), "lower_bound_s": _finite(a.lower_bound_s)} for a in found]
    explained = {**document(file, options.plan), "what_if": [{**r, "gain": _gain(value, r["value_s"])} for r in rows]}
    told = _bottleneck(file)
    return {**explained, **told, "binding": _binding(value, found, told["bottleneck_is"])}


def spark_plan(path: str) -> bool:
    """Whether the file says that it holds an order of Spark's stages."""
    return read_json(path, PlanError).get("format") == FORMAT


def _bottleneck(file: PlanFile) -> dict[str, Any]:
    """The busiest device, what it spends its time on, what the critical path is made of, and a drawing."""
    width = min(140, max(60, shutil.get_terminal_size((100, 24)).columns))
    shown = document(file)
    if file.verdict.objective == "throughput":
        row = max(shown["table"], key=lambda r: r["load_s"])
        parts = {
            "compute": row["compute_s"],
            "receiving": row["in_s"],
            "sending": row["out_s"],
            "gradient sums": row["sync_s"],
        }
        return {
            "bottleneck": " ".join(row["devices"]),
            "bottleneck_is": max(parts, key=lambda k: parts[k]),
            "critical_path": None,
            "drawing": bars(shown["table"], width),
        }
    program = program_of(file.problem, file.plan)
    times = durations_of(file.problem, file.plan, program)
    timeline = simulate(program, times)
    busy = timeline.busy_share()
    name = max(busy, key=lambda n: busy[n])
    why = "compute" if busy[name] > 0.5 else "waiting"
    return {
        "bottleneck": name,
        "bottleneck_is": f"{why} ({percent(busy[name])} of the time busy)",
        "critical_path": _critical_path(program, timeline, times.lag_s),
        "drawing": draw(timeline, width),
    }


def _critical_path(program: Program, timeline: Timeline, lag_s: FloatArray) -> dict[str, float]:
    """Shares of the time from the first start to the last end that its critical path computes, sends, and waits for
    latencies."""
    path = np.array(timeline.critical_path(program, lag_s))
    spent = (timeline.end_s - timeline.start_s)[path]
    computes = np.isin(program.op[path], (Op.COMPUTE, Op.UPDATE))
    total = timeline.duration_s or 1.0
    parts = {"compute": float(spent[computes].sum() / total), "messages": float(spent[~computes].sum() / total)}
    return {**parts, "latency": max(0.0, timeline.duration_s / total - sum(parts.values()))}


def _binding(value: float, found: list[Answer], why: str) -> str:
    """The constraint whose relaxation helps most; a device more is always a relaxation, so that it is named last."""
    gains = {a.change: _gain(value, a.value_s) or 0.0 for a in found}
    if gains.get("twice the memory", 0.0) > NOTICEABLE:
        return "memory"
    if gains.get("twice the bandwidth", 0.0) > NOTICEABLE:
        return "bandwidth"
    if gains.get("one more device", 0.0) > NOTICEABLE:
        return "number of devices"
    return f"the graph itself ({why} of the bottleneck)"


def _gain(value: float, other: float | None) -> float | None:
    return None if other is None or not math.isfinite(other) or value <= 0 else 1 - other / value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def bars(rows: list[dict[str, Any]], width: int) -> str:
    """A bar for each device: █ compute, ▒ gradient sums, ─ receiving and sending, as long as its load.

    Where a device sends while it computes, the longer of the two is drawn."""
    most = max(r["load_s"] for r in rows) or 1.0
    names = [" ".join(r["devices"][:3]) + (" .." if len(r["devices"]) > 3 else "") for r in rows]
    wide = max(map(len, names))
    room = max(10, width - wide - 14)
    lines = []
    for name, r in zip(names, rows, strict=True):
        total = round(r["load_s"] / most * room)
        compute = min(total, round(r["compute_s"] / most * room))
        sync = min(total - compute, round(r["sync_s"] / most * room))
        bar = "█" * compute + "▒" * sync + "─" * (total - compute - sync)
        lines.append(f"{name:<{wide}} │{bar:<{room}}│ {seconds(r['load_s'])}")
    return "\n".join(lines)


def _shares(parts: dict[str, float]) -> str:
    return ", ".join(f"{percent(share)} {what}" for what, share in parts.items() if share >= 0.0005)


def text(document: dict[str, Any]) -> str:
    d = document
    if isinstance(d.get("schedule"), list):  # of a pipeline it is the name of one
        return spark.text(d)
    what = {"step": "step", "throughput": "largest load", "latency": "one sample"}[d["objective"]]
    head = facts(
        [
            (what, f"{seconds(d['value_s'])}, predicted, by {d['method']}"),
            *bound_facts(d),
            *split_facts(d),
            ("bottleneck", f"{d['bottleneck']}: {d['bottleneck_is']}"),
            *choice_facts(d),
            *([("critical path", _shares(d["critical_path"]))] if d["critical_path"] else []),
            ("binding", d["binding"]),
        ]
    )
    rows = [
        [a["change"], a["value_s"], None if a["gain"] is None else -a["gain"], a["devices"] or None]
        for a in d["what_if"]
    ]
    asked = table([("with", "text"), (what, "s"), ("change", "error"), ("devices used", "count")], rows)
    plan = load_table(d["table"]) if d["objective"] != "step" else step_table(d)
    return "\n\n".join([head, asked, plan, d["drawing"]])
