"""Colours for a few kinds of things, even steps along a scale. Values to styles."""

from __future__ import annotations

STOPS = ("--green", "--low", "--middle", "--high")  #: variables of gantt.css and the sheet


def colour(kind: int, kinds: int) -> str:
    """A kind's colour as a style: along a scale that begins at blue, or at green where there are many.

    >>> colour(0, 2), colour(1, 2)
    ('--c:color-mix(in oklab,var(--middle) 0%,var(--low))', '--c:color-mix(in oklab,var(--high) 100%,var(--middle))')
    """
    stops, at = _place(kind, kinds)
    k = min(int(at), len(stops) - 2)
    return f"--c:color-mix(in oklab,var({stops[k + 1]}) {100 * (at - k):.0f}%,var({stops[k]}))"


def shade(kind: int, kinds: int) -> str:
    """How a kind's colour looks on a light page: "deep" up to a little beyond the last stop but one, then "pale"."""
    stops, at = _place(kind, kinds)
    return "deep" if at <= len(stops) - 1.8 else "pale"


def _place(kind: int, kinds: int) -> tuple[tuple[str, ...], float]:
    """(the scale, where on it a kind is: k at its k-th stop)."""
    stops = STOPS if kinds > 4 else STOPS[1:]
    return stops, (len(stops) - 1) * kind / (kinds - 1) if kinds > 1 else 0.0
