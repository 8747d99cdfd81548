"""Jobs that come one by one to the DAG shop: of kinds that are given, or random ones.

Arrivals are a Poisson process. The load is the share of the time for which the busier machine has work: its total over all jobs
divided by the time in which they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partita.spark.problem import ShopJob, ShopProblem, ShopStage

MOST_STAGES = 12  #: of a random job
WIDEST = 4  #: layer of a random job
SPREAD = 0.8  #: of the logarithms of the lengths of jobs, and of stages within a job
TILT = 0.4  #: of the logarithm of how much more a job fetches than it computes


def stream(kinds: Sequence[ShopJob] | None, jobs: int, load: float, seed: int) -> ShopProblem:
    """So many jobs drawn alike from the kinds, or random ones for None. O(stages)."""
    chance = np.random.default_rng([seed, 1])
    gaps = chance.exponential(1.0, jobs)
    found = [random_job(chance) if kinds is None else kinds[int(chance.integers(len(kinds)))] for _ in range(jobs)]
    stages = [s for j in found for s in j.stages]
    busier = max(sum(s.network_s + s.write_s for s in stages), sum(s.cpu_s for s in stages))
    release = (np.cumsum(gaps) - gaps[0]) * (busier / jobs / load)
    return ShopProblem(tuple(replace(j, release_s=r) for j, r in zip(found, release.tolist(), strict=True)))


def random_job(chance: np.random.Generator) -> ShopJob:
    """1 to MOST_STAGES stages in layers of 1 to WIDEST, each with up to three parents in the layer before; lengths are
    lognormal, many short and few long."""
    n, widest = int(chance.integers(1, MOST_STAGES + 1)), int(chance.integers(1, WIDEST + 1))
    parents: list[tuple[int, ...]] = []
    before: list[int] = []
    while len(parents) < n:
        layer = list(range(len(parents), min(n, len(parents) + int(chance.integers(1, widest + 1)))))
        for _ in layer:
            some = min(len(before), int(chance.integers(1, 4)))
            parents.append(tuple(sorted(chance.choice(before, some, replace=False).tolist())) if before else ())
        before = layer
    size, tilt = np.exp(chance.normal(0.0, SPREAD)), np.exp(chance.normal(0.0, TILT))
    network = size * tilt * np.exp(chance.normal(0.0, SPREAD, n))
    cpu = size / tilt * np.exp(chance.normal(0.0, SPREAD, n))
    return ShopJob(tuple(ShopStage(a, b, p) for a, b, p in zip(network.tolist(), cpu.tolist(), parents, strict=True)))
