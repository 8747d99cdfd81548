"""partita flow run FLOW.py: run a flow, on this machine's processes or on a Dask scheduler's."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

from partita.cli.talk import Talk, prints_as_talk
from partita.dataflow.graph import unfold
from partita.dataflow.load import load_flow
from partita.dataflow.run.numbers import Numbers
from partita.dataflow.store import Store
from partita.errors import BadInput
from partita.files import dump_json, made_folder, write_whole
from partita.page.text import Kind, count, facts, seconds, size, table

FOLDER, STORE, SCORES = "flow-results", "store", "scores.jsonl"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "flow", metavar="FLOW", help="a Python file with a function flow(); another one: FLOW.py:function"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes on this machine, one thread each; default: one a core; 0: all in this process")  # fmt: skip
    parser.add_argument("--scheduler", metavar="ADDRESS", help="instead: a Dask scheduler that runs, tcp://HOST:PORT")
    parser.add_argument("--memory", metavar="SIZE", help="what results may take in all workers together, e.g. 2GB; default: no limit")  # fmt: skip
    parser.add_argument("--dashboard", metavar="ADDRESS", help="show Dask's dashboard there, e.g. 127.0.0.1:8787; default: no dashboard, though Dask answers HTTP on 127.0.0.1 all the same")  # fmt: skip
    parser.add_argument("--stop-on-error", action="store_true", help="end at the first option that raises, instead of losing its branch")  # fmt: skip
    parser.add_argument("--no-check", action="store_true", help="run no task twice to see whether its step gives the same again")  # fmt: skip
    parser.add_argument("--store", metavar="SIZE", default="10GB", help="what finished results may take on disk, for later runs; 0: keep none; default: 10GB")  # fmt: skip
    parser.add_argument("-o", "--out", metavar="DIR", help=f"where run.json and results go; default: {FOLDER} beside the flow")  # fmt: skip


@prints_as_talk()
def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Unfold, run, write the record. Raises FlowError and its kin."""
    from partita.dataflow.run.launch import run_flow, worker_count

    memory = math.inf if options.memory is None else parse_size(options.memory)
    loaded = load_flow(options.flow)
    graph = unfold(loaded.value)
    folder = made_folder(Path(options.out) if options.out else loaded.path.parent / FOLDER)
    told = {"flow": f"{loaded.path}:{loaded.function}", "workers": options.workers, "scheduler": options.scheduler, "memory": options.memory, "stop_on_error": options.stop_on_error, "no_check": options.no_check, "store": options.store}  # fmt: skip
    worker_count(options.workers)
    store, numbers = kept(folder, options.store)
    write_whole(
        folder / "flow.json", dump_json({"format": "partita-flow", "version": 1, **told})
    )  # once all is seen to be sound
    talk.step(f"{graph.tasks:,} tasks for {graph.configurations:,} configurations")
    outcome = run_flow(
        graph, store=store, numbers=numbers, workers=options.workers, scheduler=options.scheduler, memory_bytes=memory, stop_on_error=options.stop_on_error,
        check=not options.no_check, dashboard=options.dashboard, modules=[loaded.module], paths=[loaded.path.parent], sources=loaded.sources,
        progress=talk.progress,
    )  # fmt: skip
    for note in outcome.record.notes:
        talk.say(f"   {note}")
    write_whole(folder / "run.json", dump_json(outcome.record.to_json()))
    return {"flow": options.flow, "out": str(folder), **outcome.record.totals()}


def kept(folder: Path, limit: str) -> tuple[Store | None, Numbers | None]:
    """Where results lie from run to run: larger ones in the store, scores in a file."""
    if limit.strip() in ("0", ""):
        return None, None
    return Store.open(folder / STORE, int(parse_size(limit))), Numbers.open(folder / SCORES)


_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*((?:[kmgt]i?)?)b?\s*", re.IGNORECASE)


def parse_size(text: str) -> float:
    """Bytes of 500MB, 2GiB, 1e9 written out.

    >>> parse_size("500MB"), parse_size("2GiB"), parse_size("1024")
    (500000000.0, 2147483648.0, 1024.0)
    """
    found = _SIZE.fullmatch(text)
    value = 0.0
    if found is not None:
        unit = found[2].lower()
        value = float(found[1]) * (1024 if unit.endswith("i") else 1000) ** (1 + "kmgt".find(unit[:1] or "-"))
    if not 1 <= value < 1e15:
        raise BadInput(f"{text!r} is no size", hint="write bytes and a unit: 500MB, 2GB, 2GiB")
    return value


def text(document: dict[str, Any]) -> str:
    d = document
    saved = f"{count(d['tasks_run'])} run, {count(d['tasks_shared'])} shared, {count(d['tasks_cached'])} from the store, {count(d['tasks_pruned'])} never run, {count(d['tasks_cancelled'])} cancelled, {count(d['tasks_failed'])} failed"  # fmt: skip
    rows = [
        ("time", seconds(d["seconds"]) + (f", after {seconds(d['started_s'])} for starting {d['workers']} workers" if d["workers"] > 1 else "")),
        ("tasks", saved),
        ("configurations", f"{d['configurations']:,}"),
        ("branches", f"{d['branches']:,}, {d['branches_pruned']:,} of them never scored"),
        ("peak of results", size(d["peak_bytes"])),
    ]  # fmt: skip
    if d["predicted_s"] is not None:
        rows.append(("predicted", f"{seconds(d['predicted_s'])}, when a tenth of the work was done"))
    columns: list[tuple[str, Kind]] = [("chosen", "text"), ("score", "text"), ("result", "text")]
    chosen = [[", ".join(f"{n}={v}" for n, v in c["options"].items()) or "-", "-" if c["score"] is None else f"{c['score']:.6g}", c["failed"] or (str(c["value"]) if c["value"] is not None else c["kind"])] for c in d["chosen"][:50]]  # fmt: skip
    return "\n\n".join([facts(rows), table(columns, chosen), f"everything: {d['out']}/run.json"])
