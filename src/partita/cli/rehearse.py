"""partita rehearse plan.json: the real engine on emulated devices: real messages, timed waits for compute."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.settings import check_timeout
from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.nouns.cluster import Cluster
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.page.text import Kind, facts, percent, seconds, size, table

if TYPE_CHECKING:
    from partita.training.rehearsal.rehearse import Rehearsal

MOST_MICRO_BATCHES = 100_000  #: more is a slip of the pen


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json, as partita plan wrote it")
    parser.add_argument("--cluster", metavar="TOML", help="rehearse on these machines instead of those in the plan")
    parser.add_argument("--micro-batches", type=int, metavar="M", help="so many a step; default: the plan's")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="steps to rehearse; default: 3")
    parser.add_argument(
        "--pace",
        type=float,
        metavar="X",
        help="seconds for a second of the plan; default: a computation lasts 10 ms on the average, a step 20 s at most",
    )
    parser.add_argument(
        "--cap-bytes", type=int, metavar="B", help="send no more of a tensor, but pay for all; default: 1048576"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=120.0, metavar="S", help="give up when a peer is silent for so long (default: 120)"
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", default="rehearsal", metavar="DIR", help="folder for the timelines (default: rehearsal)"
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Rehearse; returns what came out. Raises BadInput, PlanError, ClusterError, and what a worker failed with."""
    from partita.training.rehearsal.rehearse import (
        CAP_BYTES,
        on_cluster,
        rehearse,
        staged,
    )  # brings torch in the workers only

    file = PlanFile.read(options.plan)
    plan = staged(file)
    if options.cluster:
        file = on_cluster(file, Cluster.read(options.cluster))
    if options.micro_batches is not None:
        if not 1 <= options.micro_batches <= MOST_MICRO_BATCHES:
            raise BadInput(f"{options.micro_batches} micro-batches", hint=f"say 1 to {MOST_MICRO_BATCHES}")
        if plan.orders and options.micro_batches > plan.micro_batches:
            raise BadInput(
                f"{options.micro_batches} micro-batches: the plan gives every device its order for {plan.micro_batches}",
                hint=f"say 1 to {plan.micro_batches}, or plan with --micro-batches {options.micro_batches}",
            )
        file = replace(file, plan=plan.of_micro_batches(options.micro_batches))
    check_timeout(options.timeout_s)
    talk.step(f"rehearsing {file.graph.name} on {len(plan.devices)} emulated devices")
    found = rehearse(
        file, options.out, steps=options.steps, pace=options.pace,
        cap_bytes=CAP_BYTES if options.cap_bytes is None else options.cap_bytes, timeout_s=options.timeout_s,
    )  # fmt: skip
    talk.say(f"   timeline written to {Path(options.out) / 'rehearsed.json'}")
    return document(found, options.out)


def document(r: Rehearsal, out: str | Path) -> dict[str, Any]:
    """What is printed."""
    plan = r.file.plan
    assert isinstance(plan, PipelinePlan)
    measured, foreseen = r.rehearsed.busy_share(), r.simulated.busy_share()
    devices = [
        {
            "device": p.device,
            "stages": list(plan.stages_of(p.device)),
            "busy": measured[p.device],
            "simulated_busy": foreseen[p.device],
            "peak_bytes": p.peak_bytes,
            "limit_bytes": p.limit_bytes if math.isfinite(p.limit_bytes) else None,
            "fits": p.fits,
            "kept_by_stage": {str(k): n for k, n in p.stages.items()},
        }
        for p in r.peaks
    ]
    return {
        "step_s": r.step_s,
        "steps_s": list(r.steps_s),
        "simulated_s": r.simulated.duration_s,
        "planned_s": r.file.verdict.value_s,
        "objective": r.file.verdict.objective,
        "error": r.error,
        "single_s": r.single_s if math.isfinite(r.single_s) else None,
        "speedup": r.single_s / r.step_s if math.isfinite(r.single_s) else None,
        "micro_batches": plan.micro_batches,
        "fits": all(p.fits for p in r.peaks),
        "devices": devices,
        "messages": {
            "number": r.messages.number,
            "bytes": r.messages.size_bytes,
            "sent_bytes": r.messages.sent_bytes,
            "largest_bytes": r.messages.largest_bytes,
            "cut": r.messages.cut,
        },
        "late_share": r.late_share,
        "pace": r.told.pace,
        "emulates": list(r.emulates),
        "out": str(out),
    }


def text(d: dict[str, Any]) -> str:
    rows = [
        ("step", f"{seconds(d['step_s'])}, rehearsed ({len(d['steps_s'])} steps)"),
        ("simulated", f"{seconds(d['simulated_s'])}, {percent(d['error'], signed=True)} off"),
    ]
    if d["speedup"] is not None:
        rows.append(("one device", f"{seconds(d['single_s'])}: {d['speedup']:.2f} times as fast"))
    m = d["messages"]
    if m["number"]:
        rows.append(("messages", f"{m['number']} of {size(m['bytes'])} together, the largest {size(m['largest_bytes'])}"))  # fmt: skip
    rows.append(("memory", _memory(d)))
    rows.append(("waits", f"late by {percent(d['late_share'])} of a step on the worst rank, made up for"))
    rows += [("emulated" if k == 0 else "", line) for k, line in enumerate(d["emulates"])]
    return facts(rows) + "\n\n" + device_table(d["devices"])


def _memory(d: dict[str, Any]) -> str:
    """That everything fits, or what does not."""
    over = [r for r in d["devices"] if not r["fits"]]
    if not over:
        return "every device holds what it must"
    said = []
    for r in over:
        worst = max(r["kept_by_stage"], key=lambda k: r["kept_by_stage"][k], default=None)
        stage = f", stage {worst} keeps {size(r['kept_by_stage'][worst])}" if worst is not None else ""
        said.append(f"{r['device']} needs {size(r['peak_bytes'])}, it has {size(r['limit_bytes'])}{stage}")
    return "DOES NOT FIT: " + "; ".join(said)


def device_table(rows: list[dict[str, Any]]) -> str:
    """A row a device."""
    columns: list[tuple[str, Kind]] = [
        ("device", "text"), ("stages", "text"), ("busy", "share"), ("simulated", "share"), ("peak", "bytes"), ("of", "text"),
    ]  # fmt: skip
    return table(
        columns,
        [
            [r["device"], ", ".join(map(str, r["stages"])), r["busy"], r["simulated_busy"], r["peak_bytes"],
             "-" if r["limit_bytes"] is None else size(r["limit_bytes"])]
            for r in rows
        ],
    )  # fmt: skip
