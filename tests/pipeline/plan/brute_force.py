"""Random small training problems, and every pipeline plan there is for them. It shares nothing with the planner: a candidate
is lowered and simulated, and what it holds in memory is counted from its program's order of work."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from partita.errors import Infeasible, PlanError
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import SharedParameter, Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.pipeline_problem import Wish
from partita.nouns.probe import Probe, ProbePiece
from partita.nouns.profile import Profile, Sample
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.plan.proof import any_plan, lower_bound
from partita.simulate.lower import lower
from partita.simulate.overheads import overheads
from partita.simulate.schedules import in_flight_of
from partita.simulate.simulator import Durations, durations, times

NEAR = 1e-9  #: share by which two ways to the same number may differ


@dataclass(frozen=True)
class Wishes:
    """What is fixed, with the planner's own argument names."""

    in_flight: int | None = None
    schedule: str | None = None
    stages: int | None = None
    allow_replicas: bool = True
    allow_recompute: bool = True


def problem(seed: int) -> tuple[Profile, Wishes]:
    """A job of 2 to 4 tasks on 1 to 3 devices, each property there in some of them."""
    lot = np.random.default_rng(seed)

    def some(share: float) -> bool:
        return bool(lot.random() < share)

    n, m = int(lot.integers(2, 5)), int(lot.choice([1, 2, 2, 3]))
    edges = [(i, i + 1) for i in range(n - 1) if some(0.85)]
    edges += [(i, j) for i in range(n) for j in range(i + 2, n) if some(0.3)]
    whole, updates, frozen = some(0.5), some(0.6), some(0.1)
    size = [float(lot.integers(1, 9)) if whole else float(lot.uniform(0.1, 9)) for _ in range(n)]
    size = [s if some(0.9) else 0.0 for s in size]
    weight = [float(lot.integers(0, 9)) for _ in range(n)]
    kept = [float(lot.integers(0, 9)) if whole else float(lot.uniform(0, 9)) for _ in range(n)]
    group = {i: "g" for i in range(n) if some(0.15)}
    tied = tuple(sorted(lot.choice(n, 2, replace=False).tolist())) if some(0.25) else ()
    kinds = ("cpu", "gpu") if some(0.4) else ("cpu",)
    seconds = lot.integers(1, 12, (2 * n + n * updates, len(kinds))).astype(float)
    if len(kinds) > 1 and some(0.3):
        seconds[lot.integers(0, 2 * n), lot.integers(0, 2)] = math.inf
    cluster = _cluster(lot, m, kinds, some(0.5))
    given, batch, alone = some(0.3), int(lot.choice([2, 3, 4])), float(lot.choice([1.0, 1.0, 1.5]))
    samples = []
    for micro in sorted({int(x) for x in lot.choice([1, 2, batch], int(lot.integers(1, 3)))}, reverse=True):
        graph = _graph(
            n, edges, [s * micro for s in size], weight, [k * micro for k in kept], group, tied, updates, frozen
        )
        there = lot.integers(0, 9, len(graph.producer)).astype(float)
        transfer = np.where(lot.random(len(there)) < 0.7, there, math.nan) if given else np.full(len(there), math.nan)
        scaled = seconds * np.where(np.arange(len(seconds)) < 2 * n, micro, 1)[:, None]
        probe = Probe((ProbePiece(("t0",), 1e-3),), 1, alone=alone)
        samples.append(Sample(micro, graph, CostTable.given(kinds, scaled, transfer), probe=probe))
    profile = Profile("job.py:job", batch, tuple(samples), cluster, float(lot.choice([0.0, 1.0, 2.0])))
    return profile, _wishes(lot)


def _wishes(lot: np.random.Generator) -> Wishes:
    asked = lot.random(5) < 0.12
    return Wishes(
        int(lot.integers(1, 4)) if asked[0] and not asked[1] else None, "gpipe" if asked[1] else None,
        int(lot.integers(1, 3)) if asked[2] else None, not asked[3], not asked[4],
    )  # fmt: skip


