"""Limit: how long a mapping may be improved by simulating whole steps, counted in work.

A step of a plan of many segments takes long to simulate, and there are as many trials as there are segments, or more. Counted,
the same inputs give the same plan on every machine; where others wait for the answer, a clock is looked at too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

CALL_S, TASK_S, SEGMENT_S, PAIR_S = (
    6e-4,
    2e-6,
    7e-5,
    7e-8,
)  #: of one simulation: fitted to 36 jobs of 33 to 3,000 tasks, to 10 %


def simulation_s(tasks: int, segments: int) -> float:
    """Seconds that lowering and simulating a step takes, on an idle core; counted, not measured.

    >>> round(simulation_s(1800, 424), 3)
    0.046
    """
    return CALL_S + TASK_S * tasks + SEGMENT_S * segments + PAIR_S * segments**2


def _always() -> bool:
    return True


@dataclass(frozen=True)
class Limit:
    """What the trials of one improvement may come to."""

    worth_s: float = math.inf  #: of simulations, by `simulation_s`
    goes_on: Callable[[], bool] = _always  #: asked between two trials


FREELY = Limit()
