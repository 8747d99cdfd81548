"""A pipeline that is planned again while it trains, when a device is not as fast as it was.

The launcher watches: workers write what every step took on the board, and when another plan is better they are told after
which step it holds. So deciding costs the workers nothing, and no rank waits for it.

    DIR/drift.jsonl     a line a change of a device's speed, and what was done about it
    DIR/first-plan.json the plan that the run began with, once there is another one
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from partita.errors import PartitaError, PlanError, sentence_of
from partita.files import add_line
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.simulate.adapting import Adapting, Said, Seen, adapting
from partita.simulate.predicted import predicted
from partita.training.runtime.elastic import FAILURES
from partita.training.runtime.prepare import prepared
from partita.training.runtime.step_log import StepSeen

DRIFT, FIRST_PLAN = "drift.jsonl", "first-plan.json"
SWITCH_S = 1.0  #: that a change of plan may cost: what is won until the end must be more
_AT_ONCE_S = 0.02  #: a decision that takes longer is made beside the run
_NEVER = 1 << 62  #: no step comes so late
_NICE = 5  #: who plans leaves most of the cores to the workers: a quarter of one where all are busy


@dataclass(frozen=True)
class Change:
    """A line of drift.jsonl."""

    step: int
    event: str  #: "noticed", "stayed", "switched", "kept", "returned", "gave up"
    slower: dict[str, float]  #: device -> how many times as long it computes
    step_s: float
    why: str = ""  #: it gave up

    @property
    def sentence(self) -> str:
        """For a person; empty where there is nothing to say."""
        if self.event == "noticed":
            return f"step {self.step}: a device is not as fast as it was"
        if self.event == "gave up":
            return f"step {self.step}: the plan stays as it is from here on, since planning again failed: {self.why}"
        if not self.slower:
            return f"step {self.step}: the new plan {'stays' if self.event == 'kept' else 'is no better; back to the old one'}"
        who = ", ".join(f"{d} computes {s:.2f} times as long" for d, s in self.slower.items() if abs(s - 1) > 0.1)
        what = "no plan is clearly better" if self.event == "stayed" else f"going on by another plan, {1e3 * self.step_s:.3g} ms a step"  # fmt: skip
        return f"step {self.step}: {who or 'all devices as before'}; {what}"


def last_change(folder: str | Path) -> int:
    """The step of a run after which its plan was no other any more, or after which it last went on from a failure; 0 without one."""
    said = [r["step"] for r in _lines(Path(folder) / DRIFT) if r.get("event") in ("switched", "returned")]
    return max([*said, *(r["on_from_step"] for r in _lines(Path(folder) / FAILURES))], default=0)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass
class Adapts:
    """Decides for one generation of workers."""

    file: PlanFile  #: what is deployed
    out: Path
    note: Callable[[Change], None]
    steps: int | None = None  #: of the whole run, where that is known
    deployed: Callable[[PlanFile], None] = lambda file: None  #: hears of every new plan
    _adapts: Adapting = field(init=False)
    _pool: ThreadPoolExecutor = field(init=False)
    _coming: Future[Said] | None = field(default=None, init=False)
    _from: int = field(default=0, init=False)  #: steps before this one are not looked at
    _now: int = field(default=0, init=False)  #: the last step seen
    _wanted: PlanFile | None = field(default=None, init=False)  #: told to the workers, and not yet in force
    _known: dict[str, PlanFile] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        problem, plan = self._problem, self.file.plan
        assert isinstance(plan, PipelinePlan)
        self._adapts = adapting(problem, plan, self._best)
        next(self._adapts)
        self._pool = ThreadPoolExecutor(1, "planning", _be_nice)
        self._pool.submit(
            self._best, problem
        )  # while the workers start: the first plan takes seconds to load its kernels
        self._known[repr(plan)] = self.file

    @property
    def _problem(self) -> PipelineProblem:
        if not isinstance(self.file.problem, PipelineProblem):
            raise PlanError("only a plan of a measured job can be adapted", hint="plan from a profile")
        return self.file.problem

    def after(self, seen: StepSeen) -> PipelinePlan | None:
        """Called with every step: the plan to go on with, where that is another one now."""
        self._now = seen.step
        self._take_force()
        if self._coming is None and seen.step >= self._from and seen.samples == self._problem.batch_size:
            self._coming = self._pool.submit(self._adapts.send, Seen(seen.step_s, seen.compute_s))
        return self.decision()

    def told(self, step: int) -> None:
        """The new plan holds after this step."""
        self._from = step + 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- deciding ---------------------------------------------------------------------------------------------------

    @property
    def thinking(self) -> bool:
        """A decision is still being made."""
        return self._coming is not None

    def decision(self) -> PipelinePlan | None:
        """What was decided, if it is by now."""
        if self._coming is None:
            return None
        try:
            said = self._coming.result(_AT_ONCE_S)
        except NotYet:
            return None
        except Exception as error:  # training goes on without: it is worth more than a better plan
            self._coming, self._from = None, _NEVER
            self._write(Change(self._now, "gave up", {}, 0.0, sentence_of(error)))
            return None
        self._coming = None
        if said.event:
            self._write(Change(self._now, said.event, dict(said.slower), said.step_s))
        if said.plan is None:
            return None
        self._wanted = self._known[repr(said.plan)]
        self._from = _NEVER  # until it is told from when on it holds
        return said.plan

    def _take_force(self) -> None:
        """The first step by a new plan was seen: the folder's plan is that one."""
        if self._wanted is None or self._now < self._from:
            return
        first = self.out / FIRST_PLAN
        if not first.exists():
            self.file.write(first)
        self.file, self._wanted = self._wanted, None
        prepared(self.out, self.file)
        self.deployed(self.file)

    def _best(self, problem: PipelineProblem) -> tuple[PipelinePlan, float]:
        """The best plan for the devices as they are; the one deployed where another would not pay until the end."""
        from partita.pipeline.plan.planner import pays_beside, plan_pipeline

        assert isinstance(self.file.plan, PipelinePlan)
        old = replace(self.file, problem=problem)
        old_s = predicted(problem, self.file.plan).duration_s
        self._known[repr(old.plan)] = old
        with contextlib.suppress(PartitaError):
            pays = pays_beside(self.file.plan)
            new = plan_pipeline(problem.profile, problem.cluster, pays=pays, **asdict(problem.wish))
            left = float("inf") if self.steps is None else self.steps - self._now
            if left * (old_s - new.verdict.value_s) > SWITCH_S:
                assert isinstance(new.plan, PipelinePlan)
                self._known[repr(new.plan)] = new
                return new.plan, new.verdict.value_s
        return self.file.plan, old_s

    def _write(self, change: Change) -> None:
        add_line(self.out / DRIFT, json.dumps(asdict(change)))
        self.note(change)


def _be_nice() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
