"""partita offload run JOBS.toml: execute jobs over this device and a server."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.cli.settings import check_budget
from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.files import dump_json, made_folder, write_whole
from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.nouns.plan import OffloadFile, Verdict
from partita.offload.plan.lower import part_times, simulate_offload
from partita.offload.plan.online import Policy
from partita.offload.plan.planner import METHODS, plan_offload
from partita.page.agreement import relative_error
from partita.page.text import draw, facts, percent, seconds, size, table

if TYPE_CHECKING:
    from partita.offload.capture.jobs import JobSpec
    from partita.offload.run.client import Client
    from partita.offload.run.codec import Codec, CodecCost
    from partita.offload.run.record import OffloadRun

_ANSWER = re.compile(r"([0-9]{4}|[1-9][0-9]{4,})\.(?:safetensors|json)")  #: of a job, by its number


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", metavar="JOBS", help="JOBS.toml: models, how often, their inputs")
    parser.add_argument(
        "--server", metavar="HOST:PORT", help="where partita offload serve listens; without: the device alone"
    )
    parser.add_argument("--plan", metavar="JSON", help="plan.json of partita offload plan -o; default: plan now")
    parser.add_argument("--costs", metavar="JSON", help="times and link, instead of measuring them now")
    parser.add_argument("--method", default="auto", metavar="NAME", help=f"{', '.join(METHODS)}; default: auto")
    parser.add_argument("--budget-s", type=float, default=1.0, metavar="S", help="seconds to plan; default: 1")
    parser.add_argument(
        "--measure-s", type=float, default=4.0, metavar="S", help="seconds to measure a model on a side; default: 4"
    )
    parser.add_argument(
        "--transfer", default="raw", choices=("raw", "lossless", "int8"), help="how tensors cross; default: raw"
    )
    parser.add_argument(
        "--arrivals",
        metavar="poisson:RATE",
        help="jobs come one by one, RATE a second, and are decided on as they come",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of plan and arrivals; default: 0")
    parser.add_argument(
        "--keep-plan", action="store_true", help="never plan anew, whatever becomes of the link and the sides"
    )
    parser.add_argument(
        "--patience-s",
        type=float,
        default=30.0,
        metavar="S",
        help="silence after which a server is given up; default: 30",
    )
    parser.add_argument(
        "--check", action="store_true", help="compare every answer with the whole model's on this device"
    )
    parser.add_argument("--token-file", metavar="FILE", help="the server's token")
    parser.add_argument("--ca", metavar="PEM", help="the server's certificate, or that of its authority")
    parser.add_argument(
        "--server-name",
        metavar="NAME",
        help="the name in the server's own certificate; default: that of one made by serve",
    )
    parser.add_argument("--insecure", action="store_true", help="plain text, also beyond loopback")
    parser.add_argument(
        "-o", "--out", metavar="DIR", help="write timeline.json, predicted.json, plan.json, executed.json and outputs/"
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Measure, plan, execute. Raises BadInput and its kin for files and flags that cannot be used; a server that is away
    or says no is a sentence, and the device does the jobs."""
    from partita.offload.capture.jobs import read_jobs
    from partita.offload.run.execute import RunSettings, execute

    _check(options)
    work = _arrivals(options, list(read_jobs(options.jobs)))
    connect = _connect(options)
    file = _decided(options, work, connect, talk)
    if file.verdict.value_s == 0:  # nothing was measured, so there is nothing to decide by
        connect = None
    talk.step(f"running {len(work)} jobs; sessions are built and warmed before the clock starts")
    settings = RunSettings(
        codec=options.transfer,
        replan=None
        if options.keep_plan
        else lambda rest: plan_offload(rest, options.method, budget_s=options.budget_s, seed=options.seed).plan,
        replan_s=file.verdict.seconds_spent,
        policy=(lambda problem: Policy.of(problem).decide) if options.arrivals and connect else None,
        patience_s=options.patience_s,
        say=lambda line: talk.say(f"   {line}"),
    )
    done = execute(file.problem, file.plan, [w.model for w in work], [w.input for w in work], connect, settings)
    return _document(options, file, work, done)


def _check(options: argparse.Namespace) -> None:
    check_budget(options.budget_s)
    for name in ("measure_s", "patience_s"):
        value = getattr(options, name)
        if not (value > 0 and math.isfinite(value)):
            raise BadInput(f"--{name.replace('_', '-')} is {value}", hint="give a positive number of seconds")
    if options.plan and options.costs:
        raise BadInput("--plan and --costs are both given", hint="a plan file holds its costs: give one of the two")
    if options.method not in METHODS:
        raise BadInput(f"unknown method {options.method!r}", hint=f"known: {', '.join(METHODS)}")


