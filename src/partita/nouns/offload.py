"""Offload: several inference jobs between a small device and a server, and the decision how to cut and order them.

A job is a DAG of tasks. A cut names the tasks that stay on the device; it is a downset: what the server computes never
feeds the device again. Four machines serve the jobs in one order:

    device    the tasks of the cut, without a break; then what sending takes of it, where the link says so
    uplink    what crosses the cut, each tensor once, and the job's input if a task on the server reads it
    server    what receiving takes of it, where the link says so; then the other tasks, on one of its threads: the one that
              is free first
    downlink  the answers that the server made: outputs that no task reads

A transfer occupies its link for bytes / rate and arrives half a round trip after it has left. A job that stays on the
device touches no other machine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from partita.errors import CostError, PlanError, refuse
from partita.files import read_json
from partita.records import lean, record

MOST_JOBS = 100_000
MOST_THREADS = 4096  #: of a server
LARGEST = 1e15  #: seconds, bytes and rates beyond it (or below its inverse, for rates) are taken for a slip


@dataclass(frozen=True, slots=True)
class OffloadTask:
    """One layer or operator of a network, and what it takes on either side."""

    id: str  #: unique in its job
    device_s: float
    server_s: float
    output_bytes: float
    inputs: tuple[str, ...] = ()  #: tasks whose outputs it reads; none: it reads the job's input

    def slower(self, device: float, server: float) -> OffloadTask:
        """The same on sides so many times slower."""
        return replace(self, device_s=self.device_s * device, server_s=self.server_s * server)


@dataclass(frozen=True)
class OffloadJob:
    """One inference to make."""

    name: str
    input_bytes: float  #: lies on the device
    tasks: tuple[OffloadTask, ...]  #: in a topological order
    release_s: float = 0.0  #: when its input is there
    deadline_s: float = math.inf  #: when its answer is wanted

    @cached_property
    def index(self) -> dict[str, int]:
        """Task id -> index."""
        return {t.id: i for i, t in enumerate(self.tasks)}


@dataclass(frozen=True, slots=True)
class OffloadLink:
    """What lies between device and server."""

    up_bytes_per_s: float
    down_bytes_per_s: float
    round_trip_s: float = 0.0
    send_s: float = 0.0  #: what an upload takes of the *device*, before it: handing over the message,
    send_s_per_byte: float = 0.0  #: and copying and sending its bytes
    receive_s: float = 0.0  #: what it takes of the *server*, before its tasks: taking the message and answering,
    receive_s_per_byte: float = 0.0  #: and receiving and copying its bytes

    def check(self) -> list[str]:
        """Every fault at once."""
        faults = []
        for what in ("up_bytes_per_s", "down_bytes_per_s"):
            rate = getattr(self, what)
            if not 1 / LARGEST <= rate <= LARGEST:
                faults.append(f"the link has {what} = {rate:g}; {1 / LARGEST:g} to {LARGEST:g} are possible")
        for what in ("round_trip_s", "send_s", "send_s_per_byte", "receive_s", "receive_s_per_byte"):
            faults += _number_fault("the link", what, getattr(self, what))
        return faults

    def carrying(self, up_bytes_per_s: float) -> OffloadLink:
        """The same with another uplink rate: what bytes take of the sides goes by how long they pass, what a message takes stays."""
        longer = self.up_bytes_per_s / up_bytes_per_s
        return replace(
            self,
            up_bytes_per_s=up_bytes_per_s,
            send_s_per_byte=self.send_s_per_byte * longer,
            receive_s_per_byte=self.receive_s_per_byte * longer,
        )

    def slower(self, device: float, server: float) -> OffloadLink:
        """The same between sides so many times slower."""
        return replace(
            self,
            send_s=self.send_s * device,
            send_s_per_byte=self.send_s_per_byte * device,
            receive_s=self.receive_s * server,
            receive_s_per_byte=self.receive_s_per_byte * server,
        )


CHANGED, BY = (
    0.2,
    0.3,
)  #: share of runs in which a machine is not as it was, and by how much then: standard deviation of the logarithm


#: by how much an inference takes longer where the probe does: 1430 runs of jobs on a device and a server were foreseen best with 0.5 to
#: 0.6 of the logarithm, in each of three nights (root mean square of the errors 5.1 to 5.7 % instead of 6.3 to 6.5, and 7.8 instead
#: of 10.3; benchmarks/offload.py on 2 cores of an EPYC, 26 and 27 November 2026)
FOLLOWS = 0.6


def believed(change: float, variance: float) -> float:
    """What to believe of a change that was seen with an error of such a variance: its mean, where a machine is mostly as it was and
    sometimes quite another. A change of twice the error is likely chance, one of four times is real.

    >>> [round(believed(c, 0.1**2), 2) for c in (0.1, 0.2, 0.4)], believed(0.1, 0.0)
    ([0.01, 0.06, 0.36], 0.1)
    """
    if variance <= 0:
        return change
    wide = variance + BY**2
    same, other = (math.exp(-(change**2) / 2 / v) / math.sqrt(v) for v in (variance, wide))
    moved = CHANGED * other
    if moved + same <= 0:  # so far out that both are nothing
        return change
    return moved / (moved + (1 - CHANGED) * same) * change * BY**2 / wide


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a machine computed at some time; two of one machine tell how it changed."""

    probe_s: float  #: CPU seconds of the probe, a small network that is always the same
    share: float = (
        1.0  #: CPU seconds that its process received for each second that it wanted one: a quota, less what others took
    )
    error: float = 0.0  #: standard error of probe_s, as a share of it
    behind_s: float = 0.0  #: CPU seconds of the inferences, at least, behind which the probe was taken

    def slower_than(self, other: Speed) -> float:
        """How many times as long as then everything takes now: by the share, and by what FOLLOWS of a change of the probe, as far as
        that is `believed`.

        >>> round(Speed(2e-3, 0.2).slower_than(Speed(1e-3, 0.25)), 2)
        1.89
        >>> round(Speed(2e-3, error=0.1).slower_than(Speed(1e-3)), 2), round(Speed(1.1e-3, error=0.1).slower_than(Speed(1e-3)), 2)
        (1.45, 1.01)
        """
        change = believed(math.log(self.probe_s / other.probe_s), self.error**2 + other.error**2)
        return math.exp(FOLLOWS * change) * other.share / self.share


