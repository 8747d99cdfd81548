"""partita flow plan FLOW.py: what a flow unfolds to, without running any of it."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.cli.flow.run import FOLDER, SCORES, STORE, parse_size
from partita.cli.talk import Talk, prints_as_talk
from partita.dataflow.graph import FlowGraph, unfold
from partita.dataflow.load import load_flow
from partita.dataflow.plan.costs import measured_before
from partita.dataflow.plan.simulate import simulate
from partita.dataflow.report.story import read_run
from partita.dataflow.run.launch import worker_count
from partita.dataflow.run.numbers import numbers_in
from partita.dataflow.store import Store
from partita.dataflow.store.folder import Entry
from partita.page.text import Kind, count, facts, seconds, size, table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "flow", metavar="FLOW", help="a Python file with a function flow(); another one: FLOW.py:function"
    )
    parser.add_argument("--results", metavar="DIR", help=f"an earlier run's folder, to foretell time and memory of another run over it; default: {FOLDER} beside the flow")  # fmt: skip
    parser.add_argument("--workers", type=int, metavar="N", help="foretell for so many; default: one a core")
    parser.add_argument("--memory", metavar="SIZE", help="foretell with so much memory for results; default: no limit")


@prints_as_talk()
def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Raises FlowError where the flow cannot be unfolded, BadInput where --results holds no run."""
    loaded = load_flow(options.flow)
    graph = unfold(loaded.value)
    tasks = Counter(n.label for n in graph.nodes if n.kind == "call")
    folder = Path(options.results) if options.results else loaded.path.parent / FOLDER
    ran = options.results or (folder / "run.json").is_file()
    store = {e.key: e for e in Store(folder / STORE).entries()}
    numbers = numbers_in(folder / SCORES)
    return {
        "flow": options.flow,
        "tasks": graph.tasks,
        "tasks_shared": max(0, graph.applied - graph.tasks),
        "configurations": graph.configurations,
        "branches": graph.branches,
        "steps": [{"name": name, "tasks": n} for name, n in tasks.items()],
        "explores": [{"name": n, "options": list(labels)} for n, labels in graph.names.items()],
        "kept": _kept(graph, store, numbers),
        **(_foretold(graph, folder, store, numbers, options) if ran else {}),
    }


def _kept(graph: FlowGraph, store: Mapping[str, Entry], numbers: Mapping[str, float]) -> dict[str, int]:
    """What the folder has of the flow, `store` by the bytes; what lies behind a choose is known only when that is decided."""
    keys = {n.key for n in graph.nodes if n.kind == "call"}
    results = keys & store.keys()
    return {
        "results": len(results),
        "bytes": sum(store[k].bytes for k in results),
        "scores": len((keys & numbers.keys()) - results),
    }


def _foretold(
    graph: FlowGraph,
    folder: Path,
    store: Mapping[str, Entry],
    numbers: Mapping[str, float],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Time and memory of another run over the folder, by what the last one has measured."""
    workers = max(1, worker_count(options.workers))
    record = read_run(folder / "run.json")
    rows = [(t.label, t.options, (t.ended_s or 0.0) - (t.started_s or 0.0), t.bytes) for t in record.tasks if t.state == "run" and t.ended_s is not None]  # fmt: skip
    ran = {t.key for t in record.tasks if t.state == "run"}
    rows += [(n.label, n.options, store[n.key].seconds, store[n.key].bytes) for n in graph.nodes if n.key in store and n.key not in ran]  # fmt: skip
    if not rows:
        return {}
    memory = math.inf if options.memory is None else parse_size(options.memory)
    found = simulate(graph, measured_before(graph, rows).worth, workers, known=store, numbers=numbers, memory_bytes=memory)  # fmt: skip
    return {
        "workers": workers,
        "predicted_s": found.seconds,
        "predicted_peak_bytes": found.peak_bytes,
        "predicted_tasks": found.tasks,
    }


def text(document: dict[str, Any]) -> str:
    d = document
    rows = [("tasks", f"{d['tasks']:,}; {d['tasks_shared']:,} more if every configuration ran for itself"), ("configurations", f"{d['configurations']:,}"), ("branches", f"{d['branches']:,}")]  # fmt: skip
    k = d["kept"]
    rows.append(("kept already", f"{count(k['results'])} results of these tasks, {size(k['bytes'])}, and {count(k['scores'])} scores"))  # fmt: skip
    if "predicted_s" in d:
        rows.append(("foretold", f"{seconds(d['predicted_s'])} on {d['workers']} workers, {d['predicted_tasks']:,} tasks run or loaded, at most {size(d['predicted_peak_bytes'])} of results"))  # fmt: skip
    columns: list[tuple[str, Kind]] = [("step", "text"), ("tasks", "text")]
    return "\n\n".join([facts(rows), table(columns, [[s["name"], str(s["tasks"])] for s in d["steps"]])])
