"""The store as the tasks of one run see it, in one process: nothing is kept that was not computed by the code in its key, and
nothing once the run is over, also while tasks go on.

Keys tell files of the user's own as they were when the flow was unfolded. A process imports them later: when a worker begins, or
when the first task comes to an import inside of its step. From then on a file may change; one that changes before may have been run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import partita
from partita.dataflow.functions import files_behind
from partita.dataflow.store import Absent, Found, NotKept, Put, Store


@dataclass
class Keeping:
    """A run's store, and the files that its tasks may still import."""

    store: Store | None
    sources: Mapping[str, str] = field(default_factory=dict)  #: file -> sha256 of what was in it when keys were made
    over: bool = False
    stale: str = ""  #: a file that is another one
    lock: Any = field(default_factory=threading.Lock)
    states: dict[str, tuple[int, ...]] = field(init=False)  #: of those that were not imported yet
    modules: int = 0  #: that were loaded at the last look

    def __post_init__(self) -> None:
        self.states = {file: _state(file) for file in self.sources}
        self.stale = next((file for file, digest in self.sources.items() if digest_of(file) != digest), "")

    def changed(self) -> str:
        """Why what was computed until now may not be that of its key; "" where it is."""
        with self.lock:
            self.stale = self.stale or next((file for file, state in self.states.items() if _state(file) != state), "")
            if self.states and self.modules != len(sys.modules) and not self.stale:
                self.modules = len(sys.modules)
                for file in loaded(self.states):
                    del self.states[file]
        return f"{self.stale} was changed since the flow was read" if self.stale else ""

    def get(self, key: str) -> Found | Absent:
        return Absent("there is no store") if self.store is None else self.store.get(key)

    def put(self, key: str, value: Any, seconds: float) -> Put | NotKept:
        with self.lock:
            if self.store is None or self.over:
                return NotKept("")
            return self.store.put(key, value, seconds)

    def stop(self) -> None:
        """Keep nothing from now on; what is being written is whole when this returns."""
        with self.lock:
            self.over = True


def sources_behind(files: Iterable[Path]) -> dict[str, str]:
    """Files of the user's own, and those that they import -> the sha256 of what is in them."""
    return {str(f): digest_of(str(f)) for f in files_behind(files, Path(partita.__file__).resolve().parent)}


def loaded(files: Mapping[str, object]) -> dict[str, list[str]]:
    """Those of the files that are imported in this process -> the modules' names."""
    names = {os.path.basename(file) for file in files}
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if os.path.basename(file) in names and (real := os.path.realpath(file)) in files:
            found.setdefault(real, []).append(name)
    return found


def digest_of(file: str) -> str:
    """Of the bytes of a file; "" where it cannot be read."""
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return ""


def _state(file: str) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
