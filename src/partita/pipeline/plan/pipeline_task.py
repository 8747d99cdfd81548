"""PipelineTask: what a method of planning a pipeline gets to see, each part computed when it is first asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.nouns.cluster import Cluster
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.pipeline_plan import Schedule
from partita.nouns.pipeline_problem import Wish
from partita.nouns.profile import Profile, Sample
from partita.pipeline.plan.bench import LOWERING, Bench, Candidate, Effort
from partita.pipeline.plan.chain_dp import LOOK, Chain, ChainProblem, StageTables
from partita.pipeline.plan.lower_bound import TINY, Waits, waits
from partita.pipeline.plan.stage_costs import (
    StageCosts,
    class_times,
    micro_batches,
    sent_s,
    stage_costs,
    tensor_ends_s,
    tensor_s,
    wires,
)
from partita.solve.device_types import DeviceType, device_types
from partita.solve.downsets import StateSequence, every_downset, linear_states, spans, thinned
from partita.solve.units import Units, contract

MOST_DOWNSETS = 60_000  #: enumerated; a graph with more is cut along linear orders only
MOST_STATES = 800  #: that the dynamic program looks at; a longer sequence is thinned
FEWEST_STATES = 100  #: that it is never thinned below
MOST_DEVICES = 128  #: that a plan may use; of more, those that are fastest or hold most
SLACK = (1, 0, 2, 4, 8)  #: micro-batches in flight beyond the least; the first wins where they are equally fast
EFFORT_A_SECOND = 7e5  #: see `Effort`; less than a million, for what is not counted and for slower machines
ORDERS = 0.2  #: of the budget: for other schedules, where they are asked for
#: Of the budget: for finding groups, and for that of at most FEW devices, of which every grouping is looked at.
GROUPS, GROUPS_OF_FEW, FEW = 0.25, 0.6, 9


@dataclass(frozen=True, eq=False)
class PipelineTask:
    """What a method gets to see."""

    profile: Profile
    whole_cluster: Cluster
    wish: Wish

    @cached_property
    def effort(self) -> Effort:
        """What the methods may still spend on candidates."""
        others = self.wish.schedule not in (None, "1f1b", "gpipe")
        return Effort(self.whole_effort * (1 - ORDERS * others) - self.groups_effort)

    @property
    def groups_effort(self) -> float:
        """For finding groups."""
        share = GROUPS_OF_FEW if len(self.cluster.devices) <= FEW else GROUPS
        return self.whole_effort * share * self.wants_groups

    @property
    def wants_groups(self) -> bool:
        """Whether groups can grant the wish."""
        wish = self.wish
        return wish.schedule in (None, "1f1b", "auto") and wish.stages is None and wish.in_flight is None

    @property
    def whole_effort(self) -> float:
        """Of the budget."""
        return self.wish.budget_s * EFFORT_A_SECOND

    @cached_property
    def most_micro_batches(self) -> int:
        """Whose program is lowered with a tenth of the effort."""
        return int(self.whole_effort / 10 / (2 * LOWERING))

    @cached_property
    def cluster(self) -> Cluster:
        """The devices that a plan may use, all of them up to MOST_DEVICES."""
        c = self.whole_cluster
        if len(c.devices) <= MOST_DEVICES:
            return c
        seconds = self.type_seconds(self.profile.samples[0])
        pace = {t: seconds[k] for k, t in enumerate(self.all_types)}
        of = {name: t for t in self.all_types for name in t.names}
        fast = sorted(c.devices, key=lambda d: pace[of[d.name]])
        large = sorted(c.devices, key=lambda d: -d.memory_bytes)
        chosen = {d.name for d in fast[: MOST_DEVICES // 2]}
        chosen |= set([d.name for d in (*large, *fast) if d.name not in chosen][: MOST_DEVICES - len(chosen)])
        return c.only(chosen)

    @cached_property
    def all_types(self) -> tuple[DeviceType, ...]:
        """The classes of all devices, also of those that plans leave out."""
        return device_types(self.whole_cluster)

    def type_seconds(self, sample: Sample) -> FloatArray:
        """[all types] seconds of a micro-batch on a device of a type, as far as it can run there."""
        times = class_times(sample.costs, self.all_types)
        return np.asarray(np.where(np.isinf(times), 0.0, times).sum(axis=0))

    @cached_property
    def types(self) -> tuple[DeviceType, ...]:
        """The classes of the devices that a plan may use."""
        return device_types(self.cluster)

    @cached_property
    def class_of(self) -> tuple[int, ...]:
        """[devices] number of the type."""
        number = {name: k for k, t in enumerate(self.types) for name in t.names}
        return tuple(number[d.name] for d in self.cluster.devices)

    @cached_property
    def units(self) -> Units:
        return contract(self.profile.samples[0].graph)

    @cached_property
    def downsets(self) -> StateSequence:
        """Every downset, or the states of a few linear orders where there are too many."""
        found = every_downset(self.units, MOST_DOWNSETS)
        return found if found is not None else linear_states(self.units, _orders(self.units))

    @cached_property
    def states(self) -> StateSequence:
        """The states that candidates are made of."""
        graph = self.profile.samples[0].graph
        most = self._most_states
        if len(self.downsets) <= most:
            return self.downsets
        done = self.downsets.totals(self.unit_seconds(self.profile.samples[0]).sum(axis=1))[:, 0]
        sent = self.downsets.cuts(spans(graph, self.units, graph.size_bytes))
        return thinned(self.downsets, done, sent, most)

    @cached_property
    def _most_states(self) -> int:
        """So many that the dynamic program over a line of all devices takes a fifth of the effort, within limits."""
        n = len(self.cluster.devices)
        teams = sum((n + 1 - m) * min(m, len(self.types)) for m in self._sizes(n, n))
        return max(FEWEST_STATES, min(MOST_STATES, int(math.sqrt(0.4 * self.effort.left / (LOOK * teams)))))

    @cached_property
    def benches(self) -> tuple[Bench, ...]:
        """One for each micro-batch size that the wish allows."""
        found = []
        for k, sample in enumerate(self.profile.samples):
            number = micro_batches(self.profile, sample)
            if self.wish.micro_batches in (None, number) and number <= self.most_micro_batches:
                times = class_times(sample.costs, self.types)
                costs = stage_costs(self.profile, sample, self.units, self.states, times)
                found.append(Bench(sample, k, self.cluster, costs, self.class_of, self.effort, self.profile.clips))
        return tuple(found)

    def bench(self, candidate: Candidate) -> Bench:
        """The bench that evaluates a candidate."""
        return next(b for b in self.benches if b.number == candidate.sample)

    @cached_property
    def waits(self) -> tuple[Waits, ...]:
        """[benches] what stages must wait for at least."""
        best = wires(self.cluster)[1]
        return tuple(waits(b.costs, b.sample, best, self.unit_seconds(b.sample)) for b in self.benches)

    @cached_property
    def tables(self) -> tuple[StageTables, ...]:
        """[benches] for the dynamic program, with typical links."""
        typical = wires(self.cluster)[0]
        found = []
        for bench, wait in zip(self.benches, self.waits, strict=True):
            inner = np.ones(len(self.states))
            inner[[0, -1]] = 0.0
            sends = inner * sent_s(bench.costs, tensor_s(bench.sample, typical.rate))
            ends = sent_s(bench.costs, tensor_ends_s(bench.sample, typical.end_s_per_byte))
            handles = inner * (typical.message_s + ends)
            base = self._tables(bench.costs, wait)
            found.append(
                base._replace(
                    enter_s=handles, leave_s=handles, send_s=sends, gradient_bytes=bench.costs.weight_bytes,
                    sum_rate=typical.exchange_rate, sum_latency_s=typical.latency_s + typical.sum_s / 2,  # of two members; more pay it as rarely
                )
            )  # fmt: skip
        return tuple(found)

    @cached_property
    def least_tables(self) -> tuple[StageTables, ...]:
        """[benches] the same so that no stage of a plan, with micro-batches in turn, takes less of the step."""
        return tuple(self._tables(b.costs, w) for b, w in zip(self.benches, self.waits, strict=True))

    def _tables(self, c: StageCosts, wait: Waits) -> StageTables:
        best, zero = wires(self.cluster)[1], np.zeros(len(c.states))
        own = np.maximum(c.own_bytes[None, :] - c.own_bytes[:, None], 0)
        return StageTables(
            c.micro_batches, c.states.contains, c.forward_s + c.backward_s, c.forward_s, c.update_s, c.cannot,
            c.backward_tasks, wait.head_s, wait.tail_s, wait.fed * best.message_s, zero, zero,
            own, TINY * float(c.parameter_bytes[-1]) if c.training else math.inf, best.exchange_rate,
            best.latency_s if c.updating else 0.0,
            c.weight_bytes * c.per_parameter_byte, c.kept_bytes, c.input_bytes if any(self.modes) else c.kept_bytes,
            np.array([t.memory_bytes for t in self.types]),
        )  # fmt: skip

    @property
    def schedule(self) -> Schedule:
        """Of the methods' candidates; other schedules are tried on the best of these (`orders`)."""
        return "gpipe" if self.wish.schedule == "gpipe" else "1f1b"

    @cached_property
    def tight(self) -> bool:
        """Memory may be a limit: some device cannot hold the whole model with every micro-batch in flight."""
        room = min(t.memory_bytes for t in self.types)
        return any(
            float(c.parameter_bytes[-1] * c.per_parameter_byte + c.micro_batches * c.activation_bytes[-1]) > room
            for c in (b.costs for b in self.benches)
        )

    @cached_property
    def modes(self) -> tuple[bool, ...]:
        """Whether stages may recompute: worth a look only where memory may be a limit."""
        return (False, True) if self.tight and self.wish.allow_recompute else (False,)

    def sizes(self, bench: Bench) -> tuple[int, ...]:
        """Numbers of replicas that a stage may have: the small ones, and of the larger some that share out evenly."""
        return self._sizes(len(self.cluster.devices), bench.costs.micro_batches)

    def _sizes(self, devices: int, batches: int) -> tuple[int, ...]:
        most = min(devices, batches) if self.wish.allow_replicas else 1
        return tuple(
            m for m in range(1, most + 1) if m <= 8 or (m <= 16 and m % 2 == 0) or batches % m == 0 or m == most
        )

    def windows(self, bench: Bench) -> list[IntArray]:
        """[ways][devices from a stage to the end + 1] micro-batches in flight that the dynamic program may count with.

        Only where memory may be a limit do they differ in anything."""
        used = np.arange(len(self.cluster.devices) + 1)
        if self.schedule == "gpipe":
            return [np.full(len(used), bench.costs.micro_batches)]
        if self.wish.in_flight is not None:
            return [np.minimum(used, self.wish.in_flight)]
        if not self.tight:
            return [used]
        fewer = [2**k for k in range(8) if 2**k < min(len(used) - 1, bench.costs.micro_batches)]
        return [*(used + np.where(used > 1, s, 0) for s in sorted(SLACK)), *(np.minimum(used, n) for n in fewer)]

    def in_flight(self, chain: Chain, micro_batches: int) -> list[int]:
        """The numbers of micro-batches in flight to try for a chain."""
        if self.wish.in_flight is not None:
            return [self.wish.in_flight]
        if self.schedule == "gpipe":
            return [micro_batches]
        least = sum(len(s.devices) for s in chain)
        numbers = [least + s for s in (SLACK if len(chain) > 1 else (0,))]
        if least > SLACK[-1] and len(chain) > 1:
            numbers.append(2 * least)
        if self.tight and len(chain) > 1:  # fewer keep less, and wait more
            numbers += [*range(least - 1, max(0, least - 4), -1), *(2**k for k in range(8) if 2**k < least)]
        return list(dict.fromkeys(max(1, min(n, micro_batches)) for n in numbers))

    def chain_problem(self, bench: Bench, line: Sequence[int], window: IntArray) -> ChainProblem:
        """The dynamic program over a line of devices (their numbers)."""
        tables = self.tables[self.benches.index(bench)]
        classes = tuple(self.class_of[d] for d in line)
        return ChainProblem(tables, classes, self.sizes(bench), self.modes, window, self.wish.stages or 0)

    @cached_property
    def forward_tasks(self) -> FloatArray:
        """[states] how many forward tasks each has."""
        graph = self.profile.samples[0].graph
        forward = np.array([t.phase in ("forward", "stage") for t in graph.tasks], np.float64)
        return self.states.totals(self.units.total(forward))[:, 0]

    def unit_seconds(self, sample: Sample) -> FloatArray:
        """[units, 2] least forward and backward seconds of a unit over all devices."""
        fastest = class_times(sample.costs, self.all_types).min(axis=1)
        fastest = np.where(np.isinf(fastest), 0.0, fastest)
        phase = np.array([t.phase for t in sample.graph.tasks])
        forward = (phase != "backward") & (phase != "update")
        backward = phase == "backward"
        return np.stack([self.units.total(fastest * forward), self.units.total(fastest * backward)], axis=1)


def _orders(units: Units) -> list[IntArray]:
    """Linear orders to cut along where there are too many downsets: by first task, and depth first."""
    n = len(units)
    waiting = np.diff(units.before.start).copy()
    stack = [u for u in range(n - 1, -1, -1) if waiting[u] == 0]
    depth: list[int] = []
    while stack:
        u = stack.pop()
        depth.append(u)
        for v in units.after.row(u)[::-1].tolist():
            waiting[v] -= 1
            if waiting[v] == 0:
                stack.append(v)
    return [np.arange(n, dtype=np.int64), np.array(depth, np.int64)]
