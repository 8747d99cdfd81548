"""What happened: when each job was where, its answer, and the timeline of the four machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.nouns.timeline import Timeline
from partita.offload.plan.lower import ANSWERS, ARRIVALS, DEVICE, DOWNLINK, UPLINK, lower_offload
from partita.offload.run.wire import Array

Interval = tuple[float, float]  #: start and end, seconds since the run began

MACHINES = ("device", "uplink", "server", "downlink")


@dataclass(slots=True)
class JobTimes:
    """When one job was on which machine; None: it did not touch it. Seconds since the run began."""

    device: Interval | None = None
    uplink: Interval | None = None
    server: Interval | None = None
    downlink: Interval | None = None
    answered_s: float = 0.0
    attempts: int = 0  #: times it was sent to the server
    sent_bytes: int = 0
    device_cpu_s: float = 0.0  #: of its inference
    server_cpu_s: float = 0.0
    server_probe_s: float = 0.0  #: CPU seconds of a probe behind its inference

    @property
    def where(self) -> str:
        """Who made the answer."""
        return "device" if self.server is None else "server" if self.device is None else "both"


@dataclass(frozen=True)
class OffloadRun:
    """A run: its timeline, its answers and what it cost."""

    plan: OffloadPlan  #: as it was executed: a job that the device did in the end is cut nowhere
    timeline: Timeline
    outputs: tuple[Mapping[str, Array], ...]  #: [jobs]
    times: tuple[JobTimes, ...]  #: [jobs]
    makespan_s: float  #: from the start to the last answer
    latency_s: tuple[float, ...]  #: [jobs] from its release to its answer
    cpu_s: float  #: of this process
    facts: Mapping[str, Any] = field(default_factory=dict)


def timeline_of(
    problem: OffloadProblem, plan: OffloadPlan, times: Sequence[JobTimes], facts: Mapping[str, Any] | None = None
) -> Timeline:
    """What was measured, as the timeline of the program that `plan` (as it was executed) lowers to. O(jobs x tasks).

    A step that a job did not take (the device part of a job that is wholly on the server) lasts no time.
    """
    program, _ = lower_offload(problem, plan)
    start, end = np.zeros(len(program)), np.zeros(len(program))
    released = 0.0
    for k in range(len(program)):
        j, queue = int(program.micro_batch[k]), program.queues[program.queue[k]]
        if queue == ARRIVALS:
            start[k], end[k] = released, problem.jobs[j].release_s
            released = problem.jobs[j].release_s
        else:
            start[k], end[k] = _interval(times[j], queue)
    return Timeline.of(program, start, end, "measured", facts)


def _interval(t: JobTimes, queue: str) -> Interval:
    answered = t.answered_s, t.answered_s
    if queue == DEVICE:
        begun = t.uplink[0] if t.uplink else t.answered_s
        return t.device or (begun, begun)
    if queue == ANSWERS:
        return answered
    return {UPLINK: t.uplink, DOWNLINK: t.downlink}.get(queue, t.server) or answered


def busy_s(times: Sequence[JobTimes]) -> dict[str, float]:
    """Machine -> seconds in use."""
    return {m: sum(i[1] - i[0] for t in times if (i := getattr(t, m)) is not None) for m in MACHINES}


def inferring_cpu_s(times: Sequence[JobTimes]) -> dict[str, float]:
    """Side -> CPU seconds of its inferences."""
    return {"device": sum(t.device_cpu_s for t in times), "server": sum(t.server_cpu_s for t in times)}
