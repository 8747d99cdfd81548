"""Schedules: in which order each stage of a pipeline runs the forwards and backwards of its micro-batches.

Pure orders, without times: `slots(schedule, ...)` gives each stage's sequence, `in_flight_of` what it costs in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from partita.errors import PlanError
from partita.nouns.pipeline_plan import Schedule
from partita.simulate.schedules import gpipe, one_forward_one_backward
from partita.simulate.schedules.gpipe import Slot

__all__ = ["Slot", "in_flight_of", "slots", "unit_ends"]


def slots(schedule: Schedule, replicas: Sequence[int], micro_batches: int, in_flight: int) -> list[list[Slot]]:
    """[stages] the forwards and backwards of each stage in order; replica r runs micro-batches r, r + m, r + 2 m, ...

    Run by devices that each wait for what they need, any of these orders ends (see `one_forward_one_backward`).
    Raises PlanError for an unknown schedule. O(stages x micro-batches).

    >>> slots("1f1b", [1, 1], 2, 2)
    [[('F', 0), ('F', 1), ('B', 0), ('B', 1)], [('F', 0), ('B', 0), ('F', 1), ('B', 1)]]
    """
    held = in_flight_of(schedule, replicas, micro_batches, in_flight)
    if schedule == "gpipe":
        return [gpipe.order(micro_batches) for _ in replicas]
    return [one_forward_one_backward.order(w, micro_batches) for w in held]


def in_flight_of(schedule: Schedule, replicas: Sequence[int], micro_batches: int, in_flight: int) -> tuple[int, ...]:
    """[stages] the largest number of micro-batches whose forward has run and backward has not, over all replicas.

    One replica of m holds at most ceil(number / m) of them. Raises PlanError for an unknown schedule.
    """
    if schedule == "gpipe":
        return (micro_batches,) * len(replicas)
    if schedule == "1f1b":
        return one_forward_one_backward.windows(replicas, micro_batches, in_flight)
    raise PlanError(f"unknown schedule {schedule!r}", hint="known: 1f1b, gpipe")


def unit_ends(orders: Sequence[Sequence[Slot]], replicas: Sequence[int]) -> list[dict[Slot, int]]:
    """[stages] when each slot would end if a forward took one unit of time, a backward two and a message none.

    Raises PlanError where the orders wait for each other. O(slots) for the orders of this package.

    >>> unit_ends([[("F", 0), ("B", 0)], [("F", 0), ("B", 0)]], [1, 1])
    [{('F', 0): 1, ('B', 0): 6}, {('F', 0): 2, ('B', 0): 4}]
    """
    ends: list[dict[Slot, int]] = [{} for _ in orders]
    lines = [(k, deque(s for s in orders[k] if s[1] % m == r)) for k, m in enumerate(replicas) for r in range(m)]
    free = [0] * len(lines)
    moved = True
    while moved:
        moved = False
        for x, (k, line) in enumerate(lines):
            while line and (after := _after(ends, k, line[0])) is not None:
                slot = line.popleft()
                free[x] = ends[k][slot] = max(free[x], after) + (1 if slot[0] == "F" else 2)
                moved = True
    if any(line for _, line in lines):
        raise PlanError("the stages wait for each other", hint="use a schedule that this package knows")
    return ends


def _after(ends: Sequence[dict[Slot, int]], stage: int, slot: Slot) -> int | None:
    """The end of what a slot waits for on a neighbouring stage; None where that has not run."""
    neighbour = stage - 1 if slot[0] == "F" else stage + 1
    return ends[neighbour].get(slot) if 0 <= neighbour < len(ends) else 0
