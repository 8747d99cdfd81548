"""What is proven of every plan of a task: the bound of `lower_bound`, over all devices and micro-batch sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_problem import alone_in
from partita.nouns.profile import Sample
from partita.pipeline.plan.bench import Bench
from partita.pipeline.plan.lower_bound import BoundProblem, Market, least_step, waits
from partita.pipeline.plan.pipeline_task import MOST_STATES, PipelineTask
from partita.pipeline.plan.stage_costs import StageCosts, class_times, stage_costs, wires
from partita.simulate.overheads import begin_s, update_s
from partita.simulate.readings import forward_readings

ANY = "any plan: the work at the speed of all devices after the first forward, and one micro-batch through all tasks"
SEGMENT_CLASSES = 4e6  #: pairs of a segment and a class of devices looked at for each step that is tried


@dataclass(frozen=True, eq=False)
class Classes:
    """The devices as the bound sees them. Types that are near in speed are one class where there are many types: as fast
    as the fastest for every task, and as large as the largest."""

    members: tuple[tuple[int, ...], ...]  #: [classes] numbers of the types
    times: FloatArray  #: [tasks, classes] seconds of one micro-batch, inf where a task cannot run

    @staticmethod
    def of(task: PipelineTask, sample: Sample, most: int) -> Classes:
        """At most so many classes."""
        order = np.argsort(task.type_seconds(sample), kind="stable")
        members = [tuple(part.tolist()) for part in np.array_split(order, min(max(1, most), len(order)))]
        times = [class_times(sample.costs, [task.all_types[k] for k in m]).min(axis=1) for m in members]
        return Classes(tuple(members), np.stack(times, axis=1))

    def market(self, task: PipelineTask, price: FloatArray) -> Market:
        """The classes at a price for each type."""
        counts = [len(t.names) for t in task.all_types]
        return Market(
            np.array([max(task.all_types[k].memory_bytes for k in m) for m in self.members]),
            np.array([min(price[k] for k in m) for m in self.members]),
            np.concatenate([[0.0], np.cumsum(np.sort(np.repeat(price, counts)))]),
        )


def lower_bound(task: PipelineTask) -> tuple[float, str]:
    """A bound of every plan's step and how it was obtained.

    Where 1F1B or GPipe is asked for, or nothing, it holds for these with one stage a device, whatever the cuts, devices, replicas and
    shares; else for every schedule, whatever a device serves and in whatever order."""
    if task.wish.schedule not in (None, "1f1b", "gpipe"):
        return any_plan(task)
    return one_stage_a_device(task)


def any_plan(task: PipelineTask) -> tuple[float, str]:
    """The same for every plan there is: whoever serves what in whatever order, however groups of devices cut."""
    least = min(max(_any_order_s(task, bench), _path_s(task, bench.sample)) for bench in task.benches)
    return min(least, *(_without_company(task, bench) for bench in task.benches)) + _once_s(task), ANY


def one_stage_a_device(task: PipelineTask) -> tuple[float, str]:
    """The same for 1F1B and GPipe with one stage a device; inf where it is proven that no such plan fits."""
    how = "all chains of downsets: fill, drain and the price of devices"
    if not task.downsets.complete:
        how = "the work at the speed of all devices; too many downsets to enumerate"
    elif len(task.downsets) > MOST_STATES:
        how = "all downsets: fill and drain of the last stage, the work before it"
    least = math.inf
    # the one likely to decide comes first: of the others it is only asked whether they are above it
    for bench in sorted(task.benches, key=lambda b: b.costs.micro_batches * task.unit_seconds(b.sample).sum()):
        least = min(least, _of_sample(task, bench.sample, least))
    if math.isinf(least):
        return least, how
    return min(least, *(_without_company(task, bench) for bench in task.benches)) + _once_s(task), how


def _once_s(task: PipelineTask) -> float:
    """What comes before all else on any device, and with an update after it: without it the step would be shorter by as much at least.
    Messages come, one behind the other, from a device that has paid its own beginning: without beginnings all that computes ends earlier,
    by the least of them at least."""
    devices = task.whole_cluster.devices
    seconds = min(map(begin_s, devices)) + task.benches[0].costs.updating * min(map(update_s, devices))
    return seconds / max(1.0, *(alone_in(task.whole_cluster, bench.sample.probe) for bench in task.benches))


def _path_s(task: PipelineTask, sample: Sample) -> float:
    """The longest way of one micro-batch through the tasks and back, each where it is fastest, with the last update.

    What of a backward makes the gradients of weights may wait: only its own update comes after it. O(tasks + readings)."""
    graph, costs, types = sample.graph, sample.costs, task.all_types
    fastest = class_times(costs, types).min(axis=1)
    fastest = np.where(np.isfinite(fastest), fastest, 0.0)
    share = costs.shares_of_weights[:, [costs.column(t.kind) for t in types]].max(axis=1)
    of = np.array([graph.index[t.of] if t.of is not None else i for i, t in enumerate(graph.tasks)])
    phase = np.array([t.phase for t in graph.tasks])

    def total(seconds: FloatArray) -> FloatArray:
        """[tasks] of each forward task's own."""
        return np.asarray(np.bincount(of, seconds, len(graph)), np.float64)

    back, update = phase == "backward", phase == "update"
    there, later = total(fastest * ~(back | update)), total(fastest * share * back)
    again, last = total(fastest * back) - later, later + total(fastest * update) * back.any()
    read, done, ended = forward_readings(graph), np.zeros(len(graph)), np.zeros(len(graph))
    ways: dict[int, list[tuple[int, bool]]] = defaultdict(
        list
    )  # task -> who reads it, and whether a gradient comes back
    for source, target, returns in zip(read.producer.tolist(), read.reader.tolist(), read.back.tolist(), strict=True):
        ways[source].append((target, returns))
    for i in graph.order.tolist():  # `done` holds what has to come before, until it is its turn
        done[i] += there[i]
        for j, _ in ways[i]:
            done[j] = max(done[j], done[i])
    for i in reversed(graph.order.tolist()):
        ended[i] = again[i] + max([done[i], *(ended[j] for j, returns in ways[i] if returns)])
    return float((ended + last).max())


