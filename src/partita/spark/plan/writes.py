"""Three phases as two: what a stage writes is a stage of its own, which only fetches.

    fetch 2, compute 3, write 1      =      fetch 2, compute 3      and after it      fetch 1, compute nothing

What comes after the one comes after the other. Every schedule of the one problem is one of the other with the same ends, so
planners, bounds and proofs for two phases hold for three.
"""

from __future__ import annotations

from dataclasses import replace

from partita.spark.problem import ShopJob, ShopProblem, ShopStage
from partita.spark.schedule import ShopFile, Start


def without_writes(problem: ShopProblem) -> ShopProblem:
    """The problem in two phases: behind the stages of each job those that write, in the order of who does. O(stages + parents)."""
    return replace(problem, jobs=tuple(_divided(job) for job in problem.jobs))


def _writers(job: ShopJob) -> list[int]:
    return [s for s, stage in enumerate(job.stages) if stage.write_s > 0]


def _divided(job: ShopJob) -> ShopJob:
    writers = _writers(job)
    end = {s: len(job.stages) + k for k, s in enumerate(writers)}
    plain = tuple(replace(s, write_s=0.0, parents=tuple(end.get(p, p) for p in s.parents)) for s in job.stages)
    return replace(job, stages=(*plain, *(ShopStage(job.stages[s].write_s, 0.0, (s,)) for s in writers)))


def with_writes(file: ShopFile, problem: ShopProblem) -> ShopFile:
    """The plan of `problem`, from one of the problem without writes. O(stages)."""
    writers = [_writers(job) for job in problem.jobs]
    own = [len(job.stages) for job in problem.jobs]
    begins = {(r.job, writers[r.job][r.stage - own[r.job]]): r.network_start_s for r in file.schedule if r.stage >= own[r.job]}  # fmt: skip
    rows = (r for r in file.schedule if r.stage < own[r.job])
    return ShopFile(tuple(_writing(r, begins) for r in rows), file.verdict, problem)


def _writing(row: Start, begins: dict[tuple[int, int], float]) -> Start:
    return replace(row, write_start_s=begins.get((row.job, row.stage)))
