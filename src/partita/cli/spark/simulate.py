"""partita spark simulate [PROBLEM | --traces DIR]: jobs that come to a shop or to a cluster of executors, under a policy."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from partita.cli.talk import Talk
from partita.errors import BadInput, refuse
from partita.page.text import count, facts, percent, seconds
from partita.spark.capture.traces import read_traces
from partita.spark.plan.executors.episodes import CLUSTER_POLICIES, Catalogue, Setting, simulate
from partita.spark.plan.learned.policy import Policy
from partita.spark.plan.online.episodes import SHOP_POLICIES, one_cpu, simulate_shop
from partita.spark.plan.online.streams import stream
from partita.spark.problem import ShopProblem

MOST_JOBS, MOST_EXECUTORS = 100_000, 10_000
MOST_ARRIVALS = 5_000  #: jobs that come to the shop


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("problem", nargs="?", metavar="PROBLEM", help="the shop: JSON of jobs, each seen only when it is released; with --load: kinds of jobs")  # fmt: skip
    parser.add_argument("--traces", metavar="DIR", help="executors: folder of .json files: query -> edges, stages")
    parser.add_argument("--policy", metavar="NAME", help=f"executors: {', '.join(CLUSTER_POLICIES)}, default: fair; shop: {', '.join(SHOP_POLICIES)}, default: fifo")  # fmt: skip
    parser.add_argument("--weights", metavar="FILE", help="of learned, from partita spark train; left out: those that come with Partita")  # fmt: skip
    parser.add_argument("--jobs", type=int, metavar="N", help="how many are drawn; default: 20, of the shop 200")
    parser.add_argument("--executors", type=int, metavar="N", help="how many; default: 50")
    parser.add_argument("--interarrival-s", type=float, metavar="S", help="executors: jobs come one by one, S seconds apart on average")  # fmt: skip
    parser.add_argument("--load", type=float, metavar="X", help="jobs come one by one, so often that the executors, or the busier machine of the shop, have work for about this share of the time")  # fmt: skip
    parser.add_argument(
        "--exponent", type=float, metavar="A", help="of weighted-fair; left out: tuned on other episodes"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed gives the same jobs; default: 0"
    )
    parser.add_argument("-o", "--out", metavar="JSON", help="shop: write the schedule, as partita spark plan does")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read, draw, run. Raises CostError for traces or problems that cannot be used, BadInput for flags that make no sense."""
    _check(options)
    weights = Policy.read(options.weights) if options.weights else None
    return _cluster(options, weights, talk) if options.traces else _shop(options, weights, talk)


def _cluster(options: argparse.Namespace, weights: Policy | None, talk: Talk) -> dict[str, Any]:
    catalogue = Catalogue.of(read_traces(options.traces))
    jobs, executors = options.jobs or 20, options.executors or 50
    apart = options.interarrival_s or 0.0
    if options.load is not None:
        apart = catalogue.work_s / (executors * options.load)
    setting, policy = Setting(jobs, executors, apart), options.policy or "fair"
    talk.step(f"running {jobs:,} jobs of {len(catalogue.queries)} kinds on {executors:,} executors")
    outcome = simulate(catalogue, setting, policy, seed=options.seed, exponent=options.exponent, learned=weights)
    return {"policy": policy, **asdict(setting), "seed": options.seed, **asdict(outcome)}


def _shop(options: argparse.Namespace, weights: Policy | None, talk: Talk) -> dict[str, Any]:
    problem = ShopProblem.read(options.problem) if options.problem else None
    if problem is not None:
        one_cpu(problem)
    if options.load is not None:
        problem = stream(problem.jobs if problem else None, options.jobs or 200, options.load, options.seed)
        refuse(BadInput, problem.check(), "the jobs drawn", hint="give a smaller number of --jobs")
    if problem is None:
        raise BadInput(
            "nothing to simulate", hint="give a PROBLEM, --traces DIR, or --load X for random jobs in the shop"
        )
    if len(problem.jobs) > MOST_ARRIVALS:
        raise BadInput(f"{len(problem.jobs):,} jobs", hint=f"at most {MOST_ARRIVALS:,} can come to the shop")
    policy = options.policy or "fifo"
    talk.step(f"running {len(problem.jobs):,} jobs that come to the shop")
    outcome, file = simulate_shop(problem, policy, seed=options.seed, weights=weights)
    if options.out:
        file.write(options.out)
        talk.say(f"   schedule written to {options.out}")
    return {"policy": policy, "load": options.load, "seed": options.seed, **asdict(outcome), "plan": options.out}


def _check(options: argparse.Namespace) -> None:
    for name, limit in (("jobs", MOST_JOBS), ("executors", MOST_EXECUTORS)):
        found = getattr(options, name)
        if found is not None and not 1 <= found <= limit:
            raise BadInput(f"{found:,} {name}", hint=f"give --{name} a whole number from 1 to {limit:,}")
    if options.load is not None and options.interarrival_s is not None:
        raise BadInput("both --load and --interarrival-s", hint="give one of them, or none: then all jobs come at once")
    for flag, value, least, most in (
        ("load", options.load, 0.001, 100.0),
        ("interarrival-s", options.interarrival_s, 0.0, 1e9),
        ("exponent", options.exponent, -10.0, 10.0),
    ):
        if value is not None and not least <= value <= most:
            raise BadInput(f"--{flag} {value:g}", hint=f"give --{flag} a number from {least:g} to {most:g}")
    if options.traces and options.problem:
        raise BadInput("both PROBLEM and --traces", hint="a PROBLEM is for the shop, traces are for executors")
    foreign = ("out",) if options.traces else ("executors", "interarrival_s", "exponent")
    for name, policies in (("exponent", ("weighted-fair",)), ("weights", ("learned", "learned-scores"))):
        if getattr(options, name) is not None and options.policy not in policies:
            raise BadInput(
                f"--{name} is for the policy {policies[0]} only", hint=f"leave it out, or give --policy {policies[0]}"
            )
    for name in [n for n in foreign if getattr(options, n) is not None]:
        where = "the shop" if options.traces else "executors (--traces)"
        raise BadInput(f"--{name.replace('_', '-')} is for {where} only", hint="leave it out")
    if options.problem and options.load is None and options.jobs is not None:
        raise BadInput("--jobs without --load", hint="the jobs of a PROBLEM come as it says; --load X draws others")


def text(document: dict[str, Any]) -> str:
    return _cluster_text(document) if "executors" in document else _shop_text(document)


def _cluster_text(document: dict[str, Any]) -> str:
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


def _shop_text(document: dict[str, Any]) -> str:
    load = document["load"]
    return facts(
        [
            ("mean job", f"{seconds(document['mean_job_s'])}, 95 of 100 within {seconds(document['p95_job_s'])}"),
            ("bound", f"{seconds(document['bound_s'])} for who knows all jobs beforehand ({document['bound']})"),
            ("makespan", seconds(document["makespan_s"])),
            ("policy", document["policy"]),
            ("jobs", f"{count(document['jobs'])} of {count(document['stages'])} stages" + (f", load {load:g}" if load is not None else "")),
            ("done", f"{count(document['events'])} events in {seconds(document['seconds_spent'])}"),
        ]
    )  # fmt: skip
