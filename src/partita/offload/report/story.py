"""What a report of offloading tells: a plan with its problem, and, where it was executed, what was measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partita.errors import BadInput
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.nouns.plan import OffloadFile
from partita.nouns.timeline import Timeline
from partita.offload.plan.lower import ANSWERS, ARRIVALS, DEVICE, DOWNLINK, UPLINK, simulate_offload
from partita.offload.plan.planner import baselines

MACHINES = (DEVICE, UPLINK, "server", DOWNLINK)


@dataclass(frozen=True, eq=False)
class Played:
    """A timeline of the jobs, added up."""

    timeline: Timeline
    busy_s: FloatArray  #: [jobs, machines] 0 where a job does not touch a machine
    answered_s: FloatArray  #: [jobs] when its answer was there

    @staticmethod
    def of(timeline: Timeline, jobs: int) -> Played:
        """Raises BadInput where the timeline is of other jobs. O(spans)."""
        job = timeline.micro_batch
        if set(job.tolist()) != set(range(jobs)):
            raise BadInput(
                f"the timeline is of {len(set(job.tolist()))} jobs, the plan of {jobs}", hint="give one run's files"
            )
        machine = np.array([machine_of(q) for q in timeline.queues], np.int64)[timeline.queue]
        busy, answered = np.zeros((jobs, len(MACHINES))), np.zeros(jobs)
        known = machine >= 0
        np.add.at(busy, (job[known], machine[known]), (timeline.end_s - timeline.start_s)[known])
        np.maximum.at(answered, job, timeline.end_s)
        return Played(timeline, busy, answered)

    @property
    def makespan_s(self) -> float:
        return float(self.answered_s.max())

    def share(self, threads: int) -> tuple[float, ...]:
        """[machines] share of the makespan in which each is in use; the server's is of all its threads."""
        total = self.busy_s.sum(axis=0) / np.array([1, 1, threads, 1])
        return tuple((total / (self.makespan_s or 1.0)).tolist())


def machine_of(queue: str) -> int:
    """A queue's place in MACHINES; -1 for what is none.

    >>> [machine_of(q) for q in ("device", "server1", "answers")]
    [0, 2, -1]
    """
    if queue in (ANSWERS, ARRIVALS):
        return -1
    return MACHINES.index(queue) if queue in MACHINES else 2


@dataclass(frozen=True)
class OffloadStory:
    """All that the page shows."""

    title: str
    file: OffloadFile
    measured_timeline: Timeline | None = None
    executed: OffloadPlan | None = None  #: cuts and order as they came to be
    missing: tuple[str, ...] = field(default=())  #: sentences: what is not there, and what makes it

    @property
    def problem(self) -> OffloadProblem:
        return self.file.problem

    @property
    def plan(self) -> OffloadPlan:
        return self.file.plan

    @cached_property
    def predicted(self) -> Played | None:
        """None where nothing was known of times: a device that was alone from the start."""
        if not self.file.verdict.value_s > 0:
            return None
        return Played.of(simulate_offload(self.problem, self.plan), len(self.problem.jobs))

    @cached_property
    def measured(self) -> Played | None:
        """Raises BadInput where the timeline is of other jobs."""
        return Played.of(self.measured_timeline, len(self.problem.jobs)) if self.measured_timeline else None

    @cached_property
    def baselines(self) -> dict[str, float]:
        """Predicted makespan of each."""
        return baselines(self.problem) if self.predicted else {}

    @cached_property
    def done_cuts(self) -> tuple[frozenset[str], ...]:
        """[jobs] the tasks that the device did; of a run whose executed plan is not known: what the timeline tells."""
        if self.executed is not None:
            return self.executed.cuts
        if self.measured is None:
            return self.plan.cuts
        away = self.measured.busy_s[:, 2] > 0
        jobs = self.problem.jobs
        return tuple(c if a else frozenset(j.index) for j, c, a in zip(jobs, self.plan.cuts, away, strict=True))

    @cached_property
    def models(self) -> tuple[tuple[str, ...], IntArray]:
        """(names of the models, [jobs] which one each is of): jobs with the same tasks and times are of one model."""
        seen: dict[object, int] = {}
        of = np.array([seen.setdefault((j.input_bytes, j.tasks), len(seen)) for j in self.problem.jobs], np.int64)
        names: list[str] = []
        for k in range(len(seen)):
            first = self.problem.jobs[int(np.argmax(of == k))].name
            stem = re.sub(r"-\d+$", "", first)
            names.append(first if stem in names else stem)
        return tuple(names), of
