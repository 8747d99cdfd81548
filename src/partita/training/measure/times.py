"""What timed passes over a model's tasks say of each task and of each step: arithmetic on seconds, nothing runs here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.nouns.costs import Estimate
from partita.nouns.graph import FloatArray
from partita.nouns.probe import middle_mean, scatter
from partita.simulate.cold_caches import COOLS_S
from partita.simulate.kernel import chill
from partita.training.measure.steps import StepTimes

BETWEEN = 6  #: calls of `between` in a round
#: Of TaskTimes.
SECONDS = (
    "forward",
    "backward",
    "whole_forward",
    "whole_backward",
    "one_in_flight",
    "weights",
    "parting",
    "adding",
    "update",
    "idle_update",
    "first",
    "rest",
    "cutting",
    "behind_waits",
)


@dataclass(frozen=True)
class TaskTimes:
    """Seconds of each forward task (columns, in graph order) in each round (rows), and of the whole model, on the mean of BETWEEN / 2 times."""

    forward: FloatArray  #: [rounds, tasks]
    backward: FloatArray  #: [rounds, tasks]; 0 where a task has no backward
    calls: FloatArray  #: [tasks] calls timed in the forward of each
    marks: FloatArray  #: [tasks] marks in the backward of each
    whole_forward: FloatArray  #: [rounds] with another micro-batch in flight, where the batch has another
    whole_backward: FloatArray  #: [rounds] likewise
    one_in_flight: FloatArray  #: [rounds] forward and backward of one micro-batch, no other one in flight
    company: FloatArray  #: [rounds] with another one in flight and the other devices at work, over what it takes with neither
    weights: FloatArray  #: [rounds, tasks] what of each backward can wait: gradients of weights, in the second part of a split one
    parting: FloatArray  #: [rounds] that the two parts of a split backward take beyond one that is not
    adding: (
        FloatArray  #: [rounds] that a backward takes longer for adding to gradients, as all but the first of a step do
    )
    update: FloatArray  #: [rounds] the optimizer's step, behind a backward, in a row of steps as in a run
    idle_update: FloatArray  #: [rounds] the optimizer's step without gradients
    update_call: float  #: share of what one with gradients takes beyond that, that it takes whatever it updates
    updates: FloatArray  #: [tasks] share of each in the rest
    first: FloatArray  #: [rounds] the forward right behind it, in that row, as the first one of a step is
    rest: FloatArray  #: [rounds] of a step, what is no forward, backward or update
    cutting: FloatArray  #: [rounds] that each forward or backward of either half takes beyond those of the whole; nan where steps are long
    behind_waits: FloatArray  #: [rounds] both halves on devices of their own, a micro-batch and an update; nan where steps are long
    waits: int  #: of both of them together in that
    wait_s: float  #: that each of these lasts
    optimizer_bytes_per_parameter_byte: float  #: of the optimizer's state
    core_share: float  #: of the core that this process got; all seconds above are CPU seconds where there is one thread


def at_one_speed(times: TaskTimes, slowness: FloatArray) -> TaskTimes:
    """The rounds as they would have been at one speed; `slowness` [BETWEEN x rounds] of the device, read between their passes.

    A machine may be fast for some seconds and slow for the next; then the median round is one of either kind, and no mean. So what is
    the median of the scaled ones is the mean.
    """
    whole = whole_s(times)
    around = slowness.reshape(len(whole), BETWEEN).mean(axis=1)
    scale = middle_mean(whole) / np.median(whole / around) / around
    return replace(times, **{n: (getattr(times, n).T * scale).T for n in SECONDS})


def whole_s(times: TaskTimes) -> FloatArray:
    """[rounds] seconds of the whole model, forward and backward."""
    return times.whole_forward + times.whole_backward


def mean_error(whole: FloatArray, slowness: FloatArray) -> float:
    """Standard error of the mean pass at one speed, as a share, of at least two; the arguments are as above."""
    at_one = whole / slowness.reshape(len(whole), BETWEEN).mean(axis=1)
    return scatter(at_one) / math.sqrt(len(at_one) - 1)


def work_around(times: TaskTimes) -> FloatArray:
    """[BETWEEN x rounds] what a pass took in the round in which each reading was taken, as a multiple of the mean."""
    return np.repeat(whole_s(times) / middle_mean(whole_s(times)), BETWEEN)


def parts_of(step: StepTimes, lone: StepTimes) -> dict[str, float]:
    """What a step of the whole model, and one of a single micro-batch without an update, say: what the rest of a step takes longer
    for each further micro-batch is part of its forward.

    >>> step = StepTimes([5.0, 3.0], [7.0, 8.0], update=2.0, rest=1.5)
    >>> parts_of(step, StepTimes([3.0], [7.5], update=0.0, rest=1.0))  # doctest: +NORMALIZE_WHITESPACE
    {'whole_forward': 3.5, 'whole_backward': 8.0, 'one_in_flight': 11.0, 'adding': 1.0, 'first': 5.5, 'update': 2.0, 'rest': 0.5}
    """
    count = len(step.forward)
    each = min(max(step.rest - lone.rest, 0.0) / (count - 1), step.rest / count) if count > 1 else 0.0
    forward, backward = (step.forward[-1], step.backward[-1]) if count > 1 else (lone.forward[0], lone.backward[0])
    return {
        "whole_forward": forward + each,
        "whole_backward": backward,
        "one_in_flight": lone.forward[0] + lone.backward[0] + each,
        "adding": backward - step.backward[0],
        "first": step.forward[0] + each,
        "update": step.update,
        "rest": step.rest - count * each,
    }


def cutting_of(whole: StepTimes, halves: StepTimes) -> float:
    """What a forward or a backward of either half takes beyond those of the whole: of two stages each is charged half of it.

    >>> whole, halves = StepTimes([4.0], [8.0], 0.0, 0.0), StepTimes([3.0, 3.0], [5.0, 5.0], 0.0, 0.0)
    >>> cutting_of(whole, halves)
    2.0
    """
    beyond = sum(halves.forward + halves.backward) - sum(whole.forward + whole.backward)
    return 2 * beyond / (len(halves.forward) + len(halves.backward))


def estimates(times: TaskTimes) -> tuple[list[Estimate], list[Estimate]]:
    """(forward, backward) estimate of every task: the median over rounds, its quartiles as the interval, set right by the whole."""
    return _set_right(times.forward, times.whole_forward, times.calls), _set_right(
        times.backward, times.whole_backward, times.marks
    )


def cutting_s(times: TaskTimes) -> float:
    """What a forward or a backward of a stage takes, whatever the stage holds; nan where steps are too long to tell."""
    return float(np.maximum(np.median(times.cutting), 0.0))


def cold_s(times: TaskTimes) -> float:
    """What comes behind a long wait takes longer: what halves behind waits take beyond what a plan is told of them. 0 where nobody waits,
    nan where steps are too long to tell."""
    longer_s = np.maximum(np.median(times.behind_waits - _told_of_halves(times)), 0.0)
    return float(longer_s / max(times.waits, 1) / chill(times.wait_s, COOLS_S))


def _told_of_halves(times: TaskTimes) -> FloatArray:
    """[rounds] what two devices with half of the model each take for a micro-batch and an update, as a plan is told it: a wait comes before
    the second forward, and before the first half's backward, if it has one; the first forward begins a step."""
    calls = 2 + times.waits
    at_once = times.whole_forward + times.whole_backward + times.update - times.adding
    return at_once + idle_update_s(times) + _first_s(times) + calls * cutting_s(times) / 2


