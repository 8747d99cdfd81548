"""What a choose decides from the scores that have come: what to score next, who has lost and why, who is kept.

    judge(choice, scores, failed, ahead) -> Verdict

A pure function of what is known, called after every score: so a run, a simulation and a run that goes on after a crash
decide alike. Selections that are associative tell losers long before all scores are there; `First` and declared shapes
never ask for some scores at all. Candidates that failed are out. A score that contradicts a declared shape ends pruning:
from then on all candidates are scored.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.dataflow.graph import Choice
from partita.dataflow.plan.search import Scores, Step, best_first, crossing, end, peak
from partita.dataflow.select import Best, First, Halving, Threshold

NOBODY: Mapping[int, str] = {}


@dataclass
class Leaders:
    """What `judge` says of a `Best` or a `Threshold` that scores all candidates, told one score at a time: O(log count) each."""

    choice: Choice
    open: int = field(init=False)  #: candidates that are neither scored nor failed
    heap: list[tuple[float, int]] = field(default_factory=list)  #: (signed score, - number): the worst leader first

    def __post_init__(self) -> None:
        self.open = len(self.choice.candidates)

    @staticmethod
    def serve(choice: Choice) -> bool:
        """Whether it is such a choice."""
        return choice.shape is None and isinstance(choice.select, Best | Threshold)

    def add(self, i: int, score: float) -> tuple[int, str] | None:
        """A score; returns who has lost by it, and why."""
        self.open -= 1
        select = self.choice.select
        if isinstance(select, Threshold):
            if (score >= select.at) if select.above else (score <= select.at):
                heapq.heappush(self.heap, (score if select.above else -score, -i))
                return None
            return i, f"{score:g} is not {select}"
        assert isinstance(select, Best)
        heapq.heappush(self.heap, (score if select.largest else -score, -i))
        if len(self.heap) <= select.count:
            return None
        signed, minus = heapq.heappop(self.heap)
        bar = self.heap[0][0]
        told, best = (signed, bar) if select.largest else (-signed, -bar)
        return -minus, f"{told:g}; {best:g} is better" if signed != bar else f"{told:g}, as an option before it"

    def remove(self, i: int) -> None:
        """A leader whose result is lost."""
        self.heap = [row for row in self.heap if row[1] != -i]
        heapq.heapify(self.heap)

    def kept(self) -> tuple[int, ...] | None:
        """The decision, once nothing is open."""
        return None if self.open else tuple(-minus for _, minus in sorted(self.heap, reverse=True))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Candidates by their number in the choice."""

    wanted: tuple[int, ...] = ()  #: to be scored, in this order
    lost: Mapping[int, str] = field(default_factory=dict)  #: who cannot be kept any more -> why
    kept: tuple[int, ...] | None = None  #: the decision, once it is certain
    contradiction: str = ""  #: why the declared shape is wrong, where it is


def judge(choice: Choice, scores: Scores, failed: Mapping[int, str] = NOBODY, ahead: int = 2) -> Verdict:
    """The verdict; `ahead` is how many candidates may be scored at once where one score decides about the next.

    O(candidates log candidates).
    """
    if choice.shape is not None:
        if failed:
            return _with(
                _exhaustive(choice, scores, failed, ahead), "an option failed, so what lies between is not known"
            )
        verdict = _shaped(choice, scores, ahead)
        if not verdict.contradiction:
            return verdict
        return _with(_exhaustive(choice, scores, failed, ahead), verdict.contradiction)
    return _exhaustive(choice, scores, failed, ahead)


def _with(v: Verdict, contradiction: str) -> Verdict:
    return Verdict(v.wanted, v.lost, v.kept, contradiction)


# ---- declared shapes ----------------------------------------------------------------------------------------------------------


def _shaped(choice: Choice, scores: Scores, ahead: int) -> Verdict:
    """By the search of the shape; whoever it never asks for is lost without a score."""
    select, n = choice.select, len(choice.candidates)
    assert not isinstance(select, Halving)  # refused when the flow is unfolded
    sign = 1.0 if (select.largest if isinstance(select, Best) else select.above) else -1.0
    signed = {i: sign * s for i, s in scores.items()}
    if isinstance(select, Best):
        step = peak(n, signed, select.count, ahead) if choice.shape == "convex" else end(n, signed, select.count)
    else:
        step = _over(n, signed, sign * select.at, select)
    if step.found is None:
        return Verdict(step.wanted, contradiction=step.contradiction)
    lost = {i: _why_lost(i, scores, choice) for i in range(n) if i not in step.found}
    return Verdict(lost=lost, kept=step.found)


def _over(n: int, scores: Scores, at: float, select: First | Threshold) -> Step:
    """Who reaches the threshold: the first few in their order, or all of them, the best first."""
    step = crossing(n, scores, at)
    if step.found is None:
        return step
    if isinstance(select, First):
        return Step(found=step.found[: select.count])
    return Step(found=step.found[::-1] if scores[n - 1] > scores[0] else step.found)


def _why_lost(i: int, scores: Scores, choice: Choice) -> str:
    if i in scores:
        return f"{scores[i]:g} is not among {choice.select}"
    return f"never run: {choice.shape} scores cannot be among {choice.select} here"


