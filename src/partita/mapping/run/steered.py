"""A search on live training steps: one rank's end of it. Rank 0 decides, the others are told; all deploy alike.

    DIR/search.jsonl    a line a mapping tried: phase, name, predicted, expected, measured, when
    DIR/search.json     how it ended: the best, what it cost, the surrogates compared

    DIR/drift.jsonl     a line a change of a device's speed, and what was done about it

Every step counts as training: only the plan changes between two of them. The first step by a new plan finds caches cold and
is not counted in its time. A search that fails does not end training. A run that adapts goes on watching its devices when the search has settled.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from partita.errors import PlanError, sentence_of
from partita.files import add_line, dump_json, write_whole
from partita.mapping.plan.adaptive import adapting
from partita.mapping.plan.jobs import step_bound
from partita.mapping.plan.live import THOUGHT_S, Measured, Outcome, Search, Trial, live, sampled
from partita.mapping.plan.planner import compile_kernels
from partita.mapping.report.history import End, Row
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile, Verdict, checked_bound
from partita.nouns.program import Op
from partita.simulate.adapting import Adapting, Said, Seen
from partita.simulate.predicted import computing_s, predicted
from partita.training.runtime.pipeline import Pipeline
from partita.training.runtime.session import Session

HISTORY, SUMMARY, DRIFT, PREDICTED = "search.jsonl", "search.json", "drift.jsonl", "predicted.json"
PATIENCE = 0.02  #: of the time after which a rank that waits gives up, for one thought
NOTHING: Mapping[str, Any] = {"plan": None, "over": False}  #: go on as before
FEWEST_STEPS, MOST_STEPS, ENOUGH_S = 2, 8, 0.5  #: counted steps of a trial: until they come to so much


class Steered:
    """A rank's steering by a search; see `training.runtime.steering`."""

    def __init__(self, session: Session) -> None:
        """Raises PlanError where the run is not by a plan of a measured job."""
        problem, told = session.file.problem, session.spec.steered
        if not isinstance(problem, PipelineProblem):
            raise PlanError("only a measured job can be searched for", hint="plan from a profile")
        self._over, self._session = False, session
        if session.rank == 0:
            compile_kernels()  # before the budget begins
        thought_s = min(THOUGHT_S, PATIENCE * session.spec.timeout_s)
        self._desk = _Desk(session.file, Path(session.spec.out), told, thought_s) if session.rank == 0 else None

    def after(self, step: int, step_s: float) -> PipelinePlan | None:
        """The plan of the next trial, or the best one at the end. A step on a smaller batch tells nothing."""
        session = self._session
        if self._over or session.board.row(session.rank).samples != session.full_batch:
            return None
        rows = torch.zeros((self._session.ranks, 2), dtype=torch.float64)
        rows[self._session.rank] = torch.tensor([step_s, self._compute_s()])
        dist.all_reduce(rows)
        decided = self._desk.decided(step, self._seen(rows)) if self._desk else NOTHING
        said = _told("" if decided == NOTHING else json.dumps(decided))
        self._over = bool(said["over"])
        return PipelinePlan.from_json(said["plan"]) if said["plan"] else None

    def _compute_s(self) -> float:
        """What this rank has computed in the step; 0 where it had nothing to do."""
        engine = self._session.engines["pipeline"]
        last = engine.last if isinstance(engine, Pipeline) else None
        if last is None or not len(last.numbers):
            return 0.0
        start, end = last.trace()
        return float((end - start)[last.program.op[last.numbers] == Op.COMPUTE].sum())

    def _seen(self, rows: torch.Tensor) -> Seen:
        names = self._session.assignment.world
        return Seen(float(rows[:, 0].max()), {n: float(s) for n, s in zip(names, rows[:, 1], strict=True) if s > 0})

    def end(self, step: int) -> None:
        """Write down how far the search came, where training ended first."""
        if self._desk:
            self._desk.end(step)


def _told(said: str) -> Mapping[str, Any]:
    """What rank 0 says, on every rank; "" says nothing, which is what it says after most steps: then the size is all that is sent."""
    blob = torch.frombuffer(bytearray(said.encode()), dtype=torch.uint8) if said else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor([len(blob)])
    dist.broadcast(size, 0)
    if not int(size):
        return NOTHING
    blob = blob if said else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(blob, 0)
    value: dict[str, Any] = json.loads(blob.numpy().tobytes())
    return value


