"""How far another process's clock is ahead of this one's, from echoes of its time."""

from __future__ import annotations

import time
from collections.abc import Callable


def clock_ahead(ask: Callable[[], float], rounds: int = 20) -> tuple[float, float]:
    """(seconds the other time.perf_counter() is ahead of ours, round trip), of several echoes the fastest.

    The answer was stamped somewhere in its round trip; the middle is off by half of it at most, as in NTP.

    >>> ahead, round_trip = clock_ahead(lambda: time.perf_counter() + 100.0)
    >>> abs(ahead - 100.0) <= round_trip / 2 + 1e-9
    True
    """
    trips = []
    for _ in range(rounds):
        before = time.perf_counter()
        there = ask()
        after = time.perf_counter()
        trips.append((after - before, there - (before + after) / 2))
    round_trip, ahead = min(trips)
    return ahead, round_trip
