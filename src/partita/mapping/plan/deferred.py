"""Weights' gradients when their device would wait: the backward of a segment in two parts, the second one later.

A backward makes the gradients of a segment's inputs, which other devices wait for, and those of its weights, which nobody waits
for before the step ends. Apart, the first are sent earlier, and the second fill a gap; being called twice costs something, which
the simulator of whole steps knows. Greedy, until nothing gets shorter: each backward in turn, its second part in one of the
longest gaps of its device behind it, or at the end. Computations in another order, tried in the same way, brought nothing.
Source: backwards in two parts are those of zero bubble pipelines (Qi et al. 2023); for a mapping of operators it is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from partita.errors import PlanError, ProgramError
from partita.mapping.plan.limit import FREELY, Limit, simulation_s
from partita.nouns.pipeline_plan import PipelinePlan, Slot
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.timeline import MESSAGES, Timeline
from partita.simulate.predicted import predicted

GAPS = 8  #: the longest ones of a device that something is tried in
SWEEPS = 4
LEAST = 5e-4  #: of the step: a smaller gain may be rounding


def deferred(problem: PipelineProblem, plan: PipelinePlan, limit: Limit = FREELY) -> tuple[PipelinePlan, float]:
    """(the plan with weights' gradients where its step is predicted to be shortest, that step's seconds); the plan itself where
    they are best where they are, or nothing better was met within the limit. O(segments) simulations of a step."""
    timeline, left_s = predicted(problem, plan), limit.worth_s
    each_s = simulation_s(len(problem.graph), len(plan.stages))
    for _ in range(SWEEPS):
        before_s = timeline.duration_s
        for device, slots in plan.orders.items():
            for weights, at in _places(slots, timeline, device):
                if left_s < each_s or not limit.goes_on():
                    return plan, timeline.duration_s
                left_s -= each_s
                other = replace(plan, orders={**plan.orders, device: _put(plan.orders[device], weights, at)})
                found = _simulated(problem, other)
                if found is not None and found.duration_s < (1 - LEAST) * timeline.duration_s:
                    plan, timeline = other, found
        if timeline.duration_s == before_s:
            break
    return plan, timeline.duration_s


def _simulated(problem: PipelineProblem, plan: PipelinePlan) -> Timeline | None:
    """None where devices would wait for each other for ever."""
    try:
        return predicted(problem, plan)
    except (PlanError, ProgramError):
        return None


def _places(slots: Sequence[Slot], timeline: Timeline, device: str) -> Iterator[tuple[Slot, Slot | None]]:
    """(the weights' part of a backward, the computation that it is put in front of, or None for the end) of all that is tried."""
    idle_s = _idle_before(timeline, device)
    gaps = sorted(range(1, len(slots)), key=lambda k: -idle_s.get(_label(slots[k]), 0.0))[:GAPS]
    for i, slot in enumerate(slots):
        if slot.part == "B":
            weights = Slot("W", slot.stage, slot.micro_batch)
            yield from ((weights, slots[k]) for k in gaps if k > i and slots[k] != weights)
            yield weights, None


def _put(slots: Sequence[Slot], slot: Slot, at: Slot | None) -> tuple[Slot, ...]:
    """An order with a computation, which may be new in it, in front of another one."""
    rest = [s for s in slots if s != slot]
    rest.insert(len(rest) if at is None else rest.index(at), slot)
    return tuple(rest)


def _label(slot: Slot) -> tuple[str, int]:
    return f"{slot.part}{slot.stage}", slot.micro_batch


def _idle_before(timeline: Timeline, device: str) -> dict[tuple[str, int], float]:
    """(label, micro-batch) of a device's computations -> seconds between each and the one before it: waiting and receiving."""
    found: dict[tuple[str, int], float] = {}
    free_s = 0.0
    spans = map(timeline.__getitem__, range(len(timeline)))
    for s in sorted((s for s in spans if s.queue == device and s.kind not in MESSAGES), key=lambda s: s.start_s):
        found[s.label, s.micro_batch] = s.start_s - free_s
        free_s = s.end_s
    return found
