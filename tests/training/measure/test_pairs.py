"""Every two ranks are measured once; nobody is in two pairs of a round, and no cable is under two."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from partita.training.measure.pairs import rounds_of, tournament


@given(st.integers(0, 12))
def test_a_tournament_has_as_few_rounds_as_there_can_be(n: int) -> None:
    rounds = tournament(range(n))
    assert Counter(frozenset(p) for r in rounds for p in r) == Counter(map(frozenset, combinations(range(n), 2)))
    assert len(rounds) == max(0, n - 1 + n % 2)


@given(st.lists(st.integers(0, 3), max_size=9))
def test_every_two_ranks_meet_once_and_share_nothing_with_others_meanwhile(hosts: list[int]) -> None:
    rounds = rounds_of(hosts)
    assert Counter(p for r in rounds for p in r) == Counter(combinations(range(len(hosts)), 2))
    for pairs in rounds:
        assert pairs
        assert max(Counter(r for p in pairs for r in p).values()) == 1
        cables = Counter(h for a, b in pairs if hosts[a] != hosts[b] for h in (hosts[a], hosts[b]))
        assert max(cables.values(), default=0) <= 1


def test_hosts_with_a_rank_each_need_no_more_rounds_than_a_tournament() -> None:
    assert len(rounds_of(range(8))) == 7
