"""Ratios of medians with an interval, and what may be said of a claim: met, missed, or not to be told on this machine.

The interval is a percentile bootstrap over rounds: alternatives that were taken in the same round are drawn together, so
that what the machine did to all of them in a round cancels out (Efron, Tibshirani, "An introduction to the bootstrap", ch. 13).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Said = Literal["met", "missed", "the machine was too restless to tell"]

LEVEL = 0.95
RESAMPLES = 4000
FEWEST = 6  #: rounds: of 6 to 24 normal ones the interval of a median holds in 91 to 94 % (simulated, 2026-11-30), of fewer less often
MOST_DRIFT = 0.25  #: a claim about a ratio of times taken in turn is not judged where the machine drifted by more
WITHIN_ROUNDS = math.inf  #: likewise of figures that `within_rounds` makes
MOST_DRIFT_ALONE = 0.15  #: likewise of a time against one from before the run: nothing cancels out

MET: Said = "met"
MISSED: Said = "missed"
UNTOLD: Said = "the machine was too restless to tell"


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and where it lies in LEVEL of all repetitions; nan at both ends where nothing is known of that."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def ends(self) -> list[float] | None:
        """[low, high] for JSON; None where they are not known."""
        return [self.low, self.high] if self.known else None

    @staticmethod
    def exact(value: float) -> Interval:
        """A figure without chance in it."""
        return Interval(value, value, value)


def bootstrap(
    figure: Callable[..., Floats],
    *columns: Sequence[float],
    middle: Callable[..., Any] = np.median,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A figure made of the columns' medians. Each of `columns` [rounds] holds a value a round, the same rounds in each.

    `figure` gets a median of each column, or arrays of them, and works elementwise; `middle` may be np.mean. The same columns
    and seed give the same interval. Raises ValueError for columns of different lengths. O(columns x resamples x rounds).

    >>> bootstrap(lambda a, b: a / b, [2.0] * 8, [1.0] * 8)
    Interval(value=2.0, low=2.0, high=2.0)
    """
    if not columns or not columns[0] or len({len(c) for c in columns}) > 1:
        raise ValueError(f"columns of {[len(c) for c in columns]} rounds; they need the same rounds, at least one")
    samples = np.array(columns, np.float64)
    value = float(figure(*middle(samples, axis=1)))
    rounds = samples.shape[1]
    if rounds < FEWEST:
        return Interval(value, math.nan, math.nan)
    drawn = np.random.default_rng(seed).integers(0, rounds, (resamples, rounds))
    found = figure(*(middle(column[drawn], axis=1) for column in samples))
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def ratio(above: Sequence[float], below: Sequence[float], **how: Any) -> Interval:
    """Median of `above` over median of `below`, both [rounds]; see `bootstrap`."""
    return bootstrap(lambda a, b: a / b, above, below, **how)


def within_rounds(figure: Callable[..., Floats], *columns: Sequence[float], **how: Any) -> Interval:
    """Median of a figure of each round: where a round's values were taken within seconds, how fast the machine was then cancels
    out, and it may drift as it likes (`WITHIN_ROUNDS`)."""
    return bootstrap(lambda r: r, figure(*(np.array(c, np.float64) for c in columns)).tolist(), **how)


def ratio_within_rounds(above: Sequence[float], below: Sequence[float], **how: Any) -> Interval:
    """Median of the rounds' own ratios; see `within_rounds`."""
    return within_rounds(lambda a, b: a / b, above, below, **how)


def over_medians(
    values: Sequence[float],
    blocks: Sequence[Sequence[float]],
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Fixed values, e.g. predictions, each over the median of its block [blocks][rounds]; the median of these. Blocks are drawn, and
    rounds in each: processes begun anew, on a machine that is another by then, differ by more than their rounds do.

    >>> over_medians([2.0, 3.0], [[1.0] * 6, [2.0] * 6])
    Interval(value=1.75, low=1.5, high=2.0)
    """
    value = float(np.median([v / np.median(b) for v, b in zip(values, blocks, strict=True)]))
    if sum(map(len, blocks)) < FEWEST:
        return Interval(value, math.nan, math.nan)
    random, count = np.random.default_rng(seed), len(blocks)
    drawn = [np.asarray(b)[random.integers(0, len(b), (resamples, len(b)))] for b in blocks]
    each = np.array([v / np.median(d, axis=1) for v, d in zip(values, drawn, strict=True)])  # [blocks, resamples]
    found = np.median(np.take_along_axis(each, random.integers(0, count, each.shape), axis=0), axis=0)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a figure is said to be: between two values, both included."""

    what: str  #: in words
    low: float = -math.inf
    high: float = math.inf
    most_drift: float = MOST_DRIFT  #: of the machine, a share; inf: no time is in the figure, or drift cancels out
    grows: bool = True  #: in proportion to time, unlike an error or a difference

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def verdict(claim: Claim, found: Interval, drift: float) -> dict[str, Any]:
    """What can be said of a claim, with its reasons, ready for JSON. `drift` is a share, see `machine_probe.drift_of`.

    Met: the whole interval lies inside the claim. Missed: all of it lies outside. Otherwise, or where too few rounds give no
    interval, it cannot be told; nor where the machine drifted by more than the claim bears, unless the figure is so far from the
    claim's ends that it would be the same were it wrong by all of that drift.

    >>> verdict(Claim("twice as fast", low=2.0), Interval(2.3, 2.1, 2.5), drift=0.05)["verdict"]
    'met'
    >>> verdict(Claim("in a second", high=1.0), Interval(0.5, 0.4, 0.6), drift=0.5)["verdict"]
    'met'
    """
    said, because = _said(claim, found, drift)
    return {
        "claim": claim.what, "low": _finite(claim.low), "high": _finite(claim.high), "value": found.value,
        "interval": found.ends, "drift": drift, "most_drift": _finite(claim.most_drift), "verdict": said, "because": because,
    }  # fmt: skip


def _said(claim: Claim, found: Interval, drift: float) -> tuple[Said, str]:
    if not found.known:
        return UNTOLD, f"fewer than {FEWEST} rounds give no interval"
    if drift > claim.most_drift and claim.grows:
        wide = Interval(found.value, min(found.low, found.low / (1 + drift)), max(found.high, found.high * (1 + drift)))
        said, because = _said(claim, wide, 0.0)
        if said != UNTOLD:
            return said, f"{because}, even were it wrong by the {drift:.0%} that the machine drifted"
    if drift > claim.most_drift:
        return UNTOLD, f"the machine drifted by {drift:.0%}; {claim.most_drift:.0%} is the most this claim bears"
    if claim.holds(found.low) and claim.holds(found.high):
        return MET, "the whole interval lies inside the claim"
    if found.high < claim.low or found.low > claim.high:
        return MISSED, "the whole interval lies outside the claim"
    return UNTOLD, "an end of the claim lies inside the interval"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def sentences(verdicts: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a verdict, for a terminal."""
    lines = []
    for v in verdicts.values():
        ends = f" ({v['interval'][0]:.4g} to {v['interval'][1]:.4g})" if v["interval"] else ""
        lines.append(f"{v['verdict']}: {v['claim']}; found {v['value']:.4g}{ends}; {v['because']}")
    return "\n".join(lines)