def _arrivals(options: argparse.Namespace, work: list[JobSpec]) -> list[JobSpec]:
    """The jobs as they come: as the file says, or at random. Raises BadInput."""
    from partita.offload.run.problem import come_at_random

    if options.arrivals is None:
        return work
    kind, _, number = options.arrivals.partition(":")
    try:
        rate = float(number)
    except ValueError:
        rate = 0.0
    if kind != "poisson" or not 0 < rate < math.inf:
        raise BadInput(
            f"--arrivals is {options.arrivals!r}", hint="write poisson:RATE with jobs a second, e.g. poisson:2.5"
        )
    if options.plan:
        raise BadInput(
            "--arrivals and --plan are both given", hint="jobs that come one by one are decided on as they come"
        )
    return come_at_random(work, rate, options.seed)


def _connect(options: argparse.Namespace) -> Callable[[], Client] | None:
    from partita.offload.run.client import Client
    from partita.offload.run.credentials import credentials_of

    if options.server is None:
        return None
    credentials = credentials_of(options)
    return lambda: Client(options.server, credentials)


def _decided(
    options: argparse.Namespace, work: Sequence[JobSpec], connect: Callable[[], Client] | None, talk: Talk
) -> OffloadFile:
    """Problem and plan: from files, or measured and planned now; the device alone where there is no server to measure."""
    from partita.offload.run.problem import check_fits

    if options.plan:
        file = OffloadFile.read(options.plan)
        check_fits(file.problem, work, options.plan)
        return file
    if not options.costs:
        return _measured(options, work, connect, talk)
    problem = OffloadProblem.read(options.costs)
    check_fits(problem, work, options.costs)
    talk.step(f"planning {len(work)} jobs")
    return _planned(options, work, problem, _codec_cost(options.transfer, work))


def _planned(
    options: argparse.Namespace, work: Sequence[JobSpec], problem: OffloadProblem, codec: CodecCost | None
) -> OffloadFile:
    from partita.offload.run.codec import priced
    from partita.offload.run.problem import stream_plan

    seen = priced(problem, codec) if codec else problem
    if options.arrivals:
        rows = zip(seen.jobs, work, strict=True)
        return stream_plan(replace(seen, jobs=tuple(replace(j, release_s=w.release_s) for j, w in rows)))
    return plan_offload(seen, options.method, budget_s=options.budget_s, seed=options.seed)


def _measured(
    options: argparse.Namespace, work: Sequence[JobSpec], connect: Callable[[], Client] | None, talk: Talk
) -> OffloadFile:
    """Measured and planned; the device alone, with a sentence, where there is no server to measure."""
    from partita.offload.run.both_sides import measure_both_sides, planned
    from partita.offload.run.client import Refused, Unreachable

    if connect is None:
        return _alone(work)
    talk.step(f"measuring {len({w.model.hash for w in work})} models here and on {options.server}")

    def say(line: str) -> None:
        talk.say(f"   {line}")

    try:
        found = measure_both_sides(work, connect, options.measure_s, say=say)
        codec = _codec_cost(options.transfer, work)
        return planned(
            found,
            lambda problem: _planned(options, work, problem, codec),
            lambda file: file.plan,
            connect,
            options.measure_s,
            say=say,
        )[1]
    except (Unreachable, Refused) as error:
        talk.say(f"   {error}; the device goes on alone")
        return _alone(work)


def _alone(work: Sequence[JobSpec]) -> OffloadFile:
    from partita.offload.run.problem import device_problem

    problem = device_problem(work)
    cuts = tuple(frozenset(j.index) for j in problem.jobs)
    verdict = Verdict(0.0, 0.0, "nothing to decide", "device-only", 0.0, "makespan")
    return OffloadFile(OffloadPlan(tuple(range(len(work))), cuts), verdict, problem)


def _codec_cost(transfer: Codec, work: Sequence[JobSpec]) -> CodecCost | None:
    """Of coded tensors, measured on one job's; None where they travel as they are."""
    from partita.offload.run.codec import measure_codec
    from partita.offload.run.problem import sample_of

    return None if transfer == "raw" else measure_codec(transfer, sample_of(work[0]))


