"""Jobs that come to the shop, run under a policy that knows only those that are there."""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from partita.errors import BadInput
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.plan import Verdict, checked_bound
from partita.solve.compiled import heard
from partita.solve.random import seeded
from partita.spark.plan.bounds import bound_of
from partita.spark.plan.learned.policy import Policy, shipped
from partita.spark.plan.online.learned import LOOKS, learned_shop
from partita.spark.plan.online.policies import RULES, ruled
from partita.spark.plan.online.replan import TRIES, replanned
from partita.spark.plan.online.world import Line, fresh_line
from partita.spark.plan.shop import Numbered, Shop, numbered, tails
from partita.spark.plan.writes import with_writes, without_writes
from partita.spark.problem import ShopProblem
from partita.spark.schedule import ShopFile, Start

SHOP_POLICIES = (*RULES, "replan", "learned", "learned-scores")


@dataclass(frozen=True, eq=False)
class Arrivals:
    """A problem by release, as the kernels see it."""

    problem: ShopProblem
    work: Numbered  #: its jobs by release
    number: tuple[int, ...]  #: [jobs] which job of the problem each is
    first: IntArray  #: [jobs + 1]
    tail: FloatArray  #: [n]

    @staticmethod
    def of(problem: ShopProblem) -> Arrivals:
        """O(jobs log jobs + stages + parents)."""
        number = sorted(range(len(problem.jobs)), key=lambda j: problem.jobs[j].release_s)
        work = numbered(ShopProblem(tuple(problem.jobs[j] for j in number)))
        first = np.searchsorted(work.shop.job, np.arange(len(number) + 1)).astype(np.int64)
        return Arrivals(problem, work, tuple(number), first, tails(work.shop))


@dataclass(frozen=True, slots=True)
class ShopOutcome:
    """How an episode went."""

    mean_job_s: float  #: from release to end
    makespan_s: float  #: from the first release to the last end
    p95_job_s: float
    bound_s: float  #: of the mean, for whoever knew all jobs beforehand
    bound: str
    jobs: int
    stages: int
    events: int
    seconds_spent: float  #: running it, bound aside


def run_shop(arrivals: Arrivals, policy: str, *, seed: int = 0, weights: Policy | None = None) -> Line:
    """The shop after the last job has ended. Raises BadInput for an unknown policy."""
    shop, line = arrivals.work.shop, fresh_line(arrivals.work.shop)
    if policy in RULES:
        heard(ruled, shop, arrivals.first, arrivals.tail, line, RULES.index(policy))
    elif policy == "replan":
        heard(replanned, shop, arrivals.first, arrivals.tail, line, seeded(seed), TRIES)
    elif policy in ("learned", "learned-scores"):
        numbers = (weights or shipped()).weights("shop")
        heard(learned_shop, shop, arrivals.first, arrivals.tail, line, numbers, LOOKS if policy == "learned" else 1)
    else:
        raise BadInput(f"unknown policy {policy!r}", hint=f"known for the shop: {', '.join(SHOP_POLICIES)}")
    return line


def simulate_shop(
    problem: ShopProblem, policy: str, *, seed: int = 0, weights: Policy | None = None
) -> tuple[ShopOutcome, ShopFile]:
    """How a policy does with the jobs of a problem when it sees each of them only when it is released; and the schedule.

    Raises BadInput for an unknown policy.
    """
    one_cpu(problem)
    if problem.writes:
        outcome, file = simulate_shop(without_writes(problem), policy, seed=seed, weights=weights)
        return replace(outcome, stages=len(problem)), with_writes(file, problem)
    arrivals = Arrivals.of(problem)
    _compiled(policy)
    began = time.perf_counter()
    line = run_shop(arrivals, policy, seed=seed, weights=weights)
    spent = time.perf_counter() - began
    shop = arrivals.work.shop
    taken = line.done_s - shop.release
    mean, bound = float(taken.mean()), bound_of(shop, True)
    proved = checked_bound(mean, bound.value_s)
    verdict = Verdict(mean, proved, bound.name, f"{policy}, online", spent, "mean-completion")
    outcome = ShopOutcome(
        mean, float(line.done_s.max() - shop.release.min()), float(np.quantile(taken, 0.95)), proved, bound.name,
        len(taken), len(shop.net), int(line.counts[3]), spent,
    )  # fmt: skip
    return outcome, ShopFile(_schedule(arrivals, line), verdict, problem)


def one_cpu(problem: ShopProblem) -> None:
    """Raises BadInput for a problem with several executors."""
    if problem.executors > 1:
        raise BadInput(
            f"jobs come to a shop with one CPU; the problem has {problem.executors} executors",
            hint="plan it: partita spark plan; or simulate --traces DIR, for executors",
        )


@cache
def _compiled(policy: str) -> None:
    """Compile what runs, so that it takes nothing of the time that is told."""
    with_two = ShopProblem.from_json({"jobs": [{"stages": [{"network_s": 1, "cpu_s": 1}] * 2}]})
    run_shop(Arrivals.of(ShopProblem(tuple(replace(j) for j in with_two.jobs))), policy)


def _schedule(arrivals: Arrivals, line: Line) -> tuple[Start, ...]:
    """The starts of the stages, by the start of fetching. O(n log n)."""
    work, n = arrivals.work, len(arrivals.work.shop.net)
    jobs = [arrivals.number[j] for j in work.job.tolist()]
    rows = zip(jobs, work.stage.tolist(), line.start_s[:n].tolist(), line.start_s[n:].tolist(), strict=True)
    return tuple(Start(*r) for r in sorted(rows, key=operator.itemgetter(2, 3, 0, 1)))


def mean_job_s(shop: Shop, line: Line) -> float:
    """From release to end, on average. O(jobs)."""
    return float((line.done_s - shop.release).mean())
