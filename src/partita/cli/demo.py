"""partita demo: the main job on bundled real data, from measuring to the report."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from partita.cli.talk import Talk
from partita.spawn import usable_cores

if TYPE_CHECKING:
    from partita.pipeline.report.story import Story
    from partita.pipeline.run.loop import Comparison
    from partita.training.runtime.worker_status import Row


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--out",
        default="demo-report",
        metavar="DIR",
        help="folder for everything it writes (default: demo-report)",
    )
    parser.add_argument("--devices", type=int, metavar="N", help="worker processes (default: one a core, at least 2)")
    parser.add_argument("--rounds", type=int, default=16, metavar="N", help="steps of the comparison (default: 16)")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="epochs to train (default: 2)")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Measure, plan, predict, train, compare, report. Raises MissingDependency without scikit-learn."""

    from partita.cli import demo_job
    from partita.files import made_folder, write_whole
    from partita.page.text import seconds
    from partita.pipeline.plan.planner import plan_pipeline
    from partita.pipeline.report.page import page
    from partita.pipeline.run import loop
    from partita.training.measure.job import measure_job

    loop.check_rounds(options.rounds)
    folder = made_folder(options.out)
    source = f"{demo_job.__file__}:job"
    devices = options.devices or max(2, usable_cores())

    talk.step("measuring the model, task by task, and the link between workers")
    profile = measure_job(source, devices=devices, sizes=(4, 8), progress=talk.progress)
    profile.write(folder / "profile.json")

    talk.step(f"planning a pipeline over {devices} workers")
    file = plan_pipeline(profile, allow_replicas=False, allow_recompute=False, stages=devices)
    others = loop.alternatives(profile, allow_replicas=False, allow_recompute=False)
    verdict = file.verdict
    talk.say(
        f"   predicted {seconds(verdict.value_s)} a step; no such plan can be below {seconds(verdict.lower_bound_s)} ({verdict.bound})"
    )

    talk.step(f"training {options.epochs} epochs by that plan")
    loop.train(
        file, source, {}, folder, epochs=options.epochs, checkpoint_every=20, watch=_watch(talk, 29 * options.epochs)
    )

    talk.step("comparing: one process, the pipeline, torch's own pipeline, in turn on the same batches")
    comparison = loop.compare_engines(
        file, source, {}, folder, rounds=options.rounds, watch=_watch(talk, options.rounds)
    )
    story = loop.story_of("Partita's demo: a residual CNN on handwritten digits", file, folder, comparison, others)
    report = write_whole(folder / "report.html", page(story))
    return _document(comparison, story, others.get("single"), str(report))


def _document(comparison: Comparison, story: Story, predicted_single_s: float | None, report: str) -> dict[str, Any]:
    from partita.page.run_speed import sentences

    assert story.plan is not None
    verdict, ran, measured = story.plan.verdict, story.run_speed, comparison.median_s("pipeline")
    return {
        "single_step_s": comparison.median_s("single"),
        "pipeline_step_s": measured,
        "torch_step_s": comparison.median_s("torch"),
        "predicted_step_s": verdict.value_s,
        "lower_bound_s": verdict.lower_bound_s,
        "predicted_single_step_s": predicted_single_s,
        "speedup": comparison.median_s("single") / comparison.median_s("pipeline"),
        "max_relative_gradient_error": comparison.gradient_errors["pipeline"],
        "max_relative_loss_error": comparison.largest_loss_error,
        "losses": {"first": comparison.losses["pipeline"][0], "last": comparison.losses["pipeline"][-1]},
        **(ran.to_json() if ran else {"predicted_at_run_speed_s": None}),
        "machine": sentences(ran, verdict.value_s, measured) if ran else [],
        "load": comparison.load,
        "report": report,
    }


def _watch(talk: Talk, total: int) -> Any:
    def watch(row: Row) -> None:
        if row.step:
            talk.progress(
                f"step {row.step}, loss {row.loss:.3f}" if talk.terminal else "steps", min(row.step, total), total
            )

    return watch


def text(document: dict[str, Any]) -> str:
    from partita.page.text import table, times

    single = document["single_step_s"]
    rows: list[list[Any]] = [
        ["one process", document["predicted_single_step_s"], single, 1.0],
        ["pipeline", document["predicted_step_s"], document["pipeline_step_s"], document["speedup"]],
        ["torch's own pipeline", None, document["torch_step_s"], single / document["torch_step_s"]],
    ]
    equal = (
        "bit for bit"
        if document["max_relative_gradient_error"] == 0 and document["max_relative_loss_error"] == 0
        else f"within {max(document['max_relative_gradient_error'], document['max_relative_loss_error']):.1e}"
    )
    off = document["predicted_step_s"] / document["pipeline_step_s"] - 1
    return "\n".join(
        [
            table([("engine", "text"), ("predicted", "s"), ("measured", "s"), ("speed-up", "ratio")], rows),
            "",
            f"{times(document['speedup'])} as fast as one process; the prediction is {abs(off) * 100:.1f} % off; losses and gradients agree {equal}.",
            *document["machine"],
            f"report: {document['report']}",
        ]
    )
