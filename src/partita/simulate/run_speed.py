"""What a plan would take at the speeds that its devices had while it ran: the part of an error that is the machine's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from partita.errors import BadInput
from partita.nouns.cluster import Cluster, Link
from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.probe import Readings
from partita.simulate.cold_caches import chilled
from partita.simulate.lower import program_of
from partita.simulate.predicted import colds, warm_durations_of
from partita.simulate.simulator import Durations, Simulator

_STEPS = 200  #: simulated at most; of a longer run so many, evenly spread
CHANGED = 0.1  #: a device's speed changed by less than this share is not worth a word
MODEL = 0.045  #: of the predicted step, what the model misses nine times in ten; set so that the intervals hold (docs/decisions/speed-by-probes.md)
#: of the scatter of its readings, what the measurement misses itself: they are 60 to 100, and those of a second tell much the same
MEASURED = 0.3
#: what the model misses beside that of steps of so many seconds or less; of longer ones, less in proportion
SHORT, SHORT_S = 0.08, 0.01


@dataclass(frozen=True)
class DeviceSpeed:
    """How fast a device was."""

    device: str
    planned: float  #: when it was measured; 1 is the device on which the costs were measured
    ran: float  #: median over the steps of the run; nan where it was not read

    @property
    def change(self) -> float:
        """ran / planned: below 1 it was slower than the plan was told."""
        return self.ran / self.planned

    @property
    def changed(self) -> bool:
        """It was clearly slower or faster than the plan was told."""
        return math.isfinite(self.ran) and abs(math.log(self.change)) > CHANGED


@dataclass(frozen=True)
class RunSpeed:
    """A prediction made again for the speeds of a run."""

    step_s: float  #: median over its steps
    low_s: float  #: nine times out of ten the measured median lies from here
    high_s: float  #: to here
    devices: tuple[DeviceSpeed, ...]
    spread: float  #: of what the probe said about its mean, as a share, the larger of that in measuring and in the run

    @property
    def changed(self) -> tuple[DeviceSpeed, ...]:
        """Devices whose speed was clearly another than the plan was told."""
        return tuple(d for d in self.devices if d.changed)

    def to_json(self) -> dict[str, Any]:
        """What stands beside a prediction in every document."""
        return {
            "predicted_at_run_speed_s": self.step_s,
            "interval_at_run_speed_s": [self.low_s, self.high_s],
            "devices_ran": [{"device": d.device, "planned": d.planned, "ran": d.ran} for d in self.devices],
        }


def run_speed(file: PlanFile, readings: Readings | None) -> RunSpeed | None:
    """The prediction at the speeds of a run; None where that of a device is not known. Raises BadInput for readings of another plan."""
    problem, plan = file.problem, file.plan
    if readings is None or not isinstance(problem, PipelineProblem) or not isinstance(plan, PipelinePlan):
        return None
    if readings.steps == 0 or problem.probe is None:
        return None
    if readings.piece_s.shape[2] != len(problem.probe.pieces):
        raise BadInput(
            f"the run's readings are of {readings.piece_s.shape[2]} pieces, the plan's probe has {len(problem.probe.pieces)}",
            hint="they belong to different plans: run again",
        )
    if any(d not in problem.cluster.by_name for d in readings.devices):
        return None
    readings = readings.only(plan.devices)  # other ranks are idle
    speeds = readings.speeds(problem.probe)
    if len(speeds) < len(plan.devices) or not np.isfinite(speeds).all():
        return None
    steps = steps_at_run_speed(problem, plan, readings.devices, speeds)
    cluster = problem.cluster_of(plan)
    planned = [cluster.by_name[d].speed for d in readings.devices]
    ran = np.median(speeds, axis=1).tolist()
    devices = tuple(DeviceSpeed(d, p, r) for d, p, r in zip(readings.devices, planned, ran, strict=True))
    middle = float(np.median(steps))
    short = SHORT * SHORT_S / max(SHORT_S, middle)
    wide = math.hypot(MODEL, short, MEASURED * problem.probe.spread, readings.error(problem.probe))
    spread = max(readings.spread(problem.probe), problem.probe.spread)
    return RunSpeed(middle, middle / (1 + wide), middle * (1 + wide), devices, spread)


def steps_at_run_speed(
    problem: PipelineProblem, plan: PipelinePlan, devices: tuple[str, ...], speeds: FloatArray
) -> FloatArray:
    """[steps] seconds of each step that was run, as the simulator predicts them at the speeds [devices, steps] that the devices
    had in it. Of many steps _STEPS, evenly spread.

    Computing and handling messages go as fast as the device; links are taken to be as they were measured, and waits to be those of
    a step at the median speeds. O(steps x instructions).
    """
    program = program_of(problem, plan)
    warm, cluster = warm_durations_of(problem, plan, program), problem.cluster_of(plan)
    ran = speeds[:, np.unique(np.linspace(0, speeds.shape[1] - 1, _STEPS).astype(int))]
    slower = np.ones((ran.shape[1], len(program.queues)))
    for device, row in zip(devices, ran, strict=True):
        slower[:, program.queues.index(device)] = cluster.by_name[device].speed / row
    middle = np.median(slower, axis=0)
    typical, cold = Durations(warm.busy_s * middle[program.queue], warm.lag_s), colds(problem, plan, program)
    longer_s = chilled(program, typical, cold * middle[: len(cold)])
    busy_s = warm.busy_s * slower[:, program.queue] + longer_s * (slower / middle)[:, program.queue]
    return Simulator(program).evaluate_many(busy_s, warm.lag_s)


def as_they_ran(problem: PipelineProblem, devices: tuple[DeviceSpeed, ...]) -> Cluster:
    """The problem's cluster with the devices as much faster or slower as they ran, at computing and at handling messages."""
    change = {d.device: d.change for d in devices if math.isfinite(d.ran)}
    cluster = replace(
        problem.cluster,
        devices=tuple(replace(d, speed=d.speed * change.get(d.name, 1.0)) for d in problem.cluster.devices),
    )
    links = {(k.source, k.target): k for k in cluster.links}
    for a, b in permutations(cluster.by_name, 2):
        link = cluster.link(a, b)
        handled = _handled(link, change.get(a, 1.0), change.get(b, 1.0))
        if handled != link:
            links[a, b] = handled
    return replace(cluster, links=tuple(links.values()))


def _handled(link: Link, source: float, target: float) -> Link:
    """The link between devices that are so many times as fast as when it was measured."""
    return replace(
        link,
        send_s=link.send_s / source,
        send_s_per_byte=link.send_s_per_byte / source,
        message_s=link.message_s / target,
        message_s_per_byte=link.message_s_per_byte / target,
    )
