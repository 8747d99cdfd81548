"""The DAG shop: jobs of stages that fetch over one network and then compute on one CPU.

A stage may begin to fetch when its job has been released and all its parents are done; it may begin to compute when it has
fetched. Network and CPU do one stage at a time, without interruption; a phase of no length needs neither. A machine may
stand idle although something could run on it.

    {"jobs": [{"release_s": 0.0, "stages": [{"network_s": 2.0, "cpu_s": 3.0, "parents": []},
                                            {"network_s": 1.0, "cpu_s": 0.5, "parents": [0]}]}]}

Two extensions (the paper names a third phase; how it and executors are defined here is reconstructed):

    "write_s": 0.7     of a stage: when it has computed, it writes over the same network, to a store on other machines;
                       then it is done
    "executors": 4     of the problem: so many equal CPUs, each of which computes one stage at a time; all fetch over
                       the one network
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.errors import CostError, refuse
from partita.files import read_json
from partita.records import lean, record

MOST_JOBS = 20_000
MOST_STAGES = 50_000  #: of all jobs
MOST_PARENTS = 1_000_000  #: of all stages
MOST_EXECUTORS = 1_000
LARGEST_S = 1e12  #: longer times are taken for a slip


@dataclass(frozen=True, slots=True)
class ShopStage:
    """A fetch over the network, then a computation, then perhaps a write over the network."""

    network_s: float
    cpu_s: float
    parents: tuple[int, ...] = ()  #: indices of stages of the same job, in any order
    name: str = ""
    #: where the fetch lies, as it was measured; planners use network_s
    network_range_s: tuple[float, float] | None = None
    cpu_range_s: tuple[float, float] | None = None
    write_s: float = 0.0


@dataclass(frozen=True)
class ShopJob:
    """Stages with precedence, none of which may begin before the release."""

    stages: tuple[ShopStage, ...]
    release_s: float = 0.0
    name: str = ""


@dataclass(frozen=True)
class ShopProblem:
    """Jobs that share one network and one CPU, or several."""

    jobs: tuple[ShopJob, ...]
    executors: int = 1

    @property
    def writes(self) -> bool:
        """Whether any stage has a third phase."""
        return any(s.write_s > 0 for j in self.jobs for s in j.stages)

    def __len__(self) -> int:
        """Stages of all jobs."""
        return sum(len(j.stages) for j in self.jobs)

    def check(self) -> list[str]:
        """Every fault at once; empty when the problem is sound. O(stages + parents)."""
        if not self.jobs:
            return ["it has no jobs"]
        if not 1 <= self.executors <= MOST_EXECUTORS:
            return [f"it has {self.executors} executors; 1 to {MOST_EXECUTORS:,} are possible"]
        parents = sum(len(s.parents) for j in self.jobs for s in j.stages)
        counts = ((len(self.jobs), MOST_JOBS, "jobs"), (len(self), MOST_STAGES, "stages"), (parents, MOST_PARENTS, "parents"))  # fmt: skip
        faults = [f"it has {n:,} {what}; at most {most:,} are planned" for n, most, what in counts if n > most]
        return faults or [f"job {j}{fault}" for j, job in enumerate(self.jobs) for fault in _job_faults(job)]

    def to_json(self) -> dict[str, Any]:
        return lean(self)

    @staticmethod
    def from_json(value: Mapping[str, Any], what: str = "the problem") -> ShopProblem:
        """The problem in a parsed JSON object. Raises CostError with every fault at once."""
        problem = record(ShopProblem, value, CostError, what, hint=_HINT)
        refuse(CostError, problem.check(), what, hint=_HINT)
        return problem

    @staticmethod
    def read(path: str | Path) -> ShopProblem:
        """The problem in a JSON file. Raises CostError."""
        return ShopProblem.from_json(read_json(path, CostError), str(path))


_HINT = (
    'see docs/reference/spark.md: {"jobs": [{"release_s": 0, "stages": [{"network_s": 2, "cpu_s": 3, "parents": []}]}]}'
)


def _job_faults(job: ShopJob) -> list[str]:
    faults = [] if job.stages else [" has no stages"]
    faults += _time_fault("", "release_s", job.release_s)
    n = len(job.stages)
    for s, stage in enumerate(job.stages):
        faults += _time_fault(f" stage {s}", "network_s", stage.network_s)
        faults += _time_fault(f" stage {s}", "cpu_s", stage.cpu_s)
        faults += _time_fault(f" stage {s}", "write_s", stage.write_s)
        faults += _range_fault(s, "network_range_s", stage.network_range_s) + _range_fault(
            s, "cpu_range_s", stage.cpu_range_s
        )
        faults += [f" stage {s} has the parent {p}; its job has the stages 0 to {n - 1}" for p in stage.parents if not 0 <= p < n]  # fmt: skip
    if not faults:
        _, circle = in_order(job.stages)
        faults += [f": stages {', '.join(map(str, circle[:8]))} wait for each other: a circle"] if circle else []
    return faults


def _time_fault(owner: str, what: str, value: float) -> list[str]:
    return [] if 0 <= value <= LARGEST_S else [f"{owner} has {what} = {value:g}; 0 to {LARGEST_S:g} are possible"]


def _range_fault(s: int, what: str, ends: tuple[float, float] | None) -> list[str]:
    sound = ends is None or 0 <= ends[0] <= ends[1] <= LARGEST_S
    return [] if sound else [f" stage {s} has {what} = {ends}; two times, the earlier first, are possible"]


def in_order(stages: tuple[ShopStage, ...]) -> tuple[list[int], list[int]]:
    """(the stages, parents before children, the earliest waves first; those that wait for themselves). O(stages + parents).

    >>> in_order((ShopStage(1, 1, (1,)), ShopStage(1, 1)))
    ([1, 0], [])
    """
    children: list[list[int]] = [[] for _ in stages]
    missing = [len(set(s.parents)) for s in stages]
    for s, stage in enumerate(stages):
        for p in set(stage.parents):
            children[p].append(s)
    order = [s for s, count in enumerate(missing) if count == 0]
    for s in order:  # grows
        for c in children[s]:
            missing[c] -= 1
            if missing[c] == 0:
                order.append(c)
    done = set(order)
    left = [s for s in range(len(stages)) if s not in done]
    return order, _circle(stages, set(left)) if left else []


def _circle(stages: tuple[ShopStage, ...], left: set[int]) -> list[int]:
    """One circle among stages that each have a parent in `left`."""
    at, seen = min(left), dict[int, int]()
    while at not in seen:
        seen[at] = len(seen)
        at = min(p for p in stages[at].parents if p in left)
    return sorted(s for s, k in seen.items() if k >= seen[at])
