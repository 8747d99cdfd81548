"""PipelinePlan: stages in pipeline order, the devices that run them, and how the micro-batches of a batch flow through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, get_args

from partita.errors import PlanError
from partita.nouns.cluster import Cluster
from partita.nouns.graph import TaskGraph
from partita.records import lean, record

Schedule = Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", "given"]
#: Of a planner: a searched order is given in the plan; "auto" is the fastest of all.
Asked = Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", "searched", "auto"]
Part = Literal["F", "B", "W"]  #: forward, backward, and the part of a backward that makes the weights' gradients
MOST_TURN = 1000  #: micro-batches that a turn of unequal shares may take


class Slot(NamedTuple):
    """A device's piece of work: a part of a stage on one micro-batch.

    Where a W of a stage and micro-batch is in the order, its B makes the gradients of the stage's inputs alone.
    """

    part: Part
    stage: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Tasks that run together, and the devices that each run all of them on their share of the micro-batches."""

    tasks: tuple[str, ...]  #: ids of forward tasks (a backward task follows its forward)
    devices: tuple[str, ...]  #: its replicas
    recompute: bool = False  #: run the forward again before the backward instead of keeping its activations
    shares: tuple[int, ...] = ()  #: micro-batches of each device in a turn; empty: one each

    @property
    def replicas(self) -> int:
        return len(self.devices)

    @property
    def turn(self) -> tuple[int, ...]:
        """The replica that runs each micro-batch, over and over: whoever is furthest behind its share comes next.

        >>> Stage(("a",), ("x", "y"), shares=(3, 1)).turn
        (0, 0, 1, 0)
        >>> Stage(("a",), ("x", "y")).turn
        (0, 1)
        """
        return dealt(self.shares or (1,) * len(self.devices))

    def device_of(self, micro_batch: int) -> str:
        turn = self.turn
        return self.devices[turn[micro_batch % len(turn)]]


@lru_cache(maxsize=1024)
def dealt(shares: tuple[int, ...]) -> tuple[int, ...]:
    """[sum of shares] who comes next: smooth weighted round robin. O(sum x shares).

    >>> dealt((2, 2, 1))
    (0, 1, 2, 0, 1)
    """
    total, credit, turn = sum(shares), [0] * len(shares), []
    for _ in range(total):
        credit = [c + s for c, s in zip(credit, shares, strict=True)]
        r = max(range(len(shares)), key=lambda k: (credit[k], -k))
        credit[r] -= total
        turn.append(r)
    return tuple(turn)