def _cluster(lot: np.random.Generator, m: int, kinds: tuple[str, ...], tight: bool) -> Cluster:
    alike, beside = lot.random() < 0.3, lot.choice([0.0, 0.0, 0.25, 1.0], 4).tolist()
    memory = float(lot.integers(15, 120))
    devices = tuple(
        Device(
            f"d{i}",
            str(lot.choice(kinds)),
            (memory if alike else float(lot.integers(15, 120))) if tight else math.inf,
            1.0 if alike else float(lot.choice([1.0, 1.0, 2.0, 1.5])),
            instruction_s=beside[0],
            step_s=beside[1],
            update_s=beside[3],
        )
        for i in range(m)
    )
    default = Link(
        "", "", float(lot.choice([1.0, 4.0, math.inf])), float(lot.choice([0.0, 0.5])),
        medium="bus" if lot.random() < 0.1 else "", fair=False,
        message_s=float(lot.choice([0.0, 0.25])), send_s=beside[2], sum_s_per_byte=float(lot.choice([0.0, 0.125])),
        send_s_per_byte=beside[2] / 8, message_s_per_byte=float(lot.choice([0.0, 0.0, 0.125])),
    )  # fmt: skip
    links = tuple(
        Link(a.name, b.name, float(lot.choice([0.5, 2.0, 8.0])), float(lot.choice([0.0, 1.0])), message_s=float(lot.choice([0.0, 0.5])), send_s=float(lot.choice([0.0, 0.5])))
        for a, b in itertools.permutations(devices, 2)
        if lot.random() < 0.5
    )  # fmt: skip
    return Cluster(devices, links if lot.random() < 0.3 else (), default, "measured")


def _graph(
    n: int, edges: list[tuple[int, int]], size: list[float], weight: list[float], kept: list[float],
    group: dict[int, str], tied: tuple[int, ...], updates: bool, frozen: bool,
) -> TaskGraph:  # fmt: skip
    trained = [i for i in range(n) if not (frozen and i == 0)]
    tasks = [Task(f"t{i}", group=group.get(i), parameter_bytes=weight[i], activation_bytes=kept[i]) for i in range(n)]
    tasks += [Task(f"b{i}", phase="backward", of=f"t{i}") for i in range(n) if i in trained]
    missing = [Task(f"b{i}", phase="backward", of=f"t{n - 1}") for i in range(n) if i not in trained]
    tasks += missing  # so that the table of times keeps its shape
    tasks += [Task(f"u{i}", phase="update", of=f"t{i}") for i in range(n) if updates]
    tensors: list[tuple[str, float, list[str]]] = []
    for i in range(n):
        readers = [f"t{v}" for u, v in edges if u == i] + ([f"b{i}"] if i in trained else [])
        tensors.append((f"t{i}", size[i], readers))
    tensors += [(f"b{v}", size[u], [f"b{u}"]) for u, v in edges if u in trained and v in trained]
    shared = [SharedParameter("w", min(weight[i] for i in tied), tuple(f"t{i}" for i in tied))] if tied else []
    return TaskGraph.build("world", tasks, tensors, shared)


