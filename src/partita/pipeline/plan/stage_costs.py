"""What a stage costs: time, bytes sent and memory of every segment between two states, for one micro-batch size.

A *segment* (i, j) is the work between state i and a later state j that contains it. Everything here is a difference of
totals over states, so that a table of S states answers for all S^2 / 2 segments. Devices that need not be told apart are a
*class*: one column of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.errors import CostError
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import BoolArray, FloatArray, TaskGraph
from partita.nouns.profile import Profile, Sample
from partita.nouns.stage_memory import bytes_per_parameter_byte
from partita.simulate.readings import forward_readings
from partita.solve.compiled import compiled
from partita.solve.device_types import DeviceType
from partita.solve.downsets import StateSequence, spans
from partita.solve.units import Units


@dataclass(frozen=True, slots=True)
class Wire:
    """The links between the devices in a few numbers."""

    rate: float  #: bytes/s
    exchange_rate: float  #: bytes/s at which gradients are summed
    latency_s: float
    message_s: float  #: that receiving a message takes of a device
    end_s_per_byte: float  #: that a byte takes of a device at either end
    sum_s: float  #: that a sum of gradients takes beyond its messages


def wires(cluster: Cluster) -> tuple[Wire, Wire]:
    """(a typical link, one that no link is better than in anything). O(links)."""
    links = cluster.links_in_use()
    ends = [(k.send_s_per_byte + k.message_s_per_byte) / 2 for k in links]
    values = np.array(
        [
            (k.rate_bytes_per_s, k.exchange_bytes_per_s, k.latency_s, k.message_s, e, k.sum_s)
            for k, e in zip(links, ends, strict=True)
        ]
    )
    typical = np.quantile(values, 0.5, axis=0, method="lower")
    (rate, exchange, *_), (_, _, *least) = values.max(axis=0), values.min(axis=0)
    return Wire(*typical.tolist()), Wire(float(rate), float(exchange), *map(float, least))


@dataclass(frozen=True, eq=False)
class StageCosts:
    """One sample's totals over states of its graph."""

    graph: TaskGraph
    units: Units
    states: StateSequence
    micro_batches: int
    forward_s: FloatArray  #: [states, classes] of one micro-batch; what cannot run on the class counts as 0
    backward_s: FloatArray  #: [states, classes]
    update_s: FloatArray  #: [states, classes]
    cannot: FloatArray  #: [states, classes] tasks that cannot run on the class
    backward_tasks: FloatArray  #: [states]
    parameter_bytes: FloatArray  #: [states] a shared parameter counted at each reader
    shared: FloatArray  #: [states, shared parameters] how many of its readers
    shared_bytes: FloatArray  #: [shared parameters]
    activation_bytes: FloatArray  #: [states]
    per_parameter_byte: float  #: bytes held per byte of parameters: themselves, gradients, the optimizer's state

    @cached_property
    def inside(self) -> BoolArray:
        """[states, units] whether a state has a unit."""
        bits = np.unpackbits(self.states.members.view(np.uint8), axis=1, bitorder="little")
        return bits[:, : len(self.units)].astype(np.bool_)

    @property
    def training(self) -> bool:
        return bool(self.backward_tasks[-1] > 0)

    @property
    def updating(self) -> bool:
        """Whether a step ends with an update: of what nothing goes back through, nothing is."""
        return self.training and any(t.phase == "update" for t in self.graph.tasks)

    @cached_property
    def own_bytes(self) -> FloatArray:
        """[states] parameters that no other task reads."""
        return self.parameter_bytes - self.shared @ self.shared_bytes

    @cached_property
    def weight_bytes(self) -> FloatArray:
        """[states, states] of parameters; one that is shared inside the segment counts once."""
        size = self.parameter_bytes[None, :] - self.parameter_bytes[:, None]
        for k, once in enumerate(self.shared_bytes.tolist()):
            readers = self.shared[None, :, k] - self.shared[:, None, k]
            size = size - once * np.maximum(readers - 1, 0)
        return np.maximum(size, 0)

    @cached_property
    def kept_bytes(self) -> FloatArray:
        """[states, states] activations that one micro-batch keeps."""
        return np.maximum(self.activation_bytes[None, :] - self.activation_bytes[:, None], 0)

    @cached_property
    def input_bytes(self) -> FloatArray:
        """[states, states] tensors that the segment's forwards read and an earlier one made. O(states^2 tensors)."""
        graph = self.graph
        read = forward_readings(graph)
        tensor = np.flatnonzero(np.bincount(read.tensor, minlength=len(graph.producer)) > 0)
        place = np.full(len(graph.producer), -1, np.int64)
        place[tensor] = np.arange(len(tensor))
        readers = np.zeros((len(self.units), len(tensor)))
        np.add.at(readers, (self.units.unit_of[read.reader], place[read.tensor]), 1.0)
        made = np.zeros((len(self.units), len(tensor)))
        made[self.units.unit_of[graph.producer[tensor]], np.arange(len(tensor))] = 1.0
        return np.asarray(_inputs(self.states.totals(made), self.states.totals(readers), graph.size_bytes[tensor]))