def _document(
    options: argparse.Namespace, file: OffloadFile, work: Sequence[JobSpec], done: OffloadRun
) -> dict[str, Any]:
    from partita.offload.run.execute import facts_of
    from partita.offload.run.problem import largest_difference
    from partita.offload.run.record import MACHINES, busy_s

    expected = dict(zip(MACHINES, part_times(file.problem, file.plan)[0].sum(axis=0).tolist(), strict=True))
    predicted = file.verdict.value_s or None
    at_speed = done.facts["predicted_at_run_speed_s"] if predicted else None
    document = {
        **facts_of(done),
        "predicted_s": predicted,
        "error": relative_error(predicted, done.makespan_s) if predicted else None,
        "predicted_at_run_speed_s": at_speed,
        "error_at_run_speed": relative_error(at_speed, done.makespan_s) if at_speed else None,
        "error_of_machines": relative_error(predicted, at_speed) if predicted and at_speed else None,
        "speeds": {"measured": asdict(s) if (s := file.problem.speeds) else None, "run": done.facts["speeds"]},
        "up_bytes_per_s": {
            "planned": file.problem.link.up_bytes_per_s if predicted else None,
            "run": done.facts["up_bytes_per_s"] if predicted else None,
        },
        "as_planned": (done.plan.order, done.plan.cuts) == (file.plan.order, file.plan.cuts),
        "corrections": done.facts["corrections"],
        "method": file.verdict.method,
        "transfer": options.transfer,
        "machines": [
            {"machine": m, "predicted_s": p if predicted else None, "measured_s": busy_s(done.times)[m]}
            for m, p in expected.items()
        ],
        "jobs": [_job(w.name, t, latency) for w, t, latency in zip(work, done.times, done.latency_s, strict=True)],
        "order": list(done.plan.order),
        "largest_difference": largest_difference(work, done.outputs) if options.check else None,
        "out": options.out,
        "drawing": draw(done.timeline, 100),
    }
    if options.out:
        _write(Path(options.out), file, done)
    return document


def _job(name: str, times: Any, latency_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "where": times.where,
        "latency_s": latency_s,
        "sent_bytes": times.sent_bytes,
        "attempts": times.attempts,
    }


def _write(folder: Path, file: OffloadFile, done: OffloadRun) -> None:
    from safetensors.numpy import save

    made_folder(folder / "outputs")
    done.timeline.write(folder / "timeline.json")
    simulate_offload(file.problem, file.plan).write(folder / "predicted.json")
    file.write(folder / "plan.json")
    replace(file, plan=done.plan).write(folder / "executed.json")
    for j, outputs in enumerate(done.outputs):
        arrays, others = (folder / "outputs" / f"{j:04d}.{kind}" for kind in ("safetensors", "json"))
        numbers = {n: v for n, v in outputs.items() if isinstance(v, np.ndarray) and v.dtype.kind in "fiub"}
        write_whole(arrays, save(numbers))
        if len(numbers) < len(outputs):
            write_whole(others, dump_json({n: _plain(v) for n, v in outputs.items() if n not in numbers}))
        else:
            others.unlink(missing_ok=True)  # of a run before
    for path in (folder / "outputs").iterdir():
        name = _ANSWER.fullmatch(path.name)
        if name and int(name[1]) >= len(done.outputs) and path.is_file():  # of a run before, with more jobs
            path.unlink()


def _plain(value: Any) -> Any:
    """Text, sequences and maps, as JSON has them; of what is no finite number, the word."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cause(d: dict[str, Any]) -> str:
    """Of the error: the prediction is of the first plan, on the link as it was."""
    from partita.offload.run.execute import RunSettings
    from partita.offload.run.link_rate import RateEstimate

    up = d["up_bytes_per_s"]
    if d["replans"] or d["lost"] or not d["as_planned"]:
        return "what ran is not what was predicted"
    if RateEstimate(up["planned"], up["run"]).drifted(RunSettings().replan_share):
        return f"the uplink carried {size(up['run'])}/s, not {size(up['planned'])}/s"
    return f"mostly the {'machines' if abs(d['error_of_machines']) > abs(d['error_at_run_speed']) else 'model'}"


def text(document: dict[str, Any]) -> str:
    d = document
    rows = [("makespan", seconds(d["makespan_s"]))]
    if d["predicted_s"] is not None:
        rows.append(("predicted", f"{seconds(d['predicted_s'])}, {percent(d['error'], signed=True)}"))
    if d["predicted_at_run_speed_s"] is not None:
        at_speed, off = seconds(d["predicted_at_run_speed_s"]), percent(d["error_at_run_speed"], signed=True)
        machines = percent(d["error_of_machines"], signed=True)
        rows.append(("at run speed", f"{at_speed}, {off}; machines {machines}: {_cause(d)}"))
    rows += [
        ("latency", f"median {seconds(d['latency_median_s'])}, worst {seconds(d['latency_worst_s'])}"),
        ("on device", f"{d['made_on_device']} of {len(d['jobs'])} jobs made there wholly"),
        ("sent up", f"{size(d['bytes_up'])} ({d['transfer']})"),
        ("CPU", f"{seconds(d['cpu_s'])} here; load {d['load']:.2f} at the start"),
    ]
    if d["lost"] or d["refused"] or d["replans"]:
        rows.append(
            ("trouble", f"{d['lost']} lost under way, {d['refused']} refused, planned anew {d['replans']} times")
        )
    if d["largest_difference"] is not None:
        rows.append(("check", f"answers differ from the whole model's by at most {d['largest_difference']:.1e}"))
    busy = table(
        [("machine", "text"), ("predicted", "s"), ("measured", "s")],
        [[m["machine"], m["predicted_s"], m["measured_s"]] for m in d["machines"]],
    )
    return "\n\n".join([facts(rows), busy, d["drawing"]])
