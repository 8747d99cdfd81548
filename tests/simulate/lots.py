"""Orders drawn by lot: valid by construction, since a slot is drawn among those whose needs have been drawn before."""

from __future__ import annotations

import random

from partita.nouns.pipeline_plan import PipelinePlan, Slot


def order_by_lot(plan: PipelinePlan, lots: random.Random) -> dict[str, tuple[Slot, ...]]:
    """Device -> its work: any order that no device waits for in a circle; some backwards in two parts."""
    stages, batches = len(plan.stages), plan.micro_batches
    parted = {(k, m) for k in range(stages) for m in range(batches) if lots.random() < 0.5}
    todo = {Slot("F", 0, m) for m in range(batches)}
    orders: dict[str, list[Slot]] = {d: [] for d in plan.devices}
    while todo:
        slot = lots.choice(sorted(todo))
        todo.remove(slot)
        part, k, m = slot
        orders[plan.stages[k].device_of(m)].append(slot)
        if part == "F":
            todo.add(Slot("F", k + 1, m) if k + 1 < stages else Slot("B", k, m))
        elif part == "B":
            todo |= {Slot("B", k - 1, m)} if k else set()
            todo |= {Slot("W", k, m)} if (k, m) in parted else set()
    return {d: tuple(order) for d, order in orders.items()}
