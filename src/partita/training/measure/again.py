"""The devices' speeds, taken again just before a run: all of them at the job's own work at once, for a second or two."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.probe import middle_mean
from partita.simulate.run_speed import DeviceSpeed
from partita.training.measure.company import company

_SECONDS = 2.0


def speeds_now(
    problem: PipelineProblem, settings: Mapping[str, str], names: tuple[str, ...]
) -> tuple[DeviceSpeed, ...]:
    """The named devices beside what the plan was told of them; those that cannot be probed here are left out."""
    probe = problem.probe
    if probe is None:
        return ()
    devices = [problem.cluster.by_name[n] for n in names]
    with company(problem.job, settings, devices, problem.micro_batch_size, probe.pieces) as others:
        began = time.monotonic()
        time.sleep(_SECONDS)
        rows = {name: others.steps(name, began) for name in others.logs}
    speeds = {
        n: probe.speed(middle_mean(r[:, 3:]), np.array(r[:, 1].sum() / r[:, 2].sum()))
        for n, r in rows.items()
        if len(r)
    }
    return tuple(DeviceSpeed(d.name, d.speed, float(speeds[d.name])) for d in devices if d.name in speeds)
