"""When a search is ended whose counted work is not done: by processor time, which neighbours on the machine do not use up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

FlagArray = npt.NDArray[np.uint8]
THREADS = 2  #: that search side by side
SLACK = 2.0  #: budgets after which a search ends whose units are not spent: a processor half as fast as said
FIXED_S = 1.0  #: of a thread, beside that: what calls cost that no unit counts, more than the smallest budgets
TICK_S = 0.02


def processor_limit_s(budget_s: float) -> float:
    """The processor seconds of all threads after which a search of this budget ends, whatever is left to do."""
    return THREADS * (SLACK * budget_s + FIXED_S)


@contextmanager
def alarm(processor_s: float, stop: FlagArray) -> Iterator[None]:
    """Sets stop[0] once the process has used so many more processor seconds.

    >>> stop = np.zeros(1, np.uint8)
    >>> with alarm(60.0, stop):
    ...     print(stop[0])
    0
    """
    end, over = time.process_time() + processor_s, threading.Event()

    def watch() -> None:
        while not over.wait(TICK_S):
            if time.process_time() >= end:
                stop[0] = 1
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
