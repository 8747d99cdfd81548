"""What a server counts, as Prometheus text."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping

_RECENT = 4096  #: answers over which quantiles are taken


class Counters:
    """Counters and recent service times. Safe to use from many threads; memory bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def add(self, name: str, amount: float = 1.0) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0.0) + amount

    def served(self, seconds: float) -> None:
        """One answer, `seconds` after its job had come in."""
        with self._lock:
            self._counts["jobs_served_total"] = self._counts.get("jobs_served_total", 0.0) + 1
            self._recent.append(seconds)

    def text(self, now: Mapping[str, float]) -> str:
        """Everything counted, `now` (gauges), and p50 / p99 of the recent service times."""
        with self._lock:
            counts, recent = dict(self._counts), sorted(self._recent)
        lines = [f"partita_offload_{name} {value:.15g}" for name, value in sorted({**counts, **now}.items())]
        lines += [
            f'partita_offload_service_seconds{{quantile="{q}"}} {quantile(recent, q):g}' for q in (0.5, 0.99) if recent
        ]
        return "\n".join(lines) + "\n"


def quantile(ascending: list[float], q: float) -> float:
    """The smallest value that a share q of the values does not exceed.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([1.0, 2.0, 3.0, 4.0], 0.99)
    (2.0, 4.0)
    """
    return ascending[max(0, math.ceil(q * len(ascending)) - 1)]
