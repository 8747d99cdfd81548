"""The devices' speeds, taken again just before a run: all of them at the job's own work at once, for a second or two."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from partita.nouns.cluster import Device
from partita.nouns.pipeline_problem import PipelineProblem
from partita.simulate.run_speed import DeviceSpeed
from partita.training.measure.company import company
from partita.training.measure.speeds import speed_of

_SECONDS = 2.0


def speeds_now(problem: PipelineProblem, job: str, settings: Mapping[str, str]) -> tuple[DeviceSpeed, ...]:
    """The problem's devices, at a job's work, beside what the plan was told of them; those that cannot be probed here are
    left out. One that shares its cores with another has changed as that has."""
    probe = problem.probe
    if probe is None:
        return ()
    devices = problem.cluster.devices
    with company(job, settings, devices, probe.micro_batch_size, probe.pieces, problem.splits) as others:
        began = time.monotonic()
        time.sleep(_SECONDS)
        rows = {name: others.steps(name, began) for name in others.logs}
    change = {d.name: speed_of(probe, rows[d.name]) / d.speed for d in devices if len(rows.get(d.name, ()))}
    told_by = {d: _told_by(d, devices, change) for d in devices}
    return tuple(DeviceSpeed(d.name, d.speed, d.speed * change[name]) for d, name in told_by.items() if name)


def _told_by(device: Device, devices: Sequence[Device], read: Collection[str]) -> str:
    """The device that was read and tells of this one's cores: itself, or one that shares them; "" where none does."""
    if device.name in read:
        return device.name
    shares = (
        d.name
        for d in devices
        if d.name in read and (d.kind, d.host) == (device.kind, device.host) and {*d.cores} & {*device.cores}
    )
    return next(shares, "")
