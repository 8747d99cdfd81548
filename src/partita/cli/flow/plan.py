"""partita flow plan FLOW.py: what a flow unfolds to, without running any of it."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from partita.cli.talk import Talk
from partita.dataflow.graph import unfold
from partita.dataflow.load import load_flow
from partita.page.text import Kind, facts, table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "flow", metavar="FLOW", help="a Python file with a function flow(); another one: FLOW.py:function"
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Raises FlowError where the flow cannot be unfolded."""
    graph = unfold(load_flow(options.flow).value)
    tasks = Counter(n.label for n in graph.nodes if n.kind == "call")
    return {
        "flow": options.flow,
        "tasks": graph.tasks,
        "tasks_shared": max(0, graph.applied - graph.tasks),
        "configurations": graph.configurations,
        "branches": graph.branches,
        "steps": [{"name": name, "tasks": n} for name, n in tasks.items()],
        "explores": [{"name": n, "options": list(labels)} for n, labels in graph.names.items()],
    }


def text(document: dict[str, Any]) -> str:
    d = document
    rows = [("tasks", f"{d['tasks']:,}; {d['tasks_shared']:,} more if every configuration ran for itself"), ("configurations", f"{d['configurations']:,}"), ("branches", f"{d['branches']:,}")]  # fmt: skip
    columns: list[tuple[str, Kind]] = [("step", "text"), ("tasks", "text")]
    return "\n\n".join([facts(rows), table(columns, [[s["name"], str(s["tasks"])] for s in d["steps"]])])