# ---- all candidates -----------------------------------------------------------------------------------------------------------


def _exhaustive(choice: Choice, scores: Scores, failed: Mapping[int, str], ahead: int) -> Verdict:
    select = choice.select
    if isinstance(select, Best):
        return _best(choice, select, scores, failed)
    if isinstance(select, Threshold):
        return _threshold(choice, select, scores, failed)
    if isinstance(select, First):
        return _first(choice, select, scores, failed, ahead)
    return _halving(choice, select, scores, failed)


def _open(choice: Choice, scores: Scores, failed: Mapping[int, str]) -> tuple[int, ...]:
    return tuple(i for i in range(len(choice.candidates)) if i not in scores and i not in failed)


def _best(choice: Choice, select: Best, scores: Scores, failed: Mapping[int, str]) -> Verdict:
    """Associative: the best so far; whoever is not among them has lost."""
    sign = 1.0 if select.largest else -1.0
    leads = heapq.nsmallest(select.count, scores, key=lambda i: (-sign * scores[i], i))
    ahead_of = set(leads)
    bar = scores[leads[-1]] if leads else math.nan
    lost = {i: f"{s:g}; {bar:g} is better" if s != bar else f"{s:g}, as an option before it" for i, s in scores.items() if i not in ahead_of}  # fmt: skip
    wanted = _open(choice, scores, failed)
    return Verdict(wanted, lost, None if wanted else tuple(leads))


def _threshold(choice: Choice, select: Threshold, scores: Scores, failed: Mapping[int, str]) -> Verdict:
    sign = 1.0 if select.above else -1.0
    lost = {i: f"{s:g} is not {select}" for i, s in scores.items() if sign * s < sign * select.at}
    wanted = _open(choice, scores, failed)
    passed = [i for i in scores if i not in lost]
    return Verdict(
        wanted, lost, None if wanted else best_first(passed, {i: sign * scores[i] for i in passed}, len(passed))
    )


def _first(choice: Choice, select: First, scores: Scores, failed: Mapping[int, str], ahead: int) -> Verdict:
    """In the order of the options, `ahead` at once; done as soon as enough of them pass with none open before them."""
    sign = 1.0 if select.above else -1.0
    lost = {i: f"{s:g} is not {select}" for i, s in scores.items() if sign * s < sign * select.at}
    kept: list[int] = []
    wanted: list[int] = []
    for i in range(len(choice.candidates)):
        if i in failed or i in lost:
            continue
        if i in scores:
            kept += [i] if not wanted else []
        elif len(wanted) < ahead:
            wanted.append(i)
        if len(kept) == select.count:
            rest = {j: "not needed any more" for j in range(i + 1, len(choice.candidates)) if j not in failed}
            return Verdict(lost={**rest, **lost}, kept=tuple(kept))
    return Verdict(tuple(wanted), lost, None if wanted else tuple(kept))


def _halving(choice: Choice, select: Halving, scores: Scores, failed: Mapping[int, str]) -> Verdict:
    """Rung by rung: the best part of a rung goes on to the next budget. See `select.Halving`."""
    sign = 1.0 if select.largest else -1.0
    at = {(c.config, c.rung): i for i, c in enumerate(choice.candidates)}
    rungs = sorted({c.rung for c in choice.candidates})
    alive = {c.config for c in choice.candidates}
    lost: dict[int, str] = {}
    wanted: list[int] = []
    for level, rung in enumerate(rungs):
        here = [at[c, rung] for c in sorted(alive) if (c, rung) in at]
        wanted += [i for i in here if i not in scores and i not in failed]
        come = sorted((i for i in here if i in scores), key=lambda i: (-sign * scores[i], i))
        if rung == rungs[-1]:
            if wanted:
                return Verdict(tuple(wanted), lost)
            lost.update({i: f"{scores[i]:g}; {scores[come[0]]:g} is better" for i in come[1:]})
            return Verdict(lost=lost, kept=tuple(come[:1]))
        open_ = any(i not in scores and i not in failed for i in here)
        if open_ and not select.asynchronous:
            return Verdict(tuple(wanted), lost)
        go_on = (
            come[: max(1, math.floor(len(come) * select.keep + 1e-9))]
            if not open_ or len(come) * select.keep >= 1
            else []
        )
        up = {choice.candidates[i].config for i in go_on}
        if select.asynchronous:  # who went on before stays on, though others have overtaken it since
            up |= {c for c in alive if any((c, r) in at and at[c, r] in scores for r in rungs[level + 1 :])}
        if not open_:
            out = {choice.candidates[i].config for i in here} - up
            for c in out:
                told = scores.get(at[c, rung])
                why = (
                    f"stopped after budget {level + 1}: {told:g} is not among the best {len(go_on)}"
                    if told is not None
                    else "failed"
                )
                lost.update({at[c, r]: why for r in rungs[level:] if (c, r) in at and at[c, r] not in failed})
        lost.update(
            {
                i: "its options go on with a larger budget"
                for i in here
                if i in scores and choice.candidates[i].config in up
            }
        )
        alive = up
    return Verdict(tuple(wanted), lost)
