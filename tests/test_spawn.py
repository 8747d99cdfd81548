"""Helper processes never outlive the one that started them, whatever it was doing and whatever they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from partita.spawn import Process, end, exit_codes, last_line, process_state, spawn

SLOW_IMPORT = (
    "import os, sys, time\nfrom pathlib import Path\nPath(sys.argv[1]).write_text(str(os.getpid()))\ntime.sleep(120)\n"
)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module `slow_import` that says its number and then imports for two minutes."""
    (tmp_path / "slow_import.py").write_text(SLOW_IMPORT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return tmp_path


def until(there: Callable[[], bool], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_parent_killed_during_its_childs_imports_leaves_nothing(slow: Path) -> None:
    told = slow / "pid"
    parent = (
        f"from pathlib import Path\nfrom partita.spawn import spawn\nspawn('slow_import', Path({str(told)!r})).wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    until(lambda: told.exists() and told.read_text() != "")
    child = int(told.read_text())
    assert process_state(child) in "RSD"
    process.kill()
    process.wait()
    until(lambda: process_state(child) in "XZ", 5)


def test_a_companion_ends_with_its_parent_during_its_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The companion of a measurement, held up in the import of torch."""
    (tmp_path / "torch.py").write_text(f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(120)\n")  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    parent = f"""
from pathlib import Path
from partita.training.measure.company import _start
_start(Path({str(tmp_path / "told.json")!r}), {{"source": "x.py:job", "cores": []}}).wait()
"""
    process = subprocess.Popen([sys.executable, "-c", parent])
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    child = int((tmp_path / "pid").read_text())
    process.kill()
    process.wait()
    until(lambda: process_state(child) in "XZ", 5)


def test_end_takes_what_a_child_has_started_along(slow: Path) -> None:
    (slow / "starts_one.py").write_text(
        "import subprocess, sys\nfrom pathlib import Path\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)'])\n"
        "Path(sys.argv[1]).write_text(str(p.pid))\np.wait()\n"
    )
    told = slow / "grandchild"
    child: Process = spawn("starts_one", told)
    until(lambda: told.exists() and told.read_text() != "")
    end([child], grace_s=0.5)
    assert child.returncode in (-signal.SIGTERM, -signal.SIGKILL)
    until(lambda: process_state(int(told.read_text())) in "XZ", 5)


def test_what_it_prints_goes_to_its_log(slow: Path) -> None:
    (slow / "speaks.py").write_text("import sys\nprint('one')\nsys.exit('the last word')\n")
    child = spawn("speaks", slow / "told", log=slow / "log")
    assert child.wait() == 1
    assert last_line(slow / "log") == "the last word"
    assert last_line(slow / "nowhere") == ""


def test_exit_codes_are_there_as_soon_as_one_has_failed_or_all_have_ended() -> None:
    def process(code: str) -> Process:
        return subprocess.Popen([sys.executable, "-c", code])

    sleeps, fails = process("import time; time.sleep(100)"), process("raise SystemExit(3)")
    try:
        assert exit_codes([sleeps, fails], 60.0) == [None, 3]
        assert exit_codes([sleeps], 0.0) == [None]
        assert exit_codes([process("pass"), process("pass")], 60.0) == [0, 0]
    finally:
        sleeps.kill()
        sleeps.wait()
