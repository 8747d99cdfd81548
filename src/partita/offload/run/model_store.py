"""The server's models and the sessions made from them, within a limit of memory; the least recently used go first."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from partita.errors import PartitaError
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.onnx_session import Session, TimeLimit, TookTooLong
from partita.offload.run.wire import WireError

_MOST_CUT_TASKS = 1 << 20  #: tasks in the cuts remembered for one model
_MOST_SLOW = 4096  #: halves remembered as too slow


class NoRoom(PartitaError):
    """The server has no memory for a model."""


class Busy(PartitaError):
    """The server builds sessions for others as long as a half may take to build: ask later."""


class Unknown(PartitaError):
    """A model or a cut that the server does not hold (any more): put it again."""


def cut_id(tasks: Iterable[str]) -> str:
    """The name under which device and server know a cut."""
    return hashlib.sha256("\n".join(sorted(tasks)).encode()).hexdigest()[:16]


@dataclass
class _Entry:
    """Something that takes memory: a model (with the cuts that were named for it) or a session."""

    what: Any
    bytes: float
    cuts: dict[str, frozenset[str]] = field(default_factory=dict)


_Key = tuple[str, str]  #: (hash of the model, cut; "" for the model itself)


class ModelStore:
    """Models by hash, sessions by (hash, cut). Safe to use from many threads; sessions are built one at a time."""

    def __init__(self, most_bytes: float) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0.0
        self.evictions = 0
        self._coming_bytes = 0.0
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._too_slow: dict[_Key, str] = {}

    def holds(self, model: str) -> bool:
        with self._lock:
            return (model, "") in self._entries

    def models(self) -> int:
        with self._lock:
            return sum(not cut for _, cut in self._entries)

    def expect(self, size_bytes: float) -> None:
        """Make room for a model of this size that comes up. Raises NoRoom before a byte of it is taken.

        Call `arrived` with the same size afterwards, whatever happened.
        """
        with self._lock:
            if not 0 < size_bytes <= self.most_bytes - self._coming_bytes:
                raise NoRoom(
                    f"a model of {size_bytes / 1e6:.1f} MB does not fit: the server has {self.most_bytes / 1e6:.1f} MB "
                    f"for models, {self._coming_bytes / 1e6:.1f} MB of it coming up now",
                    hint="give partita offload serve a larger --memory-mb",
                )
            self._coming_bytes += size_bytes
            self._make_room(0.0)

    def arrived(self, size_bytes: float) -> None:
        with self._lock:
            self._coming_bytes -= size_bytes

    def refuse_slow(self, model: str, cut: str, why: str) -> None:
        """Remember that this half took too long: it is not tried again."""
        with self._lock:
            if len(self._too_slow) >= _MOST_SLOW:
                self._too_slow.clear()
            self._too_slow[model, cut] = why

    def put(self, model: OnnxModel, size_bytes: float) -> None:
        """Keep a model. Raises NoRoom."""
        with self._lock:
            self._keep((model.hash, ""), _Entry(model, size_bytes))

    def name_cut(self, model: str, tasks: Iterable[str]) -> str:
        """Make a cut known; returns its id. Raises Unknown, WireError for a task that the model does not have."""
        with self._lock:
            entry = self._model_entry(model)
            index, own = entry.what.graph.index, entry.what.graph.tasks
            try:
                cut = frozenset(own[index[t]].id for t in tasks)
            except KeyError as error:
                raise WireError(f"the cut names the unknown task {error}", hint="plan again for this model") from error
            if (len(entry.cuts) + 1) * len(own) > _MOST_CUT_TASKS:
                entry.cuts.clear()
            entry.cuts[cut_id(cut)] = cut
        return cut_id(cut)

    def model(self, model: str) -> OnnxModel:
        """Raises Unknown."""
        with self._lock:
            found: OnnxModel = self._model_entry(model).what
        return found

    def session(self, model: str, cut: str, limit: TimeLimit | None = None) -> Session:
        """The server's half of a model, built and run once at first use.

        Raises Unknown, NoRoom, Busy, CaptureError, TookTooLong.
        """
        why = self._too_slow.get((model, cut))
        if why is not None:
            raise TookTooLong(why)
        found = self._find(model, cut)
        if found is not None:
            return found
        if not self._building.acquire(timeout=limit.seconds if limit else -1):
            raise Busy("the server is busy building the sessions of others")
        try:
            found = self._find(model, cut)
            if found is not None:
                return found
            if limit:
                limit.begin()  # having waited is no fault of this half
            return self._build(model, cut, limit)
        finally:
            self._building.release()

    def _find(self, model: str, cut: str) -> Session | None:
        with self._lock:
            entry = self._entries.get((model, cut)) if cut else None
            if entry is None:
                return None
            self._entries.move_to_end((model, cut))
            found: Session = entry.what
            return found

    def _build(self, model: str, cut: str, limit: TimeLimit | None) -> Session:
        """Its memory: the half's bytes, or what the process grew by, if that is more."""
        with self._lock:
            entry = self._model_entry(model)
            tasks = entry.cuts.get(cut)
        if tasks is None:
            raise Unknown(f"the server does not know the cut {cut} of model {model[:12]}")
        before = resident_bytes()
        half = entry.what.halves(tasks).server
        if half is None:
            raise Unknown(f"the cut {cut} of model {model[:12]} leaves nothing for the server")
        session = Session(half, f"the server's half of {entry.what.name}", limit)
        session.warm(limit, self.most_bytes)
        grown = max(float(len(half)), resident_bytes() - before)
        with self._lock:
            self._keep((model, cut), _Entry(session, grown))
        return session

    def _model_entry(self, model: str) -> _Entry:
        entry = self._entries.get((model, ""))
        if entry is None:
            raise Unknown(f"the server does not hold model {model[:12]}")
        self._entries.move_to_end((model, ""))
        return entry

    def _keep(self, key: _Key, entry: _Entry) -> None:
        """Add an entry; the least recently used make room, but never the model of a session that is being added."""
        old = self._entries.pop(key, None)
        if old is not None:
            self.used_bytes -= old.bytes
            entry.cuts.update(old.cuts)
        parent = self._entries.get((key[0], "")) if key[1] else None
        needed = entry.bytes + (parent.bytes if parent else 0.0)
        if needed > self.most_bytes:
            raise NoRoom(
                f"a model needs {needed / 1e6:.1f} MB; the server has {self.most_bytes / 1e6:.1f} MB for models",
                hint="give partita offload serve a larger --memory-mb",
            )
        self._make_room(entry.bytes, (key[0], ""))
        self._entries[key] = entry
        self.used_bytes += entry.bytes

    def _make_room(self, size_bytes: float, kept: _Key = ("", "")) -> None:
        """Drop the least recently used until so much more fits beside what is coming up."""
        for other in list(self._entries):
            if self.used_bytes + self._coming_bytes + size_bytes <= self.most_bytes:
                return
            if other != kept:
                self.used_bytes -= self._entries.pop(other).bytes
                self.evictions += 1


def resident_bytes() -> float:
    """Memory of this process."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return float(line.split()[1]) * 1024
    return 0.0
