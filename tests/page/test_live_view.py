"""The live view: what stands on the screen, and how it gets there."""

from __future__ import annotations

import io
import os
import re
import sys
from dataclasses import replace

import pytest
from pipeline.plan.planning_worlds import chain_profile

from partita.cli.live import Dashboard, Scalars
from partita.cli.talk import Talk
from partita.errors import MissingDependency
from partita.page.live import Live, LiveStep, lines
from partita.pipeline.plan.planner import plan_pipeline
from partita.simulate.predicted import computing_s
from partita.training.runtime.step_log import StepSeen

LIVE = Live(
    "x.py:job",
    tuple(LiveStep(k, 2.0 / k, 0.4, {"cpu0": 0.3, "cpu1": 0.39}) for k in range(1, 31)),
    100, 0.35, {"cpu0": 0.3, "cpu1": 0.2}, ("step 12: a device is not as fast as it was",), 65.0,
)  # fmt: skip


def test_what_is_shown() -> None:
    shown = "\n".join(lines(LIVE, 110))
    assert "step 30 of 100" in shown
    assert "28.0 s left" in shown
    assert re.search(r"a step\s+400 ms\s+predicted\s+350 ms \(\s*-1[23] %\)", shown), shown
    assert re.search(r"cpu0 .* 75 % busy\s+1\.00 times as long as predicted$", shown, re.MULTILINE), shown
    assert re.search(r"cpu1 .* 98 % busy\s+1\.95 times as long as predicted   <- straggler$", shown, re.MULTILINE)
    assert "- step 12: a device is not as fast as it was" in shown
    assert "\x1b" not in shown
    assert "\x1b[33;1mcpu1" in "\n".join(lines(LIVE, 110, colour=True))


def test_no_straggler_where_all_are_as_slow() -> None:
    assert replace(LIVE, expected_s={"cpu0": 0.15, "cpu1": 0.2}).straggler() == ""
    assert replace(LIVE, expected_s={"cpu1": 0.2}).straggler() == ""


@pytest.mark.parametrize("width", [20, 60, 200])
@pytest.mark.parametrize("steps", [0, 1, 30])
def test_no_line_is_too_wide(width: int, steps: int) -> None:
    assert max(map(len, lines(replace(LIVE, steps=LIVE.steps[:steps]), width))) <= width


class Screen:
    """A terminal that understands what the dashboard writes."""

    def __init__(self) -> None:
        self.rows: list[str] = [""]
        self.row = 0

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\d*[A-Za-z]|\n|[^\x1b\n]+", text):
            if part == "\n":
                self.row += 1
                self.rows += [""] * (self.row + 1 - len(self.rows))
            elif part.endswith("F") and part.startswith("\x1b"):
                self.row -= int(part[2:-1])
                assert self.row >= 0
            elif part == "\x1b[J":
                self.rows = [*self.rows[: self.row], ""]
            elif part != "\x1b[K":
                self.rows[self.row] = part


def test_it_draws_over_itself_and_never_clears_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((100, 30)))
    out = io.StringIO()
    board = Dashboard(Talk(out, True, False), "x.py:job", 10)
    file = plan_pipeline(chain_profile(), stages=2, allow_replicas=False)
    board.plan(file)
    expected = computing_s(file.problem, file.plan)  # type: ignore[arg-type]
    screen = Screen()
    screen.write("before\n")
    for step in (1, 2, 3, 2):
        board.step(StepSeen(step, 1.0, 4.0, 8, expected))
        board.event(f"event {step}")
    board.close()
    screen.write(out.getvalue())
    shown = [r for r in screen.rows if r]
    assert shown[0] == "before"
    assert sum("partita run" in r for r in shown) == 1
    assert "step 2 of 10" in shown[1]  # done again after a failure
    assert sum(r.startswith("- event") for r in shown) == 4
    assert "\x1b[2J" not in out.getvalue()


def test_scalars_without_tensorboard(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingDependency, match="--tensorboard needs the package tensorboard"):
        Scalars(tmp_path)  # type: ignore[arg-type]


def test_scalars_where_tensorboard_is_installed(tmp_path: object) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scalars = Scalars(tmp_path)  # type: ignore[arg-type]
    scalars.plan(plan_pipeline(chain_profile(), stages=2, allow_replicas=False))
    for step in (1, 2):
        scalars.step(StepSeen(step, 1.0 / step, 0.4, 8, {"cpu0": 0.3}))
    scalars.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert [round(e.value, 3) for e in found.Scalars("loss")] == [1.0, 0.5]
    assert [e.step for e in found.Scalars("busy/cpu0")] == [1, 2]
