"""partita run JOB: train for real, by a plan; also inside torchrun."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.live import Dashboard, Scalars
from partita.cli.settings import add_settings, check_budget, check_timeout, is_rank, settings_of
from partita.cli.talk import Talk, prints_as_talk
from partita.errors import BadInput, PartitaError, PlanError
from partita.files import made_folder
from partita.simulate.predicted import predicted
from partita.training.runtime.join import rank_of_environment

if TYPE_CHECKING:
    from partita.nouns.metrics import Metric
    from partita.nouns.plan import PlanFile
    from partita.simulate.run_speed import RunSpeed
    from partita.training.runtime.elastic import Elastic
    from partita.training.runtime.worker_status import Row

#: Where the plan has a probe and there are no readings.
UNREAD = "how fast the devices were is not known: there is no room in their memory for the probe beside the plan"


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
    parser.add_argument(
        "--on-failure",
        choices=("stop", "replan", "replace"),
        default="stop",
        help="a worker dies: end; go on with the other devices; or with a new process for the same one (default: stop)",
    )
    parser.add_argument(
        "--redundancy",
        choices=("memory", "checkpoint"),
        help="what the run then goes on from: copies of all states in memory, or its last checkpoint (default: memory)",
    )
    parser.add_argument(
        "--copy-every",
        type=int,
        metavar="STEPS",
        help="steps between two copies in memory (default: 1, so that nothing is lost but the step under way)",
    )
    parser.add_argument(
        "--replan",
        action="store_true",
        help="probe the devices first, and plan again where they are not as fast as the plan was told",
    )
    parser.add_argument(
        "--search", choices=("hybrid",), help="try mappings of the operators on live steps, and go on with the best"
    )
    parser.add_argument("--search-budget-s", type=float, metavar="S", help="seconds of the run to search (default: 60)")
    parser.add_argument(
        "--adapt",
        action="store_true",
        help="watch the devices (with --search: once it has ended), and plan again when one is not as fast as it was",
    )
    parser.add_argument(
        "--live", action="store_true", help="a dashboard instead of the progress line, where stderr is a terminal"
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="scalars for TensorBoard in the run's folder, where it is installed"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the search's lots (default: 0)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of each worker (default: 1)")
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=300.0,
        metavar="S",
        help="give up when a peer is silent for so long (default: 300)",
    )


@prints_as_talk()
def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Train; returns what came out. Raises BadInput, Infeasible, WorkerFailed; Interrupted after a graceful stop."""
    _check(options)
    settings = settings_of(options)
    if is_rank():
        if options.replan or options.search:
            raise BadInput(
                f"--{'replan' if options.replan else 'search'} inside torchrun: every rank would have to plan alike",
                hint="plan again before, with `partita measure` and `partita plan`",
            )
        watches = [n for n in ("adapt", "live", "tensorboard") if getattr(options, n)]
        if watches:
            raise BadInput(
                f"--{watches[0]} inside torchrun: the launcher that would watch is not Partita's",
                hint="use partita run alone",
            )
        if options.on_failure != "stop":
            raise BadInput(
                f"--on-failure {options.on_failure} inside torchrun, which starts workers itself",
                hint="say torchrun --max-restarts N: ranks that it restarts go on from the last checkpoint",
            )
        return _run_one_rank(options, settings, talk)
    from partita.nouns.metrics import read_metrics
    from partita.nouns.plan import PlanFile
    from partita.page.text import seconds
    from partita.pipeline.run import loop
    from partita.training.runtime.worker import stopped

    if options.resume:
        from partita.training.runtime.checkpoint import examine  # brings torch, which takes a second or two

        examine(options.resume)  # a missing or damaged checkpoint is told before anything is started
        read_metrics(Path(options.out) / "metrics.jsonl")  # and so is a damaged record that would be continued
    resumed = _resumed_from(options.resume)
    check_folder(options.out)
    file = _plan(options, settings, talk)
    if options.replan:
        file = _replanned(file, options, settings, talk)
    step_s = predicted(file.problem, file.plan).duration_s
    workers = len(getattr(file.plan, "devices", ()))
    talk.step(f"training on {workers} worker{'s' * (workers != 1)}, predicted {seconds(step_s)} a step")
    how: dict[str, Any] = {
        "steps": options.steps, "epochs": options.epochs, "checkpoint_every": options.checkpoint_every,
        "resume": options.resume or "", "threads": options.threads, "timeout_s": options.timeout_s,
    }  # fmt: skip
    if options.search:
        return _searched(options, file, settings, talk, how, resumed)
    with contextlib.ExitStack() as stack:
        board = Dashboard(talk, options.job, options.steps) if options.live and talk.terminal else None
        scalars = Scalars(Path(options.out) / "tensorboard") if options.tensorboard else None
        shows = [stack.enter_context(contextlib.closing(s)) for s in (board, scalars) if s]
        say = board.event if board else lambda line: talk.say(f"   {line}")
        ended = loop.train(
            file, options.job, settings, options.out, engine=options.engine,
            watch=board.watch if board else _watch(talk, options.steps or 0), elastic=_elastic(options, say),
            adapt=(lambda change: say(change.sentence)) if options.adapt else None, shows=shows, **how,
        )  # fmt: skip
    file = PlanFile.read(Path(options.out) / "plan.json")  # it may have changed on the way
    document = _outcome(Path(options.out), file, ended.wall_s, options.engine, resumed)
    _tell_divergence(document, talk)
    if ended.interrupted:
        raise stopped(ended.last_step, document["checkpoints"])
    return document


