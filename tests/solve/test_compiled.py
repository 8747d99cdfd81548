"""What is kept on disk is forgotten when any file changes whose code is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