@dataclass(frozen=True, slots=True)
class OffloadSpeeds:
    """Of both sides, at one time."""

    device: Speed
    server: Speed


@dataclass(frozen=True)
class OffloadProblem:
    """Jobs, a link and a server."""

    kind: ClassVar[str] = "offload"
    link: OffloadLink
    jobs: tuple[OffloadJob, ...]
    server_threads: int = 1
    speeds: OffloadSpeeds | None = None  #: when the times were measured; None: nobody looked

    def check(self) -> list[str]:
        """Every fault at once; empty when the problem is sound."""
        faults = [] if self.jobs else ["it has no jobs"]
        if len(self.jobs) > MOST_JOBS:
            faults.append(f"it has {len(self.jobs)} jobs; at most {MOST_JOBS} are possible")
        faults += self.link.check()
        if not 1 <= self.server_threads <= MOST_THREADS:
            faults.append(f"the server has {self.server_threads} threads; 1 to {MOST_THREADS} are possible")
        for side in ("device", "server"):
            faults += _speed_faults(side, getattr(self.speeds, side, None))
        for j in self.jobs:
            faults += [f"job {j.name!r}: {fault}" for fault in _job_faults(j)]
        return faults

    def at_speeds(self, now: OffloadSpeeds) -> OffloadProblem:
        """The same work as it takes on machines of these speeds; as it is where nothing is known of theirs then. O(tasks)."""
        if self.speeds is None:
            return self
        here, there = now.device.slower_than(self.speeds.device), now.server.slower_than(self.speeds.server)
        jobs = {id(j.tasks): tuple(t.slower(here, there) for t in j.tasks) for j in self.jobs}
        return replace(
            self,
            link=self.link.slower(here, there),
            jobs=tuple(replace(j, tasks=jobs[id(j.tasks)]) for j in self.jobs),
            speeds=now,
        )

    def shown(self) -> dict[str, Any]:
        """What of it stands beside the plan, for scripts."""
        return {}

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "link": {k: v for k, v in asdict(self.link).items() if v or not k.startswith(("send", "receive"))},
            "server_threads": self.server_threads,
            "jobs": [_job_json(j) for j in self.jobs],
            **({"speeds": asdict(self.speeds)} if self.speeds else {}),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], what: str = "costs") -> OffloadProblem:
        """The problem in a parsed JSON object. Raises CostError with every fault at once."""
        read = record(OffloadProblem, value, CostError, what, hint="see docs/reference/offload.md")
        problem = replace(read, jobs=tuple(replace(j, tasks=_in_order(j.tasks)) for j in read.jobs))
        refuse(CostError, problem.check(), what)
        return problem

    @staticmethod
    def read(path: str | Path) -> OffloadProblem:
        """The problem in a JSON file. Raises CostError."""
        return OffloadProblem.from_json(read_json(path, CostError), str(path))


