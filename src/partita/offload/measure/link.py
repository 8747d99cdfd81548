"""The link between a device and a server, with intervals: measured several times, for it varies with who else uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from partita.nouns.offload import OffloadLink


@dataclass(frozen=True)
class LinkTimes:
    """A link and the interval that each of its figures is believed to lie in."""

    link: OffloadLink  #: medians
    low: OffloadLink  #: the smallest of each figure
    high: OffloadLink  #: the largest

    def with_messages(self, device: tuple[float, float], server: tuple[float, float]) -> LinkTimes:
        """The same, with what an upload takes of either side: (a message, a byte of it)."""
        names = ("send_s", "send_s_per_byte", "receive_s", "receive_s_per_byte")
        costs = dict(zip(names, (*device, *server), strict=True))
        return LinkTimes(*(replace(x, **costs) for x in (self.link, self.low, self.high)))


def measure_link(once: Callable[[], OffloadLink], times: int = 5) -> LinkTimes:
    """Measure a link `times` times with `once`: medians and extremes of rates and round trip."""
    seen = [once() for _ in range(times)]
    rows = np.array([[x.up_bytes_per_s, x.down_bytes_per_s, x.round_trip_s] for x in seen])
    return LinkTimes(*(OffloadLink(*map(float, q)) for q in np.quantile(rows, (0.5, 0.0, 1.0), axis=0)))
