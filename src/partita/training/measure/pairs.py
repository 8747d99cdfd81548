"""Which ranks measure the link between them at the same time: every pair once, nobody in two pairs, no cable under two.

a round of two hosts with two ranks each      h0: r0 - r1           h1: r2 - r3
then, one pair on a cable at a time           r0 - r2;   r0 - r3;   r1 - r2;   r1 - r3
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product, zip_longest
from typing import TypeVar

T = TypeVar("T")
Pair = tuple[T, T]


def tournament(players: Sequence[T]) -> list[list[Pair[T]]]:
    """Rounds in which everybody meets everybody once, by the circle method: the first stays where it is, the others go round.
    As few rounds as there can be. O(players^2).

    >>> tournament("abc")
    [[('b', 'c')], [('a', 'c')], [('a', 'b')]]
    """
    circle: list[T | None] = [*players, *[None] * (len(players) % 2)]
    rounds = []
    for _ in range(len(circle) - 1):
        facing = zip(circle[: len(circle) // 2], reversed(circle[len(circle) // 2 :]), strict=True)
        rounds.append([(a, b) for a, b in facing if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def rounds_of(hosts: Sequence[int]) -> list[list[Pair[int]]]:
    """Rounds of pairs (a < b) of ranks whose hosts are given, [ranks]: first those within hosts, all hosts at once, then those
    between two hosts, one pair at a time on each host's cable.

    >>> rounds_of([7, 7, 8])
    [[(0, 1)], [(0, 2)], [(1, 2)]]
    """
    members = {h: [r for r, host in enumerate(hosts) if host == h] for h in dict.fromkeys(hosts)}
    within = _side_by_side([tournament(m) for m in members.values()])
    across = [
        _side_by_side([[[pair] for pair in product(members[a], members[b])] for a, b in meeting])
        for meeting in tournament(list(members))
    ]
    found = [*within, *chain.from_iterable(across)]
    return [[(min(pair), max(pair)) for pair in together] for together in found if together]


def _side_by_side(schedules: Sequence[list[list[Pair[int]]]]) -> list[list[Pair[int]]]:
    """Rounds of several schedules at once."""
    return [list(chain.from_iterable(r)) for r in zip_longest(*schedules, fillvalue=())]
