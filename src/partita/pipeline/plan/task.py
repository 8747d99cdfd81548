"""PipelineTask: what a method of planning a pipeline gets to see, each part computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partita.nouns.cluster import Cluster
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.pipeline_plan import Schedule
from partita.nouns.pipeline_problem import Wish
from partita.nouns.profile import Profile
from partita.pipeline.plan.stage import check_kinds, crossing_tensors, stage_costs, wire
from partita.pipeline.plan.step_bound import Edges, bound_cost, edges, simple_bound
from partita.pipeline.plan.step_time import Bench, Candidate
from partita.solve.chain_dp import ChainProblem, Link, Option, solve
from partita.solve.device_types import DeviceType, device_types
from partita.solve.downsets import StateSequence, every_downset, linear_states, spans, thinned
from partita.solve.units import Units, contract

MOST_DOWNSETS = 60_000  #: enumerated; a graph with more is cut along linear orders only
MOST_STATES = 800  #: that the dynamic program looks at; a longer sequence is thinned
SLACK = (1, 0, 2, 4, 8)  #: micro-batches in flight beyond the least; the first wins where they are equally fast


@dataclass(frozen=True, eq=False)
class PipelineTask:
    """What a method gets to see."""

    profile: Profile
    cluster: Cluster
    wish: Wish

    @cached_property
    def types(self) -> tuple[DeviceType, ...]:
        return device_types(self.cluster)

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
        if len(self.downsets) <= MOST_STATES:
            return self.downsets
        done = self.downsets.totals(self._unit_seconds(0).sum(axis=1))[:, 0]
        sent = self.downsets.cuts(spans(graph, self.units, graph.size_bytes, crossing_tensors(graph)[0]))
        return thinned(self.downsets, done, sent, MOST_STATES)

    @cached_property
    def benches(self) -> tuple[Bench, ...]:
        """One for each micro-batch size that the wish allows."""
        links = wire(self.cluster)
        found = []
        for k, sample in enumerate(self.profile.samples):
            batches = -(-self.profile.batch_size // sample.micro_batch_size)
            if self.wish.micro_batches in (None, batches):
                check_kinds(sample, self.types)
                costs = stage_costs(self.profile, sample, self.units, self.states, self.types, links)
                found.append(Bench(sample, k, self.cluster, self.units, costs))
        return tuple(found)

    @cached_property
    def waits(self) -> tuple[Edges, ...]:
        """[benches] what stages must wait for at least."""
        both = [self._unit_seconds(b.number) for b in self.benches]
        return tuple(edges(b.costs, self.units, s[:, 0], s[:, 1]) for b, s in zip(self.benches, both, strict=True))

    @cached_property
    def bound_costs(self) -> tuple[FloatArray, ...]:
        """[benches] bound of a step by each of its stages: [types, options, states, states]."""
        pairs = zip(self.benches, self.waits, strict=True)
        return tuple(bound_cost(b.costs, wait, self.options) for b, wait in pairs)

    def bench(self, candidate: Candidate) -> Bench:
        """The bench that evaluates a candidate."""
        return next(b for b in self.benches if b.number == candidate.sample)

    @property
    def schedule(self) -> Schedule:
        return self.wish.schedule or "1f1b"

    @property
    def replicas(self) -> int:
        """The most replicas that a stage may have."""
        return max(len(t.names) for t in self.types) if self.wish.allow_replicas else 1

    @cached_property
    def slacks(self) -> tuple[int, ...]:
        """Micro-batches in flight to try beyond the least; the first wins where they are equally fast."""
        return SLACK

    @cached_property
    def tight(self) -> bool:
        """Memory may be a limit: some device cannot hold the whole model with every micro-batch in flight."""
        room = min(t.memory_bytes for t in self.types)
        return any(
            float(b.costs.weight_bytes[0, -1] + b.costs.micro_batches * b.costs.kept_bytes[0, -1]) > room
            for b in self.benches
        )

    @property
    def modes(self) -> tuple[bool, ...]:
        """Whether stages may recompute: worth a look only where memory may be a limit."""
        return (False, True) if self.tight and self.wish.allow_recompute else (False,)

    @property
    def options(self) -> tuple[Option, ...]:
        """The ways to run a stage."""
        return tuple(Option(m, again) for m in range(1, self.replicas + 1) for again in self.modes)

    def held(self, bench: Bench, slack: int) -> IntArray:
        """[devices from a stage to the end + 1, options] micro-batches that a replica keeps with so many to spare."""
        used = np.arange(len(self.cluster.devices) + 1)[:, None]
        m = np.array([o.replicas for o in self.options])[None, :]
        if self.schedule == "gpipe":
            window = np.full(used.shape, bench.costs.micro_batches)
        elif self.wish.in_flight is not None:
            window = np.minimum(used, self.wish.in_flight)
        else:
            window = used + np.where(used > m, slack, 0)
        return np.ascontiguousarray(-(-np.minimum(window, bench.costs.micro_batches) // m) + 0 * used, np.int64)

    def chain_problem(self, bench: Bench, cost: FloatArray, slack: int) -> ChainProblem:
        """The dynamic program with these costs [types, options, states, states]."""
        c = bench.costs
        weights, kept = c.weight_bytes, c.kept_bytes
        inputs = np.broadcast_to(c.sent_bytes[:, None], kept.shape)
        return ChainProblem(
            self.options, cost, np.stack([weights, weights + kept]), np.stack([kept, inputs]),
            np.array([t.memory_bytes for t in self.types]), self.held(bench, slack),
            tuple(len(t.names) for t in self.types), self.wish.stages or 0,
        )  # fmt: skip

    @cached_property
    def forward_tasks(self) -> FloatArray:
        """[states] how many forward tasks each has."""
        graph = self.profile.samples[0].graph
        forward = np.array([t.phase in ("forward", "stage") for t in graph.tasks], np.float64)
        return self.states.totals(self.units.total(forward))[:, 0]

    def in_flight(self, chain: Sequence[Link], micro_batches: int) -> list[int]:
        """The numbers of micro-batches in flight to try for a chain."""
        if self.wish.in_flight is not None:
            return [self.wish.in_flight]
        if self.schedule == "gpipe":
            return [micro_batches]
        least = sum(x.replicas for x in chain)
        return list(
            dict.fromkeys(max(1, min(least + s, micro_batches)) for s in (self.slacks if len(chain) > 1 else (0,)))
        )

    def _unit_seconds(self, sample: int) -> FloatArray:
        """[units, 2] least forward and backward seconds of a unit over the types of device."""
        costs, graph = self.profile.samples[sample].costs, self.profile.samples[sample].graph
        fastest = np.stack([costs.seconds[:, costs.column(t.kind)] / t.speed for t in self.types]).min(axis=0)
        fastest = np.where(np.isinf(fastest), 0.0, fastest)
        phase = np.array([t.phase for t in graph.tasks])
        forward = (phase != "backward") & (phase != "update")
        return np.stack(
            [self.units.total(fastest * forward), self.units.total(fastest * (phase == "backward"))], axis=1
        )

    def lower_bound(self, single_s: float) -> tuple[float, str]:
        """A bound of every plan's step, and how it was obtained. `single_s`: the step of one device."""
        bounds, how = [], ""
        for bench, cost in zip(self.benches, self.bound_costs, strict=True):
            seconds = self._unit_seconds(bench.number)
            if self.states.complete:
                how = "exact over chains of downsets: busiest device with fill and drain"
                table = solve(self.chain_problem(bench, cost, 0))
                bounds.append(min(table.best(v) for v in range(1, len(table.problem.vectors))))
            elif self.downsets.complete:
                how = "over all downsets: last stage with fill and drain, equal shares before it"
                full = replace(bench.costs, states=self.downsets)
                wait = edges(full, self.units, seconds[:, 0], seconds[:, 1])
                bounds.append(simple_bound(full, wait, seconds.sum(axis=1), single_s))
            else:
                how = "equal shares of the work; too many downsets to enumerate, cut along linear orders"
                bounds.append(bench.costs.micro_batches * float(seconds.sum()) / len(self.cluster.devices))
        return min([*bounds, single_s]), how


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
