"""Lower an offload plan to a Program: device, uplink, server threads and downlink, each with its jobs in order.

Two jobs that are cut and one that stays on the device, one thread (`D` device part, `>` upload, `S` server part, `<`
download):

    device    D0 D1 D2
    server0         S0 S1
    uplink       >0 >1
    downlink           <0 <1

Which thread serves a job follows from the predicted times: the one that is free first. A transfer's lag is half a round
trip, so answers are received by a queue of their own, "answers", which takes no time: the device does not wait for them.
Where jobs have release times, a queue "arrivals" lets them in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.errors import PlanError, refuse
from partita.nouns.graph import BoolArray, FloatArray
from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.nouns.program import Builder, Op, Piece, Program
from partita.nouns.timeline import Timeline
from partita.offload.plan.kernel import Shop, schedule
from partita.offload.plan.network import network_of
from partita.simulate.simulator import Durations, simulate

DEVICE, UPLINK, DOWNLINK, ANSWERS, ARRIVALS = "device", "uplink", "downlink", "answers", "arrivals"


def server_thread(t: int) -> str:
    """The queue of a thread of the server."""
    return f"server{t}"


def lower_offload(problem: OffloadProblem, plan: OffloadPlan) -> tuple[Program, Durations]:
    """The program of a plan and how long its instructions take; a job's index stands as its micro-batch.

    Raises PlanError where the plan does not fit the problem. O(jobs x tasks).
    """
    refuse(PlanError, plan.check(problem), "the plan does not fit", hint="plan again for these jobs")
    times, local = part_times(problem, plan)
    threads = _threads(problem, plan, times, local)
    build = Builder([DEVICE, *(server_thread(t) for t in range(problem.server_threads))])
    busy: list[float] = []
    lag: list[float] = []

    def add(op: Op, queue: str, name: str, job: int, needs: Sequence[int], busy_s: float, lag_s: float = 0.0) -> int:
        piece = Piece(f"{problem.jobs[job].name}{name}", "values" if op in (Op.SEND, Op.RECV) else "forward")
        busy.append(busy_s)
        lag.append(lag_s)
        return build.add(op, queue, piece, job, needs)

    there: dict[int, int] = {}
    if any(j.release_s > 0 for j in problem.jobs):
        clock = 0.0
        for j in sorted(range(len(problem.jobs)), key=lambda j: problem.jobs[j].release_s):
            there[j] = add(Op.SEND, ARRIVALS, " arrives>", j, [], problem.jobs[j].release_s - clock)
            clock = problem.jobs[j].release_s
    half = problem.link.round_trip_s / 2
    for j in plan.order:
        d, u, s, w = times[j].tolist()
        part = add(Op.COMPUTE, DEVICE, "", j, [there[j]] if j in there else [], d)
        if local[j]:
            continue
        sent = add(Op.SEND, UPLINK, " up>", j, [part], u, half)
        part = add(Op.COMPUTE, server_thread(threads[j]), "", j, [sent], s)
        sent = add(Op.SEND, DOWNLINK, " down>", j, [part], w, half)
        add(Op.RECV, ANSWERS, " answer>", j, [sent], 0.0)
    return build.program(), Durations(np.array(busy), np.array(lag))


def part_times(problem: OffloadProblem, plan: OffloadPlan) -> tuple[FloatArray, BoolArray]:
    """([jobs, 4] seconds on device, uplink, server and downlink; [jobs] whether all of it is on the device)."""
    times, local = np.zeros((len(problem.jobs), 4)), np.zeros(len(problem.jobs), np.bool_)
    known: dict[object, FloatArray] = {}
    for j, (job, cut) in enumerate(zip(problem.jobs, plan.cuts, strict=True)):
        key = (job.input_bytes, job.tasks, cut)
        if key not in known:
            known[key] = network_of(job, problem).times(np.array([t.id in cut for t in job.tasks]))
        times[j], local[j] = known[key], len(cut) == len(job.tasks)
    return times, local


def _threads(problem: OffloadProblem, plan: OffloadPlan, times: FloatArray, local: BoolArray) -> list[int]:
    """[jobs] the thread that serves each, -1 where none does."""
    n = len(problem.jobs)
    d, u, s, w = np.ascontiguousarray(times.T)
    shop = Shop(
        d,
        u,
        s,
        w,
        local,
        np.arange(n + 1, dtype=np.int64),
        np.arange(n, dtype=np.int64),
        np.array([j.release_s for j in problem.jobs], np.float64),
        np.full(n, np.inf),
        problem.link.round_trip_s / 2,
        problem.server_threads,
        False,
    )
    thread = schedule(shop, np.array(plan.order, np.int64), np.arange(n, dtype=np.int64))[:, 8]
    return [int(t) for t in thread]


def simulate_offload(problem: OffloadProblem, plan: OffloadPlan) -> Timeline:
    """The timeline of a plan, by the simulator that all programs share. Raises PlanError where the plan does not fit."""
    return simulate(*lower_offload(problem, plan))


def lateness(problem: OffloadProblem, plan: OffloadPlan) -> list[dict[str, str | float]]:
    """The jobs whose answer comes after its deadline, the latest first."""
    if not any(math.isfinite(j.deadline_s) for j in problem.jobs):
        return []
    timeline = simulate_offload(problem, plan)
    ends = np.zeros(len(problem.jobs))
    np.maximum.at(ends, timeline.micro_batch, timeline.end_s)
    late = [(float(e) - j.deadline_s, j.name) for e, j in zip(ends, problem.jobs, strict=True)]
    return [{"job": name, "late_s": by} for by, name in sorted(late, key=lambda x: -x[0]) if by > 1e-12]
