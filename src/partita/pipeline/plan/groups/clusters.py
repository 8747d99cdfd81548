"""Clustering: devices into groups, by their links and speeds, then better by moves and swaps.

1. Merge again and again: the two clusters with the fastest link between them; or the slowest cluster with the one it reaches
   fastest, so that all stay about as fast. Every number of groups on the way is a start.
2. From the best of them: move a device to another group, out, or into a group of its own; swap two; merge two; halve one. A change
   stays where the step gets shorter (estimated: `crew`).
3. Of few devices then every partition of every subset, as far as the effort goes: where memory is tight, what fits lies apart, and
   no change leads from one to the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np

from partita.nouns.graph import FloatArray
from partita.pipeline.plan.groups.crew import Crews, Group, Grouping, Shared
from partita.pipeline.plan.pipeline_task import FEW

STARTS = 5  #: groupings from which the search sets out,
STARTS_OF_FEW = 15  #: and of few devices
PATIENCE = 3  #: times the number of changes there are, of random ones tried without success before it ends
DESCENTS = 0.5  #: share of the effort for changes, where every grouping may be looked at afterwards
KEPT, KEPT_OF_FEW = 8, 40  #: groupings handed on, fastest first


def best_groupings(crews: Crews, seed: int, alone: bool) -> list[Shared]:
    """The fastest groupings that are found, by their estimates; `alone`: one group only."""
    lots = random.Random(seed)
    starts = sorted(dict.fromkeys(_starts(crews)), key=lambda g: (_value(crews, g), g))
    if alone:
        starts = [g for g in starts if len(g) == 1]
    whole = crews.effort.left
    few = len(crews.devices) <= FEW
    every = few and not alone
    share = DESCENTS if every else 1.0
    chosen = starts[: STARTS_OF_FEW if few else STARTS]
    for k, start in enumerate(chosen):
        _improved(crews, start, lots, alone, whole * (1 - share * (k + 1) / len(chosen)))
    if every:
        for grouping in partitions(crews.devices):
            if crews.effort.left <= 0:
                break
            crews.shared(grouping)
    found = [s for g, s in crews.steps.items() if s is not None and (len(g) == 1 or not alone)]
    return sorted(dict.fromkeys(found), key=lambda s: s.step_s)[: KEPT_OF_FEW if few else KEPT]


def partitions(devices: tuple[int, ...]) -> Iterator[Grouping]:
    """Every partition of every subset of some devices into groups: as many as there are partitions of one device more.

    >>> list(partitions((0, 1)))
    [((1,),), ((0,),), ((0,), (1,)), ((0, 1),)]
    """
    yield from (g for g in _partitions(devices) if g)


def _partitions(devices: tuple[int, ...]) -> Iterator[Grouping]:
    if not devices:
        yield ()
        return
    first, rest = devices[0], devices[1:]
    yield from _partitions(rest)  # it is idle
    for mask in range(2 ** len(rest)):
        own: Group = (first, *(d for k, d in enumerate(rest) if mask >> k & 1))
        for more in _partitions(tuple(d for d in rest if d not in own)):
            yield (own, *more)


def _value(crews: Crews, grouping: Grouping) -> tuple[float, float]:
    """(how far it is from fitting, its step): less is better."""
    if not grouping:
        return math.inf, math.inf
    found = crews.shared(grouping)
    return (0.0, found.step_s) if found else (crews.lacking(grouping) or 1.0, math.inf)


def _below(value: tuple[float, float], other: tuple[float, float]) -> bool:
    """Better by more than rounding."""
    return (value[0], value[1] * (1 + 1e-9)) < other


def _starts(crews: Crews) -> Iterator[Grouping]:
    """Both ways of merging, over all devices and over the faster ones; and each device alone."""
    by_pace = sorted(crews.devices, key=lambda d: (-crews.pace[d], d))
    n = len(by_pace)
    for count in dict.fromkeys((n, 3 * n // 4, n // 2, 1)):
        if count:
            for balanced in (True, False):
                yield from _merging(crews, by_pace[:count], balanced)
    yield from (((d,),) for d in by_pace)


def _merging(crews: Crews, devices: list[int], balanced: bool) -> Iterator[Grouping]:
    """The groupings on the way from each device alone to all in one."""
    clusters: list[Group] = [(d,) for d in devices]
    slow = crews.line.per_byte_s[np.ix_(devices, devices)].astype(np.float64)  # summed over the pairs of two clusters
    pace, size = np.array(crews.pace)[devices], np.ones(len(devices))
    yield ordered(clusters)
    while len(clusters) > 1:
        mean = np.tril(slow / np.outer(size, size), -1) + np.triu(np.full(slow.shape, math.inf))
        if balanced:
            least = min(range(len(clusters)), key=lambda k: (pace[k], clusters[k]))
            others = np.arange(len(clusters)) != least
            mean[np.ix_(others, others)] = math.inf
        near = [p for p in np.argwhere(mean <= mean.min() * (1 + 1e-12)).tolist() if p[0] > p[1]]
        a, b = min(near, key=lambda p: (pace[p[0]] + pace[p[1]], p))
        kept = [k for k in range(len(clusters)) if k not in (a, b)]
        clusters = [clusters[k] for k in kept] + [tuple(sorted(clusters[a] + clusters[b]))]
        slow, pace, size = _merged(slow, kept, (a, b)), _last(pace, kept, (a, b)), _last(size, kept, (a, b))
        yield ordered(clusters)


def _merged(slow: FloatArray, kept: list[int], pair: tuple[int, int]) -> FloatArray:
    """Rows and columns of those kept, then those of the pair, added up."""
    rows = np.vstack([slow[kept], slow[list(pair)].sum(axis=0)])
    return np.hstack([rows[:, kept], rows[:, list(pair)].sum(axis=1, keepdims=True)])


def _last(values: FloatArray, kept: list[int], pair: tuple[int, int]) -> FloatArray:
    return np.append(values[kept], values[list(pair)].sum())


def ordered(groups: list[Group]) -> Grouping:
    """Groups as a value: each ascending, by their first devices."""
    return tuple(sorted(tuple(sorted(g)) for g in groups if g))


def _improved(crews: Crews, start: Grouping, lots: random.Random, alone: bool, until: float) -> Grouping:
    """The grouping that changes lead to, until none helps or the effort is down to `until`."""
    best, value = start, _value(crews, start)
    while crews.effort.left > until:
        if len(crews.devices) <= FEW:
            tried = min(set(_changes(crews, best, alone)), key=lambda g: (_value(crews, g), g), default=best)
            if not _below(_value(crews, tried), value):
                return best
            best, value = tried, _value(crews, tried)
            continue
        changes = list(_changes(crews, best, alone))
        lots.shuffle(changes)
        for tried in changes[: PATIENCE * len(crews.devices) * len(best) + 100]:
            if crews.effort.left <= until:
                return best
            if _below(_value(crews, tried), value):
                best, value = tried, _value(crews, tried)
                break
        else:
            return best
    return best


def _changes(crews: Crews, grouping: Grouping, alone: bool) -> Iterator[Grouping]:
    """Every grouping that is one change away."""
    groups = [list(g) for g in grouping]
    used = {d for g in groups for d in g}
    idle = [d for d in crews.devices if d not in used]
    places = [(k, d) for k, g in enumerate(groups) for d in g]

    def but(changed: dict[int, list[int]], more: tuple[list[int], ...] = ()) -> Grouping:
        return ordered([tuple(changed.get(k, g)) for k, g in enumerate(groups)] + [tuple(m) for m in more])

    for k, d in places:
        rest = [x for x in groups[k] if x != d]
        if len(used) > 1:
            yield but({k: rest})
        if rest and not alone:
            yield but({k: rest}, ([d],))
        for j in range(len(groups)):
            if j != k:
                yield but({k: rest, j: [*groups[j], d]})
        for e in idle:
            yield but({k: [*rest, e]})
    for x, (k, d) in enumerate(places):
        for j, e in places[x + 1 :]:
            if j != k:
                yield but({k: [*(y for y in groups[k] if y != d), e], j: [*(y for y in groups[j] if y != e), d]})
    for d in idle:
        for k, g in enumerate(groups):
            yield but({k: [*g, d]})
        if not alone:
            yield but({}, ([d],))
    for k in range(len(groups)):
        for j in range(k):
            yield but({k: [*groups[k], *groups[j]], j: []})
        if len(groups[k]) > 1 and not alone:
            by_pace = sorted(groups[k], key=lambda d: (-crews.pace[d], d))
            yield but({k: by_pace[::2]}, (by_pace[1::2],))
            half = len(by_pace) // 2
            yield but({k: by_pace[:half]}, (by_pace[half:],))
