"""What is kept on disk is forgotten when any file changes whose code is in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partita.solve.compiled import heard

CALLER = "from called import inner\nfrom partita.solve.compiled import compiled\n\n@compiled\ndef outer(x):\n    return inner(x) + 1\n\nprint(outer(1))\n"
CALLED = "from partita.solve.compiled import compiled\n\n@compiled\ndef inner(x):\n    return x * {}\n"


def said(folder: Path) -> str:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kept"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "caller.py"], cwd=folder, env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_function_is_compiled_anew_when_one_that_it_calls_changes(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "called.py").write_text(CALLED.format(10))
    assert said(tmp_path) == "11"
    kept = sorted((tmp_path / "kept").rglob("*.nbc"))
    assert len(kept) == 2
    assert said(tmp_path) == "11"
    assert sorted((tmp_path / "kept").rglob("*.nbc")) == kept
    (tmp_path / "called.py").write_text(CALLED.format(200))
    assert said(tmp_path) == "201"


def test_ctrl_c_is_heard_while_machine_code_runs() -> None:
    code = "from partita.solve.compiled import compiled, heard\n@compiled\ndef forever(x):\n    while x[0] == 0:\n        x[1] += 1\n\nimport numpy as np\nx = np.zeros(2, np.int64)\nforever(x + 1)\nprint('ready', flush=True)\nheard(forever, x)\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=20)
    assert child.returncode != 0
    assert b"KeyboardInterrupt" in said


def test_an_error_of_machine_code_is_raised_where_it_was_called() -> None:
    with pytest.raises(ZeroDivisionError):
        heard(lambda x: 1 // x, 0)
