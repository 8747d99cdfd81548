"""Deployment: a plan put to work on the ranks of a run: who runs which stage, who sums which gradients, which program.

Apart from `State`, so that a plan can change between two steps: another deployment, the same model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from partita.errors import PlanError, refuse
from partita.nouns.cluster import Cluster
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.program import Program
from partita.simulate.boundaries import Boundary, boundaries, gradient_sums, shared_over_stages
from partita.simulate.lower import lower
from partita.training.capture.model import Captured
from partita.training.job import Precision
from partita.training.runtime.device import subgroup
from partita.training.runtime.interpreter import Bound, Place
from partita.training.runtime.stage import Stage, StageCode, stage_code
from partita.training.runtime.state import Holdings


@dataclass
class Groups:
    """Process groups by their ranks: made once each, by all ranks alike and in the same order."""

    _made: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def of(self, ranks: Sequence[int]) -> Any:
        """The group of some ranks; None for one rank alone, which has nobody to talk to."""
        key = tuple(sorted(set(ranks)))
        if len(key) < 2:
            return None
        if key not in self._made:
            self._made[key] = subgroup(key)
        return self._made[key]


@dataclass(frozen=True)
class Sum:
    """One sum of gradients, on a rank that takes part."""

    parameters: tuple[str, ...]  #: names, alike on all members
    group: Any


@dataclass(frozen=True)
class Deployment:
    """A plan on the ranks of a run, as one of them sees it. `captured` is the model at the plan's micro-batch size."""

    plan: PipelinePlan
    cluster: Cluster
    world: tuple[str, ...]  #: [ranks] device names; those that the plan does not use are idle
    rank: int
    captured: Captured
    micro_batch_size: int
    clips: bool
    groups: Groups

    def __post_init__(self) -> None:
        """Raises PlanError where the plan is for another model, or uses devices that no rank stands for."""
        self.expect_graph(self.captured)
        strangers = sorted(set(self.plan.devices) - set(self.world))
        if strangers:
            raise PlanError(
                f"the plan uses {', '.join(strangers)}; the run has the devices {', '.join(self.world)}",
                hint="plan for these devices, or start a run on all of them",
            )
        faults = self.plan.check(self.captured.graph, self.cluster)
        refuse(PlanError, faults, "the plan does not fit", hint="plan again for this model and cluster")
        _ = self.sums, self.loss_group, self.replicas  # groups are made by all ranks at once

    def expect_graph(self, captured: Captured) -> None:
        """Raise PlanError where the model, at whatever micro-batch size, is another than the plan was made for."""
        found, wanted = captured.graph.fingerprint, self.plan.graph
        if found != wanted:
            raise PlanError(
                f"the plan was made for graph {wanted}, the job's model is graph {found} ({len(captured.nodes)} forward tasks)",
                hint="measure and plan this job again",
            )

    @property
    def device(self) -> str:
        return self.world[self.rank]

    @cached_property
    def stages(self) -> tuple[int, ...]:
        """The stages that this rank serves; none: it is idle."""
        return self.plan.stages_of(self.device)

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Device -> rank."""
        return {d: r for r, d in enumerate(self.world)}

    @cached_property
    def boundaries(self) -> tuple[Boundary, ...]:
        return boundaries(self.captured.graph, self.plan)

    def place(self, device: torch.device) -> Place:
        return Place(self.device, self.ranks, device, self.boundaries)

    # ---- programs ---------------------------------------------------------------------------------------------------

    def program(self, micro_batches: int) -> Program:
        return lower(self.captured.graph, self.cluster, self.plan.of_micro_batches(micro_batches), clips=self.clips)

    def shape_of(self, samples: int) -> tuple[int, int]:
        """(micro-batches, size of the last one) of a batch."""
        size = self.micro_batch_size
        return math.ceil(samples / size), samples % size or size

    # ---- code -------------------------------------------------------------------------------------------------------

    def code(self, captured: Captured, stage: int) -> StageCode:
        """The code of a stage at some micro-batch size."""
        wanted = dict.fromkeys(captured.values[t] for b in self.boundaries if b.source == stage for t in b.tensors)
        return stage_code(captured, self.plan.stages[stage].tasks, tuple(wanted))

    def bound(
        self, captured: Captured, tensors: Mapping[str, Tensor], device: torch.device, precision: Precision
    ) -> Bound:
        """This rank's stages at one micro-batch size, on its tensors."""
        return Bound(
            captured,
            {
                k: Stage(
                    self.code(captured, k), captured.bindings, tensors, device=device,
                    recompute=self.plan.stages[k].recompute, precision=precision,
                )
                for k in self.stages
            },
        )  # fmt: skip

    # ---- who holds and sums what --------------------------------------------------------------------------------------

    @cached_property
    def read(self) -> tuple[StageCode, ...]:
        """[stages] their codes, for the names in them."""
        return tuple(stage_code(self.captured, s.tasks, ()) for s in self.plan.stages)

    def holdings(self, names: Sequence[str]) -> Holdings:
        """[ranks] the parameters and buffers that each holds; rank 0 also what no stage reads."""
        held = [
            {n for k in self.plan.stages_of(d) for n in (*self.read[k].parameters, *self.read[k].buffers)}
            for d in self.world
        ]
        held[0] |= set(names) - set().union(*held)
        return [frozenset(h) for h in held]

    @cached_property
    def sums(self) -> Mapping[int, Sum]:
        """Number of a sum -> it, for those that this rank takes part in."""
        graph = self.captured.graph
        stages_of = dict(zip((s.name for s in graph.shared), shared_over_stages(graph, self.plan), strict=True))
        torn = {n: ks for n, ks in stages_of.items() if len(ks) > 1}
        found: dict[int, Sum] = {}
        for number, s in enumerate(gradient_sums(graph, self.plan)):
            names = [n for n, ks in torn.items() if ks == s.stages]
            if len(s.stages) == 1:
                names = sorted(set(self.read[s.stages[0]].parameters) - set(torn))
            group = self.groups.of([self.ranks[d] for d in s.devices])
            if self.device in s.devices:
                found[number] = Sum(tuple(names), group)
        return found

    @cached_property
    def everyone(self) -> Any:
        """The group of all devices of the plan; None where it is one."""
        return self.groups.of([self.ranks[d] for d in self.plan.devices])

    @cached_property
    def loss_stage(self) -> int:
        return next(k for k, c in enumerate(self.read) if c.has_loss)

    @cached_property
    def loss_group(self) -> Any:
        """The group over which the parts of a batch's loss are added; None where one rank makes all of it."""
        _ = self.everyone
        return self.groups.of([self.ranks[d] for d in self.plan.stages[self.loss_stage].devices])

    @property
    def makes_loss(self) -> bool:
        return self.loss_stage in self.stages

    @property
    def reports_loss(self) -> bool:
        """One rank of those that make the loss speaks for all."""
        return self.plan.stages[self.loss_stage].devices[0] == self.device

    @cached_property
    def replicas(self) -> tuple[tuple[int, float, Any], ...]:
        """(stage, this rank's share of its micro-batches, group) of each replicated stage that this rank serves."""
        found = []
        for k, s in enumerate(self.plan.stages):
            group = self.groups.of([self.ranks[d] for d in s.devices])
            if group is not None and self.device in s.devices:
                turn = s.turn
                found.append((k, turn.count(s.devices.index(self.device)) / len(turn), group))
        return tuple(found)

    @cached_property
    def counted(self) -> frozenset[str]:
        """The parameters whose gradients this rank answers for in the norm of all: those no rank before it holds."""
        holds = self.holdings(())
        return holds[self.rank].difference(*holds[: self.rank])
