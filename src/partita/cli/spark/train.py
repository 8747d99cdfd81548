"""partita spark train [PROBLEM | --traces DIR] -o policy.safetensors: weights for the policy `learned`."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

from partita.cli.settings import check_budget
from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.page.text import count, facts, percent, seconds
from partita.spark.capture.traces import read_traces
from partita.spark.plan.executors.episodes import Catalogue
from partita.spark.plan.learned.lessons import Lesson, cluster_lesson, shop_lesson
from partita.spark.plan.learned.policy import VERSION, Policy
from partita.spark.plan.learned.train import Training, trained
from partita.spark.plan.online.episodes import one_cpu
from partita.spark.problem import ShopProblem

EXECUTORS, MOST_EXECUTORS, MOST_THREADS = 50, 10_000, 64


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("problem", nargs="?", metavar="PROBLEM", help="the shop: JSON whose jobs are the kinds that come; left out: random ones")  # fmt: skip
    parser.add_argument("--traces", metavar="DIR", help="executors: folder of .json files: query -> edges, stages")
    parser.add_argument("--executors", type=int, metavar="N", help="how many; default: 50")
    parser.add_argument("--budget-s", type=float, default=1800.0, metavar="S", help="seconds of training, those before an interruption included; default: 1800")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="episodes that run at a time; default: 1")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same weights after as many generations; default: 0")  # fmt: skip
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="write the weights; those of the other mode stay in it. FILE.MODE.training keeps where training stands: the same command goes on from there")  # fmt: skip


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Train, or go on. Raises BadInput for flags that make no sense and files that cannot be used."""
    _check(options)
    policy = Policy.read(options.out) if Path(options.out).exists() else Policy()
    lesson, of = _lesson(options), _trained_on(options)
    beside = Path(f"{options.out}.{lesson.mode}.training")
    training = Training.read(beside, lesson.mode, options.seed, of) if beside.exists() else Training.begun(lesson, options.seed, of)  # fmt: skip
    talk.step(f"training the policy for {'executors' if options.traces else 'the shop'}, {len(training.search.mean)} weights")  # fmt: skip
    if training.search.generation:
        talk.say(f"   going on from generation {training.search.generation}, {seconds(training.spent_s)} of training")
    against = 0.0

    def keep(found: Training) -> None:
        nonlocal against
        found.write(beside)
        policy.having(lesson.mode, found.search.mean).write(options.out)
        against = lesson.exam(found.search.mean)
        talk.say(
            f"   generation {found.search.generation}, {seconds(found.spent_s)}: mean job {against:.3f} of the best rule's"
        )

    done = trained(lesson, training, budget_s=options.budget_s, threads=options.threads, keep=keep)
    return {"mode": lesson.mode, "generations": done.search.generation, "seconds_spent": done.spent_s, "weights": len(done.search.mean), "against_rule": against, "policy": options.out}  # fmt: skip


def _lesson(options: argparse.Namespace) -> Lesson:
    if options.traces:
        return cluster_lesson(Catalogue.of(read_traces(options.traces)), options.executors or EXECUTORS, options.seed)
    problem = ShopProblem.read(options.problem) if options.problem else None
    if problem:
        one_cpu(problem)
    return shop_lesson(problem.jobs if problem else None, options.seed)


def _trained_on(options: argparse.Namespace) -> str:
    """A digest of the jobs, the executors, and of what the weights mean."""
    files = sorted(Path(options.traces).glob("*.json")) if options.traces else [Path(options.problem)] if options.problem else []  # fmt: skip
    digest = hashlib.sha256(f"{VERSION} {options.executors or EXECUTORS if options.traces else ''}".encode())
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _check(options: argparse.Namespace) -> None:
    check_budget(options.budget_s)
    if not 1 <= options.threads <= MOST_THREADS:
        raise BadInput(f"{options.threads} threads", hint=f"give --threads a whole number from 1 to {MOST_THREADS}")
    if options.traces and options.problem:
        raise BadInput("both PROBLEM and --traces", hint="a PROBLEM is for the shop, traces are for executors")
    if options.executors is not None and not (options.traces and 1 <= options.executors <= MOST_EXECUTORS):
        raise BadInput(f"{options.executors} executors", hint=f"give --executors a whole number up to {MOST_EXECUTORS:,}, with --traces")  # fmt: skip


def text(document: dict[str, Any]) -> str:
    return facts(
        [
            ("policy", f"{document['policy']}, {count(document['weights'])} weights for {document['mode']}"),
            ("trained", f"{count(document['generations'])} generations in {seconds(document['seconds_spent'])}"),
            ("mean job", f"{percent(document['against_rule'])} of the best rule's, in other episodes"),
        ]
    )
