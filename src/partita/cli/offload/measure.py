"""partita offload measure MODEL.onnx ...: times of every task here and on a server, and the link -> costs.json."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.settings import check_budget
from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.files import dump_json, write_whole
from partita.nouns.offload import OffloadLink, OffloadProblem
from partita.page.text import facts, percent, rate, seconds, size, table

if TYPE_CHECKING:
    from partita.nouns.costs import Estimate
    from partita.offload.capture.jobs import JobSpec
    from partita.offload.capture.onnx_model import OnnxModel
    from partita.offload.measure.inference import InferenceTimes
    from partita.offload.measure.link import LinkTimes

Json = dict[str, Any]
_Here = Callable[["OnnxModel", float], "InferenceTimes"]
_LINK = ("up_bytes_per_s", "down_bytes_per_s", "round_trip_s")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", metavar="MODEL", nargs="*", help="ONNX files: one job each")
    parser.add_argument("--jobs", metavar="TOML", help="JOBS.toml instead: models, how often, when")
    parser.add_argument("--server", metavar="HOST:PORT", help="where partita offload serve listens: it measures itself")
    parser.add_argument(
        "--server-speedup", type=float, metavar="X", help="without a server: assume one X times as fast as this device"
    )
    parser.add_argument("--link", metavar="UP,DOWN,RTT", help="without a server: bytes/s up, bytes/s down, seconds")
    parser.add_argument("--server-threads", type=int, default=1, metavar="N", help="without a server; default 1")
    parser.add_argument("--budget-s", type=float, default=4.0, metavar="S", help="seconds a model and side; default 4")
    parser.add_argument("--cache", metavar="DIR", help="where measurements are kept; default $XDG_CACHE_HOME/partita")
    parser.add_argument("--token-file", metavar="FILE", help="the server's token")
    parser.add_argument("--ca", metavar="PEM", help="the server's certificate, or that of its authority")
    parser.add_argument(
        "--server-name",
        metavar="NAME",
        help="the name in the server's own certificate; default: that of one made by serve",
    )
    parser.add_argument("--insecure", action="store_true", help="plain text, also beyond loopback")
    parser.add_argument("-o", "--out", metavar="JSON", help="write the costs (partita offload plan --costs reads them)")


def run(options: argparse.Namespace, talk: Talk) -> Json:
    """Measure this side, then the other, then the link and what messages take. Raises BadInput and its kin, and what the server's client raises."""
    given = _check(options)
    from partita.offload.measure.cache import cached_times, default_folder, hardware

    jobs = _jobs(options)
    folder = Path(options.cache) if options.cache else default_folder()

    def here(model: OnnxModel, budget_s: float) -> InferenceTimes:
        times, fresh = cached_times(model, folder, budget_s)
        if not fresh:
            talk.say(f"   measured before on {hardware()}")
        return times

    document = _assumed(options, given, jobs, here, talk) if given else _measured(options, jobs, here, talk)
    if options.out:
        write_whole(options.out, dump_json(document))
        talk.say(f"   costs written to {options.out}")
    return document


def _check(options: argparse.Namespace) -> OffloadLink | None:
    """The link that the flags give, None with a server. Raises BadInput."""
    if bool(options.models) == bool(options.jobs):
        raise BadInput("measure takes ONNX files or --jobs JOBS.toml", hint="e.g. partita offload measure alexnet.onnx")
    check_budget(options.budget_s)
    if options.server:
        if options.server_speedup is not None or options.link:
            raise BadInput("--server measures its speed and the link", hint="drop --server-speedup and --link")
        return None
    speedup = options.server_speedup
    if speedup is None or not options.link:
        raise BadInput(
            "without a server its speed and the link are not known",
            hint="give --server HOST:PORT, or assume: --server-speedup 4 --link 2.5e6,2.5e6,0.01",
        )
    if not (speedup > 0 and math.isfinite(speedup)):
        raise BadInput(f"--server-speedup is {speedup}", hint="give a positive number")
    return _link_of(options.link)


def _link_of(text: str) -> OffloadLink:
    hint = "give UP,DOWN,RTT, e.g. 2.5e6,2.5e6,0.01"
    try:
        up, down, round_trip = (float(x) for x in text.split(","))
    except ValueError as error:
        raise BadInput(f"--link is {text!r}", hint=hint) from error
    link = OffloadLink(up, down, round_trip)
    if faults := link.check():
        raise BadInput(f"--link is {text!r}: {'; '.join(faults)}", hint=hint)
    return link


def _jobs(options: argparse.Namespace) -> Sequence[JobSpec]:
    from partita.offload.capture.jobs import JobSpec, read_jobs
    from partita.offload.capture.onnx_model import OnnxModel

    if options.jobs:
        return read_jobs(options.jobs)
    models = [OnnxModel.read(path) for path in options.models]
    return [JobSpec(f"{m.name}-{k}" if len(models) > 1 else m.name, m, {}) for k, m in enumerate(models)]


