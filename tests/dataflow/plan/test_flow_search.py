"""Which options are scored: what is found is what scoring all would find, with fewer scores; a wrong declaration is told."""

from __future__ import annotations

import math
import random

import pytest

from partita.dataflow import first_over, largest, smallest, top
from partita.dataflow.graph import Candidate, Choice
from partita.dataflow.plan.judge import Leaders, judge
from partita.dataflow.plan.search import crossing, end, peak
from partita.dataflow.select import Best, Select, Threshold, at_least, at_most


def choice(n: int, select: Select, shape: str | None = None) -> Choice:
    return Choice("c", ("x",), select, shape, tuple(Candidate({"x": str(i)}, 2 * i, 2 * i + 1) for i in range(n)))  # type: ignore[arg-type]


def convex(rng: random.Random, n: int) -> list[float]:
    """Rises to a best option and falls after it, in steps of random heights."""
    best = rng.randrange(n)
    up = [rng.uniform(0.01, 1) for _ in range(best)]
    down = [rng.uniform(0.01, 1) for _ in range(n - 1 - best)]
    scores = [0.0] * n
    for i in range(best - 1, -1, -1):
        scores[i] = scores[i + 1] - up[i]
    for i in range(best + 1, n):
        scores[i] = scores[i - 1] - down[i - best - 1]
    return scores


def settled(c: Choice, truth: list[float], ahead: int = 2) -> tuple[tuple[int, ...], dict[int, float], str]:
    """(kept, scores asked for, contradiction) of a choice whose scores are `truth`."""
    scores: dict[int, float] = {}
    while True:
        verdict = judge(c, scores, ahead=ahead)
        if verdict.kept is not None:
            return verdict.kept, scores, verdict.contradiction
        assert verdict.wanted
        assert not set(verdict.wanted) & scores.keys()
        scores |= {i: truth[i] for i in verdict.wanted}


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_convex_finds_what_all_scores_would(ahead: int) -> None:
    rng = random.Random(ahead)
    for _ in range(300):
        n = rng.randrange(1, 60)
        truth = convex(rng, n)
        kept, scores, told = settled(choice(n, largest(), "convex"), truth, ahead)
        assert kept == (max(range(n), key=lambda i: truth[i]),)
        assert told == ""
        if n > 20:
            assert len(scores) <= 4 + ahead * (2 + 1.6 * math.log2(n))
        kept, _, _ = settled(choice(n, smallest(), "convex"), [-s for s in truth], ahead)
        assert kept == (max(range(n), key=lambda i: truth[i]),)


def test_the_best_few_of_convex_scores() -> None:
    rng = random.Random(1)
    for _ in range(200):
        n, k = rng.randrange(3, 30), rng.randrange(1, 6)
        truth = convex(rng, n)
        kept, _, told = settled(choice(n, top(k), "convex"), truth)
        assert kept == tuple(sorted(range(n), key=lambda i: (-truth[i], i))[:k])
        assert told == ""


def test_a_valley_is_told_and_all_options_are_scored() -> None:
    truth = [abs(i - 10.2) for i in range(21)]  # best at both ends, worst in the middle
    kept, scores, told = settled(choice(21, largest(), "convex"), truth)
    assert kept == (0,)
    assert len(scores) == 21
    assert "not convex" in told


def test_equal_scores_that_are_not_the_best_are_told() -> None:
    assert "not convex" in peak(30, {0: 0.1, 5: 0.1, 9: 0.5}).contradiction
    assert peak(30, {0: 0.1, 5: 0.5, 9: 0.5}).contradiction == ""


def test_monotone_finds_what_all_scores_would() -> None:
    rng = random.Random(2)
    for _ in range(200):
        n, k = rng.randrange(1, 40), rng.randrange(1, 4)
        truth = sorted((rng.choice([rng.random(), 0.5]) for _ in range(n)), reverse=rng.random() < 0.5)
        kept, scores, told = settled(choice(n, top(k), "monotone"), truth)
        assert kept == tuple(sorted(range(n), key=lambda i: (-truth[i], i))[:k])
        assert told == ""
        if len(set(truth)) == n:
            assert len(scores) <= 3 + 2 * k


def test_scores_that_rise_and_fall_are_not_monotone() -> None:
    truth = [float(-((i - 5) ** 2)) for i in range(11)]
    kept, scores, told = settled(choice(11, largest(), "monotone"), truth)
    assert (kept, len(scores)) == ((5,), 11)
    assert "not monotone" in told
    assert end(11, {0: 1.0, 5: 2.0, 10: 0.0}).contradiction


def test_a_threshold_is_crossed_once() -> None:
    rng = random.Random(3)
    for _ in range(200):
        n, at = rng.randrange(1, 100), rng.random()
        truth = sorted((rng.random() for _ in range(n)), reverse=rng.random() < 0.5)
        passing = tuple(i for i in range(n) if truth[i] >= at)
        best_first = tuple(sorted(passing, key=lambda i: -truth[i]))
        assert settled(choice(n, at_least(at), "monotone"), truth)[0] == best_first
        assert settled(choice(n, at_least(at)), truth)[0] == best_first
        assert settled(choice(n, at_most(-at), "monotone"), [-s for s in truth])[0] == best_first
        kept, scores, _ = settled(choice(n, first_over(at, 2), "monotone"), truth)
        assert kept == passing[:2]
        assert len(scores) <= 3 + math.log2(n)
    assert crossing(10, {0: 0.0, 9: 1.0}, 2.0).found == ()


def test_first_over_never_asks_behind_what_it_needs() -> None:
    truth = [0.1, 0.9, 0.2, 0.8, 0.7, 0.9]
    kept, scores, _ = settled(choice(6, first_over(0.75, 2)), truth, ahead=1)
    assert kept == (1, 3)
    assert set(scores) == {0, 1, 2, 3}


@pytest.mark.parametrize("select", [largest(), smallest(), top(3), at_least(0.5), at_most(0.4)])
def test_one_score_at_a_time_tells_what_all_together_tell(select: Best | Threshold) -> None:
    rng = random.Random(4)
    for _ in range(100):
        n = rng.randrange(1, 20)
        c, leaders, lost = choice(n, select), None, {}
        leaders = Leaders(c)
        order = rng.sample(range(n), n)
        scores: dict[int, float] = {}
        for i in order:
            scores[i] = rng.choice([0.1, 0.4, 0.5, 0.9])
            out = leaders.add(i, scores[i])
            lost |= dict([out]) if out else {}
            assert set(lost) == set(judge(c, scores).lost)
        verdict = judge(c, scores)
        assert leaders.kept() is not None
        assert verdict.kept is not None
        assert sorted(leaders.kept() or ()) == sorted(verdict.kept)
        if isinstance(select, Best):
            assert leaders.kept() == verdict.kept
