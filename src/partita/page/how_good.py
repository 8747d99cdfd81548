"""How good a plan is at worst, in a sentence."""

from __future__ import annotations

from partita.page.text import percent, seconds


def how_good(value_s: float, lower_s: float, bound: str, none_below: str, rounding: float) -> str:
    """`none_below`: "No order has a makespan below"; "" where no bound is known. A gap below `rounding` is none."""
    if not (lower_s > 0 and value_s > 0):
        return ""
    gap = 1 - lower_s / value_s
    if gap < rounding:
        return f"{none_below} the {seconds(value_s)} of the plan: it is optimal."
    return f"{none_below} {seconds(lower_s)} ({bound}): the plan is at most {percent(gap)} from the best."
