"""A made-up run of offloading, as its story and as its files: two models, one job moved to the device, one connection lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from partita.nouns.offload import (
    OffloadJob,
    OffloadLink,
    OffloadPlan,
    OffloadProblem,
    OffloadSpeeds,
    OffloadTask,
    Speed,
)
from partita.offload.plan.lower import lower_offload
from partita.offload.plan.planner import plan_offload
from partita.offload.report.story import OffloadStory
from partita.simulate.simulator import Durations, simulate


def make_problem(threads: int = 1, name: str = "camera") -> OffloadProblem:
    """Three jobs of a chain of three, two of a fork."""
    chain = (
        OffloadTask("conv", 0.10, 0.02, 120_000),
        OffloadTask("pool", 0.02, 0.01, 30_000, ("conv",)),
        OffloadTask("fc", 0.15, 0.03, 4_000, ("pool",)),
    )
    fork = (
        OffloadTask("stem", 0.03, 0.01, 90_000),
        OffloadTask("left", 0.04, 0.01, 20_000, ("stem",)),
        OffloadTask("right", 0.06, 0.01, 10_000, ("stem",)),
        OffloadTask("join", 0.08, 0.02, 1_000, ("left", "right")),
    )
    jobs = [OffloadJob(f"{name}-{k}", 150_000, chain) for k in range(3)]
    jobs += [OffloadJob(f"radar-{k}", 80_000, fork) for k in range(2)]
    speeds = OffloadSpeeds(Speed(3e-4, 0.25), Speed(3e-4))
    return OffloadProblem(OffloadLink(1e6, 1e6, 0.01), tuple(jobs), threads, speeds)


def executed(problem: OffloadProblem, plan: OffloadPlan) -> OffloadPlan:
    """The plan with its first cut job done whole by the device."""
    whole = [frozenset(j.index) for j in problem.jobs]
    first = next(j for j in plan.order if plan.cuts[j] != whole[j])
    cuts = tuple(whole[j] if j == first else c for j, c in enumerate(plan.cuts))
    return replace(plan, cuts=cuts)


def make_offload_story(threads: int = 1, name: str = "camera") -> OffloadStory:
    problem = make_problem(threads, name)
    file = plan_offload(problem, budget_s=0.1)
    done = executed(problem, file.plan)
    program, durations = lower_offload(problem, done)
    longer = durations.busy_s * np.random.default_rng(0).uniform(1.0, 1.1, len(program))
    facts = {
        "lost": 1,
        "refused": 0,
        "late": 0,
        "replans": 2,
        "connections": 2,
        "cpu_s": 0.5,
        "load": 0.2,
        "up_bytes_per_s": 0.8e6,
        "predicted_at_run_speed_s": 1.04 * file.verdict.value_s,
    }
    timeline = replace(simulate(program, Durations(longer, durations.lag_s)), source="measured", facts=facts)  # fmt: skip
    return OffloadStory("a run", file, timeline, done)


def write(story: OffloadStory, folder: Path) -> Path:
    """The files that `partita offload run -o` writes and the report reads."""
    folder.mkdir()
    story.file.write(folder / "plan.json")
    if story.measured_timeline is not None:
        story.measured_timeline.write(folder / "timeline.json")
    if story.executed is not None:
        replace(story.file, plan=story.executed).write(folder / "executed.json")
    return folder
