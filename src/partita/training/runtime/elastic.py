"""A run that goes on when a worker dies: another generation of workers, from the state that the last one left.

    a worker dies -> all others end -> a plan for the devices that are left, or the same one -> workers -> on from the newest
                                       step of which every rank's state is kept

State is kept in memory (`copies`), after every step or every few, or in checkpoints only. What a generation began with is
kept until the next one has copies of its own, so that it may die at any moment, too.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from partita.errors import PartitaError, WorkerFailed
from partita.files import add_line
from partita.interrupts import interrupts_wait, terminate_like_interrupt
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.training.runtime.copy_files import CopyFiles
from partita.training.runtime.join import world
from partita.training.runtime.launch import Broken, Ended, Hurried, Minds, Watch, attempt
from partita.training.runtime.prepare import prepared
from partita.training.runtime.saved import latest, step_of, written_since
from partita.training.runtime.spec import Spec
from partita.training.runtime.worker_status import Board

FAILURES = "failures.jsonl"
#: generations in a row that die before they have done a step more than those before: then it is no accident
IN_VAIN = 5

Redundancy = Literal["memory", "checkpoint"]
PlanWithout = Callable[[PlanFile, Collection[str]], PlanFile]
#: a plan file, and devices that are gone -> the plan for those that are left. Raises BadInput or Infeasible without one.


@dataclass(frozen=True)
class Lost:
    """A failure that the run goes on after: a line of failures.jsonl."""

    step: int  #: that was under way
    ranks: tuple[int, ...]
    devices: tuple[str, ...]
    error: str
    on_from_step: int  #: the last step that is not done again
    source: str  #: "memory", "checkpoint" or "start": where its state comes from
    devices_left: tuple[str, ...]  #: those of the plan that the run goes on with

    @property
    def sentence(self) -> str:
        again = self.step - self.on_from_step
        lost = f"{again} step{'s' * (again != 1)} to do again" if again > 0 else "nothing lost"
        where = {"memory": "from memory", "checkpoint": "from a checkpoint", "start": "from the start"}[self.source]
        return (
            f"{self.error}; going on after step {self.on_from_step} {where} on {', '.join(self.devices_left)}: {lost}"
        )


@dataclass(frozen=True)
class Elastic:
    """What is done about failures."""

    plan_without: PlanWithout | None = None  #: None: a new process for the same device
    redundancy: Redundancy = "memory"
    copy_every: int = 1  #: steps: one less than this many are lost at most, beside the one in flight
    note: Callable[[Lost], None] = lambda lost: None
    #: hears of a step that was only in memory, and is a checkpoint now
    saved: Callable[[int], None] = lambda step: None
    #: hears of a step that was only in memory and could not be written, and why
    unsaved: Callable[[int, str], None] = lambda step, why: None


@dataclass
class _Base:
    """Where the next generation goes on from."""

    step: int = 0
    files: CopyFiles | None = None
    resume: str = ""  #: a folder with a checkpoint

    @staticmethod
    def of(spec: Spec) -> _Base:
        """Of the first generation. Raises CheckpointError where the checkpoint to resume from is damaged."""
        return _Base(step_of(latest(Path(spec.resume))) if spec.resume else 0, resume=spec.resume)

    @property
    def source(self) -> str:
        return "memory" if self.files else "checkpoint" if self.resume else "start"

    def advanced(self, files: CopyFiles | None, spec: Spec, began_s: float) -> bool:
        """Take over the newest copies, or the newest checkpoint of this run, where they are newer; whether it has the copies."""
        step, saved = files.newest if files else None, written_since(spec.checkpoints, began_s)
        saved_step = step_of(saved) if saved else -1
        if step is not None and step >= max(self.step, saved_step):
            self.close()
            self.step, self.files, self.resume = step, files, ""
            return True
        if saved_step > self.step:
            self.close()
            self.step, self.resume = saved_step, str(saved)
        return False

    def close(self) -> None:
        files, self.files = self.files, None  # never twice: their numbers may be others' by then
        if files:
            files.close()


@dataclass
class _Releases:
    """Closes the files that a generation began with once it has copies of its own; passes on what is seen."""

    base: _Base
    mind: Minds | None
    _done: bool = field(default=False, init=False)

    def look(self, board: Board) -> PipelinePlan | None:
        if not self._done and self.base.files and board.copied() >= 0:
            self.base.close()
            self._done = True
        return self.mind.look(board) if self.mind else None

    def told(self, step: int) -> None:
        if self.mind:
            self.mind.told(step)


def keep_going(
    spec: Spec,
    file: PlanFile,
    how: Elastic,
    watch: Watch | None = None,
    *,
    mind: Callable[[PlanFile], Minds] | None = None,
    all_devices: bool = False,
) -> Ended:
    """Run workers to the end, whatever happens to them; the folder's plan is the one they go by. `mind` makes who watches a
    generation; with `all_devices` devices that the plan does not use have workers, too.

    Raises what no other generation would help against: an error of a rank's own, no device left, IN_VAIN deaths without a
    step between them. However it ends, what was kept in memory only is then a checkpoint, unless the user cannot wait for that.
    """
    began, began_s, vain, furthest = time.monotonic(), time.time(), 0, 0
    with contextlib.closing(_Base.of(spec)) as base, terminate_like_interrupt():
        try:
            while True:
                devices = world_of(file, len(file.cluster.devices) if all_devices else 0)
                told = replace(spec, copy_every=how.copy_every, goes_on=furthest > 0)
                minds = mind(file) if mind else None
                found = _generation(told, file, base, how.redundancy, watch, len(devices), minds, began_s)
                if isinstance(found, Ended):
                    return replace(found, wall_s=time.monotonic() - began)
                vain = 0 if found.step > furthest else vain + 1
                furthest = max(furthest, found.step)
                _expect_recoverable(found, vain)
                file = PlanFile.read(spec.plan)  # it may have been changed meanwhile
                gone = tuple(devices[r] for r in found.failure.gone)
                if how.plan_without and gone:
                    file = _planned(how.plan_without, file, gone, found.failure.error)
                    prepared(spec.out, file)
                _note(spec, how, found, gone, base, file)
        except BaseException as error:
            if base.files and not isinstance(error, Hurried):
                _saved(spec, base, how)
            raise


def _saved(spec: Spec, base: _Base, how: Elastic) -> None:
    """A checkpoint of what was kept in memory, by a last generation that does no step, under the plan that stands now."""
    assert base.files
    told = replace(spec, base=base.files.handles, base_step=base.step, resume="", goes_on=True, only_save=True)
    words = {p: p.read_bytes() for p in Path(spec.out).glob("error-rank*.json")}
    try:
        found = attempt(told, PlanFile.read(spec.plan), handles=base.files.all)
    except PartitaError as error:
        how.unsaved(base.step, error.message)
        return
    if isinstance(found, Ended):
        how.saved(base.step)
    else:
        how.unsaved(base.step, found.failure.error.message)
        return
    for path, word in words.items():  # what ended the run, not how it was saved
        with contextlib.suppress(OSError):
            path.write_bytes(word)


def _generation(
    spec: Spec,
    file: PlanFile,
    base: _Base,
    redundancy: Redundancy,
    watch: Watch | None,
    ranks: int,
    mind: Minds | None,
    began_s: float,
) -> Ended | Broken:
    """One generation of workers; `base` then holds what the next one may go on from, however this one ends: interrupts wait
    until it does."""
    with interrupts_wait() as waiting, contextlib.ExitStack() as stack:
        files = CopyFiles.create(ranks) if redundancy == "memory" else None
        if files:
            stack.callback(files.close)
        told = replace(
            spec, copies=files.handles if files else (), base=base.files.handles if base.files else (),
            base_step=base.step, resume=base.resume,
        )  # fmt: skip
        handles = [h for f in (files, base.files) if f for h in f.all]
        found: Ended | Broken | None = None
        try:
            with waiting.lifted():
                found = attempt(told, file, watch, ranks=ranks, handles=handles, mind=_Releases(base, mind))
        finally:
            if not isinstance(found, Ended) and base.advanced(files, told, began_s):
                stack.pop_all()
        return found


def world_of(file: PlanFile, ranks: int) -> tuple[str, ...]:
    """[ranks] devices; at least those of the plan."""
    assert isinstance(file.plan, PipelinePlan)
    return world(file, max(ranks, len(file.plan.devices)))


def _expect_recoverable(found: Broken, vain: int) -> None:
    """Raise the error of a failure after which nobody should go on."""
    error = found.failure.error
    if found.failure.by_itself or found.asked:
        raise error
    if vain >= IN_VAIN:
        raise WorkerFailed(
            f"{vain} generations of workers died one after the other in step {found.step}; the last time {error.message}",
            rank=getattr(error, "rank", -1), doing=getattr(error, "doing", ""), hint=error.hint,
        )  # fmt: skip


def _planned(plan_without: PlanWithout, file: PlanFile, gone: Collection[str], error: PartitaError) -> PlanFile:
    """The plan for the devices that are left. Raises WorkerFailed where there is none."""
    try:
        return plan_without(file, gone)
    except PartitaError as why:
        raise WorkerFailed(
            f"{error.message}, and there is no plan without {', '.join(gone)}: {why.message}",
            rank=getattr(error, "rank", -1), doing=getattr(error, "doing", ""), hint=error.hint,
        ) from why  # fmt: skip


def _note(spec: Spec, how: Elastic, found: Broken, gone: tuple[str, ...], base: _Base, file: PlanFile) -> None:
    assert isinstance(file.plan, PipelinePlan)
    error, ranks = found.failure.error.message, found.failure.gone
    lost = Lost(found.step, ranks, gone, error, base.step, base.source, file.plan.devices)
    add_line(Path(spec.out) / FAILURES, json.dumps(asdict(lost)))
    how.note(lost)