def _any_order_s(task: PipelineTask, bench: Bench) -> float:
    """Seconds that no plan with this micro-batch size is below, whoever serves what in whatever order.

    Give each device a price y. No task costs less than its least y_c t_c, and a device is busy at most T, so that T times all
    prices is at least the price of the work. Where one unit alone begins the graph, and no stage has replicas, one device runs
    it; of several in use, every other one waits until it has run for the first time, and a message has come: at least one price
    less is paid for so long. A device on its own waits for no message. O(tasks x types)."""
    sample, seconds = bench.sample, task.type_seconds(bench.sample)
    times = class_times(sample.costs, task.all_types)
    counts = _times(bench)[:, None]
    wait = _first_wait_s(task, bench)
    found = []
    speed = seconds.min() / np.maximum(seconds, 1e-300) if seconds.min() > 0 else np.ones(len(seconds))
    for price in (speed, np.ones(len(speed))):
        every = np.repeat(price, [len(t.names) for t in task.all_types])
        work = float((counts * times * price).min(axis=1).sum())
        found.append((work + wait * float(every.sum() - every.max())) / float(every.sum()))
    return min(max(found), float((counts * times).sum(axis=0).min()))


def _times(bench: Bench) -> FloatArray:
    """[tasks] how often each runs in a step; an update once, and where there are no gradients never."""
    once, every = float(bench.costs.training), float(bench.costs.micro_batches)
    return np.array([once if t.phase == "update" else every for t in bench.sample.graph.tasks])


def _first_wait_s(task: PipelineTask, bench: Bench) -> float:
    """What a device waits at least that does not run the graph's first unit; 0 where several units could be first."""
    units = bench.costs.units
    first = np.flatnonzero(np.diff(units.before.start) == 0)
    replicas = task.wish.allow_replicas and bench.costs.micro_batches > 1
    if len(first) != 1 or replicas or len(units) == 1:
        return 0.0
    best = wires(task.whole_cluster)[1]
    return float(task.unit_seconds(bench.sample)[first[0], 0]) + best.latency_s + best.message_s


def _without_company(task: PipelineTask, bench: Bench) -> float:
    """Seconds of a step on the device on which one is shortest, where it is alone; inf where company costs nothing, and
    where one device is not asked for."""
    alone, columns = alone_in(task.whole_cluster, bench.sample.probe), class_times(bench.sample.costs, task.all_types)
    if alone <= 1 or task.wish.stages not in (None, 1):
        return math.inf
    return float((_times(bench) @ columns).min() / alone)


def _of_sample(task: PipelineTask, sample: Sample, enough: float) -> float:
    """The better of what two ways to set prices prove, or `enough` where that is above it."""
    states = task.downsets
    few = len(states) <= MOST_STATES
    classes = Classes.of(task, sample, int(SEGMENT_CLASSES // (len(states) ** 2 if few else len(states))))
    costs = stage_costs(task.profile, sample, task.units, states, classes.times)
    seconds = task.type_seconds(sample)
    speed = seconds.min() / np.maximum(seconds, 1e-300) if seconds.min() > 0 else np.ones(len(seconds))
    found = []
    for price in (speed, np.ones(len(speed))) if np.ptp(speed) > 0 else (speed,):
        market = classes.market(task, price)
        before = _work_s(costs, classes.times, market.prices)
        if states.complete:
            ends = range(len(states)) if few else range(len(states) - 1, len(states))
            found.append(least_step(_problem(task, sample, costs, market, before, ends), enough))
        else:
            found.append(float(before[-1] / market.cheapest[-1]))
    return max(found)


def _work_s(costs: StageCosts, times: FloatArray, prices: FloatArray) -> FloatArray:
    """[states] M times the cheapest price of the work before each state."""
    counts = [t.phase != "update" for t in costs.graph.tasks]
    least = np.where(counts, (times * prices).min(axis=1), 0.0)
    return costs.micro_batches * costs.states.totals(costs.units.total(least))[:, 0]


def _problem(
    task: PipelineTask, sample: Sample, costs: StageCosts, market: Market, before: FloatArray, ends: Sequence[int]
) -> BoundProblem:
    best = wires(task.whole_cluster)[1]
    batches = costs.micro_batches
    most = min(len(market.cheapest) - 1, batches) if task.wish.allow_replicas else 1
    return BoundProblem(
        costs,
        waits(costs, sample, best, task.unit_seconds(sample)),
        best,
        market,
        np.array(ends),
        before,
        (batches, -(-batches // most)) if task.wish.schedule == "gpipe" else (1, 1),
        task.wish.allow_recompute,
        most,
        task.wish.stages or 0,
    )