def _elastic(options: argparse.Namespace, say: Callable[[str], None]) -> Elastic | None:
    """What is to be done when a worker dies; None: the run ends."""
    if options.on_failure == "stop":
        return None
    from partita.pipeline.run.replan import planned_without
    from partita.training.runtime.elastic import Elastic

    return Elastic(
        planned_without if options.on_failure == "replan" else None,
        options.redundancy or "memory",
        options.copy_every or 1,
        lambda lost: say(lost.sentence),
        lambda step: say(
            f"step {step} was kept in memory; now it is a checkpoint: go on with --resume {options.out}/checkpoints"
        ),
        lambda step, why: say(f"step {step} was kept in memory, and could not be written: {why}"),
    )


def _searched(
    options: argparse.Namespace, file: PlanFile, settings: dict[str, str], talk: Talk, how: dict[str, Any], resumed: int
) -> dict[str, Any]:
    """Train, and search for the mapping meanwhile."""
    from partita.mapping.report.history import Following, History
    from partita.mapping.run.search import train_searching
    from partita.nouns.plan import PlanFile
    from partita.training.runtime.worker import stopped

    out = Path(options.out)
    budget_s = 60.0 if options.search_budget_s is None else options.search_budget_s
    watch = _watch(talk, options.steps or 0, Following(out).line)
    ended = train_searching(
        file, options.job, settings, out, budget_s=budget_s, seed=options.seed or 0, adapt=options.adapt,
        watch=watch, **how,
    )  # fmt: skip
    found, history = PlanFile.read(out / "plan.json"), History.read(out)
    since = max(resumed, history.end.step if history.end else 0)
    document = {**_outcome(out, found, ended.wall_s, options.engine, since), "search": history.to_json()}
    _tell_divergence(document, talk)
    if ended.interrupted:
        raise stopped(ended.last_step, document["checkpoints"])
    return document


def check_folder(out: str) -> None:
    """Raise BadInput unless files can be written into the folder, which is made where it is missing, and nobody else does."""
    from partita.training.runtime.folder import held

    with held(made_folder(out)):
        pass


def _watch(talk: Talk, total: int, more: Callable[[], str] = str) -> Callable[[Row], None]:
    """Draws the bar, with more to say beside it; tells once that the run is being stopped."""
    told = False

    def watch(row: Row) -> None:
        nonlocal told
        if row.stop_after is not None and not told:
            talk.say(f"   stopping after step {row.stop_after}, then saving; Ctrl-C again ends at once")
            told = True
        if row.step:
            last = row.stop_after or total
            what = f"step {row.step}, loss {row.loss:.4f}{more()}" if talk.terminal else "training"
            talk.progress(what, min(row.step, last or row.step), last or row.step + 1)

    return watch


