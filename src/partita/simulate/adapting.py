"""Adapting: a plan that is made again when a device is not as fast as it was. Events in, decisions out.

    learn      QUIET steps by a plan: what each device computes in a step
    watch      until the drift of one device gives an alarm
    look       LOOK steps more: how much slower or faster every device is now
    search     on the simulator, for the devices as they are; nothing is done unless the prediction is better by HYSTERESIS
    try        the new plan on live steps; it stays where it really is faster by KEPT, else the old one comes back

All devices slower alike is no reason to move anything: then no plan is predicted to be better. A generator: what a step
took goes in, the plan to go on with, if it is another one, comes out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.simulate.predicted import predicted
from partita.solve.change_points import Drift

QUIET, LOOK, TRY = 20, 5, 5  #: steps
HYSTERESIS, KEPT = 0.05, 0.02  #: shares of a step


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
    said = Said()
    while True:
        quiet = yield from _steps(QUIET, said, cold=True)
        drifts = {d: Drift.of([s.compute_s[d] for s in quiet]) for d in quiet[0].compute_s}
        said = Said()
        while not any(d.alarmed for d in drifts.values()):
            seen = yield said
            drifts = {name: d.after(seen.compute_s[name]) for name, d in drifts.items()}
        look = yield from _steps(LOOK, Said(event="noticed"))
        slower = {n: statistics.median(s.compute_s[n] for s in look) / d.usual_s for n, d in drifts.items()}
        problem = _as_they_are(problem, slower)
        before = statistics.median(s.step_s for s in look)
        best, best_s = search(problem)
        if best_s > (1 - HYSTERESIS) * predicted(problem, plan).duration_s:
            said = Said(event="stayed", slower=slower, step_s=before)
            continue
        tried = yield from _steps(TRY, Said(best, "switched", slower, best_s), cold=True)
        now = statistics.median(s.step_s for s in tried)
        if now < (1 - KEPT) * before:
            plan, said = best, Said(event="kept", step_s=now)
        else:
            said = Said(plan, "returned", step_s=now)


def _steps(n: int, said: Said, *, cold: bool = False) -> Generator[Said, Seen, Sequence[Seen]]:
    """The next n steps, the first of which follows what is said; where that is cold, it is one more and not among them."""
    if cold:
        yield said
        said = Said()
    found = [(yield said)]
    for _ in range(n - 1):
        found.append((yield Said()))
    return found


def _as_they_are(problem: PipelineProblem, slower: Mapping[str, float]) -> PipelineProblem:
    devices = tuple(replace(d, speed=d.speed / slower.get(d.name, 1.0)) for d in problem.cluster.devices)
    return problem.on(replace(problem.cluster, devices=devices))