@dataclass
class _Spent:
    """Where the time of a search goes, in seconds."""

    thinking_s: float = 0.0  #: rank 0 decides, the others wait
    switching_s: float = 0.0  #: from plan to plan: weights move, code is made
    steps_s: float = 0.0  #: training steps meanwhile


@dataclass
class _Desk:
    """Rank 0: the search, the trial under way, what it has taken so far."""

    file: PlanFile
    out: Path
    told: Mapping[str, Any]
    thought_s: float = THOUGHT_S
    clock: Callable[[], float] = time.perf_counter  #: seconds; what the budget is counted by
    search: Search | None = None
    trial: Trial | None = None
    deployed: PipelinePlan | None = None
    cold: bool = True  #: the next step is the first by its plan
    samples: list[float] = field(default_factory=list)
    computed_s: float = 0.0  #: by all devices, in those steps
    tried: int = 0
    spent: _Spent = field(default_factory=_Spent)
    began_s: float = 0.0
    left_s: float = 0.0  #: when the last decision was made
    steps: int = 0
    best: tuple[float, Trial] | None = None  #: (what it took at the speed that was predicted, the fastest yet)
    over: bool = False
    history: TextIO | None = None
    adapts: Adapting | None = None  #: once the search has settled, where that is wanted

    @property
    def problem(self) -> PipelineProblem:
        assert isinstance(self.file.problem, PipelineProblem)
        return self.file.problem

    def decided(self, step: int, seen: Seen) -> dict[str, Any]:
        """What all ranks do now: {"plan": None or the next one, "over": whether that is the last word}."""
        if self.adapts is not None:
            return self._watched(step, self.adapts, seen)
        now, step_s = self.clock(), seen.step_s
        if self.search is None:
            return self._begin(now)
        self.steps += 1
        self.spent.steps_s += step_s
        if self.cold:
            self.spent.switching_s += max(0.0, now - self.left_s - step_s)
        else:
            self.samples.append(step_s)
            self.computed_s += sum(seen.compute_s.values())
        self.cold = False
        enough = len(self.samples) >= FEWEST_STEPS and (
            sum(self.samples) >= ENOUGH_S or len(self.samples) >= MOST_STEPS
        )
        said: dict[str, Any] = self._next(step) if enough else {"plan": None, "over": False}
        self.left_s = self.clock()
        self.spent.thinking_s += self.left_s - now
        return said

    def _begin(self, now: float) -> dict[str, Any]:
        assert isinstance(self.file.plan, PipelinePlan)
        self.began_s, self.deployed = now, self.file.plan
        self.history = open(self.out / HISTORY, "w", buffering=1)  # noqa: SIM115 (open for the search)
        seed, (lots, rounds) = int(self.told["seed"]), self.told["by_lot"]
        if lots:
            self.search = sampled(self.problem, lots, rounds, seed)
        else:
            budget_s = float(self.told["budget_s"])
            self.search = live(self.problem, budget_s, seed, lambda: self.clock() - now, self.thought_s)
        said = self._answer(0, lambda search: next(search))
        self.left_s = self.clock()
        self.spent.thinking_s += self.left_s - now
        return said

    def _next(self, step: int) -> dict[str, Any]:
        """The trial is measured: on to the next one, or to the end."""
        assert self.search is not None
        assert self.trial is not None
        foreseen_s = sum(computing_s(self.problem, self.trial.plan).values()) * len(self.samples)
        slower = self.computed_s / foreseen_s if self.computed_s and foreseen_s else 1.0
        measured = Measured(statistics.median(self.samples), slower)
        self._note(step, self.trial, measured)
        if self.trial.phase != "finals" and (self.best is None or measured.settled_s < self.best[0]):
            self.best = measured.settled_s, self.trial
        return self._answer(step, lambda search: search.send(measured))

    def _answer(self, step: int, ask: Callable[[Search], Trial]) -> dict[str, Any]:
        """What the search says next. Where it fails, training goes on: it is worth more than a better mapping."""
        assert self.search is not None
        try:
            trial = ask(self.search)
        except StopIteration as end:
            return self._settle(step, end.value)
        except Exception as error:
            return self._give_up(step, sentence_of(error))
        return self._go_to(trial)

    def _go_to(self, trial: Trial) -> dict[str, Any]:
        self.trial, self.samples, self.computed_s = trial, [], 0.0
        return {"plan": self._switched(trial.plan), "over": False}

    def _switched(self, plan: PipelinePlan) -> dict[str, Any] | None:
        """The plan as JSON; None where it is deployed already."""
        self.cold = plan != self.deployed
        self.deployed = plan
        return plan.to_json() if self.cold else None

    def _settle(self, step: int, outcome: Outcome) -> dict[str, Any]:
        best = outcome.best
        found = {"best": best.name, "predicted_s": best.predicted_s, "surrogates": outcome.scores}
        found |= {"measured_s": outcome.measured_s, "single_s": outcome.single_s}
        return self._go_on(step, best.plan, f"hybrid ({best.name})", settled=True, **found)

    def _give_up(self, step: int, why: str) -> dict[str, Any]:
        """The search has failed: on with the fastest mapping that it has measured."""
        plan, name = self._best_yet()
        return self._go_on(step, plan, f"hybrid ({name}, given up)", settled=False, best=name, why=why)

    def _best_yet(self) -> tuple[PipelinePlan, str]:
        """(the fastest mapping measured, who found it); what the run began with before there is one."""
        assert self.deployed is not None
        return (self.best[1].plan, self.best[1].name) if self.best else (self.deployed, "the first")

    def _go_on(self, step: int, plan: PipelinePlan, method: str, **found: Any) -> dict[str, Any]:
        """The search is over: the plan from here on."""
        self._write(step, plan, method, **found)
        self.over = True
        if self.told["adapt"]:
            self.adapts = adapting(self.problem, plan, int(self.told["seed"]))
            next(self.adapts)
        return {"plan": self._switched(plan), "over": not self.told["adapt"]}

    def _watched(self, step: int, adapts: Adapting, seen: Seen) -> dict[str, Any]:
        """What the adaptive part says; where it fails, the plan stays as it is from here on."""
        try:
            return self._adapted(step, adapts.send(seen))
        except Exception as error:
            self._drift(step, Said(event="gave up"), why=sentence_of(error))
            return {"plan": None, "over": True}

    def _drift(self, step: int, said: Said, **more: str) -> None:
        row = {"step": step, "event": said.event, "slower": dict(said.slower), "step_s": said.step_s, **more}
        add_line(self.out / DRIFT, json.dumps(row))

    def _adapted(self, step: int, said: Said) -> dict[str, Any]:
        """A decision of the adaptive part, noted where it is one."""
        if said.event:
            self._drift(step, said)
        if said.plan is None:
            return {"plan": None, "over": False}
        self._write_plan(said.plan, "hybrid (adapted)", self.clock() - self.began_s)
        return {"plan": self._switched(said.plan), "over": False}

    def end(self, step: int) -> None:
        """Where training ends before the search does, the fastest mapping measured stands in plan.json; what is measured at the end of
        the run is of the trial under way, and predicted.json, which that is compared with, too."""
        if self.deployed is None or self.over:
            return
        plan, name = self._best_yet()
        under_way = self.trial.name if self.trial else "?"
        self._write(step, plan, f"hybrid ({name}), broken off at {under_way}", settled=False, best=name)
        predicted(self.problem, self.deployed).write(self.out / PREDICTED)

    # ---- files ------------------------------------------------------------------------------------------------------

    def _write_plan(self, plan: PipelinePlan, method: str, spent_s: float) -> None:
        """plan.json and predicted.json."""
        foreseen = predicted(self.problem, plan)
        bound, how = step_bound(self.problem)
        verdict = Verdict(foreseen.duration_s, checked_bound(foreseen.duration_s, bound), how, method, spent_s, "step")
        PlanFile(plan, verdict, self.problem).write(self.out / "plan.json")
        foreseen.write(self.out / PREDICTED)

    def _note(self, step: int, t: Trial, measured: Measured) -> None:
        assert self.history is not None
        self.tried += 1
        on = {d: sum(len(s.tasks) for s in t.plan.stages if d in s.devices) for d in t.plan.devices}
        expected = t.expected_s if math.isfinite(t.expected_s) else None
        at_s = round(self.clock() - self.began_s, 3)
        row = Row(
            self.tried, t.phase, t.name, t.predicted_s, measured.step_s, expected, step, at_s, len(t.plan.stages), on, measured.slower
        )  # fmt: skip
        self.history.write(json.dumps(asdict(row)) + "\n")

    def _write(self, step: int, plan: PipelinePlan, method: str, *, settled: bool, **found: Any) -> None:
        """What runs from here on, and how the search ended."""
        wall = self.clock() - self.began_s
        self._write_plan(plan, method, wall)
        budget_s = float(self.told["budget_s"])
        end = End(settled, step, self.steps, self.tried, wall, budget_s, **asdict(self.spent), **found)
        write_whole(self.out / SUMMARY, dump_json(end.to_json()))
        if self.history is not None:
            self.history.close()