def _check(options: argparse.Namespace) -> None:
    for name in ("steps", "epochs", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise BadInput(f"--{name} {value}", hint="give at least 1")
    if options.checkpoint_every < 0:
        raise BadInput(f"--checkpoint-every {options.checkpoint_every}", hint="give at least 0")
    check_timeout(options.timeout_s)
    searches = options.search_budget_s is not None or options.seed is not None
    if searches and not options.search:
        raise BadInput("--search-budget-s and --seed are for a search", hint="say --search hybrid")
    if options.adapt and options.engine == "torch":
        raise BadInput("--adapt goes with Partita's own engine", hint="leave --engine away")
    if options.tensorboard:
        Scalars.expect()
    if (options.live or options.tensorboard) and options.search:
        raise BadInput("--live and --tensorboard do not go with --search", hint="leave them away")
    if options.search and (options.engine == "torch" or options.replan):
        raise BadInput(
            "--search goes with Partita's own engine, and plans for itself", hint="leave --engine and --replan away"
        )
    if options.search_budget_s is not None:
        check_budget(options.search_budget_s, option="--search-budget-s")
    elastic = options.redundancy is not None or options.copy_every is not None
    if elastic and options.on_failure == "stop":
        raise BadInput(
            "--redundancy and --copy-every are for runs that go on", hint="say --on-failure replan or replace"
        )
    if options.copy_every is not None and (options.copy_every < 1 or options.redundancy == "checkpoint"):
        raise BadInput(
            f"--copy-every {options.copy_every}{' --redundancy checkpoint' * (options.redundancy == 'checkpoint')}",
            hint="give at least 1, of copies in memory; how often checkpoints are written says --checkpoint-every",
        )
    if options.on_failure != "stop" and (options.engine == "torch" or options.search):
        raise BadInput(
            f"--on-failure {options.on_failure} goes with Partita's own engine, and not with a search",
            hint="leave --engine and --search away",
        )
    if options.engine == "torch" and options.resume:
        raise BadInput("--engine torch cannot resume", hint="leave --engine away")


def _plan(options: argparse.Namespace, settings: dict[str, str], talk: Talk) -> PlanFile:
    """The plan given, or one made now."""
    from partita.nouns.plan import PlanFile

    if options.plan:
        return PlanFile.read(options.plan)
    from partita.pipeline.plan.planner import plan_pipeline
    from partita.training.measure.job import measure_job

    talk.step(f"measuring {options.job}")
    sizes = _whole_batch(options.job, settings) if options.search else ()
    profile = measure_job(options.job, settings, devices=options.devices, sizes=sizes, progress=talk.progress)
    profile.write(made_folder(options.out) / "profile.json")
    talk.step("planning")
    if options.search:
        from partita.mapping.run.search import first_mapping

        return first_mapping(profile)
    if options.engine == "torch":
        return plan_pipeline(profile, allow_replicas=False, allow_recompute=False)
    return plan_pipeline(profile, schedule="auto")


def _whole_batch(job: str, settings: dict[str, str]) -> tuple[int, ...]:
    """The size of a batch, all of which a mapping runs at once."""
    from partita.training.job import batch_size, load_job

    return (batch_size(load_job(job, settings).example()),)


def _replanned(file: PlanFile, options: argparse.Namespace, settings: dict[str, str], talk: Talk) -> PlanFile:
    """The plan, or a better one for the devices as fast as they are now, of those whose cores this process may use. Raises BadInput
    for a plan that knows no probe, PlanError where it uses others."""
    from partita.nouns.pipeline_plan import PipelinePlan
    from partita.nouns.pipeline_problem import PipelineProblem
    from partita.page.run_speed import device_changes, gain
    from partita.pipeline.run.replan import replanned
    from partita.training.measure.again import speeds_now
    from partita.training.runtime.join import expect_cores, on_this_machine

    if isinstance(file.plan, PipelinePlan):
        expect_cores(file, file.plan.devices)
        file = on_this_machine(file)
    problem = file.problem
    if not isinstance(problem, PipelineProblem) or problem.probe is None:
        raise BadInput("--replan: the plan does not say how fast the devices were", hint="measure and plan again")
    talk.step("probing the devices")
    speeds = speeds_now(problem, options.job, settings)
    unread = {d.name for d in problem.cluster.devices} - {s.device for s in speeds}
    if unread:  # the speeds of today beside one of another day would make an unequal plan of nothing
        talk.say(f"   {', '.join(sorted(unread))} could not be probed on this machine: the plan is taken as it is")
        return file
    found = replanned(file, speeds)
    for line in [*device_changes(speeds), gain(found.old_s, found.new_s, found.worth_it)]:
        talk.say(f"   {line}")
    return found.file


def _run_one_rank(options: argparse.Namespace, settings: dict[str, str], talk: Talk) -> dict[str, Any]:
    """Inside torchrun: this process is one rank."""
    from partita.nouns.plan import PlanFile
    from partita.pipeline.run.adapt import DRIFT
    from partita.training.runtime.elastic import FAILURES
    from partita.training.runtime.folder import held
    from partita.training.runtime.prepare import expect_trainable, forget_earlier, prepared, training_spec
    from partita.training.runtime.restarted import forget, restarted_from
    from partita.training.runtime.worker import expect_unclaimed, run_rank_alone

    if not options.plan:
        raise PlanError(
            "inside torchrun a plan is needed",
            hint="make one with `partita measure` and `partita plan`, then give --plan FILE",
        )
    rank, ranks = rank_of_environment()
    expect_unclaimed(options.out, rank, ranks)
    if rank == 0:
        check_folder(options.out)
    file, folder = PlanFile.read(options.plan), Path(options.out)
    expect_trainable(file)

    def begun() -> None:
        """What an earlier run left stays until all ranks are ready."""
        if rank == 0:
            prepared(folder, file)
            forget_earlier(folder, DRIFT, FAILURES)

    with contextlib.ExitStack() as stack:
        if rank == 0:
            stack.enter_context(held(folder))
        own = restarted_from(folder, rank)
        resume = own or options.resume or ""
        if own and rank == 0:
            talk.say(f"   started again: going on from {own}")
        spec = training_spec(
            folder, options.job, settings, engine=options.engine, steps=options.steps, epochs=options.epochs,
            checkpoint_every=options.checkpoint_every, resume=resume, threads=options.threads, timeout_s=options.timeout_s,
        )  # fmt: skip
        resumed = _resumed_from(resume)
        try:
            run_rank_alone(replace(spec, plan=options.plan), rank, ranks, begun)
        except PartitaError as error:
            stack.close()
            talk.error(str(error))
            os._exit(error.exit_code)  # a broken process group may block in its destructor
        forget(folder, rank)
        return _outcome(folder, file, 0.0, options.engine, resumed) if rank == 0 else {"rank": rank}


def _resumed_from(folder: str | None) -> int:
    """The step after which a run went on from the checkpoint in a folder; 0 where it began."""
    from partita.training.runtime.saved import latest, step_of

    return step_of(latest(Path(folder))) if folder else 0


def _outcome(folder: Path, file: PlanFile, wall_s: float, engine: str, since: int) -> dict[str, Any]:
    """What came out; steps up to `since` were not made by this plan, or not by this run."""
    from partita.nouns.metrics import METRICS, number_to_json, read_metrics
    from partita.nouns.probe import Readings
    from partita.page.run_speed import sentences
    from partita.pipeline.report.story import WARM_UP
    from partita.pipeline.run.adapt import last_change
    from partita.simulate.run_speed import run_speed

    rows = read_metrics(folder / METRICS)
    since = max(since, last_change(folder))
    times = [r.step_s for r in rows if r.step_s is not None and r.step > since]
    steps = times[WARM_UP:] or times
    measured = statistics.median(steps) if steps else None
    foreseen = predicted(file.problem, file.plan).duration_s
    there = engine == "pipeline" and (folder / "readings.json").exists()
    ran = run_speed(file, Readings.read(folder / "readings.json")) if there else None
    unread = [UNREAD] if engine == "pipeline" and getattr(file.problem, "probe", None) and not there else []
    return {
        "out": str(folder),
        "engine": engine,
        "steps": rows[-1].step if rows else 0,
        "loss": number_to_json(rows[-1].loss) if rows else None,
        "not_finite_since": _diverged(rows),
        "predicted_step_s": foreseen,
        "measured_step_s": measured,
        "error": foreseen / measured - 1 if measured else None,
        **(ran.to_json() if ran else {"predicted_at_run_speed_s": None}),
        "machine": [*sentences(ran, foreseen, measured), *_advice(file, ran)] if ran and measured else unread,
        "wall_s": wall_s,
        "checkpoints": str(folder / "checkpoints") if (folder / "checkpoints").is_dir() else None,
    }


def _diverged(rows: Sequence[Metric]) -> int | None:
    """The step from which on the loss is no finite number; None where the last one is."""
    finite = [r.step for r in rows if math.isfinite(r.loss)]
    after = [r.step for r in rows if not finite or r.step > finite[-1]]
    return after[0] if after else None


def _tell_divergence(document: dict[str, Any], talk: Talk) -> None:
    if (since := document["not_finite_since"]) is not None:
        talk.say(f"   the loss is {_no_loss(since)}. hint: lower the learning rate, or clip the gradients (clip_norm)")


def _advice(file: PlanFile, ran: RunSpeed) -> list[str]:
    """What a new plan would bring, where a device was slower or faster than it was."""
    from partita.page.run_speed import advice
    from partita.pipeline.run.replan import replanned

    if not ran.changed:
        return []
    found = replanned(file, ran.devices)
    return [advice(found.old_s, found.new_s)] if found.worth_it else []


def _no_loss(since: int | None) -> str:
    return "-" if since is None else f"not finite from step {since} on"


def text(document: dict[str, Any]) -> str:
    from partita.page.text import facts, percent, seconds

    if "out" not in document:
        return f"rank {document['rank']} done"
    measured = document["measured_step_s"]
    pairs = [
        ("steps", f"{document['steps']}"),
        ("loss", f"{document['loss']:.4f}" if document["loss"] is not None else _no_loss(document["not_finite_since"])),
        (
            "a step",
            f"{seconds(measured)} measured, {seconds(document['predicted_step_s'])} predicted ({percent(document['error'], signed=True)})"
            if measured
            else "-",
        ),
        ("folder", document["out"]),
        ("checkpoint", document["checkpoints"] or "none"),
    ]
    said = [facts(pairs), *document["machine"]]
    if "search" in document:
        from partita.mapping.report.history import text as history

        said.append(history(document["search"]))
    return "\n".join(said)
