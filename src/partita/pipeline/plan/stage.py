"""What a stage costs: time, bytes sent and memory of every segment between two states, for one micro-batch size.

A *segment* (i, j) is the work between state i and a later state j that contains it. Everything here is a difference of
totals over states, so that a table of S states answers for all S^2 / 2 segments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
import numpy.typing as npt

from partita.errors import CostError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import FloatArray, TaskGraph
from partita.nouns.profile import Profile, Sample
from partita.solve.device_types import DeviceType
from partita.solve.downsets import StateSequence, spans
from partita.solve.units import Units

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Wire:
    """The links between the devices in a few numbers; `planned` ones are typical, `best` ones never too slow."""

    planned_rate: float  #: bytes/s, median over the pairs of devices
    planned_exchange_rate: float  #: of gradients that are summed
    planned_latency_s: float
    best_rate: float
    best_exchange_rate: float
    best_latency_s: float
    message_s: float  #: least time that receiving a message takes of a device


def wire(cluster: Cluster) -> Wire:
    """The links of a cluster. O(devices^2), at most 64 devices looked at."""
    names = [d.name for d in cluster.devices[:64]]
    links = [cluster.link(a, b) for a in names for b in names if a != b] or [cluster.default_link]
    best = [*links, *cluster.links]
    return Wire(
        median(link.rate_bytes_per_s for link in links),
        median(link.exchange_bytes_per_s for link in links),
        median(link.latency_s for link in links),
        max(link.rate_bytes_per_s for link in best),
        max(link.exchange_bytes_per_s for link in best),
        min(link.latency_s for link in best),
        min(link.message_s for link in best),
    )


@dataclass(frozen=True, eq=False)
class StageCosts:
    """One sample's totals over the states of its graph."""

    graph: TaskGraph
    states: StateSequence
    micro_batches: int
    types: tuple[DeviceType, ...]
    wire: Wire
    forward_s: FloatArray  #: [states, types] of one micro-batch
    backward_s: FloatArray  #: [states, types]
    update_s: FloatArray  #: [states, types]
    cannot: FloatArray  #: [states, types] tasks that cannot run on the type
    parameter_bytes: FloatArray  #: [states] a shared parameter counted at each reader
    shared: FloatArray  #: [states, shared parameters] how many of its readers
    shared_bytes: FloatArray  #: [shared parameters]
    activation_bytes: FloatArray  #: [states]
    sent_bytes: FloatArray  #: [states] what a cut behind the state sends forward
    returned_bytes: FloatArray  #: [states] and what of it comes back as gradients
    per_parameter_byte: float  #: bytes held per byte of parameters: themselves, gradients, the optimizer's state

    @cached_property
    def training(self) -> bool:
        return any(t.phase == "backward" for t in self.graph.tasks)

    def seconds(self, kind: int) -> FloatArray:
        """[states, states] forward and backward of one micro-batch on a type; inf: no segment, or it cannot run there."""
        both = self.forward_s[:, kind] + self.backward_s[:, kind]
        return np.where(self.runs(kind), both[None, :] - both[:, None], math.inf)

    def runs(self, kind: int) -> Bools:
        """[states, states] segments that can run on a type."""
        n = self.cannot[:, kind]
        return np.asarray(self.states.contains & (n[None, :] - n[:, None] == 0))

    @cached_property
    def weight_bytes(self) -> FloatArray:
        """[states, states] parameters, gradients and optimizer state; a parameter shared inside the segment counts once."""
        size = self.parameter_bytes[None, :] - self.parameter_bytes[:, None]
        for k, once in enumerate(self.shared_bytes.tolist()):
            readers = self.shared[None, :, k] - self.shared[:, None, k]
            size = size - once * np.maximum(readers - 1, 0)
        return np.maximum(size, 0) * self.per_parameter_byte

    def need_bytes(self, start: int, end: int, held: int, recompute: bool) -> float:
        """Bytes that a device of this stage holds with so many micro-batches in flight; one that recomputes keeps only
        their inputs, and everything of the one it is at."""
        weights, kept = float(self.weight_bytes[start, end]), float(self.kept_bytes[start, end])
        return weights + (held * float(self.sent_bytes[start]) + kept if recompute else held * kept)

    @cached_property
    def kept_bytes(self) -> FloatArray:
        """[states, states] activations that one micro-batch keeps."""
        return self.activation_bytes[None, :] - self.activation_bytes[:, None]


