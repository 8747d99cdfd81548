"""Which options are scored: what is found is what scoring all would find, with fewer scores; a wrong declaration is told."""

from __future__ import annotations

import math
import random
import time
from collections import deque

import pytest

from partita.dataflow import first_over, first_under, halving, largest, smallest, top
from partita.dataflow.graph import Candidate, Choice
from partita.dataflow.plan.judge import judging
from partita.dataflow.plan.search import crossing, end, peak
from partita.dataflow.select import Best, First, Select, Threshold, at_least, at_most


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
    judge = judging(c, ahead)
    waiting: deque[int] = deque()
    asked: set[int] = set()
    while True:
        verdict = judge.verdict()
        if verdict.kept is not None:
            return verdict.kept, scores, verdict.contradiction
        assert asked.isdisjoint(verdict.wanted)
        asked.update(verdict.wanted)
        waiting += verdict.wanted
        i = waiting.popleft()
        scores[i] = truth[i]
        judge.add(i, truth[i])


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
        assert settled(choice(n, at_least(at), "monotone"), truth)[0] == passing
        assert settled(choice(n, at_least(at)), truth)[0] == passing
        assert settled(choice(n, at_most(-at), "monotone"), [-s for s in truth])[0] == passing
        kept, scores, _ = settled(choice(n, first_over(at, 2), "monotone"), truth)
        assert kept == passing[:2]
        assert len(scores) <= 3 + math.log2(n)
    assert crossing(10, {0: 0.0, 9: 1.0}, 2.0).found == ()


def test_first_over_never_asks_behind_what_it_needs() -> None:
    truth = [0.1, 0.9, 0.2, 0.8, 0.7, 0.9]
    kept, scores, _ = settled(choice(6, first_over(0.75, 2)), truth, ahead=1)
    assert kept == (1, 3)
    assert set(scores) == {0, 1, 2, 3}


def kept_of(select: Best | Threshold | First, scores: dict[int, float]) -> tuple[int, ...]:
    """By definition, from all scores there are."""
    if isinstance(select, Best):
        sign = -1.0 if select.largest else 1.0
        return tuple(sorted(scores, key=lambda i: (sign * scores[i], i))[: select.count])
    passing = [i for i in sorted(scores) if (scores[i] >= select.at if select.above else scores[i] <= select.at)]
    return tuple(passing[: select.count] if isinstance(select, First) else passing)


@pytest.mark.parametrize("select", [largest(), smallest(), top(3), at_least(0.5), at_most(0.4), first_over(0.5), first_under(0.4, 2)])  # fmt: skip
def test_scores_and_failures_in_any_order_give_what_all_together_give(select: Best | Threshold | First) -> None:
    """Losers are told early and stay losers, unless who beat them fails; those that nobody asked for count too."""
    rng = random.Random(4)
    for _ in range(300):
        n = rng.randrange(1, 20)
        truth = [rng.choice([0.1, 0.4, 0.5, 0.9]) for _ in range(n)]
        failing = {i for i in range(n) if rng.random() < 0.2}
        judge, waiting, scores = judging(choice(n, select), rng.randrange(1, 4)), [], {}
        lost: set[int] = set()
        late: list[int] = []  # results that are lost after their scores came
        while (verdict := judge.verdict()).kept is None:
            lost |= verdict.lost.keys()
            waiting += verdict.wanted
            if late:
                judge.fail(late.pop())
                continue
            i = rng.choice(waiting if rng.random() < 0.8 else [k for k in range(n) if k not in scores])
            waiting = [k for k in waiting if k != i]
            scores[i] = truth[i]
            if i in failing and rng.random() < 0.5:
                judge.fail(i)
            else:
                judge.add(i, truth[i])
                late += [i] if i in failing else []
        sound = {
            i: truth[i] for i in (scores if isinstance(select, First) else range(n)) if i not in failing or i in late
        }
        assert verdict.kept == kept_of(select, sound)
        if not failing:
            assert not lost & set(verdict.kept)


def budgets(n: int, rungs: int, keep: float, asynchronous: bool) -> Choice:
    select = halving("budget", keep=keep, asynchronous=asynchronous)
    rows = ((c, r) for c in range(n) for r in range(rungs))
    return Choice("c", ("x", "budget"), select, None, tuple(Candidate({}, 2 * i, 2 * i + 1, c, r) for i, (c, r) in enumerate(rows)))  # fmt: skip


def halved(truth: list[list[float]], keep: float) -> int:
    """Successive halving by definition: the config that is kept."""
    alive = list(range(len(truth)))
    for rung in range(len(truth[0])):
        alive.sort(key=lambda c: (-truth[c][rung], c))
        if rung < len(truth[0]) - 1:
            alive = sorted(alive[: max(1, math.floor(len(alive) * keep + 1e-9))])
    return alive[0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_halving_keeps_what_its_definition_says(asynchronous: bool) -> None:
    """Asynchronous: whatever the order, all that is among the best part of its rung in the end has gone on, and the best of the
    last rung is kept; nobody is told to have lost, and asked for afterwards."""
    rng = random.Random(5)
    for _ in range(200):
        n, rungs, keep = rng.randrange(1, 20), rng.randrange(1, 4), rng.choice([0.25, 1 / 3, 0.5])
        truth = [[rng.choice([rng.random(), 0.5]) for _ in range(rungs)] for _ in range(n)]
        judge = judging(budgets(n, rungs, keep, asynchronous))
        waiting: list[int] = []
        scored: dict[int, float] = {}
        lost: set[int] = set()
        while (verdict := judge.verdict()).kept is None:
            assert not lost & set(verdict.wanted)
            lost |= verdict.lost.keys()
            waiting += verdict.wanted
            i = waiting.pop(rng.randrange(len(waiting)))
            scored[i] = truth[i // rungs][i % rungs]
            judge.add(i, scored[i])
        if not asynchronous:
            assert verdict.kept[0] // rungs == halved(truth, keep)
            continue
        for rung in range(rungs - 1):
            here = sorted((i for i in scored if i % rungs == rung), key=lambda i: (-scored[i], i))
            best = here[: max(1, math.floor(len(here) * keep + 1e-9))]
            assert {i + 1 for i in best} <= scored.keys()
        last = [i for i in scored if i % rungs == rungs - 1]
        assert verdict.kept == (min(last, key=lambda i: (-scored[i], i)),)


@pytest.mark.parametrize("which", ["first", "contradicted", "asha"])
def test_many_options_are_judged_in_time_linear_in_them(which: str) -> None:
    """30,000 scores, one after another: a look at all of them for each would take minutes."""
    n = 30_000
    shaped = {"first": choice(n, first_over(2.0)), "contradicted": choice(n, largest(), "monotone"), "asha": budgets(n // 2, 2, 0.5, True)}  # fmt: skip
    truth = [float(i * 7919 % 104_729) / 104_729 for i in range(n)]
    began = time.process_time()
    settled(shaped[which], truth)
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("shape", [None, "monotone"])
def test_what_reaches_a_threshold_stays_in_its_order_with_a_shape_and_without(shape: str | None) -> None:
    assert settled(choice(5, at_least(1.0), shape), [0.0, 2.0, 5.0, 5.0, 5.0])[0] == (1, 2, 3, 4)
