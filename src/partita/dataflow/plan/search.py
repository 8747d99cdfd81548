"""Which options of an ordered explore need a score, where the scores' shape is declared.

Scores are "higher is better" here, by place 0 .. n-1; all functions are stateless: from the scores known so far they say
what to score next, what has been found, or which samples contradict the declaration.

    peak       convex: worse on both sides of the best. The best sample and its nearest worse neighbours left and right bracket
               the best option; a sample at the golden section of the wider gap narrows the bracket. About 1.44 log2(n) samples,
               one after another; fewer rounds with several at once (Kiefer 1953)
    end        monotone: both ends and one between to see whether it is so; then the better end inwards, as many as are kept
    crossing   monotone with a threshold: both ends, then halves. log2(n) samples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

Scores = Mapping[int, float]
GOLDEN = 0.381966


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be scored next; nothing more when `found` holds the places that win, the best first."""

    wanted: tuple[int, ...] = ()
    found: tuple[int, ...] | None = None
    contradiction: str = ""


def peak(n: int, scores: Scores, count: int = 1, ahead: int = 1) -> Step:
    """The `count` best of n options whose scores rise to the best one and fall after it.

    Where the declaration holds, what is found is what scoring all would find, ties included (of equal scores the first).
    """
    told = _not_convex(scores)
    if told:
        return Step(contradiction=told)
    if not scores:
        return Step(wanted=tuple(dict.fromkeys((round(GOLDEN * (n - 1)), round((1 - GOLDEN) * (n - 1))))))
    best = max(scores.values())
    top = [i for i in scores if scores[i] == best]
    low, high = _bracket(n, scores, min(top), max(top))
    inside = [i for i in range(low + 1, high) if i not in scores]
    if inside:
        return Step(wanted=_probes(low, high, scores, inside, ahead))
    known = sorted({-1, *scores, n})
    a, b = max(pairwise(known), key=lambda gap: gap[1] - gap[0])
    if b - a - 1 > max(
        n / 3, 2
    ):  # a large part was never looked at: one sample in it, to see whether the declaration holds
        return Step(wanted=((a + b) // 2,))
    return _grown(n, scores, count)


def _bracket(n: int, scores: Scores, first: int, last: int) -> tuple[int, int]:
    """The nearest places scored left and right of the best ones: the best option is strictly between."""
    return max((i for i in scores if i < first), default=-1), min((i for i in scores if i > last), default=n)


def _probes(low: int, high: int, scores: Scores, inside: list[int], ahead: int) -> tuple[int, ...]:
    """Places in the bracket: in the widest gap between samples, nearer to the better side."""
    known = sorted({low, high, *(i for i in scores if low < i < high)})
    chosen: list[int] = []
    for _ in range(min(ahead, len(inside))):
        a, b = max(pairwise(known), key=lambda gap: gap[1] - gap[0])
        if b - a < 2:
            break
        here, there = scores.get(a, -float("inf")), scores.get(b, -float("inf"))
        part = GOLDEN if here > there else 1 - GOLDEN if there > here else 0.5
        place = min(max(round(a + part * (b - a)), a + 1), b - 1)
        chosen.append(place)
        known = sorted({*known, place})
    return tuple(chosen)


def _grown(n: int, scores: Scores, count: int) -> Step:
    """The block of the best around the peak: its two neighbours are scored before one of them joins."""
    best = max(scores.values())
    block = [i for i in scores if scores[i] == best]
    low, high = min(block), max(block)
    while high - low + 1 < min(count, n):
        open_ = tuple(i for i in (low - 1, high + 1) if 0 <= i < n and i not in scores)
        if open_:
            return Step(wanted=open_)
        left, right = scores.get(low - 1, -float("inf")), scores.get(high + 1, -float("inf"))
        low, high = (low - 1, high) if left >= right else (low, high + 1)
    return Step(found=best_first(range(low, high + 1), scores, count))


def best_first(places: range | list[int], scores: Scores, count: int) -> tuple[int, ...]:
    """The `count` best of them; of equal scores the first.

    >>> best_first([0, 1, 2], {0: 1.0, 1: 2.0, 2: 2.0}, 2)
    (1, 2)
    """
    return tuple(sorted(places, key=lambda i: (-scores[i], i))[:count])


def _not_convex(scores: Scores) -> str:
    """Three samples with the middle one worst; or two equal ones that both lie on one side of a better one."""
    places = sorted(scores)
    rising = True
    for a, b in pairwise(places):
        if scores[b] > scores[a] and not rising:
            return f"{scores[a]:g} at option {a + 1} is worse than what stands before and after it, so the scores are not convex"
        if scores[b] == scores[a] and scores[a] < max(scores.values()):
            return f"options {a + 1} and {b + 1} have the same score {scores[a]:g} and are not the best, so the scores are not convex"
        if scores[b] < scores[a]:
            rising = False
    return ""


def end(n: int, scores: Scores, count: int = 1) -> Step:
    """The `count` best of n options whose scores rise, or fall, throughout."""
    told = _not_monotone(scores)
    if told:
        return Step(contradiction=told)
    first = tuple(i for i in dict.fromkeys((0, n - 1, n // 2)) if i not in scores)
    if first:
        return Step(wanted=first)
    if scores[0] >= scores[n - 1]:
        block = range(min(count, n))
    else:  # of equal ones the first wins: look on until it gets worse than the last that is kept
        last = low = n - min(count, n)
        while low > 0 and scores.get(low - 1, scores.get(last)) == scores.get(last):
            if low - 1 not in scores or last not in scores:
                return Step(wanted=tuple(i for i in range(low - 1, n) if i not in scores))
            low -= 1
        block = range(low, n)
    open_ = tuple(i for i in block if i not in scores)
    return Step(wanted=open_) if open_ else Step(found=best_first(block, scores, count))


def _not_monotone(scores: Scores) -> str:
    places = sorted(scores)
    signs = {(scores[b] > scores[a]) - (scores[b] < scores[a]) for a, b in pairwise(places)} - {0}
    if len(signs) < 2:
        return ""
    told = ", ".join(f"{scores[i]:g} at option {i + 1}" for i in places[:4])
    return f"the scores rise and fall ({told}), so they are not monotone"


def crossing(n: int, scores: Scores, at: float) -> Step:
    """All of n options with a score of at least `at`, in their order; found without scoring all, where scores are monotone."""
    told = _not_monotone(scores)
    if told:
        return Step(contradiction=told)
    ends = tuple(i for i in dict.fromkeys((0, n - 1)) if i not in scores)
    if ends:
        return Step(wanted=ends)
    passes = {i: s >= at for i, s in scores.items()}
    if passes[0] == passes[n - 1]:
        return Step(found=tuple(range(n)) if passes[0] else ())
    good = max(i for i in scores if passes[i] == passes[0])
    bad = min(i for i in scores if i > good)
    if bad - good > 1:
        return Step(wanted=((good + bad) // 2,))
    return Step(found=tuple(range(bad)) if passes[0] else tuple(range(bad, n)))
