"""What the policies are trained on: episodes that grow with what has been learned, and the weights that training begins with.

All weights of a generation play the same episodes, jobs and chance alike, and are compared within each of them: what an
episode's arrivals alone bring about falls out (the input-dependent baseline of Decima, Mao et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from partita.errors import BadInput
from partita.nouns.graph import FloatArray
from partita.spark.plan.executors import learned as cluster
from partita.spark.plan.executors.episodes import EXPONENTS, Catalogue, Setting, run, run_learned
from partita.spark.plan.learned.policy import Mode, Policy
from partita.spark.plan.online import learned as shop
from partita.spark.plan.online.episodes import Arrivals, mean_job_s, run_shop
from partita.spark.plan.online.policies import RULES
from partita.spark.plan.online.streams import stream
from partita.spark.plan.writes import without_writes
from partita.spark.problem import ShopJob

Episode = Callable[[FloatArray], float]  #: weights -> mean job time
LOADS = (0.95, 0.8, 0.9, 0.5)  #: of the shop, an episode each
EXAM = 4  #: episodes


@dataclass(frozen=True)
class Lesson:
    """One mode's training."""

    mode: Mode
    start: FloatArray  #: weights that do what a good rule does
    spread: FloatArray  #: how far around them the search begins
    episodes: Callable[[int], list[Episode]]  #: of a generation
    exam: Callable[[FloatArray], float]  #: weights -> mean job time / that of the best rule, in other episodes


def cluster_lesson(catalogue: Catalogue, executors: int, seed: int) -> Lesson:
    """Few jobs at once first, then up to 20 of them, and streams."""

    def drawn(setting: Setting, number: int) -> Episode:
        work = catalogue.drawn(setting, number)
        return lambda weights: run_learned(work, setting.executors, weights, number).mean_job_s

    def episodes(generation: int) -> list[Episode]:
        chance = np.random.default_rng([seed, 2, generation])
        found = []
        for k in range(6):
            jobs = min(20, 6 + 2 * generation)
            apart = 0.0 if k < 4 or generation < 8 else catalogue.work_s / (executors * chance.uniform(0.6, 1.0))
            found.append(drawn(Setting(jobs + (10 if apart else 0), executors, apart), int(chance.integers(1 << 30))))
        return found

    tests = [drawn(Setting(20, executors), seed * 1000 + k) for k in range(EXAM)]
    rivals = [catalogue.drawn(Setting(20, executors), seed * 1000 + k) for k in range(EXAM)]
    best = min(sum(run(w, executors, "weighted-fair", seed * 1000 + k, e).mean_job_s for k, w in enumerate(rivals)) for e in EXPONENTS)  # fmt: skip
    return Lesson("executors", *_cluster_start(seed), episodes, lambda w: sum(t(w) for t in tests) / best)


def shop_lesson(kinds: Sequence[ShopJob] | None, seed: int) -> Lesson:
    """Short streams first, then longer ones, of several loads."""

    def drawn(jobs: int, load: float, number: int) -> Episode:
        arrivals = Arrivals.of(without_writes(stream(kinds, jobs, load, number)))
        return lambda w: mean_job_s(arrivals.work.shop, run_shop(arrivals, "learned-scores", weights=Policy(shop=w)))

    def episodes(generation: int) -> list[Episode]:
        chance = np.random.default_rng([seed, 3, generation])
        return [drawn(min(250, 60 + 10 * generation), load, int(chance.integers(1 << 30))) for load in LOADS]

    tests = [drawn(200, 0.9, seed * 1000 + k) for k in range(EXAM)]
    rivals = [Arrivals.of(without_writes(stream(kinds, 200, 0.9, seed * 1000 + k))) for k in range(EXAM)]
    best = min(sum(mean_job_s(a.work.shop, run_shop(a, rule)) for a in rivals) for rule in RULES)
    if best <= 0:
        raise BadInput("the jobs take no time: there is nothing to learn", hint="give jobs whose phases take seconds")
    return Lesson("shop", *_shop_start(seed), episodes, lambda w: sum(t(w) for t in tests) / best)


def _cluster_start(seed: int) -> tuple[FloatArray, FloatArray]:
    """Weighted fair with exponent -1, a job's own executors first, and what an executor adds to a stage's rate."""
    graph = cluster.GRAPH
    a = np.zeros(cluster.FEATURES)
    a[[0, 1, 3, 4, 12]] = 6.0, 2.8, -1.1, -0.7, 2.0
    spread = np.full(len(a), 0.25)
    spread[0], spread[cluster.PLAIN :] = 1.0, 0.1
    inner = 0.3 * np.random.default_rng([seed, 5]).standard_normal(graph)
    return np.concatenate([inner, a]), np.concatenate([np.full(graph, 0.1), spread])


def _shop_start(seed: int) -> tuple[FloatArray, FloatArray]:
    """The least work left on the machine first, short phases before long ones, and hardly ever waiting."""
    graph = shop.GRAPH
    a = np.zeros((2, shop.FEATURES))
    a[0, 2], a[1, 3] = -1.0, -1.0
    a[:, 5], a[:, 20] = -0.5, -3.0
    spread = np.full_like(a, 0.25)
    spread[:, 20], spread[:, shop.PLAIN :] = 0.6, 0.15
    inner = 0.3 * np.random.default_rng([seed, 5]).standard_normal(graph)
    return np.concatenate([inner, a.ravel()]), np.concatenate([np.full(graph, 0.1), spread.ravel()])
