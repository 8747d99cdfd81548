"""How a span of a timeline looks, by the kind of its piece."""

from __future__ import annotations

from typing import Literal

Look = Literal["forward", "backward", "update", "transfer", "other"]

_LOOKS: dict[str, Look] = {
    "forward": "forward",
    "backward": "backward",
    "input": "backward",
    "weight": "backward",
    "update": "update",
    "values": "transfer",
    "gradients": "transfer",
    "sum": "transfer",
    "norm": "transfer",
}


def look(kind: str) -> Look:
    """The look of a piece's kind (`program.PieceKind`).

    >>> look("weight"), look("values"), look("free")
    ('backward', 'transfer', 'other')
    """
    return _LOOKS.get(kind, "other")
