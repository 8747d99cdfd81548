"""Ctrl-C at every single line between two generations of workers: what was kept in memory becomes a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from training.runtime.helpers import plan_file, source_of

from partita import interrupts, spawn
from partita.errors import WorkerFailed
from partita.interrupts import interrupts_wait
from partita.nouns.plan import PlanFile
from partita.training.runtime import copy_files, elastic
from partita.training.runtime.copy_files import HEAD, HEAD_BYTES, step_of
from partita.training.runtime.elastic import Elastic, keep_going
from partita.training.runtime.failure import Failure
from partita.training.runtime.launch import Broken, Ended, Hurried
from partita.training.runtime.spec import Spec

KEPT = 10  #: the step of which all ranks have a copy
TRACED = {m.__file__ for m in (elastic, interrupts, copy_files)}


@dataclass
class InterruptAt:
    """Sends Ctrl-C to this process before the line number `at` of those modules; counts lines from `begin` on."""

    at: int
    lines: int = 0
    sent: bool = False

    def begin(self) -> None:
        sys.settrace(self.trace)
        frame: FrameType | None = sys._getframe()
        while frame := frame.f_back:  # those that run already
            if frame.f_code.co_filename in TRACED:
                frame.f_trace = self.trace

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at and not self.sent:
                self.sent = True
                signal.raise_signal(signal.SIGINT)
        return self.trace


@dataclass
class Generations:
    """In place of real ones: the first dies after step KEPT, the second runs to the end; one that is to save does."""

    interrupt: InterruptAt
    saved: list[int] = field(default_factory=list)
    ended: bool = False
    died: bool = False

    def __call__(self, spec: Spec, file: PlanFile, *_: object, handles: Sequence[int] = (), **__: object) -> object:
        if spec.only_save:
            assert {step_of(h) for pair in spec.base for h in pair} == {spec.base_step}
            self.saved.append(spec.base_step)
            return Ended(False, 0.0, spec.base_step)
        if self.died:
            assert {step_of(h) for pair in spec.base for h in pair} == {KEPT}
            self.ended = True
            return Ended(False, 0.0, 40)
        for pair in spec.copies:
            for handle in pair:
                os.pwrite(handle, HEAD.pack(KEPT + 1, HEAD_BYTES, 0), 0)
        self.died = True
        self.interrupt.begin()
        return Broken(Failure(WorkerFailed("rank 0 died", rank=0, doing=""), (0,)), KEPT, False)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plan_file("failing:good", stages=2).write(tmp_path_factory.mktemp("plan") / "plan.json")


def run(folder: Path, plan: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> tuple[Generations, InterruptAt, bool]:
    """(what ran, where it was interrupted, whether Ctrl-C came out)."""
    interrupt = InterruptAt(at)
    ran = Generations(interrupt)
    monkeypatch.setattr(elastic, "attempt", ran)
    folder.mkdir()
    spec = Spec(source_of("failing:good"), {}, str(plan), str(folder), checkpoints=str(folder / "checkpoints"))
    before = sys.gettrace()
    try:
        keep_going(spec, PlanFile.read(plan), Elastic())
    except KeyboardInterrupt:
        return ran, interrupt, True
    finally:
        sys.settrace(before)
    return ran, interrupt, False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that was just being opened
def test_no_line_loses_what_is_in_memory(tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, undisturbed, _ = run(tmp_path / "0", plan, monkeypatch, 0)
    assert undisturbed.lines > 60
    for at in range(1, undisturbed.lines + 1):
        ran, interrupt, raised = run(tmp_path / str(at), plan, monkeypatch, at)
        assert interrupt.sent
        assert raised, at
        assert ran.saved == [KEPT] or ran.ended, at


def interrupted() -> list[str]:
    """What is done where Ctrl-C comes again and again."""
    done = []
    with contextlib.suppress(KeyboardInterrupt), interrupts_wait() as waiting:
        signal.raise_signal(signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt), waiting.lifted():
            done.append("never: one came before")
        with contextlib.suppress(KeyboardInterrupt), waiting.lifted():
            signal.raise_signal(signal.SIGINT)
            done.append("never: one came just now")
        signal.raise_signal(signal.SIGINT)
        done.append("whole")
    return done


def test_an_interrupt_waits_and_then_comes() -> None:
    assert interrupted() == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)


def hurried(around: bool) -> None:
    """Ctrl-C again, while the one that wants the end at once is on its way out: of the same block, or through it."""
    try:
        with interrupts_wait() if around else contextlib.nullcontext():
            if around:
                signal.raise_signal(signal.SIGINT)
            raise Hurried
    finally:
        with interrupts_wait():
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("around", [False, True])
def test_another_one_does_not_take_the_place_of_one_that_is_on_its_way_out(around: bool) -> None:
    with pytest.raises(Hurried):
        hurried(around)


def test_one_that_comes_while_processes_are_ended_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ends(processes: Sequence[object], grace_s: float) -> None:
        if not asked:
            signal.raise_signal(signal.SIGINT)
        asked.append(grace_s)

    monkeypatch.setattr(spawn, "_end", ends)
    with pytest.raises(KeyboardInterrupt):
        spawn.end([], 2.0)
    assert asked[0] == 2.0
