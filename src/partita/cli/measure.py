"""partita measure JOB: times of every task, the links, the memory -> profile.json; inside torchrun on the devices of all ranks;
--campaign FILE: rows for models."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.settings import add_settings, check_budget, check_timeout, is_rank, settings_of
from partita.cli.talk import Talk, prints_as_talk
from partita.errors import BadInput, PartitaError
from partita.training.runtime.join import rank_of_environment

if TYPE_CHECKING:
    from partita.nouns.profile import Profile


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", help="file.py:function that returns a partita.TrainingJob")
    parser.add_argument(
        "--campaign",
        metavar="FILE",
        help="instead of a job: the TOML file of a measurement campaign over hyperparameters",
    )
    add_settings(parser)
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="where to write (default: profile.json; of a campaign rows.parquet)"
    )
    parser.add_argument("--devices", type=int, metavar="N", help="devices of this machine to describe (default: all)")
    parser.add_argument(
        "--micro-batch-sizes", metavar="N,N", help="sizes to measure (default: the batch cut into 1, 2, 4 .. 32)"
    )
    parser.add_argument(
        "--split",
        action="append",
        default=[],
        metavar="TASK:DIM:N",
        help="run an operator in N parts along the batch or channel dim, e.g. conv2d_1:batch:2 or 'linear*:channel:2', or by the batch as ghosts, each part of a BatchNorm by itself; auto: those that are worth it, exactly; auto:ghost: as ghosts",
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=15.0,
        metavar="S",
        help="about how long the timing may take, on a restless machine twice as long (default: 15)",
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=300.0,
        metavar="S",
        help="inside torchrun: give up when another rank is silent for so long (default: 300)",
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Measure the job, or the campaign. Raises JobError, CaptureError, ClusterError, BadInput, Interrupted, WorkerFailed."""
    if (options.job is None) == (options.campaign is None):
        raise BadInput("measure takes one JOB or one --campaign FILE", hint="e.g. partita measure train.py:job")
    options.out = options.out or ("rows.parquet" if options.campaign else "profile.json")
    if is_rank():
        profile = _run_one_rank(options, talk)
        return {"rank": rank_of_environment()[0]} if profile is None else _written(options, profile)
    return _run_campaign(options, talk) if options.campaign else _written(options, _run_job(options, talk))


