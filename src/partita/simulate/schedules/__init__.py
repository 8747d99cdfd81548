"""Schedules: in which order each stage of a pipeline runs the forwards and backwards of its micro-batches.

Pure orders, without times: `slots(schedule, ...)` gives each stage's sequence, `in_flight_of` what it costs in memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from partita.errors import PlanError
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Schedule, Slot
from partita.nouns.stage_memory import stage_memory
from partita.simulate.schedules import gpipe, interleaved, one_forward_one_backward, zb_h1, zb_h2, zb_v
from partita.simulate.schedules.gpipe import Step

BY_STAGE = ("1f1b", "gpipe", "zb-h1", "zb-h2")  #: schedules that say what a stage does ...
BY_DEVICE = ("interleaved", "zb-v")  #: ... and those that say what a device does with its chunks


def slots(
    schedule: Schedule, replicas: Sequence[int], micro_batches: int, in_flight: int, whole: Sequence[int] = ()
) -> list[list[Step]]:
    """[stages] the slots of each stage in order, of schedules that say it stage by stage; of m replicas, r runs micro-batches
    r, r + m, ...

    With unequal shares, `replicas` holds the lengths of the turns and `whole` is 1 (see `one_forward_one_backward`).

    Run by devices that each wait for what they need, any of these orders ends (see `one_forward_one_backward`).
    Raises PlanError for an unknown schedule. O(stages x micro-batches).

    >>> slots("1f1b", [1, 1], 2, 2)
    [[('F', 0), ('F', 1), ('B', 0), ('B', 1)], [('F', 0), ('B', 0), ('F', 1), ('B', 1)]]
    """
    held = in_flight_of(schedule, replicas, micro_batches, in_flight, whole)
    if schedule == "gpipe":
        return [gpipe.order(micro_batches) for _ in replicas]
    if schedule == "1f1b":
        return [one_forward_one_backward.order(w, micro_batches) for w in held]
    windows = _windows(schedule, replicas, micro_batches, in_flight, whole)
    rows = zip(windows, zb_h1.put_off(windows), strict=True)
    return [zb_h1.order(w, late, micro_batches) for w, late in rows]


def in_flight_of(
    schedule: Schedule, replicas: Sequence[int], micro_batches: int, in_flight: int, whole: Sequence[int] = ()
) -> tuple[int, ...]:
    """[stages] the largest number of micro-batches whose forward has run and whose backward is not done, over all replicas.

    One replica of m holds at most ceil(number / m) of them. Raises PlanError for an unknown schedule.
    """
    if schedule == "gpipe":
        return (micro_batches,) * len(replicas)
    windows = _windows(schedule, replicas, micro_batches, in_flight, whole)
    if schedule == "1f1b":
        return windows
    return tuple(min(micro_batches, w + late) for w, late in zip(windows, zb_h1.put_off(windows), strict=True))


def _windows(
    schedule: Schedule, replicas: Sequence[int], micro_batches: int, in_flight: int, whole: Sequence[int]
) -> tuple[int, ...]:
    """[stages] forwards before the first backward."""
    if schedule not in ("1f1b", "zb-h1", "zb-h2"):
        raise PlanError(f"schedule {schedule!r} does not say what a stage does", hint=f"known: {', '.join(BY_STAGE)}")
    flown = zb_h2.in_flight(sum(replicas), in_flight) if schedule == "zb-h2" else in_flight
    return one_forward_one_backward.windows(replicas, micro_batches, flown, whole)


def held_of(plan: PipelinePlan) -> tuple[int, ...]:
    """[stages] of how many micro-batches one device of the stage keeps activations at once, at most: from the forward to the
    end of the backward, its weights' part included.

    O(stages) for a schedule of stages and equal shares, O(devices^2 chunks) for one of chunks, else O(slots).
    """
    if plan.schedule in BY_STAGE and not any(s.shares for s in plan.stages):
        replicas = [s.replicas for s in plan.stages]
        flown = in_flight_of(plan.schedule, replicas, plan.micro_batches, plan.in_flight)
        return tuple(-(-held // m) for held, m in zip(flown, replicas, strict=True))
    if plan.schedule in BY_DEVICE:  # the same again and again after that
        plan = replace(plan, micro_batches=min(plan.micro_batches, 4 * len(plan.devices)))
    most = [0] * len(plan.stages)
    for (_, k), held in held_on(plan).items():
        most[k] = max(most[k], held)
    return tuple(most)


def held_on(plan: PipelinePlan) -> dict[tuple[str, int], int]:
    """(device, stage) -> of how many micro-batches of the stage the device keeps activations at once, at most. O(slots)."""
    most: dict[tuple[str, int], int] = {}
    for device, order in device_orders(plan).items():
        last = {(s.stage, s.micro_batch): i for i, s in enumerate(order)}
        held = Counter[int]()
        for i, (part, k, m) in enumerate(order):
            held[k] += part == "F"
            most[device, k] = max(most.get((device, k), 0), held[k])
            held[k] -= last[k, m] == i
    return most


def needed_bytes(graph: TaskGraph, plan: PipelinePlan, optimizer_bytes: float) -> dict[str, float]:
    """Device of the plan -> bytes that it holds at once, at most; it may serve several stages. `optimizer_bytes`: per parameter byte."""
    needs = dict.fromkeys(plan.devices, 0.0)
    memory = [stage_memory(graph, s.tasks, optimizer_bytes) for s in plan.stages]
    for (d, k), held in held_on(plan).items():
        needs[d] += memory[k].need_bytes(held, plan.stages[k].recompute)
    return needs


def device_orders(plan: PipelinePlan) -> dict[str, tuple[Slot, ...]]:
    """Device -> its work in order: the plan's own orders where it has any, else those of its schedule.

    Of the schedules that say what a stage does, a device that serves several stages merges their orders as it would run them if a forward took one unit of time, a
    backward two and a message none: what can begin first, and of that what is furthest towards the update. Stages 0 and 3
    on one device, 1 and 2 on the other (a V), two micro-batches:

        cpu0  F0.0 F0.1 ....      F3.0 B3.0 B3.0 ...
        cpu1       F1.0 F2.0 F1.1 F2.1 ...

    O(slots), and O(slots x stages) where devices serve several stages.
    """
    if plan.orders:
        return dict(plan.orders)
    if plan.schedule in BY_DEVICE:
        return _by_device(plan)
    turns = [s.turn for s in plan.stages]
    whole = [1 if s.shares else s.replicas for s in plan.stages]
    rows = slots(plan.schedule, [len(t) for t in turns], plan.micro_batches, plan.in_flight, whole)
    lines: dict[str, list[deque[Slot]]] = {d: [] for d in plan.devices}
    for k, (stage, turn) in enumerate(zip(plan.stages, turns, strict=True)):
        for r, device in enumerate(stage.devices):
            lines[device].append(deque(Slot(part, k, m) for part, m in rows[k] if turn[m % len(turn)] == r))
    if all(len(own) == 1 for own in lines.values()):
        return {d: tuple(own[0]) for d, own in lines.items()}
    return _merged(lines)


def _by_device(plan: PipelinePlan) -> dict[str, tuple[Slot, ...]]:
    """The orders of a schedule that says what a device with several chunks does."""
    devices, batches = plan.devices, plan.micro_batches
    orders = {}
    for d, name in enumerate(devices):
        own = plan.stages_of(name)
        rows = (
            zb_v.order(d, len(devices), batches)
            if plan.schedule == "zb-v"
            else interleaved.order(d, len(devices), len(own), batches)
        )
        orders[name] = tuple(Slot(part, own[chunk], m) for part, chunk, m in rows)
    return orders


def _merged(lines: Mapping[str, list[deque[Slot]]]) -> dict[str, tuple[Slot, ...]]:
    """One order a device out of its lines, by what can begin first."""
    known = {s for own in lines.values() for line in own for s in line}
    before = _in_a_row(known)
    ends: dict[Slot, int] = {}
    free = dict.fromkeys(lines, 0)
    orders: dict[str, list[Slot]] = {d: [] for d in lines}
    while True:
        best: tuple[tuple[int, int, int, int], str, deque[Slot]] | None = None
        for d, own in lines.items():
            for line in own:
                if line and (after := _after(ends, known, before(line[0]))) is not None:
                    key = (max(free[d], after), "BFW".index(line[0].part), line[0].micro_batch, -line[0].stage)
                    if best is None or key < best[0]:
                        best = (key, d, line)
        if best is None:
            break
        (start, *_), d, line = best
        slot = line.popleft()
        free[d] = ends[slot] = start + _units(known, slot)
        orders[d].append(slot)
    if any(line for own in lines.values() for line in own):
        raise PlanError("the stages wait for each other", hint="use a schedule that this package knows")
    return {d: tuple(order) for d, order in orders.items()}


Before = Callable[[Slot], Sequence[Slot]]  #: what a slot waits for, whether or not that occurs


def unit_ends(orders: Mapping[str, Sequence[Slot]], before: Before | None = None) -> dict[Slot, int]:
    """When each slot would end if a forward took one unit of time, a backward two and a message none. `before`: by default each
    stage reads of the last one (`_in_a_row`).

    Raises PlanError where the orders wait for each other. O(slots) for the orders of this package.

    >>> one = [Slot("F", 0, 0), Slot("B", 0, 0)]
    >>> ends = unit_ends({"a": one, "b": [Slot("F", 1, 0), Slot("B", 1, 0)]})
    >>> ends[Slot("B", 1, 0)], ends[Slot("B", 0, 0)]
    (4, 6)
    """
    known = {s for order in orders.values() for s in order}
    before = before or _in_a_row(known)
    ends: dict[Slot, int] = {}
    lines = {d: deque(order) for d, order in orders.items()}
    free = dict.fromkeys(orders, 0)
    moved = True
    while moved:
        moved = False
        for d, line in lines.items():
            while line and (after := _after(ends, known, before(line[0]))) is not None:
                slot = line.popleft()
                free[d] = ends[slot] = max(free[d], after) + _units(known, slot)
                moved = True
    if any(lines.values()):
        raise PlanError("the stages wait for each other", hint="use a schedule that this package knows")
    return ends


def _units(known: Collection[Slot], slot: Slot) -> int:
    """One, and two for a backward in one."""
    return 2 if slot.part == "B" and Slot("W", slot.stage, slot.micro_batch) not in known else 1


def _in_a_row(known: Collection[Slot]) -> Before:
    """What slots wait for where each stage reads of the last one. A stage that trains nothing has no backward: a B waits for that
    of the next later stage that has one."""
    stages = max((s.stage for s in known), default=0) + 1

    def before(slot: Slot) -> list[Slot]:
        part, k, m = slot
        if part == "F":
            return [Slot("F", k - 1, m)]
        if part == "W":
            return [Slot("B", k, m)]
        later = next((s for s in range(k + 1, stages) if Slot("B", s, m) in known), stages)
        return [Slot("B", later, m), Slot("F", k, m)]

    return before


def _after(ends: Mapping[Slot, int], known: Collection[Slot], before: Sequence[Slot]) -> int | None:
    """The end of all of these that occur; None where one has not run."""
    latest = 0
    for other in before:
        if other in known:
            if other not in ends:
                return None
            latest = max(latest, ends[other])
    return latest
