"""partita simulate plan.json: the predicted timeline of one step."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

from partita.cli.talk import Talk
from partita.nouns.plan import PlanFile
from partita.page.text import draw, facts, percent, seconds, table
from partita.simulate.predicted import predicted


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json, as partita plan wrote it")
    parser.add_argument("-o", "--out", metavar="JSON", help="write the timeline (Perfetto and partita compare read it)")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Lower the plan, simulate the program. Raises PlanError where the file is damaged or the plan does not fit."""
    file = PlanFile.read(options.plan)
    timeline = predicted(file.problem, file.plan)
    if options.out:
        timeline.write(options.out)
        talk.say(f"   timeline written to {options.out}")
    busy = timeline.busy_share()
    return {
        "step_s": timeline.duration_s,
        "planned_s": file.verdict.value_s,
        "objective": file.verdict.objective,
        "bottleneck": max(busy, key=lambda name: busy[name]),
        "busy_share": busy,
        "instructions": len(timeline),
        "timeline": options.out,
        "drawing": draw(timeline, min(140, max(60, shutil.get_terminal_size((100, 24)).columns))),
    }


def text(document: dict[str, Any]) -> str:
    busy = document["busy_share"]
    name = document["bottleneck"]
    head = [
        ("step", f"{seconds(document['step_s'])}, predicted"),
        ("bottleneck", f"{name}, busy {percent(busy[name])}"),
    ]
    shares = table([("device", "text"), ("busy", "share")], [[d, s] for d, s in busy.items()])
    return "\n\n".join([facts(head), shares, document["drawing"]])
