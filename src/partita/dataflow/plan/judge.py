"""What a choose decides from the scores that have come: what to score next, who has lost and why, who is kept.

    judge = judging(choice)
    judge.add(candidate, score), judge.fail(candidate)        as they come
    judge.verdict() -> what follows that was not told before

One of three stands behind it: `Leaders` where a score tells at once who has lost, `InOrder` where options are asked for in their
order, `Rungs` for halving; each score costs O(log candidates). `Shaped` asks the search of a declared shape (search.py)
instead, which never asks for some scores at all; a score that contradicts the shape, or a candidate that fails, ends that:
from then on all are scored. A run and a simulation, told the same in the same order, decide alike.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from partita.dataflow.graph import Choice
from partita.dataflow.plan.search import Scores, Step, crossing, end, peak
from partita.dataflow.select import Best, First, Halving, Threshold, larger_is_better


@dataclass(frozen=True, slots=True)
class Verdict:
    """Candidates by their number in the choice; what was told before is not told again."""

    wanted: tuple[int, ...] = ()  #: to be scored, in this order
    lost: Mapping[int, str] = field(default_factory=dict)  #: who cannot be kept any more -> why
    kept: tuple[int, ...] | None = None  #: the decision, once it is certain
    contradiction: str = ""  #: why the declared shape is wrong, where it is


class Judge(Protocol):
    """Decides one choice."""

    scores: dict[int, float]

    def add(self, i: int, score: float) -> None:
        """The score of a candidate, told once."""
        ...

    def fail(self, i: int) -> None:
        """A candidate cannot be had: it, or its score, is lost; told once, possibly after its score."""
        ...

    def verdict(self) -> Verdict: ...


def judging(choice: Choice, ahead: int = 2) -> Judge:
    """The judge of a choice; `ahead` is how many candidates may be scored at once where one score decides about the next."""
    return _scoring_all(choice, ahead) if choice.shape is None else Shaped(choice, ahead)


def _scoring_all(choice: Choice, ahead: int) -> Judge:
    if isinstance(choice.select, Halving):
        return Rungs(choice, choice.select)
    if isinstance(choice.select, First):
        return InOrder(choice.select, len(choice.candidates), ahead)
    return Leaders(choice.select, len(choice.candidates))


def _passes(select: Threshold | First, score: float) -> bool:
    return score >= select.at if select.above else score <= select.at


@dataclass
class Leaders:
    """`Best` or `Threshold` of `n` candidates, all of which are scored."""

    select: Best | Threshold
    n: int
    scores: dict[int, float] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    heap: list[tuple[float, int]] = field(default_factory=list)  #: (signed score, - number): the worst leader first
    lost: dict[int, str] = field(default_factory=dict)  #: not told yet
    asked: bool = False

    @property
    def sign(self) -> float:
        return 1.0 if larger_is_better(self.select) else -1.0

    def add(self, i: int, score: float) -> None:
        self.scores[i] = score
        self._lead(i)

    def _lead(self, i: int) -> None:
        score, select = self.scores[i], self.select
        if isinstance(select, Threshold):
            if _passes(select, score):
                heapq.heappush(self.heap, (self.sign * score, -i))
            else:
                self.lost[i] = f"{score:g} is not {select}"
            return
        heapq.heappush(self.heap, (self.sign * score, -i))
        if len(self.heap) > select.count:
            signed, minus = heapq.heappop(self.heap)
            bar = self.heap[0][0]
            told, best = self.sign * signed, self.sign * bar
            self.lost[-minus] = (
                f"{told:g}; {best:g} is better" if signed != bar else f"{told:g}, as an option before it"
            )

    def fail(self, i: int) -> None:
        """Where it led, the best of those that had lost to it leads in its place."""
        self.failed.add(i)
        if self.scores.pop(i, None) is not None and any(minus == -i for _, minus in self.heap):
            self.heap.clear()
            for k in self.scores:
                self._lead(k)

    def verdict(self) -> Verdict:
        wanted = () if self.asked else tuple(i for i in range(self.n) if i not in self.scores and i not in self.failed)
        self.asked, lost, self.lost = True, self.lost, {}
        done = len(self.scores) + len(self.failed) == self.n
        return Verdict(wanted, lost, self._kept() if done else None)

    def _kept(self) -> tuple[int, ...]:
        best_first = tuple(-m for _, m in sorted(self.heap, reverse=True))
        return best_first if isinstance(self.select, Best) else tuple(sorted(best_first))


@dataclass
class InOrder:
    """`First` of `n` candidates: asked for in their order, `ahead` at once, until enough of them pass with none open before them."""

    select: First
    n: int
    ahead: int
    scores: dict[int, float] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    kept: list[int] = field(default_factory=list)  #: those that pass, of those before `settled`
    lost: dict[int, str] = field(default_factory=dict)  #: not told yet
    settled: int = 0  #: all before it are scored, or failed
    next: int = 0  #: the first that was not looked at whether to ask for it
    under_way: set[int] = field(default_factory=set)

    def add(self, i: int, score: float) -> None:
        self.scores[i] = score
        self.under_way.discard(i)
        if not _passes(self.select, score):
            self.lost[i] = f"{score:g} is not {self.select}"

    def fail(self, i: int) -> None:
        self.failed.add(i)
        self.under_way.discard(i)
        if i in self.kept:
            self.kept.remove(i)

    def verdict(self) -> Verdict:
        self._settle()
        wanted: list[int] = []
        enough = len(self.kept) == self.select.count
        if enough:
            self.lost |= {i: "not needed any more" for i in range(self.settled, self.n) if self._could_pass(i)}
        while not enough and self.next < self.n and len(self.under_way) < self.ahead:
            if self.next not in self.scores and self.next not in self.failed:
                wanted.append(self.next)
                self.under_way.add(self.next)
            self.next += 1
        lost, self.lost = self.lost, {}
        return Verdict(tuple(wanted), lost, tuple(self.kept) if enough or self.settled == self.n else None)

    def _could_pass(self, i: int) -> bool:
        return i not in self.failed and (i not in self.scores or _passes(self.select, self.scores[i]))

    def _settle(self) -> None:
        while self.settled < self.n and len(self.kept) < self.select.count:
            i = self.settled
            if i not in self.scores and i not in self.failed:
                return
            self.kept += [i] if self._could_pass(i) else []
            self.settled += 1


@dataclass
class _Rung:
    """The candidates with one budget."""

    members: list[int] = field(default_factory=list)  #: those that came to it, or failed on the way
    open: set[int] = field(default_factory=set)  #: of them, those neither scored nor failed
    come: list[tuple[float, int]] = field(default_factory=list)  #: (- signed score, number), the best first
    up: set[int] = field(default_factory=set)  #: those that go on with the next budget
    closed: bool = False  #: nobody will come any more


@dataclass
class Rungs:
    """Halving: the best part of a rung goes on to the next budget; asynchronous (ASHA), as soon as it is the best part of those
    that have come as far."""

    choice: Choice
    select: Halving
    rungs: list[_Rung] = field(init=False)
    level: list[int] = field(init=False)  #: [candidates] the place of its budget
    above: dict[tuple[int, int], int] = field(init=False)  #: (config, level) -> candidate
    wanted: list[int] = field(default_factory=list)  #: not told yet
    lost: dict[int, str] = field(default_factory=dict)  #: not told yet
    scores: dict[int, float] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    kept: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        candidates = self.choice.candidates
        place = {r: k for k, r in enumerate(sorted({c.rung for c in candidates}))}
        self.rungs = [_Rung() for _ in place]
        self.level = [place[c.rung] for c in candidates]
        self.above = {(c.config, place[c.rung]): i for i, c in enumerate(candidates)}
        first = {candidates[i].config: i for _, i in sorted(self.above.items(), key=lambda row: -row[0][1])}
        for i in sorted(first.values()):
            self._ask(i)

    def _ask(self, i: int) -> None:
        rung = self.rungs[self.level[i]]
        rung.members.append(i)
        if i in self.scores:
            self._come(i)
        elif i not in self.failed:
            rung.open.add(i)
            self.wanted.append(i)

    def add(self, i: int, score: float) -> None:
        """One that was not asked for, since somebody else wanted it, counts once it comes so far."""
        self.scores[i] = score
        if i in self.rungs[self.level[i]].open:
            self._come(i)
            self._close()

    def fail(self, i: int) -> None:
        self.failed.add(i)
        rung = self.rungs[self.level[i]]
        rung.open.discard(i)
        if self.scores.pop(i, None) is not None and i not in rung.up:
            rung.come = [row for row in rung.come if row[1] != i]
            self._promote(rung, rung.come[: self._best_part(rung)])
        self._close()

    def _come(self, i: int) -> None:
        """The score of one that was asked for. Asynchronous: only it and the last of the best part can be new in that part."""
        rung, score = self.rungs[self.level[i]], self.scores[i]
        rung.open.discard(i)
        row = (-score if self.select.largest else score, i)
        insort(rung.come, row)
        part = self._best_part(rung)
        if part:
            bar = rung.come[part - 1]
            self._promote(rung, [row, bar] if row < bar else [bar])

    def _best_part(self, rung: _Rung) -> int:
        """How many of those that have come go on before all have."""
        return self._part(len(rung.come)) if self.select.asynchronous and rung is not self.rungs[-1] else 0

    def _close(self) -> None:
        """Close the rungs to which nobody comes any more: the best part of each goes on, the others have lost."""
        for level, rung in enumerate(self.rungs):
            if rung.open:
                return
            if not rung.closed and rung is not self.rungs[-1]:
                self._promote(rung, rung.come[: max(1, self._part(len(rung.come)))])
                self._drop(level)
            rung.closed = True
        if self.kept is None:
            best = self.rungs[-1].come
            self.lost |= {row[1]: f"{self._score(row):g}; {self._score(best[0]):g} is better" for row in best[1:]}
            self.kept = tuple(i for _, i in best[:1])

    def _promote(self, rung: _Rung, rows: Sequence[tuple[float, int]]) -> None:
        for _, i in rows:
            if i not in rung.up:
                rung.up.add(i)
                self.lost[i] = "its options go on with a larger budget"
                following = self._later(i, self.level[i] + 1)
                if following:
                    self._ask(following[0])

    def _part(self, count: int) -> int:
        return math.floor(count * self.select.keep + 1e-9)

    def _drop(self, level: int) -> None:
        """Who does not go on from a closed rung has lost, with all larger budgets."""
        rung = self.rungs[level]
        scored = {row[1]: row for row in rung.come}
        for i in rung.members:
            if i not in rung.up:
                told = f"stopped after budget {level + 1}: {self._score(scored[i]):g} is not among the best {len(rung.up)}" if i in scored else "failed"  # fmt: skip
                self.lost |= {k: told for k in self._later(i, level) if k not in self.failed}

    def _later(self, i: int, level: int) -> list[int]:
        """The candidates with the same options and a budget from this one on."""
        config = self.choice.candidates[i].config
        found = (self.above.get((config, k)) for k in range(level, len(self.rungs)))
        return [k for k in found if k is not None]

    def _score(self, row: tuple[float, int]) -> float:
        return -row[0] if self.select.largest else row[0]

    def verdict(self) -> Verdict:
        told = Verdict(tuple(self.wanted), self.lost, self.kept)
        self.wanted, self.lost = [], {}
        return told


@dataclass
class Shaped:
    """A declared shape: by its search, as long as the scores agree with it."""

    choice: Choice
    ahead: int
    scores: dict[int, float] = field(default_factory=dict)
    instead: Judge | None = None  #: who scores all, once the shape cannot be relied on
    contradiction: str = ""
    asked: set[int] = field(default_factory=set)

    def add(self, i: int, score: float) -> None:
        if self.instead is not None:
            self.instead.add(i, score)
        self.scores[i] = score

    def fail(self, i: int) -> None:
        self._give_up("an option failed, so what lies between is not known").fail(i)
        self.scores.pop(i, None)

    def _give_up(self, why: str) -> Judge:
        if self.instead is None:
            self.contradiction = why
            self.instead = _scoring_all(self.choice, self.ahead)
            for i, score in self.scores.items():
                self.instead.add(i, score)
        return self.instead

    def verdict(self) -> Verdict:
        step = self._step() if self.instead is None else Step()
        if step.contradiction:
            self._give_up(step.contradiction)
        if self.instead is not None:
            v = self.instead.verdict()
            return Verdict(self._fresh(v.wanted), v.lost, v.kept, self.contradiction)
        if step.found is not None:
            kept = set(step.found)
            lost = {i: self._why_lost(i) for i in range(len(self.choice.candidates)) if i not in kept}
            return Verdict(lost=lost, kept=step.found)
        return Verdict(self._fresh(step.wanted))

    def _fresh(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Those that were not asked for before."""
        fresh = tuple(i for i in wanted if i not in self.asked)
        self.asked.update(fresh)
        return fresh

    def _step(self) -> Step:
        """What the search says; whoever it never asks for is lost without a score."""
        select, n = self.choice.select, len(self.choice.candidates)
        assert not isinstance(select, Halving)  # refused when the flow is unfolded
        sign = 1.0 if larger_is_better(select) else -1.0
        signed = {i: sign * s for i, s in self.scores.items()}
        if isinstance(select, Best) and self.choice.shape == "convex":
            return peak(n, signed, select.count, self.ahead)
        if isinstance(select, Best):
            return end(n, signed, select.count)
        return _over(n, signed, sign * select.at, select)

    def _why_lost(self, i: int) -> str:
        select = self.choice.select
        if i in self.scores:
            told = f"{self.scores[i]:g}"
            if isinstance(select, Threshold | First):
                return (
                    f"{told}, and enough come before it"
                    if _passes(select, self.scores[i])
                    else f"{told} is not {select}"
                )
            return f"{told}; others are better"
        return f"never run: where scores are {self.choice.shape}, it cannot be kept"


def _over(n: int, scores: Scores, at: float, select: First | Threshold) -> Step:
    """Who reaches the threshold, in the order of the options: the first few, or all of them."""
    step = crossing(n, scores, at)
    if step.found is not None and isinstance(select, First):
        return Step(found=step.found[: select.count])
    return step
