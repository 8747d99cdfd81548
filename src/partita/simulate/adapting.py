"""Adapting: a plan that is made again when a device is not as fast as it was. Events in, decisions out.

    learn      QUIET steps by a plan: what each device computes in a step, and so how fast it is by what the plan foresaw
    watch      until the drift of one device gives an alarm
    look       LOOK steps more: how much slower or faster every device is now
    search     on the simulator, for the devices as they are; nothing is done unless the prediction is better by HYSTERESIS
    try        the new plan on live steps; it stays where it really is faster by KEPT, else the old one comes back
    refine     once it stays, REFINED times: search again, for devices as slow as they are by the new plan

How much slower a device is depends on what it has to do: who shares its core takes what is left over first. And a search in a hurry
does not find the best: three of 1 s for an Inception found steps of 120.9, 123.6 and 125.2 ms, one of 4 s 114.6 ms.

Who becomes slower while it is learned would be taken for what is usual. So where the halves of these steps differ, or one device
is slower than another by UNEVEN more than the plan foresaw, that is an alarm itself; else the problem is told how fast devices
are, and later searches begin with that.

All devices slower alike is no reason to move anything: then nothing is searched. A search that changes nothing costs as much as
another, so after each one in a row the next alarm is not heard for twice as many steps; only the first rest ends as soon as devices
are SUDDENly unlike what that search was told, and not as they were before. A generator: what a step took goes in, the plan to go on
with, if it is another one, comes out.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.simulate.predicted import computing_s, predicted
from partita.solve.change_points import Drift

QUIET, LOOK, TRY = 20, 5, 5  #: steps
HYSTERESIS, KEPT = 0.05, 0.02  #: shares of a step
UNEVEN = 1.25  #: slowest over fastest device, against what was foreseen: more is not an error of the prediction
EVEN = 1.05  #: the same of a change: with less there is nothing to win
HALVES, NOISE = (
    0.2,
    3.0,
)  #: log of a half's median over the other's that is a change: at least the one, and so many times the spread
REFINED = 3  #: searches behind a plan that stays
REST, MOST_REST = 50, 1600  #: steps after a search that changed nothing, twice as many after the next one
SUDDEN = 1.5  #: slowest over fastest device, against what the last search was told, that ends a first rest


@dataclass(frozen=True)
class Seen:
    """A step."""

    step_s: float
    compute_s: Mapping[str, float]  #: device -> seconds that it computed; those that the plan does not use are missing


@dataclass(frozen=True)
class Said:
    """What to do before the next step."""

    plan: PipelinePlan | None = None  #: None: go on
    event: str = ""  #: "noticed", "stayed", "switched", "kept", "returned"; "": nothing happened
    slower: Mapping[str, float] = field(default_factory=dict)  #: device -> how many times as long it computes now
    step_s: float = 0.0  #: predicted of a switch, measured of what was kept or given up


Adapting = Generator[Said, Seen, None]
Search = Callable[[PipelineProblem], tuple[PipelinePlan, float]]  #: -> the best plan it finds, seconds of its step


def adapting(problem: PipelineProblem, plan: PipelinePlan, search: Search) -> Adapting:
    """Decisions without end. The first step after a change of plan is not looked at."""
    said, vain, before = Said(), 0, problem
    while True:
        problem, quiet = yield from _quiet(problem, plan, before, said, vain)
        now = yield from _changed(problem, plan, quiet)
        before, problem = now.before, now.problem
        said = Said(event="stayed", slower=now.slower, step_s=now.step_s)
        if now.even:
            continue
        best, best_s = search(problem)
        if best_s > (1 - HYSTERESIS) * predicted(problem, plan).duration_s:
            vain += 1
            continue
        step_s = yield from _tried_s(Said(best, "switched", now.slower, best_s))
        if step_s < (1 - KEPT) * now.step_s:
            plan, said = yield from _refined(now, best, step_s, search)
            vain = 0
        else:
            said, vain = Said(plan, "returned", step_s=step_s), vain + 1


@dataclass(frozen=True)
class _Now:
    """What has changed."""

    before: PipelineProblem  #: for the devices as they were
    problem: PipelineProblem  #: for the devices as they are
    slower: Mapping[
        str, float
    ]  #: device -> how many times as long it computes as it did, or as was foreseen; those that compute
    step_s: float
    even: bool  #: all devices are slower alike, those that do not compute included


def _quiet(
    problem: PipelineProblem, plan: PipelinePlan, before: PipelineProblem, said: Said, vain: int
) -> Generator[Said, Seen, tuple[PipelineProblem, Sequence[Seen]]]:
    """(The problem as it is known, the steps that tell what is usual): QUIET steps, behind the rest that follows so many searches in
    vain. Where that was one and devices become SUDDENly unlike while it lasts, the LOOK steps that showed it, from which nothing is
    learned; but where they are again as they were `before`, there is nothing to search for, and the rest goes on."""
    rest = min(MOST_REST, REST * 2 ** (vain - 1)) if vain else 0
    recent = deque[Seen](maxlen=LOOK)
    foreseen = {id(p): computing_s(p, plan) for p in (problem, before)} if vain == 1 else {}
    for k in range(1 + rest):
        seen = yield said
        said = Said()
        recent.extend([seen] if k else [])
        if vain != 1 or len(recent) < LOOK or _spread(_level(problem, foreseen[id(problem)], recent)) <= SUDDEN:
            continue
        if _spread(_level(before, foreseen[id(before)], recent)) >= UNEVEN:
            return problem, tuple(recent)
        problem = before
    return problem, (yield from _steps(QUIET, said))


def _changed(problem: PipelineProblem, plan: PipelinePlan, quiet: Sequence[Seen]) -> Generator[Said, Seen, _Now]:
    """Steps until a device is not as fast as in the quiet ones, and LOOK more; at once where it was not quiet in these."""
    usual_s, foreseen_s = _medians(quiet), computing_s(problem, plan)
    level = _level(problem, foreseen_s, quiet)
    learned = _steady(quiet) and _spread(level) < UNEVEN
    if learned:
        problem = _as_they_are(problem, level)
        yield from _watched(quiet)
    look = yield from _steps(LOOK, Said(event="noticed"))
    slower = _ratios(_medians(look), usual_s if learned else foreseen_s)
    change = dict.fromkeys(problem.cluster.by_name, 1.0) | slower if learned else _of_all(problem, slower)
    step_s = statistics.median(s.step_s for s in look)
    return _Now(problem, _as_they_are(problem, change), slower, step_s, _spread(change) < EVEN)


def _tried_s(said: Said) -> Generator[Said, Seen, float]:
    """What a step by a new plan takes."""
    tried = yield from _steps(TRY, said, unseen=1)
    return statistics.median(s.step_s for s in tried)


def _refined(
    now: _Now, plan: PipelinePlan, step_s: float, search: Search
) -> Generator[Said, Seen, tuple[PipelinePlan, Said]]:
    """(What comes of a plan that stays, what is to be said of it.)"""
    said = Said(event="kept", step_s=step_s)
    for _ in range(REFINED):
        look = yield from _steps(LOOK, said)
        said = Said()
        problem = _as_they_are(now.problem, _level(now.problem, computing_s(now.problem, plan), look))
        best, best_s = search(problem)
        if best == plan:
            break
        if best_s > (1 - KEPT) * predicted(problem, plan).duration_s:
            continue
        took_s = yield from _tried_s(Said(best, "switched", now.slower, best_s))
        if took_s > (1 - KEPT) * step_s:
            return plan, Said(plan, "returned", step_s=took_s)
        plan, step_s, said = best, took_s, Said(event="kept", step_s=took_s)
    return plan, said


def _watched(quiet: Sequence[Seen]) -> Generator[Said, Seen, None]:
    """Steps until one device is not as fast as in the quiet ones."""
    drifts = {d: Drift.of([s.compute_s[d] for s in quiet]) for d in _medians(quiet)}
    while not any(d.alarmed for d in drifts.values()):
        seen = yield Said()
        drifts = {name: d.after(seen.compute_s.get(name, d.usual_s)) for name, d in drifts.items()}


def _steps(n: int, said: Said, unseen: int = 0) -> Generator[Said, Seen, Sequence[Seen]]:
    """The next n steps, the first of which follows what is said; so many before them are not looked at."""
    found = []
    for k in range(unseen + n):
        seen = yield said
        said = Said()
        found += [seen] if k >= unseen else []
    return found


def _medians(steps: Sequence[Seen]) -> dict[str, float]:
    """Device -> seconds that it computes in a step; those that computed in all of them."""
    names = [n for n in steps[0].compute_s if all(0.0 < s.compute_s.get(n, 0.0) < math.inf for s in steps)]
    return {n: statistics.median(s.compute_s[n] for s in steps) for n in names}


def _steady(quiet: Sequence[Seen]) -> bool:
    """Whether no device computes longer, or shorter, in the second half than in the first, but for noise."""
    halves = quiet[: len(quiet) // 2], quiet[len(quiet) // 2 :]
    usual = [_medians(half) for half in halves]
    for name in _medians(quiet):
        off = [
            abs(math.log(s.compute_s[name] / middle[name]))
            for half, middle in zip(halves, usual, strict=True)
            for s in half
        ]
        spread = 1.4826 * statistics.median(off)
        if abs(math.log(usual[1][name] / usual[0][name])) > max(HALVES, NOISE * spread):
            return False
    return True


def _ratios(seconds: Mapping[str, float], usual_s: Mapping[str, float]) -> dict[str, float]:
    """Device -> how many times as long as usual it computes; those of which something is known."""
    return {n: s / usual_s[n] for n, s in seconds.items() if s > 0 and usual_s.get(n, 0.0) > 0}


def _level(problem: PipelineProblem, foreseen_s: Mapping[str, float], steps: Sequence[Seen]) -> dict[str, float]:
    """Device -> how many times as long as was foreseen it computes; all devices."""
    return _of_all(problem, _ratios(_medians(steps), foreseen_s))


def _of_all(problem: PipelineProblem, slower: Mapping[str, float]) -> dict[str, float]:
    """The same for every device: of those that do not compute nothing is known, and they are taken to be as the others are."""
    middle = statistics.median(slower.values()) if slower else 1.0
    return {d.name: slower.get(d.name, middle) for d in problem.cluster.devices}


def _spread(slower: Mapping[str, float]) -> float:
    """The slowest over the fastest."""
    return max(slower.values()) / min(slower.values())


def _as_they_are(problem: PipelineProblem, slower: Mapping[str, float]) -> PipelineProblem:
    devices = tuple(replace(d, speed=d.speed / slower[d.name]) for d in problem.cluster.devices)
    return problem.on(replace(problem.cluster, devices=devices))
