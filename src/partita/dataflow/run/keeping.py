"""The store as the tasks of one run see it: who says that nothing is kept any more can rely on it, also while tasks go on."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from partita.dataflow.store import Absent, Found, NotKept, Put, Store


@dataclass
class Keeping:
    """A run's store in one process."""

    store: Store
    over: bool = False
    lock: Any = field(default_factory=threading.Lock)

    def get(self, key: str) -> Found | Absent:
        return self.store.get(key)

    def put(self, key: str, value: Any, seconds: float) -> Put | NotKept:
        with self.lock:
            return NotKept("the run is over") if self.over else self.store.put(key, value, seconds)

    def stop(self) -> None:
        """Keep nothing from now on; what is being written is whole when this returns."""
        with self.lock:
            self.over = True