@dataclass(frozen=True)
class OffloadPlan:
    """In which order the machines serve the jobs, and what of each stays on the device."""

    order: tuple[int, ...]  #: indices of jobs
    cuts: tuple[frozenset[str], ...]  #: [jobs] ids of the tasks on the device
    kind: Literal["offload"] = field(default="offload", init=False)

    def check(self, problem: OffloadProblem) -> list[str]:
        """Every fault at once; empty when the plan fits the problem."""
        n = len(problem.jobs)
        if sorted(self.order) != list(range(n)) or len(self.cuts) != n:
            return [f"it orders {len(self.order)} jobs and cuts {len(self.cuts)}; the problem has {n}"]
        faults: list[str] = []
        for j, cut in zip(problem.jobs, self.cuts, strict=True):
            unknown = sorted(cut - set(j.index))
            faults += [f"job {j.name!r}: the cut names the unknown task {t!r}" for t in unknown]
            faults += [
                f"job {j.name!r}: task {t.id!r} on the device reads {i!r} on the server"
                for t in j.tasks
                for i in t.inputs
                if t.id in cut and i not in cut
            ]
        return faults

    def to_json(self) -> dict[str, Any]:
        return lean(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> OffloadPlan:
        """Raises PlanError where it is damaged."""
        return record(OffloadPlan, value, PlanError, "the plan", hint="make the plan again")


def _in_order(tasks: Sequence[OffloadTask]) -> tuple[OffloadTask, ...]:
    """The tasks in a topological order, the given one where it is one; those of a circle last, for `check` to name.

    O((tasks + edges) log tasks).
    """
    at = {t.id: k for k, t in enumerate(tasks)}
    readers: list[list[int]] = [[] for _ in tasks]
    missing = [0] * len(tasks)
    for k, t in enumerate(tasks):
        for i in {at[i] for i in t.inputs if i in at}:
            readers[i].append(k)
            missing[k] += 1
    ready = [k for k, n in enumerate(missing) if n == 0]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for k in readers[order[-1]]:
            missing[k] -= 1
            if missing[k] == 0:
                heapq.heappush(ready, k)
    circle = sorted(set(range(len(tasks))) - set(order))
    return tuple(tasks[k] for k in (*order, *circle))


def _speed_faults(side: str, speed: Speed | None) -> list[str]:
    return [
        f"the {side}'s speed has {what} = {value:g}; {least:g} to {LARGEST:g} are possible"
        for what, value in (asdict(speed) if speed else {}).items()
        for least in [0 if what in ("error", "behind_s") else 1 / LARGEST]
        if not least <= value <= LARGEST
    ]


def _job_faults(job: OffloadJob) -> list[str]:
    faults = [] if job.tasks else ["it has no tasks"]
    seen: set[str] = set()
    for t in job.tasks:
        if t.id in seen:
            faults.append(f"task id {t.id!r} is used twice")
        for i in t.inputs:
            if i not in job.index:
                faults.append(f"task {t.id!r} reads the unknown task {i!r}")
            elif i not in seen:
                faults.append(f"task {t.id!r} reads {i!r}, which waits for it: a circle")
        seen.add(t.id)
        for what in ("device_s", "server_s", "output_bytes"):
            faults += _number_fault(f"task {t.id!r}", what, getattr(t, what))
    for what in ("input_bytes", "release_s"):
        faults += _number_fault("it", what, getattr(job, what))
    if job.deadline_s != math.inf:
        faults += _number_fault("it", "deadline_s", job.deadline_s)
    return faults


def _number_fault(owner: str, what: str, value: float) -> list[str]:
    return [] if 0 <= value <= LARGEST else [f"{owner} has {what} = {value:g}; 0 to {LARGEST:g} are possible"]


def _job_json(job: OffloadJob) -> dict[str, Any]:
    return {**lean(job), "tasks": [{**lean(t), "inputs": list(t.inputs)} for t in job.tasks]}