def every_plan(profile: Profile, wishes: Wishes) -> Iterator[tuple[PipelinePlan, Sample]]:
    """Every pipeline plan that fits into memory.

    A stage recomputes only where it does not fit otherwise: more work never ends earlier in a fixed order of work.
    """
    cluster = profile.cluster
    for sample in profile.samples:
        batches = -(-profile.batch_size // sample.micro_batch_size)
        for chain in _chains(sample.graph, len(cluster.devices)):
            if wishes.stages not in (None, len(chain)):
                continue
            for teams in _deals([d.name for d in cluster.devices], len(chain), wishes.allow_replicas):
                for schedule, flight in _orders([len(t) for t in teams], batches, wishes):
                    yield from _fitting(profile, sample, chain, teams, schedule, flight, batches, wishes)


def _chains(graph: TaskGraph, most: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way to deal the forward tasks to stages in order, without torn groups or edges that run back."""
    ids = [t.id for t in graph.tasks if t.phase == "forward"]
    edges = [(u, v) for u, v in graph.edges.tolist() if max(u, v) < len(ids)]
    for stages in range(1, min(most, len(ids)) + 1):
        for at in itertools.product(range(stages), repeat=len(ids)):
            groups = {(graph.tasks[i].group, k) for i, k in enumerate(at) if graph.tasks[i].group}
            if len(set(at)) == stages and len(groups) <= 1 and all(at[u] <= at[v] for u, v in edges):
                yield tuple(tuple(t for t, s in zip(ids, at, strict=True) if s == k) for k in range(stages))


def _deals(names: list[str], stages: int, replicas: bool) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way to give each stage at least one device, in every order."""
    for used in range(stages, len(names) + 1 if replicas else stages + 1):
        for row in itertools.permutations(names, used):
            for cuts in itertools.combinations(range(1, used), stages - 1):
                yield tuple(row[a:b] for a, b in itertools.pairwise((0, *cuts, used)))


def _orders(replicas: list[int], batches: int, wishes: Wishes) -> Iterator[tuple[str, int]]:
    """Schedules and micro-batches in flight whose orders of work differ."""
    if wishes.schedule == "gpipe" or not (wishes.schedule or wishes.in_flight):  # GPipe keeps all
        yield "gpipe", batches
    if wishes.schedule != "gpipe":
        seen = set()
        numbers = [wishes.in_flight] if wishes.in_flight else range(1, sum(replicas) + len(replicas) * batches + 1)
        for flight in numbers:
            windows = in_flight_of("1f1b", replicas, batches, flight)
            if windows not in seen:
                seen.add(windows)
                yield "1f1b", flight


def _fitting(profile, sample, chain, teams, schedule, flight, batches, wishes) -> Iterator[tuple[PipelinePlan, Sample]]:
    """The plan with as little recomputation as memory allows; none where it does not fit."""
    flown = in_flight_of(schedule, [len(t) for t in teams], batches, flight)
    stages = []
    for tasks, team, windows in zip(chain, teams, flown, strict=True):
        room = min(profile.cluster.by_name[d].memory_bytes for d in team)
        held = -(-windows // len(team))
        modes = [r for r in (False, True) if memory(profile, sample.graph, tasks, held, r) <= room]
        modes = [r for r in modes if wishes.allow_recompute or not r]
        if not modes:
            return
        stages.append(Stage(tasks, team, modes[0]))
    yield PipelinePlan(sample.graph.fingerprint, tuple(stages), batches, flight, schedule), sample


def memory(profile: Profile, graph: TaskGraph, tasks: tuple[str, ...], held: int, recompute: bool) -> float:
    """Bytes on a device of a stage, as docs/concepts/pipeline.md says."""
    mine = [graph.tasks[graph.index[t]] for t in tasks]
    weights = sum(t.parameter_bytes for t in mine)
    for s in graph.shared:
        weights -= s.size_bytes * max(0, len(set(s.tasks) & set(tasks)) - 1)
    total = weights * (2 + profile.optimizer_bytes_per_parameter_byte)
    kept = sum(t.activation_bytes for t in mine)
    if not recompute:
        return total + held * kept
    came = 0.0
    for k, u in enumerate(graph.producer.tolist()):
        readers = {graph.tasks[v].id for v in graph.readers.row(k).tolist()}
        if graph.tasks[u].id not in tasks and readers & set(tasks):
            came += float(graph.size_bytes[k])
    return total + held * came + kept


def simulated(plan: PipelinePlan, sample: Sample, cluster: Cluster) -> float:
    """Seconds of its step; inf where a task cannot run on its device."""
    program = lower(sample.graph, cluster, plan)
    if len(plan.devices) == 1 and sample.probe:
        devices = tuple(dataclasses.replace(d, speed=d.speed * sample.probe.alone) for d in cluster.devices)
        cluster = dataclasses.replace(cluster, devices=devices)
    try:
        known = durations(program, sample.graph, sample.costs, cluster)
        _, end = times(
            program, Durations(known.busy_s + overheads(program, sample.graph, sample.costs, cluster), known.lag_s)
        )
    except PlanError:
        return math.inf
    return float(end.max())


@dataclass(frozen=True)
class Outcome:
    """What came of a problem."""

    best_s: float  #: of all plans; inf: none fits
    value_s: float  #: of the planner's; inf: it says that none fits
    bound_s: float  #: raw
    faults: tuple[str, ...] = ()


def outcome(profile: Profile, wishes: Wishes) -> Outcome:
    """Plan, try every plan, and compare."""
    asked = dataclasses.asdict(wishes)
    best = min((simulated(p, s, profile.cluster) for p, s in every_plan(profile, wishes)), default=math.inf)
    raw = lower_bound(PipelineTask(profile, profile.cluster, Wish(**asked)))[0]
    faults = [f"bound {raw} above {best}"] if raw > best * (1 + NEAR) else []
    try:
        file = plan_pipeline(profile, **asked)
    except Infeasible as error:
        if math.isfinite(best):
            faults.append(f"infeasible, though a plan takes {best}: {error}")
        return Outcome(best, math.inf, raw, tuple(faults))
    plan, verdict = file.plan, file.verdict
    sample = profile.sample(file.problem.micro_batch_size)
    true = simulated(plan, sample, profile.cluster)
    if abs(true - verdict.value_s) > NEAR * true:
        faults.append(f"value {verdict.value_s}, simulated {true}")
    groups = bool(
        plan.orders
    )  # they share out micro-batches unequally, and cut differently: faster than every plan here
    raw = any_plan(PipelineTask(profile, profile.cluster, Wish(**asked)))[0] if groups else raw
    if groups and raw > best * (1 + NEAR):
        faults.append(f"bound of any grouping {raw} above {best}")
    if not groups and verdict.value_s < best * (1 - NEAR):
        faults.append(f"value {verdict.value_s} below the optimum {best}")
    if verdict.lower_bound_s > raw * (1 + NEAR) or verdict.lower_bound_s < min(raw, verdict.value_s) * (1 - NEAR):
        faults.append(f"bound {verdict.lower_bound_s} is not the raw one {raw}")
    if verdict.gap < NEAR and verdict.value_s > best * (1 + 10 * NEAR):
        faults.append(f"proven optimal at {verdict.value_s}, though a plan takes {best}")
    for device in plan.devices:
        need = _held_bytes(profile, sample.graph, plan, device)
        room = profile.cluster.by_name[device].memory_bytes
        if need > room * (1 + NEAR):
            faults.append(f"{device} holds {need} of {room} bytes")
    return Outcome(best, verdict.value_s, raw, tuple(faults))


def _held_bytes(profile: Profile, graph: TaskGraph, plan: PipelinePlan, device: str) -> float:
    """What a device holds of all its stages, each at its worst."""
    if not plan.orders:
        flown = in_flight_of(plan.schedule, [s.replicas for s in plan.stages], plan.micro_batches, plan.in_flight)
        held = {k: -(-flown[k] // plan.stages[k].replicas) for k in plan.stages_of(device)}
    else:
        held = dict.fromkeys(plan.stages_of(device), 0)
        for k in held:
            now = 0
            for s in plan.orders[device]:
                now += (s.part == "F") - (s.part == "B") if s.stage == k else 0
                held[k] = max(held[k], now)
    return sum(memory(profile, graph, plan.stages[k].tasks, n, plan.stages[k].recompute) for k, n in held.items())
