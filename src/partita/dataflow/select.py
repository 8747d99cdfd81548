"""Selections: which of several scored results a choose keeps. How each is decided while scores come: plan/judge.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from partita.errors import FlowError


@dataclass(frozen=True, slots=True)
class Best:
    """The `count` best. Associative: whoever is beaten by `count` others is dropped at once."""

    count: int
    largest: bool
    single: bool  #: the result is the one kept, not a list

    def __str__(self) -> str:
        which = "largest" if self.largest else "smallest"
        return which if self.single else f"{self.count} {which}"


@dataclass(frozen=True, slots=True)
class Threshold:
    """All that reach a threshold, in the order of the options; each is decided by its own score."""

    at: float
    above: bool
    single: bool = False

    def __str__(self) -> str:
        return f"{'at least' if self.above else 'at most'} {self.at:g}"


@dataclass(frozen=True, slots=True)
class First:
    """The first `count`, in the order of the options, that reach a threshold: whatever comes after them is never run."""

    count: int
    at: float
    above: bool
    single: bool = False

    def __str__(self) -> str:
        return f"first {self.count} {'at least' if self.above else 'at most'} {self.at:g}"


@dataclass(frozen=True, slots=True)
class Halving:
    """Successive halving: all options with the smallest budget, the best part of them with the next one, and so on.

    `budget` names the ordered explore whose options are the budgets. `asynchronous` (ASHA): an option goes on as soon as
    it is in the best part of those that have come as far, without waiting for all.
    """

    budget: str
    keep: float
    largest: bool
    asynchronous: bool
    single: bool = True

    def __str__(self) -> str:
        return f"{'largest' if self.largest else 'smallest'} by halving over {self.budget}, {self.keep:g} kept"


Select: TypeAlias = Best | Threshold | First | Halving


def larger_is_better(select: Select) -> bool:
    """Whether a larger score is kept rather than a smaller one."""
    return select.largest if isinstance(select, Best | Halving) else select.above


def largest() -> Best:
    """The one with the largest score; of equal ones the first."""
    return Best(1, largest=True, single=True)


def smallest() -> Best:
    """The one with the smallest score; of equal ones the first."""
    return Best(1, largest=False, single=True)


def top(count: int, *, largest: bool = True) -> Best:
    """The list of the `count` best, the best first."""
    return Best(_count(count), largest, single=False)


def at_least(threshold: float) -> Threshold:
    """All options whose score is at least `threshold`, in their order."""
    return Threshold(_at(threshold), above=True)


def at_most(threshold: float) -> Threshold:
    """All options whose score is at most `threshold`, in their order."""
    return Threshold(_at(threshold), above=False)


def first_over(threshold: float, count: int = 1) -> First:
    """The first `count` options whose score is at least `threshold`."""
    return First(_count(count), _at(threshold), above=True)


def first_under(threshold: float, count: int = 1) -> First:
    """The first `count` options whose score is at most `threshold`."""
    return First(_count(count), _at(threshold), above=False)


def halving(budget: str, *, keep: float = 1 / 3, largest: bool = True, asynchronous: bool = False) -> Halving:
    """Successive halving over the budgets of an ordered explore; the result is the best one with the largest budget."""
    if not 0.0 < keep < 1.0:
        raise FlowError(f"halving keeps {keep:g} of the options", hint="give a part between 0 and 1, e.g. keep=1/3")
    return Halving(budget, keep, largest, asynchronous)


def _at(threshold: float) -> float:
    if math.isnan(threshold):
        raise FlowError("a threshold that is not a number", hint="no score is above or below it")
    return float(threshold)


def _count(count: int) -> int:
    if count < 1 or int(count) != count:
        raise FlowError(f"a choose that keeps {count}", hint="keep 1, or a larger whole number")
    return int(count)
