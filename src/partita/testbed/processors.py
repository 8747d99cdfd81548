"""Shares of a core for a test bed's hosts: one group of the kernel's cpu controller a host (cgroup v1 or v2)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from partita.errors import BadInput

PERIOD_US = 10_000  #: a process runs and waits in turns this long together: short against a network's layers
LEAST_QUOTA_US = 1_000  #: the kernel's own minimum
MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Controller:
    """Where the cpu controller is mounted, and which version it is."""

    root: Path
    version: int

    def limit(self, group: str, percent: float | None, *, pinned: bool = False) -> Path:
        """Make the group, or change it: its processes together get `percent` of one core (None: no limit). The group's folder.

        A whole core of a group that is `pinned` to one is no quota: that would take 5 to 8 % of it (an EPYC, 26 November 2026), for
        the kernel gives out what is left of a period late. Raises BadInput where the kernel refuses.
        """
        folder = self.root / group
        quota_us, period_us = quota(100.0 if percent is None else percent)
        unlimited = percent is None or (pinned and percent >= 100)
        try:
            folder.mkdir(exist_ok=True)
            if self.version == 2:
                (folder / "cpu.max").write_text(f"{'max' if unlimited else quota_us} {period_us}")
            else:
                # the old quota may not fit the new period: lift it first
                (folder / "cpu.cfs_quota_us").write_text("-1")
                (folder / "cpu.cfs_period_us").write_text(str(period_us))
                (folder / "cpu.cfs_quota_us").write_text("-1" if unlimited else str(quota_us))
        except OSError as error:
            raise BadInput(
                f"{'max' if percent is None else f'{percent:g} percent of a core'} cannot be set in {folder}: {error.strerror}",
                hint="leave --cpu out, or allow this machine's root to make cpu groups",
            ) from error
        return folder


def quota(percent: float) -> tuple[int, int]:
    """(quota, period) in microseconds: the shortest period from PERIOD_US on whose quota the kernel accepts.

    >>> quota(25.0), quota(200.0), quota(4.0)
    ((2500, 10000), (20000, 10000), (1000, 25000))
    """
    period_us = max(PERIOD_US, round(LEAST_QUOTA_US * 100 / percent))
    return max(LEAST_QUOTA_US, round(period_us * percent / 100)), period_us


def controller(mounts: str | None = None) -> Controller:
    """The cpu controller of this machine, from the text of /proc/self/mounts. Raises BadInput where there is none."""
    rows = [line.split() for line in (MOUNTS.read_text() if mounts is None else mounts).splitlines()]
    for _, place, kind, options, *_ in rows:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Controller(Path(place), 1)
    for _, place, kind, *_ in rows:
        root = Path(place)
        if kind == "cgroup2" and "cpu" in _words(root / "cgroup.controllers"):
            if "cpu" not in _words(root / "cgroup.subtree_control"):
                _delegate(root)
            return Controller(root, 2)
    raise BadInput("this machine has no cpu controller (cgroup v1 or v2) mounted", hint="leave --cpu out")


def _words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def _delegate(root: Path) -> None:
    """Version 2: groups below the root get the cpu controller only when the root hands it down."""
    try:
        (root / "cgroup.subtree_control").write_text("+cpu")
    except OSError as error:
        raise BadInput(
            f"the cpu controller cannot be handed down from {root}: {error.strerror}", hint="leave --cpu out"
        ) from error


def members(folder: Path) -> list[int]:
    """Process ids in a group; none where it is gone. A process of another pid namespace has no number here and is left out."""
    with contextlib.suppress(OSError):
        return [pid for word in (folder / "cgroup.procs").read_text().split() if (pid := int(word)) > 0]
    return []


def remove(folder: Path, patience_s: float = 2.0) -> bool:
    """Remove a group, killing those who were still on their way into it; True when it is gone, and not out of sight."""
    if not (folder.parent / "cgroup.procs").exists():
        return False
    end = time.monotonic() + patience_s
    while folder.is_dir():
        try:
            folder.rmdir()
        except OSError:  # somebody is in there, perhaps dying
            if time.monotonic() > end:
                return False
            for pid in members(folder):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
    return True
