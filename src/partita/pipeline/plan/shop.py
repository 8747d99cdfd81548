"""The shop of a chain: what a search for orders is told of its stages, devices and messages, out of a bench's tables."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from partita.nouns.cluster import Cluster
from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.pipeline.plan.bench import Bench
from partita.pipeline.plan.chain_dp import Chain
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.simulate.boundaries import device_numbers
from partita.simulate.overheads import begin_s, call_s, update_s
from partita.simulate.readings import brought, carried, messages
from partita.simulate.schedules.searched import Shop


@dataclass(frozen=True, eq=False)
class Parted:
    """What of the backward before each state can wait, and what parting it takes."""

    weight_s: FloatArray  #: [states, classes]
    parting_s: FloatArray  #: [states, classes]

    @staticmethod
    def of(task: PipelineTask, bench: Bench) -> Parted:
        """O(states x tasks x classes)."""
        costs, graph = bench.sample.costs, bench.sample.graph
        columns = [costs.column(t.kind) for t in task.types]
        speed = np.array([t.speed for t in task.types])
        backward = np.array([t.phase == "backward" for t in graph.tasks])[:, None]
        seconds = np.where(np.isfinite(costs.seconds), costs.seconds, 0.0)
        waits, price = seconds * costs.shares_of_weights * backward, costs.partings_s * backward

        def over_states(table: FloatArray) -> FloatArray:
            rows = table[:, columns] / speed
            units = np.stack([bench.costs.units.total(c) for c in rows.T], axis=1)
            return np.asarray(bench.costs.states.totals(units))

        return Parted(over_states(waits), over_states(price))


def devices_of(chain: Chain) -> tuple[int, ...]:
    """The numbers of its devices, in the order of its stages: as `PipelinePlan.devices` has their names."""
    return tuple(dict.fromkeys(d for s in chain for d in s.devices))


def shop_of(bench: Bench, parted: Parted, chain: Chain) -> Shop:
    """The shop of a chain, whose devices may serve several segments. O(stages x micro-batches + readings)."""
    costs, numbers = bench.costs, devices_of(chain)
    place = {d: x for x, d in enumerate(numbers)}
    classes = [bench.class_of[d] for d in numbers]
    starts, ends = np.array([(s.start, s.end) for s in chain], np.int64).T

    def each(table: FloatArray) -> FloatArray:
        """[stages, devices]"""
        return np.asarray(np.maximum(table[ends] - table[starts], 0.0)[:, classes])

    waits, moves = _messages(bench, chain)
    ways = [(i, j) for i, j in waits if i < j]
    sent = np.array([[w in moves for w in ways], [(j, i) in moves for i, j in ways]], np.float64)[..., None, None]
    amounts = np.array(
        [[moves.get(w, (0.0, 0.0)) for w in ways], [moves.get((j, i), (0.0, 0.0)) for i, j in ways]]
    ).reshape(2, len(ways), 2)
    trains = np.diff(costs.backward_tasks[np.stack([starts, ends])], axis=0)[0] > 0
    names = [bench.cluster.devices[d].name for d in numbers]
    links = _links(bench.cluster, tuple(names))
    batches = costs.micro_batches
    keep, room = _memory(bench, chain, numbers)
    beside = np.array([update_s(bench.cluster.devices[d]) for d in numbers])
    return Shop(
        np.array([[place[s.devices[m % len(s.devices)]] for m in range(batches)] for s in chain], np.int64),
        _seconds(bench, parted, chain, each, trains, {j for i, j in ways if (j, i) in waits}),
        trains,
        np.array([i for i, _ in ways], np.int64),
        np.array([j for _, j in ways], np.int64),
        np.array([(j, i) in waits for i, j in ways], np.bool_),
        links.carry_s(amounts), links.queue, links.lag_s, sent * links.post_s(amounts), sent * links.handle_s(amounts),
        np.array([begin_s(bench.cluster.devices[d]) for d in numbers]),
        _updates(chain, numbers, each(costs.update_s)) + costs.updating * beside,
        keep, room,
    )  # fmt: skip


Amounts = dict[tuple[int, int], tuple[float, float]]  #: (stage from, stage to) -> seconds given, and bytes of the rest


def _messages(bench: Bench, chain: Chain) -> tuple[Amounts, Amounts]:
    """(who waits for whom, what is sent): what several stages of a device read crosses once, with what the first of them reads. The
    others wait for it all the same, and what made it waits for the gradients of all: they are sent when the first one's are ready here,
    when the last one's are in a run."""
    crossing, costs, graph = bench.crossings(chain), bench.sample.costs, bench.sample.graph
    device = device_numbers([s.devices for s in chain])
    waits = messages(crossing, costs.transfer_s, graph.size_bytes)
    sent = messages(carried(crossing, brought(crossing, device)), costs.transfer_s, graph.size_bytes)
    for by, i in [way for way in sent if way not in waits]:  # it brought what others return: the first of them pays
        j = next(j for j, k in waits if k == i and j > i and device[j] == device[by])
        seconds, size = sent.get((j, i), (0.0, 0.0))
        more = sent.pop((by, i))
        sent[j, i] = seconds + more[0], size + more[1]
    return waits, sent


