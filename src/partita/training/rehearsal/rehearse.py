"""Rehearse a plan: the real interpreter, processes and messages, on emulated devices and links of this one machine."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from partita.errors import BadInput, CostError, PlanError, refuse
from partita.files import made_folder, read_json
from partita.nouns.cluster import Cluster, expect_known
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.plan import PlanFile
from partita.nouns.program import Op, Program
from partita.nouns.timeline import Timeline
from partita.page.machine import machine_facts
from partita.simulate.lower import program_of
from partita.simulate.predicted import durations_of, predicted
from partita.simulate.simulator import Durations, simulate
from partita.training.rehearsal.told import RESULT, Told
from partita.training.runtime.folder import held
from partita.training.runtime.launch import Watch, launch
from partita.training.runtime.prepare import prepared
from partita.training.runtime.spec import Spec

WORKER = "partita.training.rehearsal.worker"
CAP_BYTES = 1 << 20  #: of a tensor that is really sent
MOST_CAP_BYTES = 1 << 28  #: several are under way at once
TYPICAL_S = 0.01  #: that a computation lasts at least, on the average: 50 times what waking up takes
LONGEST_S = 20.0  #: of a step
MOST_DEVICES = 64  #: each is a process
WARMUP = 1  #: steps that are not counted: the first message of a kind makes its box


@dataclass(frozen=True)
class Peak:
    """What a device held at most."""

    device: str
    peak_bytes: float
    limit_bytes: float
    stages: Mapping[int, float]  #: stage -> activations that it kept then

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.limit_bytes


@dataclass(frozen=True)
class Messages:
    """What travelled in a step."""

    number: int
    size_bytes: float  #: as the plan has it
    sent_bytes: float  #: really
    largest_bytes: float
    cut: int  #: tensors of which only a part was sent


@dataclass(frozen=True)
class Rehearsal:
    """What came out."""

    file: PlanFile
    steps_s: tuple[float, ...]
    simulated: Timeline
    rehearsed: Timeline  #: of the step of median length
    peaks: tuple[Peak, ...]
    messages: Messages
    single_s: float  #: the same step on the fastest device alone; nan: no device runs everything
    late_share: float  #: of a step, that waits ended late and later ones made up for: the slowest rank's
    told: Told

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def error(self) -> float:
        """Of the simulation, as a share of it."""
        return self.step_s / self.simulated.duration_s - 1

    @property
    def emulates(self) -> tuple[str, ...]:
        """What is not real, a sentence each."""
        t, m = self.told, self.messages
        pace = f", {t.pace:.3g} times as long" if t.pace != 1 else ""
        said = [f"computations wait for the time that the plan's costs say{pace}", "links run at the cluster's rate and latency by a token bucket in the sender"]  # fmt: skip
        if m.cut:
            said.append(f"of {m.cut} tensors a step only {t.cap_bytes} bytes are sent, and all are paid for in time")
        links = (*self.file.cluster.links, self.file.cluster.default_link)
        if any(k.fair for k in links):
            said.append("links that share a rate fairly serve their messages in order")
        if any(k.medium and not k.fair for k in links):
            said.append("devices on one medium take turns as they come to it; simulated, in the order of the program")
        return tuple(said)


def rehearse(
    file: PlanFile,
    out: str | Path,
    *,
    steps: int = 3,
    pace: float | None = None,
    cap_bytes: int = CAP_BYTES,
    timeout_s: float = 120.0,
    watch: Watch | None = None,
) -> Rehearsal:
    """Run a plan's program on processes of this machine, one for each of its devices, that wait instead of computing.

    `pace`: seconds of the rehearsal for a second of the plan; None: so that a computation lasts 10 ms on the average, and a
    step no longer than 20 s. Leaves plan.json, predicted.json, rehearsed.json and rehearsal.json in the folder `out`.
    Raises PlanError for a plan that has no stages, BadInput for numbers that are none, and what a worker failed with.
    """
    plan = _checked(file, steps, pace, cap_bytes)
    program, single_s = program_of(file.problem, plan), _single_s(file)
    known = durations_of(file.problem, plan, program)
    simulated = simulate(program, known)
    refuse(BadInput, simulated.check(), "what would be rehearsed", hint="plan again for costs that can be")
    told = Told(_pace(program, known, simulated) if pace is None else pace, cap_bytes)
    with held(made_folder(out)):
        folder = prepared(out, file)
        spec = Spec(
            "", {}, str(folder / "plan.json"), str(folder), task="rehearse", steps=steps, warmup=WARMUP,
            timeout_s=timeout_s, steered=asdict(told), facts=machine_facts(),
        )  # fmt: skip
        launch(spec, file, program, watch, worker=WORKER)
        value = read_json(folder / RESULT, PlanError)
    rows = value["ranks"]
    limit = file.cluster.by_name
    peaks = tuple(
        Peak(
            r["device"], r["peak_bytes"], limit[r["device"]].memory_bytes, {int(k): n for k, n in r["peak_of"].items()}
        )
        for r in rows
    )
    step_s = statistics.median(value["steps_s"])
    late = max(r["late_s"] for r in rows) / step_s if step_s > 0 else 0.0
    return Rehearsal(
        file, tuple(value["steps_s"]), simulated, Timeline.read(folder / "rehearsed.json"), peaks,
        _messages(program, file, cap_bytes), single_s, late, told,
    )  # fmt: skip


def staged(file: PlanFile) -> PipelinePlan:
    """The plan, which has stages. Raises PlanError for one that has none."""
    if not isinstance(file.plan, PipelinePlan):
        raise PlanError(
            "this plan places tasks one by one; stages are rehearsed",
            hint="plan a pipeline: a profile, or a PipeDream graph with --objective step or throughput",
        )
    return file.plan


def _checked(file: PlanFile, steps: int, pace: float | None, cap_bytes: int) -> PipelinePlan:
    plan = staged(file)
    if steps < 1:
        raise BadInput(f"{steps} steps", hint="rehearse at least 1")
    if pace is not None and not (pace > 0 and math.isfinite(pace)):
        raise BadInput(f"a pace of {pace}", hint="say how many seconds a second of the plan takes, e.g. 1")
    if not 1 <= cap_bytes <= MOST_CAP_BYTES:
        raise BadInput(f"a cap of {cap_bytes} bytes", hint=f"let 1 to {MOST_CAP_BYTES} bytes of a tensor be sent")
    if len(plan.devices) > MOST_DEVICES:
        raise BadInput(
            f"the plan has {len(plan.devices)} devices, each of which would be a process; at most {MOST_DEVICES}",
            hint="plan for fewer devices, or simulate this one",
        )
    return plan


def _pace(program: Program, known: Durations, simulated: Timeline) -> float:
    """So slow that a computation lasts TYPICAL_S on the average, so fast that a step takes LONGEST_S at most."""
    busy = known.busy_s[np.flatnonzero((program.op == Op.COMPUTE) & (known.busy_s > 0))]
    slow = max(1.0, TYPICAL_S / float(busy.mean())) if len(busy) else 1.0
    return min(slow, LONGEST_S / simulated.duration_s) if simulated.duration_s > 0 else slow


def _messages(program: Program, file: PlanFile, cap_bytes: int) -> Messages:
    sends = np.flatnonzero(program.op == Op.SEND).tolist()
    size = file.graph.size_bytes
    parts = [size[list(program.pieces[program.piece[i]].tensors)] for i in sends]
    return Messages(
        len(sends),
        float(sum(p.sum() for p in parts)),
        float(sum(np.minimum(p, cap_bytes).sum() for p in parts)),
        max((float(p.sum()) for p in parts), default=0.0),
        int(sum((p > cap_bytes).sum() for p in parts)),
    )


def _single_s(file: PlanFile) -> float:
    """A step of so many micro-batches on the device that is fastest alone, whatever its memory."""
    assert isinstance(file.plan, PipelinePlan)
    tasks, found = tuple(t for s in file.plan.stages for t in s.tasks), []
    for device in {(d.kind, d.speed): d for d in file.cluster.devices}.values():
        plan = PipelinePlan(file.plan.graph, (Stage(tasks, (device.name,)),), file.plan.micro_batches, 1, "1f1b")
        with contextlib.suppress(PlanError, CostError):  # it cannot run everything, or nothing is known of its kind
            found.append(predicted(file.problem, plan).duration_s)
    return min(found, default=math.nan)


def on_cluster(file: PlanFile, cluster: Cluster) -> PlanFile:
    """The plan on other machines with devices of the same names. Raises PlanError where one is gone, CostError for one of a kind
    without costs, ClusterError where nothing is known of a link that it needs."""
    assert isinstance(file.plan, PipelinePlan)
    gone = [d for d in file.plan.devices if d not in cluster.by_name]
    if gone:
        raise PlanError(
            f"the plan uses {', '.join(gone)}; the cluster has {', '.join(cluster.by_name)}",
            hint="name the devices as the plan does, or plan again for these",
        )
    for d in file.plan.devices:
        file.costs.column(cluster.by_name[d].kind)
    moved = replace(file, problem=file.problem.on(cluster))
    open_ = np.isnan(file.costs.transfer_s)
    pieces = [p for p in program_of(moved.problem, moved.plan).pieces if p.route != ("", "")]
    expect_known(cluster.link(*p.route) for p in pieces if p.group >= 0 or bool(open_[list(p.tensors)].any()))
    return moved
