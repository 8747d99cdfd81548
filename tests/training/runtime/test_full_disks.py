"""No room: the reason is told, in one sentence, although neither log nor word can be written where they belong."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training.runtime.helpers import plan_file
from training.runtime.runs import train

from partita.errors import BadInput
from partita.training.runtime import failure, launch
from partita.training.runtime.checkpoint import examine
from partita.training.runtime.spec import Spec


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_is_named_as_the_reason(small_disk: Path, tmp_path: Path) -> None:
    plan_file("failing:good", stages=2).write(tmp_path / "plan.json")
    run = train(small_disk.parent, "failing:good", tmp_path / "plan.json", "--steps", "1000000", "-o", str(small_disk / "run"))  # fmt: skip
    run.out = small_disk / "run"
    run.wait_for_step(3)
    with open(small_disk / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
    assert run.wait(60) == 1
    assert "No space left on device" in run.error()
    assert "--resume" not in run.error()


def test_a_disk_that_fills_up_while_a_checkpoint_is_written(small_disk: Path, tmp_path: Path) -> None:
    """One sentence; the last whole checkpoint is there, nothing of the other one, and the run can go on from it."""
    plan_file("failing:good", stages=2).write(tmp_path / "plan.json")
    options = ("--steps", "1000000", "--set", "seconds=0.02", "--on-failure", "replace", "--checkpoint-every", "10")
    run = train(small_disk.parent, "failing:good", tmp_path / "plan.json", *options, "-o", str(small_disk / "run"))
    run.out = small_disk / "run"
    run.wait_for_step(13)
    _fill(small_disk, but=3)
    assert run.wait(60) != 0
    last = sorted((run.out / "checkpoints").iterdir())
    assert [p.name for p in last] == [f"step-{n:08d}" for n in range(10, 10 * len(last) + 1, 10)][-2:]
    assert examine(run.out / "checkpoints")[1].step % 10 == 0
    assert "cannot be written" in run.error()
    assert f"the last whole one is {last[-1].name}" in run.error()


def _fill(disk: Path, but: int) -> None:
    """Take what is free on `disk` but for `but` blocks, while a run writes there too and may be first to a block."""
    with open(disk / "filler", "wb") as filler:
        for _ in range(100):
            room = os.statvfs(disk)
            try:
                os.posix_fallocate(filler.fileno(), 0, (room.f_bavail - but) * room.f_frsize)
            except OSError as error:  # nothing is taken then
                assert error.errno == errno.ENOSPC  # noqa: PT017
            else:
                return
    pytest.fail("the disk would not be filled")


def test_nowhere_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BadInput, match=r"the workers cannot meet: no room for 1 MB in /.* \(No space left on device\) or /dev/shm") as caught:  # fmt: skip
        launch._meeting_room().__enter__()
    assert "TMPDIR" in caught.value.hint


def test_a_hint_at_a_checkpoint_only_where_there_is_one_of_this_run(tmp_path: Path) -> None:
    spec = Spec("x.py:job", {}, "plan.json", str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    state = tmp_path / "checkpoints" / "step-00000004" / "state.json"
    assert failure.resume_hint(spec, 0.0) == ""
    state.parent.mkdir(parents=True)
    assert failure.resume_hint(spec, 0.0) == ""
    state.write_text("{}")
    assert failure.resume_hint(spec, state.stat().st_mtime - 10) == f"resume with --resume {spec.checkpoints}"
    assert failure.resume_hint(spec, state.stat().st_mtime + 10) == ""  # an earlier run's


@pytest.mark.parametrize(
    ("code", "kills", "words"),
    [
        (-9, 1, "the kernel killed it for want of memory"),
        (-9, 0, "nothing here ran out of memory"),
        (-9, None, "look at dmesg"),
        (-15, 0, "something asked it to end"),
        (-11, 0, "it crashed in compiled code"),
        (-7, 0, "/dev/shm"),
        (1, 0, "ended its process"),
    ],
)
def test_what_a_signal_says(code: int, kills: int | None, words: str) -> None:
    assert words in failure._why(code, kills)
    assert bool(words) == bool(failure._why(code, kills))