def _assumed(options: argparse.Namespace, link: OffloadLink, jobs: Sequence[JobSpec], here: _Here, talk: Talk) -> Json:
    """This side measured, the other one and the link as the flags say."""
    from partita.offload.measure.link import LinkTimes
    from partita.offload.run.problem import problem_of

    device = {}
    for model in {j.model.hash: j.model for j in jobs}.values():
        talk.step(f"measuring {model.name} here")
        device[model.hash] = here(model, options.budget_s)
    own = {h: x.seconds for h, x in device.items()}
    there = {h: {t: s / options.server_speedup for t, s in x.items()} for h, x in own.items()}
    problem = problem_of(jobs, own, there, link, options.server_threads)
    share = statistics.median(t.cpu_s / t.whole.seconds for t in device.values())
    wholes = {h: t.whole for h, t in device.items()}
    server = {h: sum(x.values()) for h, x in there.items()}
    return _document(problem, jobs, wholes, share, server, LinkTimes(link, link, link))


def _measured(options: argparse.Namespace, jobs: Sequence[JobSpec], here: _Here, talk: Talk) -> Json:
    from partita.offload.plan.planner import plan_offload
    from partita.offload.run.both_sides import measure_both_sides, planned
    from partita.offload.run.client import Client
    from partita.offload.run.credentials import credentials_of

    key = credentials_of(options)

    def connect() -> Client:
        return Client(options.server, key)

    found = measure_both_sides(jobs, connect, options.budget_s, here=here, say=talk.step)
    found, _ = planned(found, plan_offload, lambda made: made.plan, connect, options.budget_s, say=talk.step)
    device, server = (
        {m.hash: side.whole(k) for k, m in enumerate(side.models)} for side in (found.device, found.server)
    )
    there = {h: e.seconds for h, e in server.items()}
    document = _document(found.problem, jobs, device, found.device.share, there, found.link)
    document["measured"]["message_cpu_s"] = asdict(found.messages)
    return document


def _document(
    problem: OffloadProblem,
    jobs: Sequence[JobSpec],
    device: Mapping[str, Estimate],
    share: float,
    server: Mapping[str, float],
    link: LinkTimes,
) -> Json:
    """The costs, and what a person wants to know of the measurement, which planners do not read."""
    from partita.offload.measure.cache import hardware

    rows = [
        {
            "model": m.name,
            "hash": h,
            "shape": m.shape,
            "tasks": len(m.graph),
            "input_bytes": m.input_bytes,
            "device_s": device[h].seconds,
            "device_low_s": device[h].low,
            "device_high_s": device[h].high,
            "device_cpu_share": share,
            "server_s": server[h],
        }
        for h, m in {j.model.hash: j.model for j in jobs}.items()
    ]
    measured = {"device": hardware(), "models": rows, "link_low": asdict(link.low), "link_high": asdict(link.high)}
    return {**problem.to_json(), "measured": measured}


def text(document: dict[str, Any]) -> str:
    link, seen = document["link"], document["measured"]
    interval = {k: f"{_figure(k, seen['link_low'][k])} to {_figure(k, seen['link_high'][k])}" for k in _LINK}
    head = facts(
        [
            ("device", seen["device"]),
            ("uplink", f"{rate(link['up_bytes_per_s'])} ({interval['up_bytes_per_s']})"),
            ("downlink", f"{rate(link['down_bytes_per_s'])} ({interval['down_bytes_per_s']})"),
            ("round trip", f"{seconds(link['round_trip_s'])} ({interval['round_trip_s']})"),
            *([_sending(link)] if "send_s" in link else []),
            ("jobs", f"{len(document['jobs'])}, server threads {document['server_threads']}"),
        ]
    )
    titles = ("model", "shape", "tasks", "input", "device", "10 % to 90 %", "on the CPU", "server")
    rows = [
        (
            m["model"],
            m["shape"],
            str(m["tasks"]),
            size(m["input_bytes"]),
            seconds(m["device_s"]),
            f"{seconds(m['device_low_s'])} to {seconds(m['device_high_s'])}",
            percent(m["device_cpu_share"]),
            seconds(m["server_s"]),
        )
        for m in seen["models"]
    ]
    return head + "\n\n" + table([(t, "text") for t in titles], rows)


def _sending(link: Mapping[str, float]) -> tuple[str, str]:
    return (
        "sending",
        f"takes {seconds(link['send_s'])} of the device, and {seconds(1e6 * link.get('send_s_per_byte', 0.0))} a MB",
    )


def _figure(what: str, value: float) -> str:
    return seconds(value) if what == "round_trip_s" else rate(value)
