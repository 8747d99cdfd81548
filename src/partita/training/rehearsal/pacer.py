"""Pacer: a rank's time in a rehearsal, in which a device's work is waited for instead of done.

Times are those of the monotonic clock, which all ranks of a machine share. A wait ends late now and then: the system wakes a
process some 50 us after it was asked to, and later where its cores are busy with other ranks. What a wait was late by is no time
of the emulated device, so it is a *debt*: `now` leaves it out, and the next wait is shorter by it. What the engine itself
takes between two waits (Python, copying messages) is not left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

SPIN_S = 5e-5  #: of the end of a wait, in which the clock is looked at instead of sleeping
_PR_SET_TIMERSLACK = 29  # prctl(2)


@dataclass
class Pacer:
    """`debt_s`: how late this rank is, through waits that ended late; `late_s`: all that waits were late by so far, made up for or not."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    debt_s: float = 0.0
    late_s: float = 0.0

    @property
    def now_s(self) -> float:
        """The emulated device's time."""
        return self.clock() - self.debt_s

    def until(self, at_s: float) -> None:
        """Wait until the device's time is `at_s`; no time passes for it where that is over."""
        self.come(max(self.now_s, at_s))

    def come(self, at_s: float) -> None:
        """The device's time is `at_s`, which may be behind the clock: then the rank is late by the difference."""
        left = at_s - self.clock()
        if left > SPIN_S:
            self.sleep(left - SPIN_S)
        while (late := self.clock() - at_s) < 0:
            pass
        self.late_s += late if left > 0 else 0.0
        self.debt_s = late


def wake_precisely() -> None:
    """Ask the system to end this thread's sleeps within a microsecond and not within 50, where it knows how."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
