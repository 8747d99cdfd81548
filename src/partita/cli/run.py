"""partita run JOB: train for real, by a plan; also inside torchrun."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.settings import add_settings, settings_of
from partita.cli.talk import Talk
from partita.errors import BadInput, PlanError

if TYPE_CHECKING:
    from partita.plan import PlanFile
    from partita.run.board import Row


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="file.py:function that returns a partita.TrainingJob")
    add_settings(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--plan", metavar="FILE", help="a plan of this job; without one the job is measured and planned first"
    )
    how.add_argument("--devices", type=int, metavar="N", help="measure, and plan for this many devices of this machine")
    parser.add_argument(
        "--engine", choices=("pipeline", "torch"), default="pipeline", help="torch: torch.distributed.pipelining"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="stop after so many steps in all (default: after --epochs)"
    )
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="epochs to train (default: 1)")
    parser.add_argument(
        "-o", "--out", default="run", metavar="DIR", help="folder for timelines, metrics, checkpoints (default: run)"
    )
    parser.add_argument(
        "--checkpoint-every", type=int, default=0, metavar="STEPS", help="besides the one at the end (default: none)"
    )
    parser.add_argument("--resume", metavar="DIR", help="go on from the newest checkpoint in this folder")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of each worker (default: 1)")
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=300.0,
        metavar="S",
        help="give up when a peer is silent for so long (default: 300)",
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Train; returns what came out. Raises BadInput, Infeasible, WorkerFailed."""
    _check(options)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _run_one_rank(options)
    from partita import loop
    from partita.run.checkpoint import latest

    settings = settings_of(options)
    if options.resume:
        latest(Path(options.resume))  # a missing checkpoint is told before anything is started
    file = _plan(options, settings, talk)
    predicted = loop.predict(file).duration_s
    talk.step(
        f"training on {len(getattr(file.plan, 'devices', ()))} workers, predicted {predicted * 1e3:.0f} ms a step"
    )
    total = _total_steps(options)

    def watch(row: Row) -> None:
        if row.step:
            talk.progress(
                f"step {row.step}, loss {row.loss:.4f}" if talk.terminal else "training",
                min(row.step, total or row.step),
                total or row.step + 1,
            )

    ended = loop.train(
        file, options.job, settings, options.out, engine=options.engine, steps=options.steps, epochs=options.epochs,
        checkpoint_every=options.checkpoint_every, resume=options.resume or "", threads=options.threads,
        timeout_s=options.timeout_s, watch=watch,
    )  # fmt: skip
    return _outcome(Path(options.out), predicted, ended.interrupted, ended.wall_s, options.engine)


def _check(options: argparse.Namespace) -> None:
    for name in ("steps", "epochs", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise BadInput(f"--{name} {value}", hint="give at least 1")
    if options.checkpoint_every < 0 or not options.timeout_s > 0:
        raise BadInput(
            f"--checkpoint-every {options.checkpoint_every} --timeout-s {options.timeout_s}",
            hint="the one must be at least 0, the other above 0",
        )
    if options.engine == "torch" and options.resume:
        raise BadInput("--engine torch cannot resume", hint="leave --engine away")


def _plan(options: argparse.Namespace, settings: dict[str, str], talk: Talk) -> PlanFile:
    """The plan given, or one made now."""
    from partita.plan import PlanFile

    if options.plan:
        return PlanFile.read(options.plan)
    from partita.measure.job import measure_job
    from partita.search.pipeline import plan_pipeline

    talk.step(f"measuring {options.job}")
    profile = measure_job(options.job, settings, devices=options.devices, progress=talk.progress)
    Path(options.out).mkdir(parents=True, exist_ok=True)
    profile.write(Path(options.out) / "profile.json")
    talk.step("planning")
    return plan_pipeline(profile, allow_replicas=options.engine != "torch", allow_recompute=options.engine != "torch")


def _total_steps(options: argparse.Namespace) -> int:
    return int(options.steps or 0)


def _run_one_rank(options: argparse.Namespace) -> dict[str, Any]:
    """Inside torchrun: this process is one rank."""
    from partita import loop
    from partita.plan import PlanFile
    from partita.run.spec import Spec
    from partita.run.worker import run_rank

    if not options.plan:
        raise PlanError(
            "inside torchrun a plan is needed",
            hint="make one with `partita measure` and `partita plan`, then give --plan FILE",
        )
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    file = PlanFile.read(options.plan)
    folder = loop.prepared(options.out, file) if rank == 0 else Path(options.out)
    spec: Spec = loop.training_spec(
        folder, options.job, settings_of(options), engine=options.engine, steps=options.steps, epochs=options.epochs,
        checkpoint_every=options.checkpoint_every, resume=options.resume or "", threads=options.threads, timeout_s=options.timeout_s,
    )  # fmt: skip
    spec = Spec(**{**spec.to_json(), "plan": options.plan})
    run_rank(spec, rank, ranks)
    return _outcome(folder, loop.predict(file).duration_s, False, 0.0, options.engine) if rank == 0 else {"rank": rank}


def _outcome(folder: Path, predicted: float, interrupted: bool, wall_s: float, engine: str) -> dict[str, Any]:
    rows = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        if (folder / "metrics.jsonl").exists()
        else []
    )
    steps = [r["step_s"] for r in rows[2:]] or [r["step_s"] for r in rows]
    measured = statistics.median(steps) if steps else None
    return {
        "out": str(folder),
        "engine": engine,
        "steps": rows[-1]["step"] if rows else 0,
        "loss": rows[-1]["loss"] if rows else None,
        "predicted_step_s": predicted,
        "measured_step_s": measured,
        "error": predicted / measured - 1 if measured else None,
        "interrupted": interrupted,
        "wall_s": wall_s,
        "checkpoints": str(folder / "checkpoints") if (folder / "checkpoints").is_dir() else None,
    }


def text(document: dict[str, Any]) -> str:
    from partita.report.text import facts, percent, seconds

    if "out" not in document:
        return f"rank {document['rank']} done"
    measured = document["measured_step_s"]
    pairs = [
        ("steps", f"{document['steps']}" + (" (interrupted)" if document["interrupted"] else "")),
        ("loss", f"{document['loss']:.4f}" if document["loss"] is not None else "-"),
        (
            "a step",
            f"{seconds(measured)} measured, {seconds(document['predicted_step_s'])} predicted ({percent(document['error'], signed=True)})"
            if measured
            else "-",
        ),
        ("folder", document["out"]),
        ("checkpoint", document["checkpoints"] or "none"),
    ]
    return facts(pairs)
