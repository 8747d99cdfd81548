"""A schedule of the DAG shop: when each stage fetches and computes; and the file that holds it with its verdict and problem."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from partita.errors import PlanError, refuse
from partita.files import damaged, dump_json, read_json, write_whole
from partita.nouns.plan import Verdict
from partita.records import lean, record
from partita.spark.problem import ShopProblem, ShopStage

Objective = Literal["makespan", "mean-completion"]
TOLERANCE = 1e-9  #: of the last end: what rounding may have taken
FORMAT, VERSION = "partita-spark-plan", 1


@dataclass(frozen=True, slots=True)
class Start:
    """When one stage fetches and computes, on which executor, and when it writes, if it does."""

    job: int
    stage: int
    network_start_s: float
    cpu_start_s: float
    executor: int = 0
    write_start_s: float | None = None

    def end_s(self, stage: ShopStage) -> float:
        """When it is done."""
        return self.cpu_start_s + stage.cpu_s if self.write_start_s is None else self.write_start_s + stage.write_s


def faults(problem: ShopProblem, schedule: tuple[Start, ...]) -> list[str]:
    """Why a schedule is none of this problem; empty when it is one. O(n log n + parents)."""
    at = {(r.job, r.stage): r for r in schedule}
    wanted = {(j, s) for j, job in enumerate(problem.jobs) for s in range(len(job.stages))}
    if len(at) != len(schedule) or at.keys() != wanted:
        return [f"it has {len(schedule)} stages; the problem has {len(wanted)}, each wanted once"]
    stages = {(r.job, r.stage): problem.jobs[r.job].stages[r.stage] for r in schedule}
    starts = (x for r in schedule for x in (r.network_start_s, r.cpu_start_s, r.write_start_s or 0.0))
    if not all(map(math.isfinite, starts)):
        return ["a start is not a finite number"]
    slack = TOLERANCE * max(abs(r.end_s(stages[r.job, r.stage])) for r in schedule)
    found = [
        f"job {r.job} stage {r.stage} is on the unknown executor {r.executor}; the problem has 0 to {problem.executors - 1}"
        for r in schedule
        if not 0 <= r.executor < problem.executors
    ]
    for (j, s), r in at.items():
        stage = stages[j, s]
        done = [at[j, p].end_s(stages[j, p]) for p in stage.parents]
        ready, fetched = max([problem.jobs[j].release_s, *done]), r.network_start_s + stage.network_s
        if r.network_start_s < ready - slack:
            found.append(f"job {j} stage {s} fetches at {r.network_start_s:g} s, but may only from {ready:g} s on")
        if r.cpu_start_s < fetched - slack:
            found.append(f"job {j} stage {s} computes at {r.cpu_start_s:g} s, but has fetched at {fetched:g} s")
        if (r.write_start_s is not None) != (stage.write_s > 0):
            found.append(f"job {j} stage {s} writes for {stage.write_s:g} s, from {r.write_start_s} on")
        elif r.write_start_s is not None and r.write_start_s < r.cpu_start_s + stage.cpu_s - slack:
            found.append(
                f"job {j} stage {s} writes at {r.write_start_s:g} s, but has computed at {r.cpu_start_s + stage.cpu_s:g} s"
            )
    return found + _overlaps(problem, schedule, stages, slack)


def _overlaps(
    problem: ShopProblem, schedule: tuple[Start, ...], stages: Mapping[tuple[int, int], ShopStage], slack: float
) -> list[str]:
    """Phases that are on a machine at once; those of no length are on none."""
    machines: dict[str, list[tuple[float, float, int, int]]] = {}
    for r in schedule:
        stage = stages[r.job, r.stage]
        cpu = "cpu" if problem.executors == 1 else f"cpu of executor {r.executor}"
        rows = (("network", r.network_start_s, stage.network_s), (cpu, r.cpu_start_s, stage.cpu_s), ("network", r.write_start_s, stage.write_s))  # fmt: skip
        for machine, at, length in rows:
            if at is not None and length > 0:
                machines.setdefault(machine, []).append((at, at + length, r.job, r.stage))
    return [
        f"job {a[2]} stage {a[3]} and job {b[2]} stage {b[3]} are on the {machine} at once, at {b[0]:g} s"
        for machine, spans in machines.items()
        for a, b in itertools.pairwise(sorted(spans))
        if b[0] < a[1] - slack
    ]


def value(problem: ShopProblem, schedule: tuple[Start, ...], objective: Objective) -> float:
    """Seconds: the last end, or the mean over jobs of completion minus release. O(n)."""
    done = ends(problem, schedule)
    if objective == "makespan":
        return max(done)
    return sum(d - j.release_s for d, j in zip(done, problem.jobs, strict=True)) / len(done)


def ends(problem: ShopProblem, schedule: tuple[Start, ...]) -> list[float]:
    """[jobs] seconds at which each is done. O(n)."""
    done = [0.0] * len(problem.jobs)
    for r in schedule:
        done[r.job] = max(done[r.job], r.end_s(problem.jobs[r.job].stages[r.stage]))
    return done


@dataclass(frozen=True)
class ShopFile:
    """A schedule, what its planner claims for it, and the problem it answers."""

    schedule: tuple[Start, ...]  #: by the start of fetching
    verdict: Verdict
    problem: ShopProblem

    def shown(self) -> dict[str, Any]:
        """What is claimed, and the schedule: what scripts read."""
        return {**self.verdict.to_json(), "schedule": [lean(r) for r in self.schedule]}

    def write(self, path: str | Path) -> Path:
        document = {"format": FORMAT, "version": VERSION, **self.shown(), "problem": self.problem.to_json()}
        return write_whole(path, dump_json(document))

    @staticmethod
    def read(path: str | Path) -> ShopFile:
        """The plan in a file. Raises PlanError with every fault at once."""
        found = read_json(path, PlanError, FORMAT, VERSION)
        hint = "make the plan again"
        with damaged(PlanError, str(path), hint):
            problem = ShopProblem.from_json(found["problem"], f"{path}: the problem")
            verdict = Verdict.from_json(found)
            schedule = record(tuple[Start, ...], found["schedule"], PlanError, f"{path}: the schedule", hint=hint)
        refuse(PlanError, faults(problem, schedule), str(path), hint=hint)
        if verdict.objective not in ("makespan", "mean-completion"):
            refuse(
                PlanError,
                [f"the objective is {verdict.objective}, not makespan or mean-completion"],
                str(path),
                hint=hint,
            )
        really = value(problem, schedule, "makespan" if verdict.objective == "makespan" else "mean-completion")
        if abs(really - verdict.value_s) > 1e-6 * abs(really) + 1e-9 * max(ends(problem, schedule)):
            refuse(
                PlanError,
                [f"its value is {verdict.value_s:g} s, and the schedule's {really:g} s"],
                str(path),
                hint=hint,
            )
        return ShopFile(schedule, verdict, problem)
