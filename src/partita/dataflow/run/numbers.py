"""Scores from run to run: a line for each, appended as they come, so that a run that was killed need not score again.

    ["KEY", 0.93]     a score; of several lines of a key the last one counts
    ["KEY", null]     it was withdrawn

A number is not worth a file of its own in the store, but costs what its task took, and all that its task needs.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from partita.errors import BadInput
from partita.files import read_bytes

MOST_BYTES = 100_000_000  #: a longer file is begun anew


@dataclass
class Numbers:
    """Key -> number, in memory and in a file; `found` is what earlier runs left."""

    path: Path
    found: dict[str, float] = field(default_factory=dict)
    broken: bool = False  #: the disk took no more

    @staticmethod
    def open(path: str | Path) -> Numbers:
        """The numbers in a file; lines that are damaged, as a killed run's last one may be, do not count.

        Raises BadInput where the file cannot be read or written.
        """
        path = Path(path)
        try:
            begin = path.exists() and path.stat().st_size > MOST_BYTES
            found = numbers_in(path)
            with open(path, "wb" if begin else "ab+") as out:
                if out.tell() and os.pread(out.fileno(), 1, out.tell() - 1) != b"\n":  # behind half a line
                    out.write(b"\n")
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}", hint="name another folder: -o DIR") from error
        return Numbers(path, found)

    def add(self, numbers: Mapping[str, float]) -> None:
        """Keep some; what the disk does not take is computed again next time."""
        lines = "".join(
            json.dumps([k, v]) + "\n" for k, v in numbers.items() if math.isfinite(v) and self.found.get(k) != v
        )
        if lines and not self.broken:
            self._append(lines)

    def remove(self, keys: Iterable[str]) -> None:
        """Withdraw some, whether they are there or not: this and later runs do not know them."""
        keys = list(keys)
        for key in keys:
            self.found.pop(key, None)
        if keys:
            self._append("\n" + "".join(json.dumps([k, None]) + "\n" for k in keys))  # behind half a line

    def _append(self, lines: str) -> None:
        try:
            with open(self.path, "a", encoding="utf-8") as out:
                out.write(lines)
        except OSError:
            self.broken = True


def numbers_in(path: Path) -> dict[str, float]:
    """What earlier runs left in a file; nothing where there is none, or it is so long that it is begun anew."""
    return read_numbers(path) if path.is_file() and path.stat().st_size <= MOST_BYTES else {}


def read_numbers(path: Path) -> dict[str, float]:
    """What the sound lines of a file come to. Raises BadInput where it cannot be read. O(lines)."""
    found: dict[str, float] = {}
    for line in read_bytes(path, BadInput).decode("utf-8", "replace").splitlines():
        try:
            key, value = json.loads(line)
            if isinstance(key, str) and value is None:
                found.pop(key, None)
            elif (
                isinstance(key, str)
                and isinstance(value, float | int)
                and not isinstance(value, bool)
                and math.isfinite(value)
            ):
                found[key] = float(value)
        except (ValueError, TypeError, RecursionError, OverflowError):
            continue
    return found