@dataclass(frozen=True)
class PipelinePlan:
    """A device may serve several stages, a stage several devices; what a stage reads is made by stages before it."""

    graph: str  #: fingerprint of the graph it was made for
    stages: tuple[Stage, ...]
    micro_batches: int
    in_flight: int  #: micro-batches whose forward may have run on the first stage while their backward has not
    schedule: Schedule
    orders: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)  #: device -> its work; schedule "given" only
    kind: Literal["pipeline"] = field(default="pipeline", init=False)

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """Forward task id -> stage number."""
        return {t: k for k, s in enumerate(self.stages) for t in s.tasks}

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Every device used, once, stage by stage."""
        return tuple(dict.fromkeys(d for s in self.stages for d in s.devices))

    def stages_of(self, device: str) -> tuple[int, ...]:
        """The stages that a device serves."""
        return tuple(k for k, s in enumerate(self.stages) if device in s.devices)

    def of_micro_batches(self, n: int) -> PipelinePlan:
        """The plan for a batch of another number of micro-batches; given orders keep what of them is left."""
        if n <= self.micro_batches or not self.orders:
            orders = {d: tuple(s for s in slots if s.micro_batch < n) for d, slots in self.orders.items()}
            return replace(self, micro_batches=n, orders=orders)
        return replace(self, micro_batches=n, schedule="1f1b", orders={})

    def check(self, graph: TaskGraph, cluster: Cluster) -> list[str]:
        """Every fault at once; empty when the plan is sound and fits the graph and the cluster."""
        if self.graph != graph.fingerprint:
            return [f"it was made for graph {self.graph}, this is graph {graph.fingerprint}"]
        wanted = {t.id for t in graph.tasks if t.phase in ("forward", "stage")}
        faults = [fault for k, s in enumerate(self.stages) for fault in _stage_faults(k, s)]
        faults += pairing("task", [t for s in self.stages for t in s.tasks], wanted, missing="is in no stage")
        faults += [
            f"task {t.id!r} of phase {t.phase} belongs to no forward task, so no stage runs it"
            for t in graph.tasks
            if t.id not in wanted and (t.of not in wanted or t.phase == "transfer")
        ]
        faults += [f"unknown device {d!r}" for d in sorted(set(self.devices) - set(cluster.by_name))]
        if self.micro_batches < 1 or self.in_flight < 1:
            faults.append(
                f"{self.micro_batches} micro-batches with {self.in_flight} in flight; both must be at least 1"
            )
        if self.schedule not in get_args(Schedule):
            faults.append(f"unknown schedule {self.schedule!r}")
        if (self.schedule == "given") != bool(self.orders):
            faults.append("orders are given for the schedule 'given', and only for that")
        return faults or self._chunk_faults() or self._graph_faults(graph) or self._order_faults(graph)

    def _chunk_faults(self) -> list[str]:
        """Of the schedules of chunks: stages that are not where such a schedule has them."""
        if self.schedule not in ("interleaved", "zb-v"):
            return []
        n, stages = len(self.devices), len(self.stages)
        if self.schedule == "zb-v":
            places, fits = [min(k, 2 * n - 1 - k) for k in range(stages)], stages == 2 * n
        else:
            places, fits = [k % n for k in range(stages)], stages % n == 0
        if fits and [s.devices for s in self.stages] == [(self.devices[d],) for d in places]:
            return []
        shape = "there and back, two a device" if self.schedule == "zb-v" else "round and round, as many on each"
        return [f"schedule {self.schedule} wants its stages on the devices {shape}, without replicas"]

    def _graph_faults(self, graph: TaskGraph) -> list[str]:
        """Forward edges that run to an earlier stage, colocation groups that are torn apart."""
        at = [self.stage_of.get(t.id, -1) for t in graph.tasks]
        ids = [t.id for t in graph.tasks]
        faults = [
            f"edge {ids[u]} -> {ids[v]} runs from stage {at[u]} back to {at[v]}"
            for u, v in graph.edges
            if at[u] > at[v] >= 0
        ]
        groups: dict[str, set[tuple[tuple[str, ...], tuple[int, ...]]]] = {}
        for t, k in zip(graph.tasks, at, strict=True):
            if t.group is not None and k >= 0:
                groups.setdefault(t.group, set()).add((self.stages[k].devices, self.stages[k].turn))
        return faults + [
            f"colocation group {g!r} is spread over {' and '.join(', '.join(d) for d, _ in sorted(ds))}"
            for g, ds in groups.items()
            if len(ds) > 1
        ]

    def _order_faults(self, graph: TaskGraph) -> list[str]:
        """Slots that a given order misses, holds twice, or holds without need. Whether it ends, simulating tells."""
        if not self.orders:
            return []
        backward = {t.of for t in graph.tasks if t.phase == "backward"}
        trains = [not backward.isdisjoint(s.tasks) for s in self.stages]
        told_of, least = sum(map(len, self.orders.values())), self.micro_batches * (len(trains) + sum(trains))
        if told_of < least:  # a file may ask for 1e308: nothing is counted by micro-batch before
            return [f"its orders hold {told_of} slots; {self.micro_batches} micro-batches need {least}"]
        faults: list[str] = []
        for device in sorted({*self.devices, *self.orders}):
            told = self.orders.get(device, ())
            wanted = {
                Slot(part, k, m)
                for k in self.stages_of(device)
                for m in range(self.micro_batches)
                if self.stages[k].device_of(m) == device
                for part in (("F", "B") if trains[k] else ("F",))
            }  # fmt: skip
            there = set(told)
            weights = {s for s in there if s.part == "W" and Slot("B", s.stage, s.micro_batch) in wanted}
            faults += [f"{device} never does {_slot_words(s)}" for s in sorted(wanted - there)[:3]]
            faults += [f"{device} has no business with {_slot_words(s)}" for s in sorted(there - wanted - weights)[:3]]
            if len(there) < len(told):
                faults.append(f"{device} does {len(told) - len(there)} slots twice")
        return faults

    def to_json(self) -> dict[str, Any]:
        value = lean(self)
        for stage, s in zip(value["stages"], self.stages, strict=True):
            stage["replicas"] = s.replicas
        return value

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> PipelinePlan:
        """Raises PlanError where it is damaged."""
        return record(PipelinePlan, value, PlanError, "the plan", hint="make the plan again")


def _stage_faults(k: int, s: Stage) -> list[str]:
    faults = [f"stage {k} has no {what}" for what in ("tasks", "devices") if not getattr(s, what)]
    faults += [f"stage {k} names a device twice: {', '.join(s.devices)}"] if len(set(s.devices)) < s.replicas else []
    if s.shares and (len(s.shares) != s.replicas or min(s.shares) < 1 or sum(s.shares) > MOST_TURN):
        faults.append(
            f"stage {k} has shares {list(s.shares)} for {s.replicas} devices; "
            f"each needs one of at least 1, {MOST_TURN} together at most"
        )
    return faults


def _slot_words(s: Slot) -> str:
    return f"{s.part} of stage {s.stage} on micro-batch {s.micro_batch}"


def pairing(what: str, used: list[str], known: set[str], *, missing: str) -> list[str]:
    """Names used twice, names unknown, and names missing: `missing` says how."""
    faults = (
        [f"{what} {n!r} is used {used.count(n)} times" for n in sorted({n for n in used if used.count(n) > 1})]
        if len(set(used)) < len(used)
        else []
    )
    faults += [f"unknown {what} {n!r}" for n in sorted(set(used) - known)]
    return faults + [f"{what} {n!r} {missing}" for n in sorted(known - set(used))]