def weight_shares(times: TaskTimes) -> FloatArray:
    """[tasks] the part of each backward that can wait, as measured in a split one."""
    whole = np.median(times.backward, axis=0)
    part = np.median(times.weights, axis=0)
    return np.clip(np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0), 0.0, 1.0)


def parting_s(times: TaskTimes) -> FloatArray:
    """[tasks] seconds that splitting each backward takes: what it takes of the whole, in proportion to what can wait."""
    part = np.median(times.weights, axis=0)
    price = max(0.0, float(np.median(times.parting)))
    return price * part / part.sum() if part.sum() > 0 else np.zeros_like(part)


def beginning_s(times: TaskTimes) -> float:
    """What comes once a step, and what its first forward takes longer than a later one, for the update before it has filled the caches;
    less what the later one takes longer because another micro-batch is in flight."""
    return float(np.median(times.rest)) + _first_s(times)


def _first_s(times: TaskTimes) -> float:
    """What a step's first forward takes longer."""
    return max(0.0, float(np.median(times.first - times.whole_forward)))


def idle_update_s(times: TaskTimes) -> float:
    """What the optimizer's step takes whatever it updates; no more than a step of it, less what the first backward saves."""
    idle_s, update_s = float(np.median(times.idle_update)), float(np.median(times.update))
    return min(idle_s + times.update_call * max(0.0, update_s - idle_s), updating_s(times))


def call_in(whole_s: float, each_s: Sequence[float]) -> float:
    """What is in each of several updates and only once in one of them all.

    >>> call_in(7.0, [3.0, 4.0, 4.0]), call_in(12.0, [3.0, 4.0, 4.0]), call_in(0.0, [3.0, 4.0]), call_in(3.0, [3.0])
    (2.0, 0.0, 3.0, 0.0)
    """
    surplus_s = (sum(each_s) - whole_s) / max(1, len(each_s) - 1)
    return min(max(surplus_s, 0.0), *each_s) if len(each_s) > 1 else 0.0


def updating_s(times: TaskTimes) -> float:
    """The optimizer's step, less what the first backward of a step saves because it adds to no gradients."""
    return max(0.0, float(np.median(times.update - times.adding)))


def _set_right(tasks: FloatArray, whole: FloatArray, marks: FloatArray) -> list[Estimate]:
    """Medians whose sum is the median of the whole: a constant per mark is taken off first, the rest in proportion."""
    medians, target = np.median(tasks, axis=0), float(np.median(whole))
    kept = _without_marks(medians, marks, _surplus_per_mark(medians, marks, target))
    scale = target / kept.sum() if kept.sum() > 0 else 1.0
    factor = np.divide(kept * scale, medians, out=np.zeros_like(medians), where=medians > 0)
    low, high = np.quantile(tasks, 0.25, axis=0) * factor, np.quantile(tasks, 0.75, axis=0) * factor
    return [Estimate(float(m), float(a), float(b), "measured") for m, a, b in zip(kept * scale, low, high, strict=True)]


def _without_marks(medians: FloatArray, marks: FloatArray, surplus: float) -> FloatArray:
    """What is left of each task when its marks' cost is taken off; a tenth of it at least."""
    return np.maximum(medians - surplus * marks, 0.1 * medians)


def _surplus_per_mark(medians: FloatArray, marks: FloatArray, target: float) -> float:
    """The seconds a mark costs, at which the tasks' sum is the target; 0 where it is below anyway, 20 us at most. By bisection."""
    low, high = 0.0, 20e-6
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _without_marks(medians, marks, middle).sum() > target else (low, middle)
    return low
