"""What a result in memory is worth: how often it will still be read, times what it would cost to have it again.

    worth = readers left x min(reload, recompute) / bytes

recompute is its own time and that of what it needs and is not in memory either; reload is reading it back from the store,
where it lies there. When another result needs the place, the one that is worth least a byte goes. A least-recently-used
rule knows neither who will read a result nor what it cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

READ_BYTES_PER_S = 500e6  #: from the page cache, digest checked
READ_S = 0.002  #: for each result
MOST_UPSTREAM = 64  #: calls looked at for what recomputing costs


@dataclass(frozen=True, slots=True)
class Holding:
    """A result in memory."""

    node: int
    size_bytes: float
    readers: int
    recompute_s: float
    stored: bool

    @property
    def worth(self) -> float:
        """Seconds a byte."""
        again = min(self.recompute_s, reload_s(self.size_bytes)) if self.stored else self.recompute_s
        return self.readers * again / self.size_bytes if self.size_bytes else math.inf


def reload_s(size_bytes: float) -> float:
    """Seconds to read a result back."""
    return READ_S + size_bytes / READ_BYTES_PER_S


def cheapest(held: Sequence[Holding]) -> int | None:
    """The node whose result is worth least; None where there is none.

    >>> cheapest([Holding(0, 1e6, 1, 0.5, False), Holding(1, 1e6, 3, 0.1, False)])
    1
    """
    return min(held, key=lambda h: (h.worth, h.node)).node if held else None


def recompute_s(
    node: int, needs: Callable[[int], Iterable[int]], seconds: Callable[[int], float], held: Callable[[int], bool]
) -> float:
    """What having a call's result again costs: its own time and that of all calls upstream that are not held. O(upstream)."""
    total, seen, waiting = 0.0, {node}, [node]
    while waiting and len(seen) <= MOST_UPSTREAM:
        k = waiting.pop()
        total += seconds(k)
        for need in needs(k):
            if need not in seen and not held(need):
                seen.add(need)
                waiting.append(need)
    return total