@compiled
def _inputs(made: FloatArray, read: FloatArray, size_bytes: FloatArray) -> FloatArray:
    """[states, states] bytes of the tensors made before the first state and read between it and the second."""
    states, tensors = made.shape
    out = np.zeros((states, states))
    for i in range(states):
        for k in range(tensors):
            if made[i, k] > 0 and read[i, k] < read[states - 1, k]:
                for j in range(i + 1, states):
                    if read[j, k] > read[i, k]:
                        out[i, j] += size_bytes[k]
    return out


def stage_costs(profile: Profile, sample: Sample, units: Units, states: StateSequence, times: FloatArray) -> StageCosts:
    """The totals of one sample. `times`: [tasks, classes] seconds, inf where a task cannot run. O(states x columns)."""
    graph = sample.graph
    phase = np.array([t.phase for t in graph.tasks])
    update, backward = phase == "update", phase == "backward"
    forward = ~update & ~backward
    cannot = np.isinf(times).astype(np.float64)
    times = np.where(np.isinf(times), 0.0, times)
    readers = np.zeros((len(graph), len(graph.shared)))
    for k, s in enumerate(graph.shared):
        for t in s.tasks:
            readers[graph.index[t], k] += 1
    held = np.array([(t.parameter_bytes, t.activation_bytes) for t in graph.tasks]) * forward[:, None]

    def over_states(rows: FloatArray) -> FloatArray:
        table = rows.reshape(len(rows), -1)
        if not table.shape[1]:
            return np.zeros((len(states), 0))
        return states.totals(np.stack([units.total(c) for c in table.T], axis=1))

    totals = over_states(held)
    return StageCosts(
        graph,
        units,
        states,
        micro_batches(profile, sample),
        over_states(times * forward[:, None]),
        over_states(times * backward[:, None]),
        over_states(times * update[:, None] * backward.any()),  # without gradients nothing is updated
        over_states(cannot),
        over_states(backward.astype(np.float64))[:, 0],
        totals[:, 0],
        over_states(readers),
        np.array([s.size_bytes for s in graph.shared], np.float64),
        totals[:, 1],
        bytes_per_parameter_byte(graph, profile.optimizer_bytes_per_parameter_byte),
    )


def micro_batches(profile: Profile, sample: Sample) -> int:
    """Into how many a batch is cut."""
    return -(-profile.batch_size // sample.micro_batch_size)


def class_times(costs: CostTable, types: Sequence[DeviceType]) -> FloatArray:
    """[tasks, types] seconds of one micro-batch. Raises CostError for a kind without costs."""
    columns = [costs.column(t.kind) for t in types]
    return np.asarray(costs.seconds[:, columns] / np.array([t.speed for t in types]))


def sent_s(costs: StageCosts, message_s: FloatArray) -> FloatArray:
    """[states] seconds that a cut behind each state sends, there and back. `message_s`: [tensors]."""
    graph, read = costs.graph, forward_readings(costs.graph)
    there = np.bincount(read.tensor, minlength=len(message_s)) > 0
    back = np.bincount(read.tensor[read.back], minlength=len(message_s)) > 0
    seconds = message_s * (there.astype(np.float64) + back)
    return costs.states.cuts(spans(graph, costs.units, np.where(np.isfinite(seconds), seconds, 0.0), there))


def tensor_s(sample: Sample, rate: float) -> FloatArray:
    """[tensors] seconds that sending one takes: as given, or its bytes over a rate."""
    return np.where(np.isnan(sample.costs.transfer_s), sample.graph.size_bytes / rate, sample.costs.transfer_s)


def tensor_ends_s(sample: Sample, per_byte_s: float) -> FloatArray:
    """[tensors] seconds that one takes of a device that sends or receives it; nothing where its time is given."""
    return np.where(np.isnan(sample.costs.transfer_s), sample.graph.size_bytes * per_byte_s, 0.0)


def check_phases(profile: Profile) -> None:
    """Raise CostError for a graph with tasks that no stage of a pipeline would run."""
    lost = [t.id for t in profile.samples[0].graph.tasks if t.phase == "transfer"]
    if lost:
        raise CostError(
            f"task {lost[0]!r} (of {len(lost)}) has phase 'transfer'; a pipeline sends tensors itself and would leave it out",
            hint="give what it takes as the tensor's transfer_s in the costs, or make it a forward task",
        )
