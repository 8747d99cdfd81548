"""The quota of a control group, as version 1 and 2 have it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from partita.cpu_quota import cpu_quota, quota_cores


@pytest.mark.parametrize(
    ("own", "files", "said", "cores"),
    [
        ("0::/a", {"a/cpu.max": "80000 100000"}, "quota 80000 100000", 0.8),
        ("0::/", {"cpu.max": "max 100000"}, "quota max 100000", math.inf),
        (
            "3:cpu,cpuacct:/b",
            {"cpu/b/cpu.cfs_quota_us": "150000", "cpu/b/cpu.cfs_period_us": "100000"},
            "quota 150000 100000",
            1.5,
        ),
        ("0::/c", {}, "group /c", math.inf),
        (None, {}, "no quota known", math.inf),
    ],
)
def test_a_quota_is_read(tmp_path: Path, own: str | None, files: dict[str, str], said: str, cores: float) -> None:
    if own:
        (tmp_path / "own").write_text(own + "\n")
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    found = cpu_quota(tmp_path / "own", str(tmp_path))
    assert (found, quota_cores(found)) == (said, cores)
