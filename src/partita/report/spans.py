"""What a span of a timeline is, and how much of the time a device works."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from partita.timeline import Timeline

Look = Literal["forward", "backward", "update", "transfer", "other"]


def look(label: str) -> Look:
    """What a span's label says it is: "F0" forward, "B1" backward, "U0" update, "F0>F1" or "R0" a transfer.

    >>> [look(x) for x in ("F0", "B12", "U1", "F0>F1", "R0+2", "conv")]
    ['forward', 'backward', 'update', 'transfer', 'transfer', 'other']
    """
    if ">" in label or re.fullmatch(r"R\d+(\+\d+)*", label):
        return "transfer"
    found = re.fullmatch(r"([FBU])\d+", label)
    kinds: dict[str, Look] = {"F": "forward", "B": "backward", "U": "update"}
    return kinds[found[1]] if found else "other"


def working_share(timeline: Timeline) -> dict[str, float]:
    """Device name -> share of the duration in which it computes.

    Receiving is left out: in a measured timeline it lasts as long as the device waits for the message. O(spans)."""
    total = timeline.duration_s or 1.0
    works = np.array([look(label) != "transfer" for label in timeline.label], np.float64)
    spent = np.bincount(timeline.queue, works * (timeline.end_s - timeline.start_s), len(timeline.queues))
    return {name: float(spent[q] / total) for q, name in enumerate(timeline.queues[: timeline.devices])}
