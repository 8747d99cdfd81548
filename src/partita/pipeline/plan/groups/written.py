"""Groups of pipelines as one PipelinePlan.

The union of all groups' cuts parts the model into stages; of each, the device that holds it in every group is a replica, with
that group's share of the micro-batches. Further splits let the gradients behind them be summed while earlier backwards
run. A device that holds several of them serves several stages. Each device's order is 1F1B
over its own group's micro-batches:

    group 0 (share 2): one device, whole model   stages 0, 1 on a        a  F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1
    group 1 (share 1): two devices               stage 0 on b, 1 on c    b  F0.2                     B0.2
                                                                         c       F1.2 B1.2
"""

from __future__ import annotations

import itertools
import math

from partita.nouns.pipeline_plan import MOST_TURN, PipelinePlan, Slot, Stage
from partita.pipeline.plan.bench import Bench
from partita.pipeline.plan.groups.crew import Pipe, Shared
from partita.pipeline.plan.groups.line import Line
from partita.simulate.schedules import one_forward_one_backward


def written(bench: Bench, line: Line, shared: Shared) -> PipelinePlan:
    """The plan. O(stages x micro-batches)."""
    names = [d.name for d in bench.cluster.devices]
    ends = sorted({c for p in shared.pipes for c in p.cuts} | set(shared.splits))
    turns = _turns(shared.batches)
    stages = []
    for low, high in itertools.pairwise(ends):
        devices = tuple(names[_holder(p, low)] for p in shared.pipes)
        tasks = bench.tasks_between(int(line.state[low]), int(line.state[high]))
        stages.append(Stage(tasks, devices, shares=turns if len(set(turns)) > 1 else ()))
    trains = [bench.costs.backward_tasks[line.state[j]] > bench.costs.backward_tasks[line.state[i]] for i, j in itertools.pairwise(ends)]  # fmt: skip
    batches = bench.costs.micro_batches
    turn = stages[0].turn
    orders: dict[str, tuple[Slot, ...]] = {}
    for g, p in enumerate(shared.pipes):
        own = [m for m in range(batches) if turn[m % len(turn)] == g]
        for at, d in enumerate(p.order):
            ks = [k for k, low in enumerate(ends[:-1]) if p.cuts[at] <= low < p.cuts[at + 1]]
            window = len(p.order) - at + p.slack * (len(p.order) - 1 - at)
            orders[names[d]] = tuple(
                slot
                for part, m in one_forward_one_backward.order(min(window, len(own)), len(own))
                for slot in (
                    [Slot("F", k, own[m]) for k in ks]
                    if part == "F"
                    else [Slot("B", k, own[m]) for k in reversed(ks) if trains[k]]
                )
            )
    flying = sum(min(n, len(p.order) + p.slack * (len(p.order) - 1)) for p, n in zip(shared.pipes, shared.batches, strict=True))  # fmt: skip
    return PipelinePlan(bench.sample.graph.fingerprint, tuple(stages), batches, max(1, flying), "given", orders)


def _turns(batches: tuple[int, ...]) -> tuple[int, ...]:
    """Shares of a turn: the numbers over their greatest common divisor; rounded where that is beyond MOST_TURN.

    >>> _turns((6, 3))
    (2, 1)
    """
    common = math.gcd(*batches)
    found = tuple(n // common for n in batches)
    total = sum(found)
    return found if total <= MOST_TURN else tuple(max(1, n * MOST_TURN // (2 * total)) for n in found)


def _holder(p: Pipe, low: int) -> int:
    """The device of a pipeline that holds what begins at a place."""
    return next(d for d, a, b in zip(p.order, p.cuts, p.cuts[1:], strict=False) if a <= low < b)
