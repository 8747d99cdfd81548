"""Schedules as people read them, and what a plan's verdict says of those it was compared with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from partita.nouns.pipeline_plan import Asked
from partita.page.text import percent

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "interleaved 1F1B", "zb-h1": "ZB-H1", "zb-h2": "ZB-H2", "zb-v": "ZB-V",
        "given": "in an order of its own", "searched": "in an order of its own",
    }
)  # fmt: skip


def schedule_words(schedule: str) -> str:
    """Its name in a sentence; an unknown one as it is.

    >>> schedule_words("zb-v")
    'ZB-V'
    """
    return NAMES.get(schedule, schedule)


def schedules_compared(compared_s: Mapping[str, float]) -> dict[str, float]:
    """Those of a verdict's other values that are of schedules.

    >>> schedules_compared({"single": 3.0, "1f1b": 2.0})
    {'1f1b': 2.0}
    """
    return {name: value for name, value in compared_s.items() if name in get_args(Asked)}


def why_this_schedule(schedule: str, value_s: float, compared_s: Mapping[str, float]) -> str:
    """A sentence; empty where nothing was compared.

    >>> why_this_schedule("given", 9.0, {"1f1b": 10.0, "zb-h1": 9.5, "searched": 9.0})
    'in an order of its own: 10 % less than 1F1B, 5.3 % less than ZB-H1, the best of the others'
    """
    found = schedules_compared(compared_s)
    own = "searched" if schedule == "given" else schedule
    others = {n: v for n, v in found.items() if n != own}
    if not others:
        return ""
    first = min(others, key=lambda n: others[n])
    words = [] if first == "1f1b" or "1f1b" not in others else [_less(value_s, others["1f1b"], "1f1b")]
    return f"{schedule_words(schedule)}: {', '.join([*words, _less(value_s, others[first], first)])}, the best of the others"


def _less(value_s: float, other_s: float, name: str) -> str:
    share = 1 - value_s / other_s if other_s > 0 else 0.0
    if abs(share) < 0.0005:
        return f"as long as {schedule_words(name)}"
    return f"{percent(abs(share))} {'less' if share > 0 else 'more'} than {schedule_words(name)}"