def stage_costs(
    profile: Profile, sample: Sample, units: Units, states: StateSequence, types: Sequence[DeviceType], links: Wire
) -> StageCosts:
    """The totals of one sample. O(states x columns + tensors). Raises CostError for a kind without costs."""
    graph, costs = sample.graph, sample.costs
    phase = np.array([t.phase for t in graph.tasks])
    update, backward = phase == "update", phase == "backward"
    columns = [costs.column(t.kind) for t in types]
    speed = np.array([t.speed for t in types])
    times = costs.seconds[:, columns] / speed
    cannot = np.isinf(times).astype(np.float64)
    times = np.where(np.isinf(times), 0.0, times)

    def over_states(rows: FloatArray) -> FloatArray:
        table = rows.reshape(len(rows), -1)
        return states.totals(np.stack([units.total(c) for c in table.T], axis=1)) if table.shape[1] else (
            np.zeros((len(states), 0))
        )  # fmt: skip

    forward = ~update & ~backward
    readers = np.zeros((len(graph), len(graph.shared)))
    for k, s in enumerate(graph.shared):
        for t in s.tasks:
            readers[graph.index[t], k] += 1
    parameters = np.array([t.parameter_bytes for t in graph.tasks]) * forward
    kept = np.array([t.activation_bytes for t in graph.tasks]) * forward
    sent, returned = crossing_tensors(graph)
    training = bool(backward.any())
    return StageCosts(
        graph,
        states,
        max(1, -(-profile.batch_size // sample.micro_batch_size)),
        tuple(types),
        links,
        over_states(times * forward[:, None]),
        over_states(times * backward[:, None]),
        over_states(times * update[:, None]),
        over_states(cannot),
        over_states(parameters)[:, 0],
        over_states(readers),
        np.array([s.size_bytes for s in graph.shared], np.float64),
        over_states(kept)[:, 0],
        states.cuts(spans(graph, units, graph.size_bytes, sent)),
        states.cuts(spans(graph, units, graph.size_bytes, returned)),
        2.0 + profile.optimizer_bytes_per_parameter_byte if training else 1.0,
    )


def crossing_tensors(graph: TaskGraph) -> tuple[Bools, Bools]:
    """[tensors] those that a cut sends forward, and those of them whose gradient comes back."""
    forward = np.array([t.phase in ("forward", "stage", "transfer") for t in graph.tasks], np.bool_)
    owner = np.repeat(np.arange(len(graph.producer)), np.diff(graph.readers.start))
    read = forward[graph.producer[owner]] & forward[graph.readers.items]
    back = gradient_edges(graph)
    n = len(graph.producer)
    return np.bincount(owner[read], minlength=n) > 0, np.bincount(owner[read & back], minlength=n) > 0


def gradient_edges(graph: TaskGraph) -> Bools:
    """[readers of tensors, as in graph.readers.items] whether the reader's backward feeds the producer's backward."""
    n = len(graph)
    backward = np.full(n, -1, np.int64)
    for i, t in enumerate(graph.tasks):
        if t.phase == "backward" and t.of is not None:
            backward[graph.index[t.of]] = i
    owner = np.repeat(graph.producer, np.diff(graph.readers.start))
    source, target = backward[graph.readers.items], backward[owner]
    keys = graph.edges.reshape(-1, 2) @ np.array([n, 1])
    return (source >= 0) & (target >= 0) & np.isin(source * n + target, keys)


def check_kinds(sample: Sample, types: Sequence[DeviceType]) -> None:
    """Raise CostError where the sample has no costs for a type's kind."""
    missing = [t.kind for t in types if t.kind not in sample.costs.kinds]
    if missing:
        raise CostError(
            f"no costs for devices of kind {missing[0]!r}; there are costs for {', '.join(sample.costs.kinds)}",
            hint="measure on that device, or change its kind in the cluster file",
        )
