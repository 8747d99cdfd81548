"""Temporary folders: gone when their block ends, and, when their process was killed, as soon as the next one is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from partita.temporary import LOCK, YOUNG_S, temporary_folder

HOLDS = """
import sys, time
from partita.temporary import temporary_folder
with temporary_folder("held", sys.argv[1]) as folder:
    (folder / "more").mkdir()
    print(folder, flush=True)
    time.sleep(120)
"""


def old(folder: Path) -> None:
    """As if it had been made long ago."""
    then = (folder / LOCK).stat().st_mtime - 2 * YOUNG_S
    os.utime(folder / LOCK, (then, then))


def test_what_a_killed_process_left_is_taken_away_by_the_next(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    other = tmp_path / "partita-of-somebody"
    other.mkdir()
    try:
        old(folder)
        with temporary_folder("mine", str(tmp_path)) as mine:
            assert mine.is_dir()
            assert (folder / "more").is_dir()  # its process lives
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not mine.exists()
    with temporary_folder("mine", str(tmp_path)):
        assert not folder.exists()
        assert other.is_dir()  # not made here


def test_a_young_one_may_not_be_held_yet(tmp_path: Path) -> None:
    young = tmp_path / "partita-x-1"
    young.mkdir()
    (young / LOCK).touch()
    with temporary_folder("mine", str(tmp_path)):
        assert young.exists()
    old(young)
    with temporary_folder("mine", str(tmp_path)):
        assert not young.exists()