@prints_as_talk()
def _run_campaign(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    _check(options)
    _expect_writable(options.out)
    from partita.models.measure.campaign import run_campaign

    talk.step(f"measuring {options.campaign}")
    return run_campaign(options.campaign, options.out, progress=talk.progress, say=talk.say)


@prints_as_talk()
def _run_job(options: argparse.Namespace, talk: Talk) -> Profile:
    sizes = sizes_of(options.micro_batch_sizes)
    _check(options)
    _expect_writable(options.out)
    from partita.training.measure.job import measure_job

    talk.step(f"measuring {options.job}")
    return measure_job(
        options.job,
        settings_of(options),
        devices=options.devices,
        sizes=sizes,
        splits=options.split,
        budget_s=options.budget_s,
        progress=talk.progress,
    )


@prints_as_talk()
def _run_one_rank(options: argparse.Namespace, talk: Talk) -> Profile | None:
    """Inside torchrun: this process is one rank, and one device; rank 0 gets the profile."""
    senseless = [n for n in ("campaign", "devices") if getattr(options, n) is not None]
    if senseless:
        raise BadInput(
            f"--{senseless[0]} inside torchrun, where every process is one device of one measurement",
            hint="leave it out, or measure without torchrun",
        )
    sizes = sizes_of(options.micro_batch_sizes)
    rank, ranks = rank_of_environment()
    _check(options)
    from partita.training.measure.job import Asked
    from partita.training.measure.together import measure_together

    if rank == 0:
        talk.step(f"measuring {options.job} on {ranks} device{'s' * (ranks != 1)}")
    asked = Asked(options.job, settings_of(options), sizes, options.split, options.budget_s)
    try:
        return measure_together(
            asked, rank, ranks, timeout_s=options.timeout_s, progress=talk.progress if rank == 0 else _quiet,
            first=lambda: _expect_writable(options.out) if rank == 0 else None,
        )  # fmt: skip
    except (PartitaError, KeyboardInterrupt) as error:
        talk.error(str(error) or "interrupted")
        os._exit(getattr(error, "exit_code", 130))  # a broken process group may block in its destructor


def _quiet(what: str, done: int, total: int) -> None: ...


def _written(options: argparse.Namespace, profile: Profile) -> dict[str, Any]:
    """What is printed of a profile, once it is written: also to /dev/stdout."""
    profile.write(options.out)
    return _document(options, profile)


def _document(options: argparse.Namespace, profile: Profile) -> dict[str, Any]:
    """What is printed of a profile."""
    from partita.nouns.splits import splits_json
    from partita.page.run_speed import doubts

    graph, link, probe = profile.samples[0].graph, profile.cluster.links_in_use()[0], profile.samples[0].probe
    return {
        "profile": options.out,
        "graph": graph.name,
        "fingerprint": profile.fingerprint,
        "tasks": sum(t.phase == "forward" for t in graph.tasks),
        "parameter_bytes": sum(t.parameter_bytes for t in graph.tasks)
        - sum(s.size_bytes * (len(s.tasks) - 1) for s in graph.shared),
        "batch_size": profile.batch_size,
        "splits": splits_json(profile.splits),
        "single_step_s": {str(s.micro_batch_size): s.single_step_s for s in profile.samples},
        "devices": [d.name for d in profile.cluster.devices],
        "link": {
            "rate_bytes_per_s": _finite(link.rate_bytes_per_s),
            "latency_s": link.latency_s,
            "send_s": link.send_s,
            "send_s_per_byte": link.send_s_per_byte,
            "message_s": link.message_s,
            "message_s_per_byte": link.message_s_per_byte,
            "sum_s": link.sum_s,
            "sum_s_per_byte": link.sum_s_per_byte,
        },
        "calls": profile.cluster.devices[0].beside_tasks_s,
        "speeds": {d.name: d.speed for d in profile.cluster.devices},
        "alone": probe.alone if probe else 1.0,
        "machine": doubts(probe.spread) if probe else [],
        "facts": dict(profile.facts),
    }


def _check(options: argparse.Namespace) -> None:
    """What can be told before anything is measured. Raises BadInput."""
    check_timeout(options.timeout_s)
    check_budget(options.budget_s)


def _expect_writable(path: str) -> None:
    """Raise BadInput where no file can be written there."""
    out = Path(path)
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        fact = "is a folder" if out.is_dir() else f"cannot be written: no folder {out.parent} to write into"
        raise BadInput(f"{out} {fact}", hint="give a file with -o FILE")


def sizes_of(text: str | None) -> tuple[int, ...]:
    """ "4,8" -> (4, 8). Raises BadInput for anything else."""
    try:
        return tuple(int(s) for s in text.split(",")) if text else ()
    except ValueError as error:
        raise BadInput(f"{text!r} is no list of sizes", hint="write them like 4,8,16") from error


def _finite(x: float) -> float | None:
    return x if x < float("inf") else None


def text(document: dict[str, Any]) -> str:
    if "profile" not in document and "rows" not in document:
        return f"rank {document['rank']} done"
    return _campaign_text(document) if "rows" in document else _profile_text(document)


def _campaign_text(document: dict[str, Any]) -> str:
    from partita.page.text import Kind, count, facts, seconds, table

    head = facts(
        [
            ("rows", f"{count(document['count'])} of {count(document['wanted'])}"),
            ("visits", f"{count(document['visits'])}; they agree in {count(document['agree'])} rows"),
            ("load", f"{document['facts']['load'][0]:.2f}, {seconds(document['facts']['wall_s'])}"),
        ]
    )
    columns: list[tuple[str, Kind]] = [
        ("network", "text"),
        ("framework", "text"),
        ("workers", "count"),
        ("rows", "count"),
        ("shortest step", "s"),
        ("median", "s"),
        ("longest", "s"),
    ]
    groups = table(columns, [tuple(g.values()) for g in document["groups"]])
    failed = "".join(f"\n{f['configuration']}: {f['reason']}" for f in document["failed"])
    return f"{head}\n\n{groups}\n{failed}\n{document['rows']}"


def _profile_text(document: dict[str, Any]) -> str:
    from partita.nouns.splits import counted, read_splits
    from partita.page.text import count, facts, seconds, size, table

    calls = document["calls"]
    head = facts(
        [
            (
                "model",
                f"{document['graph']}, {count(document['tasks'])} tasks, {size(document['parameter_bytes'])} of parameters",
            ),
            ("devices", _devices(document)),
            *[("split", line) for line in counted(read_splits(document["splits"], BadInput, "splits"))],
            *([("link", _link(document["link"]))] if len(document["devices"]) > 1 else []),
            (
                "calls",
                f"{seconds(calls['instruction_s'])} a forward or a backward, {seconds(calls['step_s'])} a step, {seconds(calls['update_s'])} its update"
                + (f", {seconds(calls['cold_s'])} behind a long wait" if calls["cold_s"] else ""),
            ),
            (
                "load",
                f"{document['facts']['load'][0]:.2f}, {seconds(document['facts']['cpu_s'])} of CPU time in {seconds(document['facts']['wall_s'])}",
            ),
        ]
    )
    rows = [(int(n), document["batch_size"] // int(n), s) for n, s in document["single_step_s"].items()]
    steps = table([("micro-batch size", "count"), ("micro-batches", "count"), ("one process, a step", "s")], rows)
    return "\n\n".join([head, steps, *document["machine"], document["profile"]])


def _devices(document: dict[str, Any]) -> str:
    """Their names, how fast they are where they differ, and what company costs."""
    from partita.page.text import percent

    speeds, alone = document["speeds"], document["alone"]
    same, unread = len(set(speeds.values())) == 1, document["facts"].get("speed_unread", [])
    names = ", ".join(
        f"{d} (speed not measured)" if d in unread else d if same else f"{d} (speed {s:.2f})" for d, s in speeds.items()
    )
    return names + (f"; one alone is {percent(alone - 1)} faster" if alone > 1 else "")


def _link(link: dict[str, Any]) -> str:
    from partita.page.text import rate, seconds

    return (
        f"{rate(link['rate_bytes_per_s']) if link['rate_bytes_per_s'] else 'no wire'}, {seconds(link['latency_s'])} latency; a message takes "
        f"{seconds(link['send_s'])} of its sender, {seconds(link['message_s'])} of its receiver, "
        f"a MB {seconds(1e6 * link['send_s_per_byte'])} and {seconds(1e6 * link['message_s_per_byte'])} more"
    )