def _seconds(
    bench: Bench,
    parted: Parted,
    chain: Chain,
    each: Callable[[FloatArray], FloatArray],
    trains: BoolArray,
    returning: Collection[int],
) -> FloatArray:
    """[4, stages, devices] of a forward, a backward in one, and its parts; `returning`: stages that send gradients back.
    Where nobody waits for any, or the stage recomputes, the first part is the whole (see `lower`)."""
    costs = bench.costs
    forward, whole, weight = each(costs.forward_s), each(costs.backward_s), each(parted.weight_s)
    inputs = whole - weight + each(parted.parting_s)
    alone = np.array([k not in returning or s.recompute for k, s in enumerate(chain)])
    inputs[alone], weight[alone] = whole[alone], 0.0
    again = np.array([s.recompute for s in chain])
    whole, inputs = (t + forward * again[:, None] for t in (whole, inputs))
    call = np.array([call_s(bench.cluster.devices[d], len(chain)) for d in devices_of(chain)])
    found = np.stack([forward, whole, inputs, weight]) + call
    found[3, alone] = 0.0
    found[1:, ~trains] = 0.0
    return np.asarray(found)


def _updates(chain: Chain, numbers: tuple[int, ...], update: FloatArray) -> FloatArray:
    """[devices] at the end of the step."""
    own = np.array([[d in s.devices for d in numbers] for s in chain])
    return np.asarray((update * own).sum(axis=0))


def _memory(bench: Bench, chain: Chain, numbers: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """([stages] bytes that a micro-batch keeps, [devices] room that weights, and one recomputation, leave for them)."""
    costs = bench.costs
    kept = np.array([costs.kept_bytes[s.start, s.end] for s in chain])
    keep = np.array([costs.input_bytes[s.start, s.end] if s.recompute else b for s, b in zip(chain, kept, strict=True)])
    weights = np.array([costs.per_parameter_byte * costs.weight_bytes[s.start, s.end] for s in chain])
    room = np.array([bench.cluster.devices[d].memory_bytes for d in numbers])
    for x, d in enumerate(numbers):
        own = [k for k, s in enumerate(chain) if d in s.devices]
        room[x] -= weights[own].sum() + max((kept[k] for k in own if chain[k].recompute), default=0.0)
    return keep, room


@dataclass(frozen=True, eq=False)
class _Links:
    """[devices, devices] of everything that a link takes. An amount is (seconds given, bytes for which none are) of a message;
    `amounts` [2, messages, amount] are those there and back, and what they take is [2, messages, devices, devices]."""

    carry_per_byte_s: FloatArray
    lag_s: FloatArray
    each_post_s: FloatArray
    post_per_byte_s: FloatArray
    each_handle_s: FloatArray
    handle_per_byte_s: FloatArray
    queue: IntArray

    def carry_s(self, amounts: FloatArray) -> FloatArray:
        return np.asarray(amounts[..., 0, None, None] + amounts[..., 1, None, None] * self.carry_per_byte_s)

    def post_s(self, amounts: FloatArray) -> FloatArray:
        return np.asarray(self.each_post_s + amounts[..., 1, None, None] * self.post_per_byte_s)

    def handle_s(self, amounts: FloatArray) -> FloatArray:
        return np.asarray(self.each_handle_s + amounts[..., 1, None, None] * self.handle_per_byte_s)


@lru_cache(maxsize=64)
def _links(cluster: Cluster, names: tuple[str, ...]) -> _Links:
    """Of the devices of these names."""
    n = len(names)
    found, queue, known = np.zeros((6, n, n)), np.zeros((n, n), np.int64), dict[str, int]()
    for d, a in enumerate(names):
        for e, b in enumerate(names):
            if d != e:
                link = cluster.link(a, b)
                ends = link.send_s, link.send_s_per_byte, link.message_s, link.message_s_per_byte
                found[:, d, e] = 1.0 / link.rate_bytes_per_s, link.latency_s, *ends
                queue[d, e] = known.setdefault(link.queue, len(known))
    carry, lag, post, post_byte, handle, handle_byte = found
    return _Links(carry, lag, post, post_byte, handle, handle_byte, queue)
