"""What a span of a timeline is, by its label."""

from __future__ import annotations

import re
from typing import Literal

from partita.nouns.timeline import is_message

Look = Literal["forward", "backward", "update", "transfer", "other"]


def look(label: str) -> Look:
    """What a span's label says it is: "F0" forward, "B1" backward, "U0" update, "F0>F1" or "R0" a transfer.

    >>> [look(x) for x in ("F0", "B12", "U1", "F0>F1", "R0+2", "conv")]
    ['forward', 'backward', 'update', 'transfer', 'transfer', 'other']
    """
    if is_message(label) or re.fullmatch(r"R\d+(\+\d+)*", label):
        return "transfer"
    found = re.fullmatch(r"([FBU])\d+", label)
    kinds: dict[str, Look] = {"F": "forward", "B": "backward", "U": "update"}
    return kinds[found[1]] if found else "other"
