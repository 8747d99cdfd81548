"""The CPU time that this process's control group may take: cores by quota, which are not those that it may run on."""

from __future__ import annotations

import math
from pathlib import Path

_FILES = (
    ("{root}{group}/cpu.max",),
    ("{root}/cpu{group}/cpu.cfs_quota_us", "{root}/cpu{group}/cpu.cfs_period_us"),
)


def cpu_quota(own: Path = Path("/proc/self/cgroup"), root: str = "/sys/fs/cgroup") -> str:
    """The quota of this process's control group, v2 or v1, as its files have it, "MICROSECONDS PERIOD"; its group's name
    where they cannot be seen."""
    try:
        rows = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return "no quota known"
    group = next((r[2] for r in rows if "cpu" in r[1].split(",")), next((r[2] for r in rows if r[1] == ""), "/"))
    for names in _FILES:
        try:
            return "quota " + " ".join(Path(n.format(root=root, group=group)).read_text().strip() for n in names)
        except OSError:
            continue
    return f"group {group}"


def quota_cores(quota: str) -> float:
    """Of what `cpu_quota` says: cores' worth of time; infinite where there is no quota, or none is seen.

    >>> quota_cores("quota 150000 100000"), quota_cores("quota max 100000"), quota_cores("quota -1 100000"), quota_cores("group /a")
    (1.5, inf, inf, inf)
    """
    try:
        microseconds, period = (float(word) for word in quota.removeprefix("quota ").split())
    except ValueError:  # "max", or no numbers at all
        return math.inf
    return microseconds / period if microseconds > 0 < period else math.inf
