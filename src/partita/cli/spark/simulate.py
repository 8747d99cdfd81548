"""partita spark simulate --traces DIR: jobs drawn from traces on a cluster of executors, under a policy."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.page.text import count, facts, percent, seconds
from partita.spark.capture.traces import read_traces
from partita.spark.plan.executors.episodes import Catalogue, Setting, simulate
from partita.spark.plan.executors.policies import POLICIES

MOST_JOBS, MOST_EXECUTORS = 100_000, 10_000
MOST_SEED = 1 << 31


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traces", required=True, metavar="DIR", help="folder of .json files: query -> edges, stages")
    parser.add_argument("--policy", default="fair", metavar="NAME", help=f"{', '.join(POLICIES)}; default: fair")
    parser.add_argument("--jobs", type=int, default=20, metavar="N", help="how many; default: 20")
    parser.add_argument("--executors", type=int, default=50, metavar="N", help="how many; default: 50")
    parser.add_argument("--interarrival-s", type=float, metavar="S", help="jobs come one by one, S seconds apart on average")  # fmt: skip
    parser.add_argument("--load", type=float, metavar="X", help="likewise, so often that the executors are busy for about this share of the time")  # fmt: skip
    parser.add_argument(
        "--exponent", type=float, metavar="A", help="of weighted-fair; left out: tuned on other episodes"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed gives the same jobs; default: 0"
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read, draw, run. Raises CostError for traces that cannot be used, BadInput for flags that make no sense."""
    _check(options)
    catalogue = Catalogue.of(read_traces(options.traces))
    apart = options.interarrival_s or 0.0
    if options.load is not None:
        apart = catalogue.work_s / (options.executors * options.load)
    setting = Setting(options.jobs, options.executors, apart)
    talk.step(f"running {options.jobs:,} jobs of {len(catalogue.queries)} kinds on {options.executors:,} executors")
    outcome = simulate(catalogue, setting, options.policy, seed=options.seed, exponent=options.exponent)
    return {"policy": options.policy, **asdict(setting), "seed": options.seed, **asdict(outcome)}


def _check(options: argparse.Namespace) -> None:
    for name, limit in (("jobs", MOST_JOBS), ("executors", MOST_EXECUTORS)):
        if not 1 <= getattr(options, name) <= limit:
            raise BadInput(
                f"{getattr(options, name):,} {name}", hint=f"give --{name} a whole number from 1 to {limit:,}"
            )
    if not 0 <= options.seed < MOST_SEED:
        raise BadInput(f"a seed of {options.seed}", hint=f"give --seed a whole number from 0 to {MOST_SEED - 1}")
    if options.load is not None and options.interarrival_s is not None:
        raise BadInput("both --load and --interarrival-s", hint="give one of them, or none: then all jobs come at once")
    for flag, value, least, most in (
        ("load", options.load, 0.001, 100.0),
        ("interarrival-s", options.interarrival_s, 0.0, 1e9),
        ("exponent", options.exponent, -10.0, 10.0),
    ):
        if value is not None and not least <= value <= most:
            raise BadInput(f"--{flag} {value:g}", hint=f"give --{flag} a number from {least:g} to {most:g}")


def text(document: dict[str, Any]) -> str:
    apart, exponent = document["interarrival_s"], document["exponent"]
    policy = document["policy"] + (f", exponent {exponent:g}" if exponent is not None else "")
    return facts(
        [
            ("mean job", f"{seconds(document['mean_job_s'])}, 95 of 100 within {seconds(document['p95_job_s'])}"),
            ("makespan", seconds(document["makespan_s"])),
            ("policy", policy),
            ("jobs", f"{count(document['jobs'])}, " + (f"{seconds(apart)} apart on average" if apart else "all at once")),
            ("executors", f"{count(document['executors'])}, busy {percent(document['busy_share'])}; moved {count(document['moves'])} times"),
            ("done", f"{count(document['stages'])} stages, {count(document['tasks'])} tasks in {seconds(document['seconds_spent'])}"),
        ]
    )  # fmt: skip
